"""Kernels that reduce an axis of an array: sums, maxima, and indices of maxima.

A kernel reads tiles along the axis and combines them element by element, in float32, so that only
one tile is reduced across lanes. If there would be too few CTAs, several share the axis, and a
second launch combines their partial results, always in the same order.

=========  =============================  ==================
`down`     x                              y
=========  =============================  ==================
False      (rows, n), rows contiguous     (rows, parts)
True       (batch, n, columns)            (batch, parts, columns)
=========  =============================  ==================
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from ..core.arith import cdiv
from ..core.functions import Function, function
from ..kernels.decorator import kernel as numpipe_kernel
from ..kernels.kernel import Kernel
from ..language.tiles.elementwise import full, iota
from ..language.tiles.refs import ds
from ..launch.array_info import ArrayInfo
from ..launch.windows import merged, strided
from ..plan.context import program_id
from .op_outputs import allocated
from .operands import move
from .tiled import one_row, tile_for

ENOUGH = 1024
"""CTAs from which on the axis is not shared; a GPU runs several per SM at once"""
BEYOND = 2**31 - 1
"""larger than every index"""


@function
def unchanged(total, scale):  # type: ignore[no-untyped-def]
    return total * scale


@functools.cache
def totals(
    kind: str, down: bool, height: int, width: int, finish: Function[..., Any] = unchanged
) -> Kernel:
    """Return the kernel ``(x, y, parts, scale)`` of sums, maxima ("max"), or maxima of absolute
    values ("top").

    parts   CTAs that share the axis
    finish  the function ``(total, scale)`` whose result is stored
    """
    lowest = 0.0 if kind == "sum" else -np.inf
    step = height if down else width

    def grid(x: Any, parts: int) -> tuple[int]:
        if down:
            return (x.shape[0] * parts * cdiv(x.shape[2], width),)
        return (cdiv(x.shape[0], height) * parts,)

    @function
    def with_next(total, tile, first, n):  # type: ignore[no-untyped-def]
        tile = tile.astype(np.float32)
        if kind == "sum":
            return total + tile
        if kind == "top":
            tile = np.abs(tile)
        inside = iota((height, width), 0 if down else 1) < n - first
        return np.maximum(total, np.where(inside, tile, -np.inf))

    @numpipe_kernel(grid=grid, warp_specialized=False)
    def reduce_axis(x, y, parts, scale):  # type: ignore[no-untyped-def]
        place = program_id(0)
        part, rest = place % parts, place // parts
        total = full((height, width), lowest, np.float32)
        n = x.shape[1]
        each = cdiv(cdiv(n, step), parts)
        start = part * each * step
        stop = min(start + each * step, n)
        if down:
            across = cdiv(x.shape[2], width)
            batch, j = rest // across, ds(rest % across * width, width)
            for k in range(start, stop, step):
                total = with_next(total, x[batch, ds(k, height), j], k, n)
            if kind == "sum":
                y[batch, part, j] = finish(total.sum(axis=0), scale)
            else:
                y[batch, part, j] = finish(total.max(axis=0), scale)
        else:
            i = ds(rest * height, height)
            for k in range(start, stop, step):
                total = with_next(total, x[i, ds(k, width)], k, n)
            if kind == "sum":
                y[i, part] = finish(total.sum(axis=1), scale)
            else:
                y[i, part] = finish(total.max(axis=1), scale)

    return reduce_axis  # type: ignore[no-any-return]


@functools.cache
def indices(down: bool, height: int, width: int, again: bool) -> Kernel:
    """Return the kernel ``(x, places, y, found, parts)`` that finds the largest element and its
    index, the first if there are several; NaN is the largest.

    again  x has maxima, and `places` their indices in the original array
    """
    axis, step = (0, height) if down else (1, width)

    def grid(x: Any, parts: int) -> tuple[int]:
        if down:
            return (x.shape[0] * parts * cdiv(x.shape[2], width),)
        return (cdiv(x.shape[0], height) * parts,)

    @function
    def first_of(top, at):  # type: ignore[no-untyped-def]
        """Return (the largest element along the axis, its index)."""
        most = top.max(axis=axis)
        wide = most[None, :] if down else most[:, None]
        equal = np.where(np.isnan(wide), np.isnan(top), top == wide)
        return most, np.where(equal, at, BEYOND).min(axis=axis)

    @numpipe_kernel(grid=grid, warp_specialized=False, without=() if again else ("places",))
    def index_of_largest(x, places, y, found, parts):  # type: ignore[no-untyped-def]
        place = program_id(0)
        part, rest = place % parts, place // parts
        n = x.shape[1]
        each = cdiv(cdiv(n, step), parts)
        start = part * each * step
        stop = min(start + each * step, n)
        top = full((height, width), -np.inf, np.float32)
        at = full((height, width), BEYOND, np.int32)
        across = cdiv(x.shape[2], width) if down else 1
        batch, column = rest // across, rest % across * width
        for k in range(start, stop, step):
            along = iota((height, width), axis) + k
            if down:
                tile = x[batch, ds(k, height), ds(column, width)].astype(np.float32)
            else:
                tile = x[ds(rest * height, height), ds(k, width)].astype(np.float32)
            own = along
            if again:
                if down:
                    own = places[batch, ds(k, height), ds(column, width)]
                else:
                    own = places[ds(rest * height, height), ds(k, width)]
            # an element of -inf counts too: its index is below BEYOND
            larger = (tile > top) | (np.isnan(tile) & ~np.isnan(top)) | (at == BEYOND)
            larger = larger & (along < n)
            top, at = np.where(larger, tile, top), np.where(larger, own, at)
        most, first = first_of(top, at)
        if down:
            y[batch, part, ds(column, width)] = most
            found[batch, part, ds(column, width)] = first
        else:
            y[ds(rest * height, height), part] = most
            found[ds(rest * height, height), part] = first

    return index_of_largest  # type: ignore[no-any-return]


# ---- launches
def split(info: ArrayInfo, axis: int) -> tuple[ArrayInfo, ...] | None:
    """Return the view (batch, n, columns) of an array in which n is the axis, or None."""
    size, rank = info.dtype.itemsize, len(info.shape)
    inner = strided(info, (*info.shape, 1), (*info.strides, size))
    # merge the dimensions after the axis first, then those before it
    columns = merged(
        strided(inner, inner.shape[axis + 1 :], inner.strides[axis + 1 :]), 1
    ) if axis < rank - 1 else strided(inner, (1, 1), (size, size))  # fmt: skip
    if columns is None:
        return None
    shape = (*info.shape[: axis + 1], columns.shape[0])
    return merged(strided(info, shape, (*info.strides[: axis + 1], columns.strides[0])), 2)  # type: ignore[return-value]


def view_for(x: ArrayInfo, axis: int) -> tuple[ArrayInfo, bool] | None:
    """Return (the array that a kernel reads, `down`), or None if it needs a copy."""
    view: Any = split(x, axis)
    if view is None:
        return None
    size, (batch, n, columns), strides = x.dtype.itemsize, view.shape, view.strides
    if columns == 1 and (strides[1] == size or n == 1):
        return strided(view, (batch, n), (strides[0], size)), False
    if batch == 1 and strides[1] == size:
        return strided(view, (columns, n), (strides[2], size)), False
    if columns == 1 and strides[0] == size:
        return strided(view, (1, n, batch), (n * batch * size, strides[1], size)), True
    return (view, True) if strides[2] == size or columns == 1 else None


def schedule(shape: tuple[int, ...], down: bool, itemsize: int) -> tuple[int, int, int]:
    """Return (height, width, parts) of a reduction.

    >>> schedule((65536, 4096), False, 2), schedule((1, 16384, 16384), True, 2)
    ((1, 4096, 1), (32, 128, 8))
    """
    elements = 8192 // itemsize
    if down:
        batch, n, columns = shape
        width = 128 if columns > 64 else 64 if columns > 16 else 16
        height = 32
        tiles = batch * -(-columns // width)
    else:
        rows, n = shape
        height, width = tile_for(n, elements)
        tiles = -(-rows // height)
    steps = -(-n // (height if down else width))
    parts = max(1, min(-(-ENOUGH // max(tiles, 1)), steps // 4))
    return height, width, parts


def passes(shape: tuple[int, ...], down: bool, itemsize: int) -> list[tuple[Any, int, Any]]:
    """Return ((height, width), parts, shape of the result) of each launch."""
    found, parts = [], 0
    while parts != 1:
        *tile, parts = schedule(shape, down, itemsize)
        parts = 1 if found else parts
        shape, itemsize = (shape[0], parts, *shape[2:]), 4
        found.append((tuple(tile), parts, shape))
    return found


def readable(
    op: str, x: ArrayInfo, axis: int | None, target: str | None, stream: Any
) -> tuple[ArrayInfo, bool]:
    """Return (an array that a kernel reads, `down`); it is a copy if no view of x will do. With
    `axis` None, x is one row."""

    def view(x: ArrayInfo) -> tuple[ArrayInfo, bool] | None:
        if axis is not None:
            return view_for(x, axis)
        flat = one_row(x)
        return None if flat is None else (flat, False)

    if (found := view(x)) is None:
        fresh = allocated(op, x, x.shape, stream)
        move(x, fresh, target, stream)
        found = view(fresh)
    assert found is not None
    return found


def scratch_for(op: str, like: ArrayInfo, shape: Any, dtype: Any, stream: Any) -> ArrayInfo:
    """Return a new array for partial results."""
    return allocated(op, like._replace(dtype=np.dtype(dtype)), shape, stream)


def reshaped(info: ArrayInfo, shape: tuple[int, ...]) -> ArrayInfo:
    """Return a contiguous array in another shape."""
    strides = [info.dtype.itemsize]
    for size in shape[:0:-1]:
        strides.insert(0, strides[0] * max(size, 1))
    return strided(info, shape, strides)


def into(
    op: str, y: ArrayInfo, target: str | None, stream: Any, run: Callable[[ArrayInfo], None]
) -> None:
    """Call `run` with y, or with a contiguous array that is then copied to y."""
    fresh = y if one_row(y) is not None else allocated(op, y, y.shape, stream)
    run(fresh)
    if fresh is not y:
        move(fresh, y, target, stream)


def launch_totals(
    op: str,
    kind: str,
    x: ArrayInfo,
    axis: int | None,
    y: ArrayInfo,
    target: str | None,
    stream: Any,
    scale: float = 1.0,
    finish: Function[..., Any] = unchanged,
) -> None:
    """Reduce an axis of x, or all of x, to y."""

    def run(y: ArrayInfo) -> None:
        view, down = readable(op, x, axis, target, stream)
        steps, way = passes(view.shape, down, view.dtype.itemsize), kind
        for tile, parts, shape in steps:
            last = parts == 1
            made = reshaped(y, shape) if last else scratch_for(op, x, shape, np.float32, stream)
            kernel = totals(way, down, *tile, finish if last else unchanged)
            factor = scale if last else 1.0
            kernel(view, made, parts=parts, scale=factor, target=target, stream=stream)
            view, way = made, "max" if way == "top" else way

    into(op, y, target, stream, run)


def launch_indices(
    op: str, x: ArrayInfo, axis: int | None, y: ArrayInfo, target: str | None, stream: Any
) -> None:
    """Store the index of the largest element along an axis of x, or in all of x."""

    def run(y: ArrayInfo) -> None:
        view, down = readable(op, x, axis, target, stream)
        places: dict[str, ArrayInfo] = {}
        for tile, parts, shape in passes(view.shape, down, view.dtype.itemsize):
            found = (
                reshaped(y, shape) if parts == 1 else scratch_for(op, x, shape, np.int32, stream)
            )
            tops = scratch_for(op, x, shape, np.float32, stream)
            arrays = {"x": view, **places, "y": tops, "found": found}
            kernel = indices(down, *tile, again=bool(places))
            kernel(**arrays, parts=parts, target=target, stream=stream)
            view, places = tops, {"places": found}

    into(op, y, target, stream, run)
