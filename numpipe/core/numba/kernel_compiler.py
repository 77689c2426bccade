"""Numba's compiler down to LLVM IR, for a given architecture, with or without a GPU."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any, ClassVar

from numba import cuda
from numba.cuda import codegen, compiler, dispatcher, types
from numba.cuda.core import config, ir, typed_passes, untyped_passes
from numba.cuda.core.compiler_lock import global_compiler_lock
from numba.cuda.core.compiler_machinery import AnalysisPass, register_pass
from numba.cuda.cudadrv import nvvm

from ...arch.target import Target
from ..instrumentation import INSTRUMENTATION, NOTHING, Instrumentation
from . import lines
from .kernel_entries import drop_entries
from .lines import Place
from .machine_code import rewrite_ir
from .numba_contexts import in_this_thread, own_contexts

__all__ = ["Typed", "compile_kernel", "compiling_for", "rename"]

Typed = Callable[[Any, dict[str, Any]], None]
"""called with each typed function: its IR, in SSA form, and the type of each variable"""
_listeners: list[Typed] = []


@register_pass(mutates_CFG=False, analysis_only=True)
class _CallListeners(AnalysisPass):  # type: ignore[misc]
    """Calls `_listeners` with a function while its phi nodes still exist."""

    _name = "numpipe_listeners"

    def __init__(self) -> None:
        AnalysisPass.__init__(self)

    def run_pass(self, state: Any) -> bool:
        for listener in _listeners:
            listener(state.func_ir, state.typemap)
        return False


class _Compiler(compiler.CUDACompiler):  # type: ignore[misc]
    """Numba's passes without those that kernels do not need, each of which takes milliseconds per
    function.

    The AST pass refuses closures, comprehensions and `with`. Nothing in kernels asks Numba to
    inline or to unroll over types, and literals have literal types from the start. Kernels have no
    array expressions or string keys, which some passes rewrite after inference. Nothing reads a
    listing with types, for which Numba keeps each function's IR. No value is reference-counted, so
    lowering need not know where a variable's lifetime ends.
    """

    _LEFT_OUT = (
        untyped_passes.IRProcessing,
        untyped_passes.WithLifting,
        untyped_passes.InlineClosureLikes,
        untyped_passes.MakeFunctionToJitFunction,
        untyped_passes.InlineInlinables,
        untyped_passes.FindLiterallyCalls,
        untyped_passes.LiteralUnroll,
        untyped_passes.LiteralPropagationSubPipelinePass,
        typed_passes.InlineOverloads,
        typed_passes.NopythonRewrites,
        typed_passes.IRLegalization,
        typed_passes.AnnotateTypes,
    )

    _managers: ClassVar[list] = []
    """shared by all functions"""

    def define_pipelines(self) -> list:
        if not self._managers:
            self._managers.extend(super().define_pipelines())
            for manager in self._managers:
                manager.passes = [
                    (one, name) for one, name in manager.passes if one not in self._LEFT_OUT
                ]
                typed = [one for one, _ in manager.passes].index(typed_passes.NopythonTypeInference)
                manager.passes.insert(
                    typed + 1, (_CallListeners, "call listeners with a typed function")
                )
                manager.finalize()
        return self._managers


@contextlib.contextmanager
def compiling_for(
    target: Target, few_meanings: bool = False, place: Place | None = None
) -> Iterator[None]:
    """Make Numba compile for an architecture, with or without a GPU, and include NVVM's log in its
    errors.

    Functions of Numba are replaced for the whole process, so this holds Numba's own lock: a plain
    `@cuda.jit` function in another thread is compiled before or after. Code inside the block must
    not take a lock that is held around a compile. At the end, Numba's entries about the kernel are
    dropped (`kernel_entries`).
    """
    if config.FORCE_CUDA_CC:
        raise RuntimeError(
            f"NUMBA_FORCE_CUDA_CC removes the 'a' from {target.name}, which architecture-specific "
            "instructions need: unset it"
        )
    library, device = codegen.CUDACodeLibrary, SimpleNamespace(compute_capability=target.capability)
    with global_compiler_lock, contextlib.ExitStack() as undo:
        if few_meanings:
            undo.enter_context(own_contexts())
        # only once, although Numba checks all environment variables before each function
        config.reload_config()
        undo.callback(drop_entries)
        # Numba would type a variable that has both as float64
        apart, unify = {types.int32, types.float32}, types.Number.unify
        for owner, name, value in (
            (
                dispatcher,
                "get_current_device",
                in_this_thread(lambda: device, dispatcher.get_current_device),
            ),
            (compiler, "CUDACompiler", _Compiler),
            # also for functions that kernels call, whatever NUMBA_CUDA_DEBUGINFO is
            (config, "CUDA_DEBUGINFO_DEFAULT", 0),
            # Numba's version needs the working directory, which may be gone
            (ir.Loc, "_get_path", lambda place: place.filename),
            (config, "reload_config", in_this_thread(lambda: None, config.reload_config)),
            # Numba only searches the PTX for runtime calls, which kernels never make
            (library, "get_asm_str", in_this_thread(lambda self, cc=None: "", library.get_asm_str)),
            (
                types.Number,
                "unify",
                lambda one, context, other: (
                    None if {one, other} == apart else unify(one, context, other)
                ),
            ),
            *(() if place is None else lines.replacements(place)),
        ):
            undo.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, value)
        yield


def _with_log(method: Callable) -> Callable:
    def wrapped(self: Any) -> Any:
        try:
            return method(self)
        except Exception as error:
            raise RuntimeError(f"NVVM: {self.get_log()}") from error

    return wrapped


nvvm.CompilationUnit.verify = _with_log(nvvm.CompilationUnit.verify)
nvvm.CompilationUnit.compile = _with_log(nvvm.CompilationUnit.compile)


class _Printed:
    """The text of a complete module, which replaces llvmlite's objects.

    A kernel compiled for `inspect` keeps its modules, and three quarters of its memory were these
    objects (4.9 MiB for a GEMM, of which 1.3 MiB remain). All functions have their linkage already,
    which is all that Numba would still set.
    """

    functions = ()

    def __init__(self, module: Any) -> None:
        self.text = str(module)
        # breaks reference cycles, so that instructions are freed at once and not by the garbage
        # collector
        for function in module.functions:
            for block in function.blocks:
                block.instructions.clear()

    def __str__(self) -> str:
        return self.text


def compile_kernel(
    entry: Callable,
    argtypes: Sequence,
    *,
    threads: int,
    ctas: int = 1,
    target: Target,
    typed: Typed | None = None,
    few_meanings: bool = False,
    place: Place | None = None,
    added: Instrumentation = NOTHING,
) -> Any:
    """Compile a `@cuda.jit` kernel of this signature down to LLVM IR, and return Numba's kernel
    object.

    launch_bounds are always set, because ptxas ignores setmaxnreg without them (C7508): `threads`
    per CTA, and at least `ctas` CTAs per SM, which have to share its registers. `typed` is
    called with each function that is typed. `few_meanings`: compile with `own_contexts`, which
    suffice for functions that only call numpipe's operations. If `place` is given, the machine code
    has a line table (`lines`). `added`: instrumentation of operations.
    """
    with compiling_for(target, few_meanings, place):
        # whatever NUMBA_CUDA_DEBUGINFO is
        dispatcher_ = cuda.jit(entry, launch_bounds=(threads, ctas), lto=True, debug=False)
        _listeners[:] = [] if typed is None else [typed]
        token = INSTRUMENTATION.set(added)
        try:
            kernel = dispatcher._Kernel(entry, tuple(argtypes), **dispatcher_.targetoptions)
        finally:
            _listeners.clear()
            INSTRUMENTATION.reset(token)
        # Numba's own table is kept alive by a finalizer of the dispatcher
        dispatcher_.overloads = {tuple(argtypes): kernel}
        kernel.dispatcher = dispatcher_
        _print_modules(kernel._codelibrary)
    return kernel


def rename(kernel: Any, name: str) -> None:
    """Rename a kernel's code before NVVM reads it. Every symbol that Numba makes begins with
    ``_ZN``."""
    old, library = kernel.entry_name, kernel._codelibrary
    rewrite_ir(library, lambda text: text.replace(f'"{old}"', f'"{name}"'))
    kernel.entry_name = library._entry_name = name


def _print_modules(library: Any) -> None:
    """Print each module of a kernel once. Numba would print a function's module once per path of
    calls to it."""
    libraries, known = [library], {library}
    for one in libraries:
        one._module = _Printed(one._module)
        libraries += one._linking_libraries - known
        known |= one._linking_libraries
    library._llvm_strs = [str(one._module) for one in libraries]
