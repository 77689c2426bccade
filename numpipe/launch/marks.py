"""Marks of device arrays: tuples of what a launch depends on, read as quickly as Python can. Repeated calls are found by them.

`describe` makes an ArrayInfo of an argument in a microsecond or two; a mark holds what the array's library tells at once, and two
arrays of equal marks make equal ArrayInfos, but for the owner. The address tells the device too: all GPUs and the host share one
address space (CUDA C++ Programming Guide, "Unified Virtual Address Space"). Only types that a reader of `arrays` took have marks.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Hashable
from typing import Any

from .device_array import DeviceArray
from .info import ArrayInfo

Mark = tuple[Any, ...]
_POINTER = operator.attrgetter("ptr")


def _marks(arrays: Any) -> Mark:
    return tuple([MARKS[type(array)](array) for array in arrays])


MARKS: dict[type, Callable[[Any], Hashable]] = {
    DeviceArray: DeviceArray.mark,
    ArrayInfo: operator.itemgetter(slice(1, 7)),
    type(None): type,
    list: _marks,
    tuple: _marks,
}
"""the function that makes the marks of arguments of a type: arrays, whose first item is the address; None for an array that an
op may leave out; lists of the arrays of a mesh"""


def _torch(tensor: Any) -> Mark:
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype


def _cupy(array: Any) -> Mark:
    return array.data.ptr, array.shape, array._c_contiguous or array.strides, array.dtype  # `strides` is a new tuple each time


def learn(info: ArrayInfo) -> bool:
    """Put the function for arrays of this type into `MARKS`; returns whether there is one."""
    kind = type(info.owner)
    if kind not in MARKS and info.kind == "torch":
        MARKS[kind] = _torch
    elif kind not in MARKS and info.kind != "host" and kind.__module__.partition(".")[0] == "cupy" and hasattr(info.owner, "data"):
        MARKS[kind] = _cupy
    return kind in MARKS


def address_of(info: ArrayInfo) -> Callable[[], int] | None:
    """Return a function that returns where the array's data is now; None where it cannot move as long as the array lives."""
    if info.kind == "torch":
        address: Callable[[], int] = info.owner.data_ptr
        return address
    if isinstance(info.owner, DeviceArray):
        return functools.partial(_POINTER, info.owner)
    return None
