"""What of a device array a launch depends on, read as quickly as Python can: the key under which repeated calls are found.

`describe` makes an ArrayInfo of an argument, in a microsecond or two; a mark is a tuple of what its library says at once, and two
arrays of equal marks make equal ArrayInfos, but for the owner. The address tells the device too: all GPUs and the host share one
address space (CUDA C++ Programming Guide, "Unified Virtual Address Space"). Only types that a reader of `arrays` took have one.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

from .device_array import DeviceArray
from .info import ArrayInfo

Mark = tuple[Any, ...]
_POINTER = operator.attrgetter("ptr")

MARKS: dict[type, Callable[[Any], Mark]] = {DeviceArray: DeviceArray.mark}
"""of each type; the first item is the address"""


def _torch(tensor: Any) -> Mark:
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype


def _cupy(array: Any) -> Mark:
    """Strides of C-contiguous arrays follow from the shape, and CuPy makes a tuple of them each time."""
    return array.data.ptr, array.shape, array._c_contiguous or array.strides, array.dtype


def learn(info: ArrayInfo) -> Callable[[Any], Mark] | None:
    """The function for arrays of the type of this one, from now on in `MARKS`; None where there is none."""
    kind = type(info.owner)
    if kind not in MARKS and info.kind == "torch":
        MARKS[kind] = _torch
    elif kind not in MARKS and info.kind != "host" and kind.__module__.partition(".")[0] == "cupy" and hasattr(info.owner, "data"):
        MARKS[kind] = _cupy
    return MARKS.get(kind)


def address_of(info: ArrayInfo) -> Callable[[], int] | None:
    """A function that says where the array's data is now; None where it cannot move as long as the array lives."""
    if info.kind == "torch":
        address: Callable[[], int] = info.owner.data_ptr
        return address
    if isinstance(info.owner, DeviceArray):
        return functools.partial(_POINTER, info.owner)
    return None
