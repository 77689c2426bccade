"""What Numba's tables hold of one kernel is dropped when its compile ends.

Numba remembers each function that it compiled, for the types of its arguments, as long as the process lives. The types of a
kernel's context, arrays, rings and functions are its own, for they carry its `Unit`: no other kernel ever finds what was compiled
for them, and it came to a megabyte a kernel. What was compiled for other types, as those of tiles, serves the kernels that follow.

A type of one kernel is known by its name, in which a serial number stands behind ``#`` (of a Unit) or ``@`` (of a function); an
operation of one kernel says so itself (`core.op.of_one_kernel`). A name that only looks so costs a compile some microseconds.
"""

from __future__ import annotations

import functools
import itertools
import re
import weakref
from collections.abc import Callable, Iterator, MutableMapping
from typing import Any

from numba.cuda import cgutils, types
from numba.cuda.descriptor import cuda_target

_OWN = re.compile(r"[#@]\d").search
_written: list[tuple[Memo, Any]] = []
"""entries about one kernel, which the end of its compile drops"""
_memos: weakref.WeakValueDictionary[int, Memo] = weakref.WeakValueDictionary()
_lowered: list[tuple[Any, tuple[Any, ...]]] = []
"""functions, with the types of arguments for which Numba was given their code, likewise"""


class Memo(dict[Any, Any]):
    """A table that Numba fills for `operation`; its entries about one kernel are dropped when that kernel's compile ends."""

    def __init__(self, operation: Any) -> None:
        self._all = _belongs(operation)
        _memos[id(self)] = self

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(key, value)
        if self._all or _of_one_kernel(key):
            _written.append((self, key))


class Lowering:
    """Gives Numba the code generators of `operation`, as its registry would, which keeps whatever is registered."""

    def __init__(self, operation: Any) -> None:
        self._all = _belongs(operation)

    def lower(self, function: Any, *argtypes: Any) -> Callable[[Callable[..., Any]], None]:
        """Return a decorator of the function that makes the code of calls of `function` with arguments of these types."""
        def attach(codegen: Callable[..., Any]) -> None:
            cuda_target.target_context.insert_func_defn([(codegen, function, argtypes)])
            if self._all or _of_one_kernel(argtypes):
                _lowered.append((function, argtypes))

        return attach


def forget_kernels() -> None:
    """Drop what was remembered of kernels since the last call. The caller holds Numba's lock, under which the tables are filled."""
    target = cuda_target.target_context
    for memo, key in _written:
        memo.pop(key, None)
    for function, argtypes in _lowered:
        versions = [version for version in target._defns[function].versions if version[0] != argtypes]
        target._defns[function].versions = versions
        if not versions:
            del target._defns[function]
    _written.clear()
    _lowered.clear()
    for table in _tables():
        for key in [key for key in table if _of_one_kernel(key)]:
            del table[key]


def forget_all() -> None:
    """Drop what was remembered of all kernels: it was compiled with contexts that are no longer in use."""
    for memo in list(_memos.values()):
        memo.clear()


def _tables() -> Iterator[MutableMapping[Any, Any]]:
    """Yield the tables of Numba's own meanings of Python that hold anything."""
    target = cuda_target.target_context
    selectors = itertools.chain(target._defns.values(), target._getattrs.values(), target._setattrs.values(),
                                (target._casts, target._get_constants))
    yield from (selector._cache for selector in selectors if selector._cache)
    typing = target.typing_context
    yield from filter(None, _of_functions(len(typing._globals), sum(len(registry.globals) for registry in typing._registries)))
    yield target.data_model_manager._cache
    yield cgutils._struct_proxy_cache


@functools.lru_cache(maxsize=1)
def _of_functions(_known: int, _registered: int) -> list[dict[Any, Any]]:
    """Return the tables of the functions that Numba knows; anew where there are more than before."""
    known = [one for one in cuda_target.typing_context._globals.values() if isinstance(one, types.Function)]
    return [*(one._impl_keys for one in known),
            *(template._impl_cache for one in known for template in one.templates if hasattr(template, "_impl_cache"))]


def _of_one_kernel(key: Any) -> bool:
    """Return whether a type, or one in a tuple, is of one kernel."""
    if isinstance(key, types.Function):
        return _belongs(key.typing_key)
    if isinstance(key, types.Type):
        return _OWN(key.name) is not None
    return isinstance(key, tuple) and any(map(_of_one_kernel, key))


def _belongs(operation: Any) -> bool:
    """Return whether an operation is of one kernel."""
    return bool(getattr(operation, "of_one_kernel", False))
