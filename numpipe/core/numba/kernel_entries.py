"""Removal of entries about one kernel from Numba's tables at the end of the kernel's compile.

Numba keeps each compiled function, by the types of its arguments, for the life of the process. The
types of a kernel's context, arrays, rings and functions contain the kernel's `Unit`, so no other
kernel can use these entries. Without `drop_entries` they would take about 1 MiB per kernel. Entries
for other types, such as those of tiles, are kept for later kernels.

A type that belongs to one kernel has a serial number in its name, after ``#`` (for a Unit) or ``@``
(for a function). An operation that belongs to one kernel is marked by `core.op.of_one_kernel`.
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

_SERIAL_NUMBER = re.compile(r"[#@]\d").search
_removals: list[Callable[[], Any]] = []
"""functions that remove what was entered for kernels since the last `drop_entries`"""
_all: weakref.WeakValueDictionary[int, Entries] = weakref.WeakValueDictionary()


class Entries(dict):
    """A table that Numba fills for `operation`."""

    def __init__(self, operation: Any) -> None:
        self._operation = operation
        _all[id(self)] = self

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(key, value)
        if _of_one_kernel((self._operation, key)):
            _removals.append(functools.partial(self.pop, key, None))


class Lowering:
    """Registers the code generators of `operation` with Numba, instead of a registry that would
    keep them."""

    def __init__(self, operation: Any) -> None:
        self._operation = operation

    def lower(self, function: Any, *argtypes: Any) -> Callable[[Callable], None]:
        """Return a decorator for the code generator of calls of `function` with these types."""

        def attach(codegen: Callable) -> None:
            target = cuda_target.target_context
            target.insert_func_defn([(codegen, function, argtypes)])
            if _of_one_kernel((self._operation, argtypes)):
                _removals.append(functools.partial(_remove, target._defns, function, argtypes))

        return attach


def _remove(meanings: dict, function: Any, argtypes: tuple) -> None:
    known = meanings[function]
    known.versions = [version for version in known.versions if version[0] != argtypes]
    if not known.versions:
        del meanings[function]


def drop_entries() -> None:
    """Drop the entries of kernels. The caller must hold Numba's lock."""
    while _removals:
        _removals.pop()()
    for table in _tables(cuda_target.target_context):
        for key in [key for key in table if _of_one_kernel(key)]:
            del table[key]


def drop_all() -> None:
    """Drop the entries of numpipe's operations, because they lead to code of contexts that are no
    longer used."""
    for entries in list(_all.values()):
        entries.clear()


def _tables(target: Any) -> Iterator[MutableMapping[Any, Any]]:
    """Yield the tables of Numba's own implementations of Python functions."""
    found = (target._defns, target._getattrs, target._setattrs)
    selectors = itertools.chain(*(table.values() for table in found))
    yield from (one._cache for one in (*selectors, target._casts, target._get_constants))
    functions = target.typing_context._globals.values()
    for one in functions:
        if isinstance(one, types.Function):
            yield one._impl_keys
            # Numba's overloads also cache the types for which they have no implementation
            yield from (each._impl_cache for each in one.templates if hasattr(each, "_impl_cache"))
    yield target.data_model_manager._cache
    yield cgutils._struct_proxy_cache


def _of_one_kernel(key: Any) -> bool:
    """Return whether a key (an operation, a type, or a tuple containing one) belongs to one
    kernel."""
    if isinstance(key, types.Function):
        return _of_one_kernel(key.typing_key)
    if isinstance(key, types.Type):
        return _SERIAL_NUMBER(key.name) is not None
    if isinstance(key, tuple):
        return any(map(_of_one_kernel, key))
    return bool(getattr(key, "of_one_kernel", False))
