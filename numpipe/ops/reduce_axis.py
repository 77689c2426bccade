"""Reductions of an axis of an array: sums, maxima, and indices of maxima.

A kernel reads tiles along the axis and combines them element by element, in float32, so that only
one tile is reduced across lanes. If there would be too few CTAs, several share the axis, and a
second launch combines their partial results, always in the same order.

=========  =============================  ==========================
`down`     x                              y
=========  =============================  ==========================
False      (rows, n), rows contiguous     (rows, parts)
True       (batch, n, columns)            (batch, parts, columns)
=========  =============================  ==========================
"""

from __future__ import annotations

import functools
import math
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
from ..plan.params import CompilerParams
from .op_outputs import allocated
from .tiled import dense, reshaped, tile_for, with_fitting

ENOUGH = 1024
"""CTAs from which on the axis is not shared; a GPU runs several per SM at once"""
BEYOND = 2**31 - 1
"""larger than every index"""


@functools.cache
def reducer(
    kind: str,
    down: bool,
    height: int,
    width: int,
    again: bool = False,
    last: bool = True,
    finish: Function[..., Any] | None = None,
) -> Kernel:
    """Return the kernel of sums ("sum"), maxima ("max"), maxima of absolute values ("top") or
    indices of maxima ("argmax", the first, where NaN is largest).

    again   x has maxima, and `places` their indices in the original array
    last    whether there is no further launch; the last one of "argmax" has no y
    finish  function of the reduced vector, applied before it is stored

    Scalars are `parts`, the CTAs that share the axis, and `scale`, a factor of the result.
    """
    axis, step, index = (0, height, kind == "argmax") if down else (1, width, kind == "argmax")
    lowest = 0.0 if kind == "sum" else -np.inf
    unused = {"places": not again, "found": not index, "y": index and last}

    def grid(x: Any, parts: int) -> tuple[int]:
        tiles = x.shape[0] * cdiv(x.shape[2], width) if down else cdiv(x.shape[0], height)
        return (tiles * parts,)

    @function
    def filled(number, dtype):  # type: ignore[no-untyped-def]
        return full((height, width), number, dtype)

    @function
    def along_axis():  # type: ignore[no-untyped-def]
        return iota((height, width), axis)

    @function
    def place(x, parts):  # type: ignore[no-untyped-def]
        here = program_id(0) // parts
        across = cdiv(x.shape[2], width) if down else 1
        return here // across, here % across * width

    @function
    def piece(x, parts, k):  # type: ignore[no-untyped-def]
        first, column = place(x, parts)
        if down:
            return x[first, ds(k, height), ds(column, width)]
        return x[ds(first * height, height), ds(k, width)]

    @function
    def store(x, y, parts, values):  # type: ignore[no-untyped-def]
        first, column = place(x, parts)
        if down:
            y[first, program_id(0) % parts, ds(column, width)] = values
        else:
            y[ds(first * height, height), program_id(0) % parts] = values

    @numpipe_kernel(
        grid=grid,
        warp_specialized=False,
        without=tuple(name for name, off in unused.items() if off),
        compiler_params=CompilerParams(ctas_per_sm=4 if down else 5),
    )
    def reduce_axis(x, places, y, found, parts, scale):  # type: ignore[no-untyped-def]
        total = filled(lowest, np.float32)
        at = filled(BEYOND, np.int32)
        n = x.shape[1]
        each = cdiv(cdiv(n, step), parts) * step
        start = program_id(0) % parts * each
        for k in range(start, min(start + each, n), step):
            tile = piece(x, parts, k).astype(np.float32)
            along = along_axis() + k
            if kind == "sum":
                total = total + tile
            elif index:
                own = along
                if again:
                    own = piece(places, parts, k)
                # the first element counts even if it is -inf
                larger = (tile > total) | (np.isnan(tile) & ~np.isnan(total)) | (at == BEYOND)
                larger = larger & (along < n)
                total, at = np.where(larger, tile, total), np.where(larger, own, at)
            else:
                if kind == "top":
                    tile = np.abs(tile)
                total = np.maximum(total, np.where(along < n, tile, -np.inf))
        result = total.sum(axis=axis) if kind == "sum" else total.max(axis=axis)
        if index:
            top = result[None, :] if down else result[:, None]
            first = np.where((total == top) | (np.isnan(total) & np.isnan(top)), at, BEYOND)
            store(x, found, parts, first.min(axis=axis))
        if not (index and last):
            result = result * scale
            if finish is not None:
                result = finish(result)
            store(x, y, parts, result)

    return reduce_axis  # type: ignore[no-any-return]


def view_of(x: ArrayInfo, axis: int | None) -> tuple[ArrayInfo, bool] | None:
    """Return (the array that a kernel reads, `down`), or None if it needs a copy."""
    if axis is None:
        return (reshaped(x, 1, math.prod(x.shape)), False) if dense(x) else None
    if 0 in x.shape:
        x = reshaped(x, *x.shape)
    size, n, step = x.dtype.itemsize, x.shape[axis], x.strides[axis]
    after, steps = x.shape[axis + 1 :], x.strides[axis + 1 :]
    inner = merged(strided(x, (*after, 1), (*steps, size)), 1)
    outer = merged(strided(x, (*x.shape[:axis], n), (*x.strides[:axis], step)), 1)
    if inner is None or outer is None:
        return None
    columns, batch = inner.shape[0], outer.shape[0]
    if columns == 1:
        return (outer, False) if step == size or n == 1 else None
    adjacent = inner.strides[0] == size
    shape, strides = (batch, n, columns), (outer.strides[0], step, size)
    return (strided(x, shape, strides), True) if adjacent else None


def schedule(shape: tuple[int, ...], down: bool, itemsize: int) -> tuple[int, int, int]:
    """Return (height, width, parts) of a reduction.

    >>> schedule((65536, 4096), False, 2), schedule((1, 16384, 16384), True, 2)
    ((1, 4096, 1), (32, 128, 8))
    """
    if down:
        height = 32 if itemsize <= 2 else 16
        width = 128 if shape[2] > 64 else 64 if shape[2] > 16 else 16
        tiles, steps = shape[0] * -(-shape[2] // width), -(-shape[1] // height)
    else:
        height, width = tile_for(shape[1], 8192 // itemsize)
        tiles, steps = -(-shape[0] // height), -(-shape[1] // width)
    return height, width, max(1, min(-(-ENOUGH // max(tiles, 1)), steps // 4))


def launch_reduction(
    op: str,
    kind: str,
    x: ArrayInfo,
    axis: int | None,
    y: ArrayInfo,
    target: str | None,
    stream: Any,
    scale: float = 1.0,
    finish: Function[..., Any] | None = None,
) -> None:
    """Reduce an axis of x, or all of x, to y: to indices for "argmax"."""

    def run(arrays: dict[str, ArrayInfo]) -> None:
        (view, down), y = view_of(arrays["x"], axis), arrays["y"]  # type: ignore[misc]
        # a tile of indices takes as many registers as a tile of float32
        size = x.dtype.itemsize * (2 if kind == "argmax" else 1)
        height, width, parts = schedule(view.shape, down, size)
        way, place = kind, {"target": target, "stream": stream}
        more: dict[str, Any] = {}
        if parts > 1:
            shape = (view.shape[0], parts, *view.shape[2:])
            names = {"y": np.float32, "found": np.int32} if kind == "argmax" else {"y": np.float32}
            made: dict[str, Any] = {
                name: reshaped(
                    allocated(op, x._replace(dtype=np.dtype(dtype)), shape, stream), *shape
                )
                for name, dtype in names.items()
            }
            kernel = reducer(kind, down, height, width, last=False)
            kernel(x=view, **made, parts=parts, scale=1.0, **place)
            view, way = made["y"], "max" if kind == "top" else kind
            more = {"places": made["found"]} if kind == "argmax" else {}
            height, width, _ = schedule(shape, down, 4)
        kernel = reducer(way, down, height, width, bool(more), True, finish)
        more["found" if kind == "argmax" else "y"] = reshaped(y, view.shape[0], 1, *view.shape[2:])
        kernel(x=view, **more, parts=1, scale=scale, **place)

    fits = lambda info: dense(info) if info is y else view_of(info, axis)
    with_fitting(op, {"x": x}, {"y": y}, fits, target, stream, run)
