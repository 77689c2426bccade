"""Detection of outputs that share bytes with another argument.

A kernel may work in place, with one array as input and output. An output may not share only *some*
bytes with another array, as ``x[1:]`` and ``x[:-1]`` do, or all of them in another order, as
``x.T`` and ``x`` do, because what a CTA reads then depends on which CTAs have already written.
Calls refuse such arrays when they see them for the first time, so repeated calls have no overhead.
``kernel.simulate`` and `verify` run such calls, and report the conflicting accesses.

Columns 0, 2, 4 … and 1, 3, 5 … of a matrix are interleaved but share no byte. If the bounds of two
arrays intersect, ``numpy.shares_memory`` decides exactly, on views of the same addresses that are
never read.

An output whose own elements share bytes, such as one with a stride of 0, has no correct result, and
is refused by every call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..diagnostics.errors import SpecError
from .array_info import ArrayInfo, argument
from .windows import memory

_MOST_WORK: Any = 10_000  # NumPy's type stubs know only 0 and -1
"""steps that `numpy.shares_memory` may take; it needs few if strides are multiples of each other,
as in ordinary views"""


def byte_bounds(
    address: int, shape: Sequence[int], strides: Sequence[int], itemsize: int
) -> tuple[int, int]:
    """Return the address of an array's first byte and the address after its last byte; both are
    equal if it has no elements.

    >>> byte_bounds(1000, (3, 4), (-16, 2), 2)
    (968, 1008)
    """
    low = high = address
    for dim, stride in zip(shape, strides, strict=True):
        if not dim:
            return address, address
        if stride < 0:
            low += stride * (dim - 1)
        else:
            high += stride * (dim - 1)
    return low, high + itemsize


def check_overlap(
    infos: Sequence[ArrayInfo], names: Sequence[str], outputs: int, kernel: str = ""
) -> None:
    """Raise SpecError if one of the last `outputs` arrays overlaps itself, another output, or an
    input, unless output and input are the same view of the same memory.

    All arrays must be on the host, or all on one GPU.
    """
    first = len(infos) - outputs
    if not outputs:
        return
    check_elements(infos, names, outputs, kernel)
    bounds = [
        byte_bounds(info.address, info.shape, info.strides, info.dtype.itemsize) for info in infos
    ]
    for i in range(first, len(infos)):
        low, high = bounds[i]
        for j in range(i):
            start, end = bounds[j]
            if (
                start < high
                and low < end
                and low < high
                and start < end
                and (j >= first or _view(infos[i]) != _view(infos[j]))
                and _share(_memory(infos[i]), _memory(infos[j]))
            ):
                apart = infos[i].address - infos[j].address
                begins = (
                    f"begins {abs(apart)} bytes {'after' if apart > 0 else 'before'} it"
                    if apart
                    else "begins at the same address"
                )
                raise SpecError(
                    f"{argument(names[i], kernel)}: it is an output and overlaps argument "
                    f"{names[j]!r}: it {begins}, with shape {infos[i].shape} and strides "
                    f"{infos[i].strides} bytes, compared with {infos[j].shape} and "
                    f"{infos[j].strides}, so the result depends on which CTA writes first; fix: "
                    f"pass a copy of {names[j]!r}"
                )


def check_elements(
    infos: Sequence[ArrayInfo], names: Sequence[str], outputs: int, kernel: str = ""
) -> None:
    """Raise SpecError if elements of one of the last `outputs` arrays share bytes."""
    first = len(infos) - outputs
    for name, info in zip(names[first:], infos[first:], strict=False):
        for axis in range(len(info.shape)) if 0 not in info.shape else ():
            # two different elements have different indices in some dimension
            view = _memory(info).swapaxes(0, axis)
            if _share(view[:1], view[1:]):
                raise SpecError(
                    f"{argument(name, kernel)}: it is an output, and several of its elements are "
                    f"at the same address: shape {info.shape}, strides {info.strides} bytes; fix: "
                    f"pass an array without repeated elements, such as np.empty({info.shape}, "
                    f"np.{info.dtype.name})"
                )


def _memory(info: ArrayInfo) -> np.ndarray:
    """Return host or GPU memory as an array that must not be read."""
    kind = np.dtype(f"V{info.dtype.itemsize}")
    return memory(info.address, info.shape, info.strides, kind, False, None)


def _share(first: np.ndarray, second: np.ndarray) -> bool:
    try:
        return np.shares_memory(first, second, max_work=_MOST_WORK)
    except np.exceptions.TooHardError:
        return False  # undecided: refusing a correct call would be worse


def _view(info: ArrayInfo) -> tuple:
    """Return a key that is equal for equal views. It excludes the strides of dimensions of size 1,
    which do not matter."""
    strides = [stride for dim, stride in zip(info.shape, info.strides, strict=True) if dim > 1]
    return info.address, info.shape, strides, info.dtype
