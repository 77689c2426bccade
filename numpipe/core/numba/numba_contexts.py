"""Numba contexts for kernels, which know only what kernels use, and not everything that Numba knows
of Python and NumPy.

Numba's own contexts import and install everything before they are first used: libdevice, CUDA's
vector and half-precision types, strings, array functions. Kernels need none of it, because
operations have their own implementations, and it takes an eighth of the first compile. A kernel
that does not compile with these contexts is compiled again with Numba's own, so they refuse nothing
that Numba accepts. They also never generate different code: half precision, which Numba's general
implementations would compile differently, is refused here.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

from numba.cuda import cudadecl, cudaimpl, cudamath, printimpl, types
from numba.cuda import mathimpl as cuda_mathimpl
from numba.cuda.core import optional
from numba.cuda.core.compiler_lock import global_compiler_lock
from numba.cuda.core.errors import NumbaNotImplementedError
from numba.cuda.cpython import builtins, iterators, numbers, rangeobj, slicing, tupleobj
from numba.cuda.descriptor import CUDATarget, cuda_target
from numba.cuda.target import CUDATargetContext, CUDATypingContext
from numba.cuda.typing import enumdecl, npydecl

from ...arch.dimensions import Ints
from ..process_guards import uninterrupted
from .kernel_entries import drop_all

__all__ = ["learn_all", "own_contexts"]

_TYPING = (cudadecl, cudamath, npydecl, enumdecl)
_LOWERING = (
    cudaimpl,
    printimpl,
    numbers,
    optional,
    cuda_mathimpl,
    slicing,
    iterators,
    tupleobj,
    rangeobj,
    builtins,
)


def in_this_thread(ours: Callable, numbas: Callable) -> Callable:
    """Return a function that calls `ours` in the compiling thread, and Numba's own function in
    other threads, because Numba also calls it without holding its lock."""
    thread = threading.get_ident()

    def either(*args: Any, **named: Any) -> Any:
        return (ours if threading.get_ident() == thread else numbas)(*args, **named)

    return either


class _Typing(CUDATypingContext):  # type: ignore[misc]
    def __init__(self) -> None:
        self.resolved: dict[Ints, tuple[Any, Any, Any]] = {}
        """signatures of calls in one compile, by the ids of the function and its argument types;
        both are stored with the signature, so that ids stay valid"""
        super().__init__()

    def resolve_function_type(self, func: Any, args: Any, kws: Any) -> Any:
        """Return the signature of a call, cached, because Numba's inference repeats until nothing
        changes and asks three times."""
        if isinstance(func, types.Dispatcher) and not isinstance(
            func.dispatcher.targetctx, _Target
        ):
            raise NumbaNotImplementedError(
                "a function of @cuda.jit: Numba's kernels call it too, and it is compiled for both"
            )
        if kws:
            return super().resolve_function_type(func, args, kws)
        key = (id(func), *map(id, args))
        known = self.resolved.get(key)
        if known is None:
            sig = super().resolve_function_type(func, args, kws)
            if sig is None:  # not resolved yet
                return None
            known = self.resolved[key] = sig, func, args
        return known[0]

    def load_additional_registries(self) -> None:
        for module in _TYPING:
            self.install_registry(module.registry)


class _Target(CUDATargetContext):  # type: ignore[misc]
    def load_additional_registries(self) -> None:
        for module in _LOWERING:
            self.install_registry(module.registry)

    def cast(self, builder: Any, value: Any, fromty: Any, toty: Any) -> Any:
        if fromty != toty and types.float16 in (fromty, toty):
            raise NumbaNotImplementedError(f"cast of {fromty} to {toty}")
        return super().cast(builder, value, fromty, toty)


class _Own:
    """The contexts of this process. None after a kernel needed more than they know; Numba's own are
    used from then on."""

    contexts: tuple[_Typing, _Target] | None = None


@contextlib.contextmanager
def own_contexts() -> Iterator[None]:
    """Make Numba use these contexts in this thread, if they are still in use. The caller must hold
    Numba's lock."""
    with contextlib.ExitStack() as undo:
        for name, ours in zip(
            ("typing_context", "target_context"), _Own.contexts or (), strict=False
        ):
            numbas = vars(CUDATarget)[name]
            undo.callback(setattr, CUDATarget, name, numbas)
            setattr(
                CUDATarget, name, property(in_this_thread(lambda _, ours=ours: ours, numbas.fget))
            )
        if _Own.contexts is not None:
            undo.callback(_Own.contexts[0].resolved.clear)
        yield


def learn_all() -> bool:
    """Make all later compiles of this process use Numba's own contexts. Return whether they did not
    already."""
    own_in_use, _Own.contexts = _Own.contexts is not None, None
    if own_in_use:
        drop_all()
        with uninterrupted():
            # imports Numba's implementations of Python functions, as its first compile would
            cuda_target.target_context.refresh()
    return own_in_use


_typing = _Typing()
_Own.contexts = (_typing, _Target(_typing))
with global_compiler_lock, own_contexts():
    _Own.contexts[1].refresh()
