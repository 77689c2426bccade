"""What numpipe puts in the place of parts of Numba while it compiles: the same answers, and Numba's own again afterwards."""

from __future__ import annotations

import functools
import inspect
import operator
import os
import pkgutil
import subprocess
import sys
import threading
import types
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from importlib import metadata
from typing import Any

import numpy as np
import pytest

import numpipe
from numpipe import ArrayType
from numpipe.compile.build import toolchain

if toolchain() is not None:
    pytest.skip(f"no compiler: {toolchain()}", allow_module_level=True)

from numba import cuda
from numba.cuda.core import bytecode, byteflow, errors, postproc
from numba.cuda.descriptor import cuda_target
from numba.cuda.flags import CUDAFlags
from numba.cuda.target import CUDATargetContext

from numpipe.core.numba import contexts, kernels, quicker
from tests.code_digests import plain
from tests.kernels.kernels_for_tests import SMALL, gemm

T16 = ArrayType((512, 512), np.float16)
NUMBAS: dict[tuple[str, str], Any] = {(owner.__name__, name): getattr(owner, name) for owner, name, _ in quicker.replacements()}


def compiled() -> Any:
    """A product, compiled anew."""
    return numpipe.Kernel(gemm().function, gemm().options).compiled(T16, T16, cfg=SMALL)


def test_numba_is_left_as_it_was() -> None:
    with kernels.compiling_for():
        assert all(getattr(owner, name) is value for owner, name, value in quicker.replacements())
    assert all(getattr(owner, name) is NUMBAS[owner.__name__, name] for owner, name, _ in quicker.replacements())


def test_the_replacements_were_compared_with_the_versions_of_numba_cuda_that_numpipe_allows() -> None:
    """0.30.2, 0.30.3 and 0.30.4 have the same source of all that they stand for; of numba and llvmlite they replace nothing."""
    assert [quicker.digest(functions) for _, _, functions in quicker.TABLE] == [known for _, known, _ in quicker.TABLE]
    assert len(NUMBAS) == len(quicker.TABLE) == 13


@pytest.fixture
def another_numba(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """A version of Numba whose `PostProcessor.run` is written otherwise; what was run of it."""
    ran: list[str] = []

    def otherwise_written(self: Any, emit_dels: bool = False, extend_lifetimes: bool = False) -> None:
        ran.append(self.func_ir.func_id.func_name)
        NUMBAS["PostProcessor", "run"](self, emit_dels, extend_lifetimes)

    monkeypatch.setattr(postproc.PostProcessor, "run", otherwise_written)
    quicker.replacements.cache_clear()
    yield ran
    quicker.replacements.cache_clear()


@pytest.mark.thorough
def test_where_numba_is_another_its_own_code_compiles_the_same_kernel_and_one_warning_says_so(another_numba: list[str]) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        built = [compiled() for _ in range(2)]
    told = [str(warning.message) for warning in caught if "numba-cuda" in str(warning.message)]
    assert len(told) == 1 and " PostProcessor.run " in told[0] and metadata.version("numba-cuda") in told[0]
    assert len(another_numba) > 20 and quicker.replacements() == ()
    quicker.replacements.cache_clear()
    with pytest.MonkeyPatch.context() as as_it_was:
        as_it_was.setattr(postproc.PostProcessor, "run", NUMBAS["PostProcessor", "run"])
        ours = compiled()
    assert [plain(one.ptx) for one in built] == [plain(ours.ptx)] * 2 and ours.ptx.count("wgmma.mma_async") == 4


@pytest.mark.parametrize("path", ["core.postproc:PostProcessor.gone", "core.gone:PostProcessor.run"])
def test_a_function_that_numba_has_not_is_another_one(path: str) -> None:
    assert quicker.digest((path,)) == ""


OLD = "old = getattr(np, '__getattr__', None); np.__getattr__ = lambda name: warnings.warn(name, DeprecationWarning)"


@pytest.mark.variants(1)
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
    with kernels.compiling_for():
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
    monkeypatch.setattr(kernels.dispatcher, "get_current_device", lambda: types.SimpleNamespace(compute_capability=(8, 0)))
    library = kernels.compiler.compile_cuda(both_kinds, cuda.types.void, BOTH_KINDS.args, cc=(8, 0)).library
    device, ptx = in_another_thread(lambda: (kernels.dispatcher.get_current_device().compute_capability,
                                             library.get_asm_str(cc=(8, 0))))
    assert device == (8, 0) and ".target sm_80" in ptx


# ---- contexts that know less than Numba's
def test_a_first_compile_leaves_out_meanings_that_kernels_do_not_need() -> None:
    """Half precision, libdevice and strings of Numba: importing and installing them takes a tenth of a second."""
    code = ("import sys, numpipe, numpy as np; from tests.kernels.kernels_for_tests import SMALL, gemm; "
            "a = numpipe.ArrayType((512, 512), np.float16); gemm().inspect('resources', a, a, cfg=SMALL); "
            "print(sorted(sys.modules.keys() & {'numba.cuda.fp16', 'numba.cuda.libdevicedecl', 'numba.cuda.vector_types'}))")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True,
                          env=os.environ | {"NUMPIPE_CACHE": "0"})
    assert done.stdout.strip() == "[]", done.stdout


@pytest.mark.thorough
def test_a_kernel_that_they_do_not_compile_is_compiled_with_numbas_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A question that they refuse: nobody is told, and the code is the same."""
    monkeypatch.setattr(contexts._Own, "contexts", contexts._Own.contexts)
    own = compiled().ptx
    asked: list[str] = []

    def refused(self: Any, fn: Any, sig: Any, _firstcall: bool = True) -> Any:
        asked.append(str(fn))
        raise NotImplementedError("a meaning that is not here")

    monkeypatch.setattr(contexts._Target, "get_function", refused)
    monkeypatch.setattr(contexts._Own, "contexts", (contexts._typing, contexts._Target(contexts._typing)))
    numbas = compiled().ptx
    assert len(asked) == 1 and contexts._Own.contexts is None
    assert plain(own) == plain(numbas)


def test_they_refuse_half_precision_which_they_would_convert_in_another_way() -> None:
    with pytest.raises(errors.NumbaNotImplementedError, match="float16"):
        contexts._Target(contexts._typing).cast(None, None, contexts.types.float16, contexts.types.float32)


def test_signatures_of_calls_are_remembered_while_one_kernel_is_compiled() -> None:
    typing = contexts._typing
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(contexts._Own, "contexts", (typing, contexts._Target(typing)))
        with contexts.own_contexts():
            add, ints = typing.resolve_value_type(operator.add), (contexts.types.int32, contexts.types.int32)
            first = typing.resolve_function_type(add, ints, {})
            assert typing.resolve_function_type(add, ints, {}) is first and first.args == (contexts.types.int64,) * 2
            with pytest.raises(Exception, match="No implementation"):
                typing.resolve_function_type(add, (contexts.types.int32, contexts.types.none), {})
            assert len(typing.resolved) == 1
        assert not typing.resolved


def test_a_plain_kernel_of_numba_gets_numbas_contexts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contexts._Own, "contexts", (contexts._typing, contexts._Target(contexts._typing)))  # whatever came before
    with contexts.own_contexts():
        own = cuda_target.target_context
        other: list[Any] = []
        thread = threading.Thread(target=lambda: other.append(cuda_target.target_context))
        thread.start()
        thread.join()
    assert type(other[0]) is type(cuda_target.target_context) is CUDATargetContext and type(own) is contexts._Target


@cuda.jit(device=True)
def successor(n: Any) -> Any:
    return n + 1


@numpipe.kernel(num_compute_wgs=1)
def calls_successor(a, c):
    c[numpipe.ds(successor(a.shape[0]), 64), numpipe.ds(0, 64)] = numpipe.zeros((64, 64), np.float32)


def test_a_function_of_cuda_jit_serves_kernels_of_both(monkeypatch: pytest.MonkeyPatch) -> None:
    """It remembers for which types it was compiled, though not with which contexts: with those that Numba's kernels use, too."""
    monkeypatch.setattr(contexts._Own, "contexts", (contexts._typing, contexts._Target(contexts._typing)))  # whatever came before
    single = ArrayType((64, 64), np.float32)
    assert "st." in calls_successor.compiled(single, single).ptx
    monkeypatch.setattr(kernels.dispatcher, "get_current_device", lambda: types.SimpleNamespace(compute_capability=(9, 0)))

    def plain_kernel(out: Any, n: Any) -> None:
        out[0] = successor(n)

    signature = cuda.types.void(cuda.types.int64[::1], cuda.types.int32)
    assert "st.global" in cuda.compile_ptx(plain_kernel, signature, cc=(9, 0))[0]


def test_what_one_compile_found_is_dropped_with_it() -> None:
    seen: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quicker, "forget", lambda forget=quicker.forget: (seen.append(len(quicker._flows)), forget()))
        compiled()
    assert seen[0] and not quicker._flows


# ---- each does what Numba's does
def test_the_source_of_a_function_is_what_inspect_finds() -> None:
    for _, _, functions in quicker.TABLE:
        for path in functions:
            function = pkgutil.resolve_name(f"numba.cuda.{path}")
            assert quicker.source_of(function) == inspect.getsource(function)
    with pytest.raises(OSError, match="no source"):
        quicker.source_of(eval("lambda: None"))


def test_the_blocks_of_bytecode_are_found_once_and_are_those_that_numba_finds() -> None:
    def function(a: Any, b: Any) -> Any:
        for number in range(a):
            if number > b and b:
                a = a if number else (b, 1)
        return a

    def flow() -> Any:
        return byteflow.Flow(bytecode.ByteCode(bytecode.FunctionIdentity.from_function(function)))

    numbas, ours, again = flow(), flow(), flow()
    numbas.run()
    try:
        quicker.find_flow(ours)
        quicker.find_flow(again)
        assert again.block_infos is ours.block_infos and len(quicker._flows) == 1
        assert dict(ours.block_infos) == dict(numbas.block_infos)
        assert [*ours.cfgraph.nodes()] == [*numbas.cfgraph.nodes()]
        assert ours.cfgraph.backbone() == numbas.cfgraph.backbone()
    finally:
        quicker.forget()


def test_flags_are_the_same_and_have_the_same_hash_as_in_numba() -> None:
    def made(**values: Any) -> Any:
        flags = CUDAFlags()
        for name, value in values.items():
            setattr(flags, name, value)
        return flags

    several = [made(), made(lto=True), made(lto=False), made(lto=True, fastmath=False), made(inline="never")]
    for one in several:
        assert quicker.hash_of_flags(one) == hash(one)
        assert [quicker.same_flags(one, other) for other in several] == [one == other for other in several]
    assert quicker.same_flags(several[0], several[2]) and not quicker.same_flags(several[0], several[1])
    assert quicker.same_flags(several[0], 1) is NotImplemented


def test_a_code_generator_gets_a_location_where_it_takes_one() -> None:
    def takes(context: Any, *, loc: Any = None) -> Any:
        return context, loc

    def takes_none(context: Any) -> Any:
        return context

    def call(function: Any) -> Any:
        return quicker.without_location(types.SimpleNamespace(func=function))("context", loc=3)

    assert call(takes) == ("context", 3) and call(takes_none) == "context"
    assert call(functools.wraps(takes)(lambda *args, **named: takes(*args, **named))) == ("context", 3)
    assert call(functools.partial(takes)) == ("context", 3) and call(functools.partial(takes_none)) == "context"


def test_what_is_quicker_answers_as_numbas_own_in_every_function_of_a_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """The variables of every statement, and those that need no memory."""
    asked: Counter[str] = Counter()

    def beside(ours: Any, numbas: Any, answer: Callable[[Any, Any], Any]) -> Any:
        def both(*args: Any) -> Any:
            found = answer(ours(*args), args[0])
            assert found == answer(numbas(*args), args[0])
            asked[ours.__name__] += 1
            return ours(*args)

        return both

    table = [(ours if ours.__name__ not in ANSWERS else beside(
        ours, pkgutil.resolve_name(f"numba.cuda.{first}"), ANSWERS[ours.__name__]), known, (first, *rest))
             for ours, known, (first, *rest) in quicker.TABLE]
    monkeypatch.setattr(quicker, "TABLE", table)
    quicker.replacements.cache_clear()
    try:
        compiled()
    finally:
        quicker.replacements.cache_clear()
    assert asked["find_singly_assigned"] > 20 and asked["list_variables"] > 1000


ANSWERS: dict[str, Callable[[Any, Any], Any]] = {
    "list_variables": lambda found, _: [variable.name for variable in found],
    "find_singly_assigned": lambda _, lower: set(lower._singly_assigned_vars)}
