"""Numba's contexts for kernels: they know what kernels are written with, and not all of Python and
NumPy that Numba knows.

Numba's own contexts import and install everything before they answer a first question: libdevice,
CUDA's vector and half precision types, strings, functions of arrays. Kernels need none of it,
because operations bring meanings of their own, and it takes an eighth of a first compile. A kernel
that these contexts do not compile is compiled again with Numba's own, so nothing is refused for
them; nor is code made another way: half precision, of which Numba's general meanings would make
something else, is what they refuse.
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


def in_this_thread(ours: Callable[..., Any], numbas: Callable[..., Any]) -> Callable[..., Any]:
    """Return `ours` for the thread that compiles, and Numba's own function for others: Numba calls
    it outside its lock, too."""
    thread = threading.get_ident()

    def either(*args: Any, **named: Any) -> Any:
        return (ours if threading.get_ident() == thread else numbas)(*args, **named)

    return either


class _Typing(CUDATypingContext):  # type: ignore[misc]
    def __init__(self) -> None:
        self.resolved: dict[tuple[int, ...], tuple[Any, Any, Any]] = {}
        """signatures of calls in one compile, by the ids of the function and of its arguments'
        types, which stand beside them"""
        super().__init__()

    def resolve_function_type(self, func: Any, args: Any, kws: Any) -> Any:
        """Return the signature of a call. Numba asks three times: its inference goes over a
        function until nothing changes."""
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
            if sig is None:  # no meaning so far
                return None
            known = self.resolved[key] = sig, func, args
        return known[0]

    def load_additional_registries(self) -> None:
        for module in _TYPING:
            self.install_registry(module.registry)


class _Target(CUDATargetContext):  # type: ignore[misc]
    def __init__(self, typing: _Typing) -> None:
        super().__init__(typing)
        self._sizes: dict[str, int] = {}
        """bytes of LLVM types: for each question llvmlite has LLVM parse a module"""

    def get_abi_sizeof(self, ty: Any) -> int:
        text = str(ty)
        if "%" in text:  # a name, which another module may give to another structure
            return super().get_abi_sizeof(ty)  # type: ignore[no-any-return]
        if text not in self._sizes:
            self._sizes[text] = super().get_abi_sizeof(ty)
        return self._sizes[text]

    def load_additional_registries(self) -> None:
        for module in _LOWERING:
            self.install_registry(module.registry)

    def cast(self, builder: Any, value: Any, fromty: Any, toty: Any) -> Any:
        if fromty != toty and types.float16 in (fromty, toty):
            raise NumbaNotImplementedError(f"cast of {fromty} to {toty}")
        return super().cast(builder, value, fromty, toty)


class _Own:
    """The contexts of this process; None where a kernel needed more than they know, from when on
    Numba's own are used."""

    contexts: tuple[_Typing, _Target] | None = None


@contextlib.contextmanager
def own_contexts() -> Iterator[None]:
    """Have Numba use these contexts in this thread, if they are still in use; the caller holds
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
    """Have all later compiles of this process use Numba's own contexts; returns whether they did
    not yet."""
    learnt, _Own.contexts = _Own.contexts is not None, None
    if learnt:
        drop_all()
        with uninterrupted():
            # imports Numba's meanings of Python, as its first compile would
            cuda_target.target_context.refresh()
    return learnt


_typing = _Typing()
_Own.contexts = (_typing, _Target(_typing))
with global_compiler_lock, own_contexts():
    _Own.contexts[1].refresh()
