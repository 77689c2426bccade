"""Outputs that share bytes with another argument.

A kernel may be given one array as input and as output: it works in place. What it may not be given is an output that shares
*some* bytes with another array, as ``x[1:]`` does with ``x[:-1]``, or all of them in another order, as ``x.T`` with ``x``: what a
CTA then reads depends on which CTAs have written. Calls refuse that; ``kernel.simulate`` and `verify` run it, and report the
accesses that conflict.

Columns 0, 2, 4 … and 1, 3, 5 … of a matrix lie between each other and share no byte: that is decided exactly, by
``numpy.shares_memory`` on views of the same addresses. Nothing is read through these views.
"""

from __future__ import annotations

import types
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..diagnostics.errors import SpecError
from .info import ArrayInfo, argument

_MOST_WORK: Any = 10_000  # NumPy's type stubs know only 0 and -1
"""steps `numpy.shares_memory` may take; it needs few where strides are multiples of each other, as those of views are"""


def byte_bounds(address: int, shape: Sequence[int], strides: Sequence[int], itemsize: int) -> tuple[int, int]:
    """Addresses of the first byte of an array and past its last one; the same twice when it has no elements.

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


def check_overlap(infos: Sequence[ArrayInfo], names: Sequence[str], outputs: int, kernel: str = "") -> None:
    """Raise SpecError when one of the last `outputs` arrays overlaps another one, unless both are the same view of the same memory.

    The arrays are all on the host or all on one GPU.
    """
    first = len(infos) - outputs
    if not outputs or len(infos) < 2:
        return
    bounds = [byte_bounds(_address(info), info.shape, info.strides, info.dtype.itemsize) for info in infos]
    for i in range(first, len(infos)):
        low, high = bounds[i]
        for j in range(i):
            start, end = bounds[j]
            if start < high and low < end and low < high and start < end and _overlap(infos[i], infos[j]):
                raise _refused(infos[i], infos[j], names[i], names[j], kernel)


def _address(info: ArrayInfo) -> int:
    if info.array is None:
        return info.ptr
    return int(info.array.__array_interface__["data"][0])


def _overlap(one: ArrayInfo, other: ArrayInfo) -> bool:
    """Whether two arrays whose bounds meet share a byte without being the same."""
    if _view(one) == _view(other):
        return False
    try:
        return np.shares_memory(_seen(one), _seen(other), max_work=_MOST_WORK)
    except np.exceptions.TooHardError:
        return False  # not known: refusing a right call would be worse


def _view(info: ArrayInfo) -> tuple[Any, ...]:
    """What arrays that are the same have in common; the stride of a dimension of size 1 says nothing."""
    strides = [stride for dim, stride in zip(info.shape, info.strides, strict=True) if dim > 1]
    return _address(info), info.shape, strides, info.dtype


def _seen(info: ArrayInfo) -> np.ndarray[Any, Any]:
    """Memory as NumPy takes it, wherever it is."""
    return np.asarray(types.SimpleNamespace(__array_interface__={
        "version": 3, "data": (_address(info), True), "shape": info.shape, "strides": info.strides,
        "typestr": f"|V{info.dtype.itemsize}"}))


def _refused(output: ArrayInfo, other: ArrayInfo, name: str, other_name: str, kernel: str) -> SpecError:
    apart = _address(output) - _address(other)
    begins = f"begins {abs(apart)} bytes {'behind' if apart > 0 else 'before'} it" if apart else "begins where it does"
    return SpecError(f"{argument(name, kernel)}: it is an output and overlaps argument {other_name!r}: it {begins}, with shape "
                     f"{output.shape} and strides {output.strides} bytes against {other.shape} and {other.strides}, so what is "
                     f"read depends on who writes first; pass one array as both to work in place, or a copy of {other_name!r}")
