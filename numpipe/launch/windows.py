"""Windows on an array, made of its description: transposed, with dimensions merged, added or
repeated. Nothing is copied.

They need no function of the array's library: one that cannot transpose, as JAX without a copy, has
its arrays transposed like all. A kernel takes a description as an argument, like the array itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .array_info import ArrayInfo

__all__ = ["broadcast", "memory", "merged", "strided", "transposed"]


class _Memory:
    """Memory as NumPy reads it; it keeps the owner alive."""

    def __init__(self, owner: Any, interface: dict[str, Any]) -> None:
        self.owner, self.__array_interface__ = owner, interface


def memory(
    address: int,
    shape: Sequence[int],
    strides: Sequence[int],
    dtype: np.dtype[Any],
    writable: bool,
    owner: Any,
) -> np.ndarray[Any, Any]:
    """Return the memory at an address as a NumPy array, which keeps `owner` alive."""
    interface = {
        "version": 3,
        "data": (address, not writable),
        "shape": tuple(shape),
        "strides": tuple(strides),
        "typestr": dtype.str,
    }
    return np.asarray(_Memory(owner, interface))


def strided(info: ArrayInfo, shape: Sequence[int], strides: Sequence[int]) -> ArrayInfo:
    """Return the elements that lie `strides` bytes apart, from the first one of `info` on."""
    shape, strides, array = tuple(shape), tuple(strides), info.array
    if array is not None:
        array = np.lib.stride_tricks.as_strided(array, shape, strides, writeable=info.writable)
    return info._replace(shape=shape, strides=strides, array=array)


def transposed(info: ArrayInfo) -> ArrayInfo:
    """Return a matrix, or each matrix of a batch, transposed.

    >>> x = np.zeros((2, 3, 4), np.float16)
    >>> transposed(describe(x, "x")).shape
    (2, 4, 3)
    """

    def swapped(sizes: tuple[int, ...]) -> tuple[int, ...]:
        return (*sizes[:-2], sizes[-1], sizes[-2])

    return strided(info, swapped(info.shape), swapped(info.strides))


def broadcast_shape(*shapes: Sequence[int]) -> tuple[int, ...]:
    """Return the shape that these shapes broadcast to, also where sizes are symbols of a traced
    program. Raises ValueError where there is none."""
    rank = max(map(len, shapes), default=0)
    found = [1] * rank
    for shape in shapes:
        for axis, size in enumerate(shape, rank - len(shape)):
            if size != 1:
                if found[axis] not in (1, size):
                    raise ValueError(f"the shapes {shapes} do not broadcast")
                found[axis] = size
    return tuple(found)


def broadcast(info: ArrayInfo, shape: Sequence[int]) -> ArrayInfo:
    """Return `info` with more dimensions in front, and those of size 1 repeated, to a shape that it
    broadcasts to."""
    added = len(shape) - len(info.shape)
    sizes = zip(shape[added:], info.shape, info.strides, strict=True)
    return strided(
        info,
        shape,
        [0] * added + [stride if size == wanted else 0 for wanted, size, stride in sizes],
    )


def merged(info: ArrayInfo, matrix: int = 2) -> ArrayInfo | None:
    """Return `info` with all but its last `matrix` dimensions made one; None where they do not lie
    as one would.

    >>> x = np.zeros((5, 7, 3, 4), np.float16)
    >>> merged(describe(x, "x")).shape, merged(describe(x[:, ::2], "x"))
    ((35, 3, 4), None)
    """
    inner = len(info.shape) - matrix
    outer = [
        (size, stride)
        for size, stride in zip(info.shape[:inner], info.strides[:inner], strict=True)
        if size != 1
    ]
    # of no dimensions, as if one matrix followed another
    count, step = 1, info.shape[inner] * info.strides[inner]
    for size, stride in reversed(outer):
        if count > 1 and stride != step * count:
            return None
        count, step = count * size, step if count > 1 else stride
    return strided(info, (count, *info.shape[inner:]), (step, *info.strides[inner:]))
