"""Outputs that share bytes with another argument.

A kernel may take one array as input and as output: it works in place. It may not take an output
that shares *some* bytes with another array, as ``x[1:]`` does with ``x[:-1]``, or all of them in
another order, as ``x.T`` with ``x``: what a CTA then reads depends on which CTAs have written.
Calls refuse that where a list of arrays is new, so a repeated call pays nothing;
``kernel.simulate`` and `verify` run it, and report the accesses that conflict.

Columns 0, 2, 4 … and 1, 3, 5 … of a matrix lie between each other and share no byte. Where bounds
meet, ``numpy.shares_memory`` decides that exactly, on views of the same addresses, through which
nothing is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..diagnostics.errors import SpecError
from .array_info import ArrayInfo, argument
from .windows import memory

_MOST_WORK: Any = 10_000  # NumPy's type stubs know only 0 and -1
"""steps `numpy.shares_memory` may take; it needs few where strides are multiples of each other, as
those of views are"""


def byte_bounds(
    address: int, shape: Sequence[int], strides: Sequence[int], itemsize: int
) -> tuple[int, int]:
    """Return the addresses of an array's first byte and past its last one; the same twice when it
    has no elements.

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
    """Raise SpecError when one of the last `outputs` arrays overlaps another one, unless both are
    the same view of the same memory.

    The arrays are all on the host or all on one GPU.
    """
    first = len(infos) - outputs
    if not outputs or len(infos) < 2:
        return
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
                and _overlap(infos[i], infos[j])
            ):
                apart = infos[i].address - infos[j].address
                begins = (
                    f"begins {abs(apart)} bytes {'behind' if apart > 0 else 'before'} it"
                    if apart
                    else "begins where it does"
                )
                raise SpecError(
                    f"{argument(names[i], kernel)}: it is an output and overlaps argument "
                    f"{names[j]!r}: it {begins}, with shape {infos[i].shape} and strides "
                    f"{infos[i].strides} bytes against {infos[j].shape} and {infos[j].strides}, "
                    "so what is read depends on who writes first; pass one array as both to work "
                    f"in place, or a copy of {names[j]!r}"
                )


def _overlap(one: ArrayInfo, other: ArrayInfo) -> bool:
    """Whether two arrays whose bounds meet share a byte without being the same view."""
    if _view(one) == _view(other):
        return False
    # host or GPU memory, through arrays that nobody may read
    first, second = [
        memory(
            each.address, each.shape, each.strides, np.dtype(f"V{each.dtype.itemsize}"), False, None
        )
        for each in (one, other)
    ]
    try:
        return np.shares_memory(first, second, max_work=_MOST_WORK)
    except np.exceptions.TooHardError:
        return False  # not known: refusing a right call would be worse


def _view(info: ArrayInfo) -> tuple[Any, ...]:
    """Return a key that is equal for equal views: without the strides of dimensions of size 1,
    which say nothing."""
    strides = [stride for dim, stride in zip(info.shape, info.strides, strict=True) if dim > 1]
    return info.address, info.shape, strides, info.dtype
