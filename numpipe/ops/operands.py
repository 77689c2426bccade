"""Prepare operands of any layout for a kernel's pipelines: as a matrix with contiguous rows, or as
a batch of such matrices.

If TMA can address the caller's array, the result is a view of it: the matrix or its transpose, with
all batches in one dimension. Otherwise the operand is copied once, to memory allocated by the
caller's library, with rows at multiples of 128 bytes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from .. import launch
from ..arch.dimensions import Ints, round_up
from ..arch.target import LINE
from ..arch.targets import DEFAULT
from ..core.arith import cdiv
from ..launch.array_info import ArrayInfo, tma_addressable
from ..launch.windows import broadcast, merged, strided, transposed
from .copy import MOVED, NUMBERS, WARPGROUPS, copy_into
from .copy import lanes as copy_lanes
from .op_outputs import Arrays, Place, allocated, tell_copied


class Matrix(NamedTuple):
    """A matrix or a batch of them, with contiguous rows."""

    info: ArrayInfo
    turned: bool
    """whether it is the transpose of the operand"""


def stacked(info: ArrayInfo, batch: Ints) -> ArrayInfo | None:
    """Return the matrices of a batch as an array of three dimensions, or of two if all are the
    same; None if no view can do that."""
    window = merged(broadcast(info, (*batch, *info.shape[-2:])))
    if window is None:
        return None
    same = math.prod(batch) == 1 or math.prod(info.shape[:-2]) == 1
    return (
        strided(window, window.shape[1:], window.strides[1:])
        if same
        else window
        if window.strides[0]
        else None
    )


def as_matrices(info: ArrayInfo, vectors: Sequence[bool]) -> ArrayInfo:
    """Return an array with the dimensions of size 1, M and then N, that vector operands lack."""
    shape, strides, size = info.shape, info.strides, info.dtype.itemsize
    if vectors[0]:
        end = len(shape) - (not vectors[1])
        step = size * max(1, *shape[end:], 1)
        shape, strides = (*shape[:end], 1, *shape[end:]), (*strides[:end], step, *strides[end:])
    if vectors[1]:
        shape, strides = (*shape, 1), (*strides, size * max(1, *shape[-1:], 1))
    return strided(info, shape, strides) if any(vectors) else info


def laid(op: str, infos: Arrays, batch: Ints, place: Place) -> list[Matrix]:
    """Return the operands of an op whose result has these batches, each as a view or as a copy."""
    lying = [_lying(info, batch) for info in infos.values()]
    for (name, info), view in zip(infos.items(), lying, strict=True):
        if view.obstacle:
            tell_copied(op, name, info, view.obstacle)
    off = [view.window for view in lying if view.obstacle]
    rows = [None if window.array is not None else rows_of(window) for window in off]
    if len(off) > 1 and None not in rows and rows[0].shape[1] == rows[1].shape[1]:  # type: ignore[union-attr]
        made = iter(padded(rows, place))  # type: ignore[arg-type]
    else:
        made = iter(
            [
                copied(window, place) if each is None else padded([each], place)[0]
                for window, each in zip(off, rows, strict=True)
            ]
        )
    return [
        Matrix(
            _shaped(next(made), view.window.shape) if view.obstacle else view.window,
            view.turned,
        )
        for view in lying
    ]


class _Lying(NamedTuple):
    """How an operand can be loaded: a view of it or of its transpose, with contiguous rows if any
    dimension is contiguous; and why TMA cannot address the view, or ""."""

    window: ArrayInfo
    turned: bool
    obstacle: str


def _lying(info: ArrayInfo, batch: Ints) -> _Lying:
    window = stacked(info, batch)
    if window is not None:
        reason = "no dimension of it is contiguous"
        for turned, candidate in enumerate((window, transposed(window))):
            if (
                candidate.strides[-1] == info.dtype.itemsize
                or candidate.shape[-1] == 1
                or 0 in info.shape
            ):
                reason = tma_addressable(candidate) or ""
                if not reason:
                    return _Lying(candidate, bool(turned), "")
    else:
        reason = "its batches do not lie one after another"
        window = broadcast(info, (*batch, *info.shape[-2:]))
    across = transposed(window)  # copy along the contiguous dimension, so that both sides use lines
    turned = window.strides[-1] != info.dtype.itemsize == across.strides[-1]
    return _Lying(across if turned else window, turned, reason)


def _shaped(copy: ArrayInfo, shape: Ints) -> ArrayInfo:
    """Return the rows of a copy in the given shape: one matrix, or a batch in one dimension."""
    if len(shape) == 2 or len(copy.shape) == 3:
        return copy
    rows, (pitch, size) = shape[-2], copy.strides
    return strided(copy, (copy.shape[0] // rows, *shape[-2:]), (rows * pitch, pitch, size))


def copied(info: ArrayInfo, place: Place) -> ArrayInfo:
    """Return a copy of matrices, with all batches in one dimension: a NumPy array on the host, else
    memory of the array's library with rows at multiples of 128 bytes."""
    if info.array is not None:
        window = launch.describe(np.ascontiguousarray(info.array), "a copy")
    else:
        *outer, columns = info.shape
        size = info.dtype.itemsize
        pitch = round_up(columns * size, LINE) // size
        made = allocated(info, (*outer, pitch), place)
        window = strided(made, info.shape, made.strides)
        move(info, window, place, padded=True)
    whole = merged(window)
    assert whole is not None
    return whole if len(info.shape) > 2 else window


def rows_of(info: ArrayInfo) -> ArrayInfo | None:
    """Return the rows of a matrix, or of a batch of matrices, as the single matrix that `padded`
    copies; None if `padded` cannot copy them."""
    rows, size = merged(info, 1), info.dtype.itemsize
    if (
        rows is None
        or size not in (2, 4)
        or rows.strides[1] != size
        or rows.strides[0] < 0
        or rows.strides[0] % size
    ):
        return None
    # positions must fit in 32 bits
    return rows if rows.shape[0] * max(rows.strides) < 1 << 31 else None


def padded(matrices: Sequence[ArrayInfo], place: Place) -> list[ArrayInfo]:
    """Return copies, with rows at multiples of 128 bytes, of one or two matrices on a GPU, given as
    `rows_of` returns them.

    All rows must have the same length. Both operands of a product are copied by one launch into one
    array, the second after the first.
    """
    first, second = matrices[0], matrices[-1]
    itemsize, (rows_a, columns) = first.dtype.itemsize, first.shape
    rows_b = second.shape[0] if len(matrices) > 1 else 0
    pitch = round_up(columns * itemsize, LINE)
    size = math.gcd(
        4,
        columns * itemsize,
        *(number for info in matrices for number in (info.ptr, info.strides[0])),
    )
    columns = columns * itemsize // size
    height, width = cut(size, (rows_a, rows_b), columns)
    above = cdiv(rows_a, height)
    start_b = above * height  # the row at which the second matrix starts
    made = allocated(first, (start_b + rows_b if rows_b else rows_a, pitch // itemsize), place)
    steps = [info.strides[0] // size for info in (first, second)]
    sources = [
        info._replace(
            shape=((info.shape[0] - 1) * step + columns,), strides=(size,), dtype=MOVED[size]
        )
        for info, step in zip((first, second), steps, strict=True)
    ]
    whole = made._replace(
        shape=(made.shape[0], pitch // size), strides=(pitch, size), dtype=MOVED[size]
    )
    numbers: Any = dict.fromkeys(NUMBERS, 0) | {
        "columns": columns,
        "last": rows_a - 1,
        "s3": steps[0],
    }
    copy_lanes(size, height, width)(
        *sources,
        whole,
        **numbers,
        above=above,
        last_b=rows_b - 1,
        step_b=steps[1],
        **place,
    )
    return [
        strided(made._replace(ptr=made.ptr + row * pitch), info.shape, (pitch, itemsize))
        for row, info in zip((0, start_b), matrices, strict=False)
    ]


def cut(size: int, rows: Sequence[int], columns: int) -> tuple[int, int]:
    """Return (height, width) of the blocks that `padded` copies, in elements of `size` bytes.

    Blocks are small if there are few, so that every SM gets some and each lane waits once for
    loads; otherwise a lane has sixteen elements, and a block is as wide as the rows allow.

    >>> cut(2, (215, 2745), 127), cut(2, (10553, 1582), 127), cut(2, (2, 12375), 10801)
    ((8, 64), (32, 64), (8, 256))
    """
    narrow = LINE // size
    height = 512 // narrow  # four elements of a lane
    if sum(cdiv(each, height) for each in rows) * cdiv(columns, narrow) <= WARPGROUPS * DEFAULT.sms:
        return height, narrow
    return (4 * height, narrow) if columns <= 2 * narrow else (height, 4 * narrow)


def move(source: ArrayInfo, result: ArrayInfo, place: Place, padded: bool = False) -> None:
    """Copy one array to another of the same shape and element type. With `padded`, bytes between
    the rows of the result may be overwritten."""
    if source.array is not None and result.array is not None:
        result.array[...] = source.array
    else:
        copy_into(source, result, place, padded=padded)


def loaded(arrays: Arrays, place: Place) -> list[ArrayInfo]:
    """Return operands of attention that pipelines can load: the arrays themselves or copies."""
    return [_loaded(name, info, place) for name, info in arrays.items()]


def _loaded(name: str, info: ArrayInfo, place: Place) -> ArrayInfo:
    if info.kind == "host" or 0 in info.shape:
        return info
    reason = (
        "its last dimension is not contiguous"
        if info.shape[3] > 1 and info.strides[3] != info.dtype.itemsize
        else tma_addressable(info)
    )
    if reason is None:
        return info
    tell_copied("attention", name, info, reason)
    made = copied(info, place)  # the copy merges the first two dimensions
    return strided(made, info.shape, (info.shape[1] * made.strides[0], *made.strides))
