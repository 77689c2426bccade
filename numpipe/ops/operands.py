"""Prepare operands of any layout for a kernel's pipelines: as a matrix with contiguous rows, or as
a batch of such matrices.

If TMA can address the caller's array, the result is a view of it: the matrix or its transpose, with
all batches in one dimension. Otherwise the operand is copied once, to memory allocated by the
caller's library, with rows at multiples of 128 bytes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from .. import launch
from ..arch.dimensions import Ints, round_up
from ..arch.target import LINE
from ..launch.array_info import ArrayInfo, tma_addressable
from ..launch.windows import broadcast, merged, strided, transposed
from .copy import copy_all, copy_into
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
    made = iter(copies([view.window for view in lying if view.obstacle], place))
    return [Matrix(next(made) if view.obstacle else view.window, view.turned) for view in lying]


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


def copied(info: ArrayInfo, place: Place) -> ArrayInfo:
    """Return a copy of matrices (`copies`)."""
    return copies([info], place)[0]


def copies(infos: Sequence[ArrayInfo], place: Place) -> list[ArrayInfo]:
    """Return copies of batches of matrices, each with all batches in one dimension: NumPy arrays on
    the host, else memory of the array's library with rows at multiples of 128 bytes."""
    made, pairs = [], []
    for info in infos:
        if info.array is not None:
            window = launch.describe(np.ascontiguousarray(info.array), "a copy")
        else:
            *outer, columns = info.shape
            size = info.dtype.itemsize
            pitch = round_up(columns * size, LINE) // size
            room = allocated(info, (*outer, pitch), place)
            window = strided(room, info.shape, room.strides)
            pairs.append((info, window))
        whole = merged(window)
        assert whole is not None
        made.append(whole if len(info.shape) > 2 else window)
    copy_all(pairs, place, padded=True)
    return made


def move(source: ArrayInfo, result: ArrayInfo, place: Place) -> None:
    """Copy one array to another of the same shape and element type."""
    if source.array is not None and result.array is not None:
        result.array[...] = source.array
    else:
        copy_into(source, result, place)


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
