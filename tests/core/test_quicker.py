"""What numpipe puts in the place of parts of Numba while it compiles: the same answers, and Numba's own again afterwards."""

from __future__ import annotations

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
from numpipe.compile.build import toolchain

if toolchain() is not None:
    pytest.skip(f"no compiler: {toolchain()}", allow_module_level=True)

from numba import cuda
from numba.cuda.core import errors

from numpipe.core.numba import hopper, quicker
from tests.code_digests import plain
from tests.kernels.kernels_for_tests import SMALL, gemm

T16 = ArrayType((512, 512), np.float16)
NUMBAS: dict[str, Any] = {name: getattr(owner, name) for owner, name, _ in quicker.replacements}
OURS: dict[str, Any] = {name: value for _, name, value in quicker.replacements}


def compiled_with(monkeypatch: pytest.MonkeyPatch, **instead: Any) -> Any:
    """A product, compiled anew with these replacements in the place of numpipe's."""
    monkeypatch.setattr(quicker, "replacements", tuple((owner, name, instead.get(name, value))
                                                       for owner, name, value in quicker.replacements))
    return numpipe.Kernel(gemm().function, gemm().options).compiled(T16, T16, cfg=SMALL)


def test_numba_is_left_as_it_was() -> None:
    with hopper.compiling_for():
        assert all(getattr(owner, name) is value for owner, name, value in quicker.replacements)
    assert all(getattr(owner, name) is NUMBAS[name] for owner, name, _ in quicker.replacements)


OLD = "old = getattr(np, '__getattr__', None); np.__getattr__ = lambda name: warnings.warn(name, DeprecationWarning)"


@pytest.mark.parametrize("numpys", [
    "vars(np).pop('row_stack', None)",  # as NumPy 2.5
    f"vars(np).pop('row_stack', None); {OLD} if name == 'row_stack' else old(name)",
    "np.row_stack = lambda arrays: None",
], ids=["dropped", "deprecated", "there"])
def test_numpy_has_the_name_that_numba_looks_up_while_it_is_imported_and_no_longer(numpys: str) -> None:
    program = (f"import warnings; import numpy as np; {numpys}; before = vars(np).get('row_stack'); import numpipe.core.numba; "
               "assert vars(np).get('row_stack') is before; print('imported')")
    ran = subprocess.run([sys.executable, "-W", "error:row_stack:DeprecationWarning", "-c", program], capture_output=True,
                         text=True)
    assert ran.stdout == "imported\n", ran.stderr


def in_another_thread(work: Callable[[], Any]) -> Any:
    """What `work` returns or raises in a thread that begins while numpipe compiles, and has half a second of that time."""
    answers: list[Any] = []

    def run() -> None:
        try:
            answers.append(work())
        except Exception as error:
            answers.append(error)

    thread = threading.Thread(target=run)
    with hopper.compiling_for():
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


def test_a_plain_kernel_of_another_thread_shows_its_ptx_and_is_for_its_own_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numba holds no lock where it looks at what is compiled."""
    monkeypatch.setattr(hopper.dispatcher, "get_current_device", lambda: types.SimpleNamespace(compute_capability=(8, 0)))
    library = hopper.compiler.compile_cuda(both_kinds, cuda.types.void, BOTH_KINDS.args, cc=(8, 0)).library
    device, ptx = in_another_thread(lambda: (hopper.dispatcher.get_current_device().compute_capability,
                                             library.get_asm_str(cc=(8, 0))))
    assert device == (8, 0) and ".target sm_80" in ptx


def test_each_answer_is_numbas(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = {"values": 0, "_escape_string": 0, "_has_loc": 0, "pysignature": 0, "get_mangle_string": 0}

    def both(name: str) -> Any:
        def answer(*given: Any) -> Any:
            asked[name] += 1
            found, wanted = OURS[name](*given), NUMBAS[name](*given)
            assert found == wanted
            return found

        return answer

    def without(name: str) -> Any:
        def unchanged(func_ir: Any) -> Any:
            before = [list(map(str, block.body)) for block in func_ir.blocks.values()]
            after = NUMBAS[name](func_ir)
            assert [list(map(str, block.body)) for block in after.blocks.values()] == before
            return after

        return unchanged

    peepholes = ("peep_hole_delete_with_exit", "peep_hole_fuse_dict_add_updates")
    compiled_with(monkeypatch, **{name: both(name) for name in asked}, **{name: without(name) for name in peepholes})
    assert min(asked.values()) > 10


def test_the_code_is_that_of_numbas_own_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = (plain(compiled_with(monkeypatch, **instead).ptx) for instead in ({}, NUMBAS))
    assert ours == theirs and ours.count("wgmma.mma_async") == 4


def test_an_error_has_the_context_that_numba_gives_it() -> None:
    def told(context: Any, error: Exception) -> str:
        with pytest.raises(type(error)) as raised, context("typing of {0} at {line}", "x = {}", line=7):
            raise error
        return str(raised.value)

    for kind in (errors.TypingError, ValueError):
        ours, theirs = (told(context, kind("no")) for context in (quicker.ErrorContext, NUMBAS["new_error_context"]))
        assert ours == theirs and ("x = {} at 7" in ours) == (kind is errors.TypingError)


def test_a_code_generator_that_takes_a_place_is_told_from_one_that_does_not() -> None:
    assert OURS["_has_loc"](lambda context, builder, sig, args, loc: None)
    assert not OURS["_has_loc"](lambda context, builder, sig, args: None)
