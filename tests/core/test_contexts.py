"""What numpipe changes in Numba while it compiles a kernel does not affect plain Numba kernels."""

from __future__ import annotations

import operator
import os
import subprocess
import sys
import threading
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import numpipe
from numpipe import ArrayType
from numpipe.arch.targets import HOPPER
from numpipe.compile.build import toolchain

if toolchain() is not None:
    pytest.skip(f"no compiler: {toolchain()}", allow_module_level=True)

from numba import cuda
from numba.cuda.core import errors
from numba.cuda.descriptor import cuda_target
from numba.cuda.target import CUDATargetContext

from numpipe.core.numba import kernel_compiler, numba_contexts
from tests.code_digests import plain
from tests.kernels.kernels_for_tests import SMALL, gemm

T16 = ArrayType((512, 512), np.float16)


def compiled() -> Any:
    """Compile a new product."""
    return numpipe.Kernel(gemm().function, gemm().options).compiled(T16, T16, cfg=SMALL)


def test_numba_is_left_as_it_was() -> None:
    def names() -> list[Any]:
        return [
            kernel_compiler.dispatcher.get_current_device,
            kernel_compiler.compiler.CUDACompiler,
            kernel_compiler.config.reload_config,
            kernel_compiler.codegen.CUDACodeLibrary.get_asm_str,
            kernel_compiler.types.Number.unify,
        ]

    before = names()
    with kernel_compiler.compiling_for(HOPPER):
        assert not any(now is then for now, then in zip(names(), before, strict=True))
    assert names() == before


OLD = (
    "old = getattr(np, '__getattr__', None); np.__getattr__ = lambda name: warnings.warn(name, "
    "DeprecationWarning)"
)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "numpys",
    [
        "vars(np).pop('row_stack', None)",  # as NumPy 2.5
        f"vars(np).pop('row_stack', None); {OLD} if name == 'row_stack' else old(name)",
        "np.row_stack = lambda arrays: None",
    ],
    ids=["dropped", "deprecated", "there"],
)
def test_numpy_has_the_name_that_numba_looks_up_while_it_is_imported_and_no_longer(
    numpys: str,
) -> None:
    program = (
        f"import warnings; import numpy as np; {numpys}; before = vars(np).get('row_stack'); "
        "import numpipe.core.numba; assert vars(np).get('row_stack') is before; print('imported')"
    )
    ran = subprocess.run(
        [sys.executable, "-W", "error:row_stack:DeprecationWarning", "-c", program],
        capture_output=True,
        text=True,
    )
    assert ran.stdout == "imported\n", ran.stderr


def in_another_thread(work: Callable[[], Any]) -> Any:
    """Return or raise the result of `work`, run in a thread while numpipe compiles.

    The thread begins during the compile and has half a second of its time.
    """
    answers: list[Any] = []

    def run() -> None:
        try:
            answers.append(work())
        except Exception as error:
            answers.append(error)

    thread = threading.Thread(target=run)
    with kernel_compiler.compiling_for(HOPPER):
        thread.start()
        thread.join(0.5)
    thread.join()
    return answers[0]


def both_kinds(out: Any, chosen: Any) -> None:
    out[0] = np.int32(1) if chosen > 0 else np.float32(0.5)


BOTH_KINDS = cuda.types.void(cuda.types.float64[::1], cuda.types.int32)


def test_a_plain_kernel_of_another_thread_is_compiled_as_numba_compiles_it() -> None:
    wanted = cuda.compile_ptx(both_kinds, BOTH_KINDS, cc=(8, 0))[0]
    found = in_another_thread(lambda: cuda.compile_ptx(both_kinds, BOTH_KINDS, cc=(8, 0))[0])
    assert isinstance(found, str), found
    assert ".target sm_80" in found and found.count("st.global") == wanted.count("st.global") > 0


def test_a_plain_kernel_of_another_thread_shows_its_ptx_and_is_for_its_own_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Numba holds no lock where it reads what is being compiled."""
    monkeypatch.setattr(
        kernel_compiler.dispatcher,
        "get_current_device",
        lambda: types.SimpleNamespace(compute_capability=(8, 0)),
    )
    library = kernel_compiler.compiler.compile_cuda(
        both_kinds, cuda.types.void, BOTH_KINDS.args, cc=(8, 0)
    ).library
    device, ptx = in_another_thread(
        lambda: (
            kernel_compiler.dispatcher.get_current_device().compute_capability,
            library.get_asm_str(cc=(8, 0)),
        )
    )
    assert device == (8, 0) and ".target sm_80" in ptx


# ---- contexts with less than Numba's
@pytest.mark.thorough
def test_a_first_compile_leaves_out_meanings_that_kernels_do_not_need() -> None:
    """Numba's half precision, libdevice and strings: installing them takes a tenth of a second."""
    code = (
        "import sys, numpipe, numpy as np; from tests.kernels.kernels_for_tests import SMALL, "
        "gemm; a = numpipe.ArrayType((512, 512), np.float16); gemm().inspect('resources', a, a, "
        "cfg=SMALL); print(sorted(sys.modules.keys() & {'numba.cuda.fp16', "
        "'numba.cuda.libdevicedecl', 'numba.cuda.vector_types'}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"NUMPIPE_CACHE": "0"},
    )
    assert done.stdout.strip() == "[]", done.stdout


@pytest.mark.thorough
def test_a_kernel_that_they_do_not_compile_is_compiled_with_numbas_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If the reduced contexts fail, nothing is reported, and the code is the same."""
    monkeypatch.setattr(numba_contexts._Own, "contexts", numba_contexts._Own.contexts)
    own = compiled().ptx
    asked: list[str] = []

    def refused(self: Any, fn: Any, sig: Any, _firstcall: bool = True) -> Any:
        asked.append(str(fn))
        raise NotImplementedError("a meaning that is not here")

    monkeypatch.setattr(numba_contexts._Target, "get_function", refused)
    monkeypatch.setattr(
        numba_contexts._Own,
        "contexts",
        (numba_contexts._typing, numba_contexts._Target(numba_contexts._typing)),
    )
    numbas = compiled().ptx
    assert len(asked) == 1 and numba_contexts._Own.contexts is None
    assert plain(own) == plain(numbas)


def test_they_refuse_half_precision_which_they_would_convert_in_another_way() -> None:
    with pytest.raises(errors.NumbaNotImplementedError, match="float16"):
        numba_contexts._Target(numba_contexts._typing).cast(
            None, None, numba_contexts.types.float16, numba_contexts.types.float32
        )


def test_signatures_of_calls_are_remembered_while_one_kernel_is_compiled() -> None:
    typing = numba_contexts._typing
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(numba_contexts._Own, "contexts", (typing, numba_contexts._Target(typing)))
        with numba_contexts.own_contexts():
            add = typing.resolve_value_type(operator.add)
            ints = (numba_contexts.types.int32, numba_contexts.types.int32)
            first = typing.resolve_function_type(add, ints, {})
            assert (
                typing.resolve_function_type(add, ints, {}) is first
                and first.args == (numba_contexts.types.int64,) * 2
            )
            with pytest.raises(Exception, match="No implementation"):
                typing.resolve_function_type(
                    add, (numba_contexts.types.int32, numba_contexts.types.none), {}
                )
            assert len(typing.resolved) == 1
        assert not typing.resolved


def test_a_plain_kernel_of_numba_gets_numbas_contexts(monkeypatch: pytest.MonkeyPatch) -> None:
    # whatever was installed before
    monkeypatch.setattr(
        numba_contexts._Own,
        "contexts",
        (numba_contexts._typing, numba_contexts._Target(numba_contexts._typing)),
    )
    with numba_contexts.own_contexts():
        own = cuda_target.target_context
        other: list[Any] = []
        thread = threading.Thread(target=lambda: other.append(cuda_target.target_context))
        thread.start()
        thread.join()
    assert (
        type(other[0]) is type(cuda_target.target_context) is CUDATargetContext
        and type(own) is numba_contexts._Target
    )


@cuda.jit(device=True)
def successor(n: Any) -> Any:
    return n + 1


@numpipe.kernel
def calls_successor(a, c):
    c[numpipe.ds(successor(a.shape[0]), 64), numpipe.ds(0, 64)] = numpipe.zeros(
        (64, 64), np.float32
    )


def test_a_function_of_cuda_jit_serves_kernels_of_both(monkeypatch: pytest.MonkeyPatch) -> None:
    """The function remembers its types, though not its contexts, and is used in contexts of Numba's
    kernels too."""
    # whatever was installed before
    monkeypatch.setattr(
        numba_contexts._Own,
        "contexts",
        (numba_contexts._typing, numba_contexts._Target(numba_contexts._typing)),
    )
    single = ArrayType((64, 64), np.float32)
    assert "st." in calls_successor.compiled(single, single).ptx
    monkeypatch.setattr(
        kernel_compiler.dispatcher,
        "get_current_device",
        lambda: types.SimpleNamespace(compute_capability=(9, 0)),
    )

    def plain_kernel(out: Any, n: Any) -> None:
        out[0] = successor(n)

    signature = cuda.types.void(cuda.types.int64[::1], cuda.types.int32)
    assert "st.global" in cuda.compile_ptx(plain_kernel, signature, cc=(9, 0))[0]
