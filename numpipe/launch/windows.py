"""Views of an array, made from its description: transposed, or with dimensions merged, added or
repeated. Nothing is copied.

They use no function of the array's library, so they also work for libraries that cannot do this
without a copy, such as JAX. A kernel takes a description as an argument in place of the array.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..arch.dimensions import Ints
from .array_info import ArrayInfo


class _Memory:
    """Memory in the form that NumPy can view; it keeps the owner alive."""

    def __init__(self, owner: Any, interface: dict[str, Any]) -> None:
        self.owner, self.__array_interface__ = owner, interface


def memory(
    address: int,
    shape: Sequence[int],
    strides: Sequence[int],
    dtype: np.dtype,
    writable: bool,
    owner: Any,
) -> np.ndarray:
    """Return the memory at an address as a NumPy array that keeps `owner` alive."""
    interface = {
        "version": 3,
        "data": (address, not writable),
        "shape": tuple(shape),
        "strides": tuple(strides),
        "typestr": dtype.str,
    }
    return np.asarray(_Memory(owner, interface))


def strided(
    info: ArrayInfo, shape: Sequence[int], strides: Sequence[int], first: Sequence[int] = ()
) -> ArrayInfo:
    """Return the elements that are `strides` bytes apart, starting with the one at the index
    `first`: by default, the first one of `info`."""
    shape, strides = tuple(shape), tuple(strides)
    array = info.array
    if array is not None:
        index: list = [slice(start, None) for start in first]
        array = array[(*index, ...)]
        array = np.lib.stride_tricks.as_strided(array, shape, strides, writeable=info.writable)
    offset = sum(map(operator.mul, first, info.strides))
    return info._replace(
        ptr=info.ptr and info.ptr + offset, shape=shape, strides=strides, array=array
    )


def transposed(info: ArrayInfo) -> ArrayInfo:
    """Transpose a matrix, or each matrix of a batch.

    >>> x = np.zeros((2, 3, 4), np.float16)
    >>> transposed(describe(x, "x")).shape
    (2, 4, 3)
    """

    def swapped(sizes: Ints) -> Ints:
        return (*sizes[:-2], sizes[-1], sizes[-2])

    return strided(info, swapped(info.shape), swapped(info.strides))


def broadcast_shape(a: Sequence[int], b: Sequence[int]) -> Ints:
    """Return the shape that two shapes broadcast to. Unlike in `np.broadcast_shapes`, sizes may be
    symbols of a traced program. Raises ValueError if they do not broadcast."""
    pairs = list(itertools.zip_longest(reversed(a), reversed(b), fillvalue=1))
    if any(m != 1 and n != 1 and m != n for m, n in pairs):
        raise ValueError
    return tuple(n if m == 1 else m for m, n in reversed(pairs))


def broadcast(info: ArrayInfo, shape: Sequence[int]) -> ArrayInfo:
    """Broadcast `info` to a shape, by adding dimensions in front and repeating those of size 1."""
    added = len(shape) - len(info.shape)
    sizes = zip(shape[added:], info.shape, info.strides, strict=True)
    return strided(
        info,
        shape,
        [0] * added + [stride if size == wanted else 0 for wanted, size, stride in sizes],
    )


def merged(info: ArrayInfo, matrix: int = 2) -> ArrayInfo | None:
    """Merge all but the last `matrix` dimensions of `info` into one. Returns None if they cannot be
    merged without a copy.

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
    # without outer dimensions, as if one matrix followed another
    count, step = 1, info.shape[inner] * info.strides[inner]
    for size, stride in reversed(outer):
        if count > 1 and stride != step * count:
            return None
        count, step = count * size, step if count > 1 else stride
    return strided(info, (count, *info.shape[inner:]), (step, *info.strides[inner:]))
