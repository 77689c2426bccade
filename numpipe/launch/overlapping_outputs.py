"""Detection of outputs that share bytes with another argument.

A kernel may work in place, with one array as input and output. An output may not share only *some*
bytes with another array, as ``x[1:]`` and ``x[:-1]`` do, or all of them in another order, as
``x.T`` and ``x`` do, because what a CTA reads then depends on which CTAs have already written. Two
results of an op may not share any. Calls refuse such arrays when they see them for the first time,
so repeated calls have no overhead.
``kernel.simulate`` and `verify` run such calls, and report the conflicting accesses.

Columns 0, 2, 4 … and 1, 3, 5 … of a matrix are interleaved but share no byte:
``numpy.shares_memory`` decides exactly, on views of the same addresses that are never read.

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


def check_overlap(
    infos: Sequence[ArrayInfo],
    names: Sequence[str],
    outputs: int,
    kernel: str = "",
    distinct: bool = False,
) -> None:
    """Raise SpecError if one of the last `outputs` arrays overlaps itself, or another array unless
    both are the same view of the same memory. If outputs are `distinct`, two of them may not be the
    same view either.

    All arrays must be on the host, or all on one GPU.
    """
    first = len(infos) - outputs
    if not outputs:
        return
    check_elements(infos, names, outputs, kernel)
    views = [_memory(info, True) for info in infos]
    for i in range(first, len(infos)):
        for j in range(i):
            same = _view(infos[i]) == _view(infos[j]) and not (distinct and j >= first)
            if not same and _share(views[i], views[j]):
                other = f"a copy of {names[j]!r}" if j < first else f"another array as {names[i]!r}"
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
                    f"pass {other}"
                )


def check_elements(
    infos: Sequence[ArrayInfo], names: Sequence[str], outputs: int, kernel: str = ""
) -> None:
    """Raise SpecError if elements of one of the last `outputs` arrays share bytes."""
    first = len(infos) - outputs
    for name, info in zip(names[first:], infos[first:], strict=False):
        whole = _memory(info)
        for axis in range(whole.ndim) if whole.size else ():
            # two different elements have different indices in some dimension
            view = whole.swapaxes(0, axis)
            if _share(view[:1], view[1:]):
                raise SpecError(
                    f"{argument(name, kernel)}: it is an output, and several of its elements are "
                    f"at the same address: shape {info.shape}, strides {info.strides} bytes; fix: "
                    f"pass an array without repeated elements, such as np.empty({info.shape}, "
                    f"np.{info.dtype.name})"
                )


def _memory(info: ArrayInfo, once: bool = False) -> np.ndarray:
    """Return host or GPU memory as an array that must not be read. With `once`, elements that a
    stride of 0 repeats are there once, because NumPy limits the size of an array."""
    kind, shape = np.dtype(f"V{info.dtype.itemsize}"), info.shape
    if once:
        pairs = zip(shape, info.strides, strict=True)
        shape = tuple(dim if stride else min(dim, 1) for dim, stride in pairs)
    return memory(info.address, shape, info.strides, kind, False, None)


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
