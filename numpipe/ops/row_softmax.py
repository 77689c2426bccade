"""Kernels of softmax and log_softmax along the rows of a matrix, and of their gradients.

Each row is read once, by plain loads, and stays in registers until its result is stored. A short
row is a warp's. A long one is read as a matrix of 8 pieces for each warpgroup that shares it, so
that all lanes hold a part. `windows` cuts a matrix in up to three parts, of which the kernels take
those that there are:

======  =========================  ===============================  ================================
part    short rows                 long rows                        loaded
======  =========================  ===============================  ================================
body    (1, rows, columns)         (rows, pieces, columns)          whole, two elements at once where
                                                                    TMA could address the window
rest    (1, rows, fewer than 64)   (rows, pieces, fewer than 32)    element by element, cut at the
                                                                    window's end
last    none                       (rows, fewer than pieces)        as the rest
======  =========================  ===============================  ================================
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..core.arith import cdiv
from ..kernels.decorator import kernel as numpipe_kernel
from ..kernels.kernel import Kernel
from ..language.memory.scratch import scratch
from ..language.pipeline.operand_barriers import barrier_arrive, barrier_wait
from ..language.tiles.conversions import layout_cast
from ..language.tiles.elementwise import full, iota
from ..language.tiles.load import load_tile
from ..language.tiles.refs import ds
from ..language.tiles.row_layouts import lanes_for
from ..launch.array_info import ArrayInfo
from ..launch.windows import strided
from ..plan.allocations import SMEM, Barrier
from ..plan.context import axis_index
from ..plan.params import CompilerParams

FAST = CompilerParams(approx_math=True)


LOWEST = float(np.finfo(np.float32).min)
"""of maxima: exp(-inf - LOWEST) is 0 where a piece has nothing else"""


@dataclass(frozen=True)
class Config:
    """How the rows of a matrix are cut.

    rows     short rows: rows of a warpgroup's tile, a multiple of 8; 0: rows are long
    lanes    lanes that share a row of a tile
    columns  columns of the body's tiles
    rest     columns of the rest's tiles; 0: there is no rest
    last     elements of the tile of the last ones; 0: there are none
    wgs      warpgroups that share a long row
    """

    rows: int
    lanes: int
    columns: int
    rest: int = 0
    last: int = 0
    wgs: int = 1

    @property
    def masked(self) -> bool:
        """Whether rows may have fewer columns than the body's tiles, which are the narrowest."""
        return bool(self.rows) and not self.rest and self.columns == 2 * self.lanes


def windows(info: ArrayInfo, config: Config) -> list[ArrayInfo]:
    """Return the parts of a matrix with contiguous rows that a config's kernels take."""
    (rows, columns), (pitch, size) = info.shape, info.strides
    pieces = 1 if config.rows else 8 * config.wgs

    def part(first: int, width: int) -> ArrayInfo:
        found = info._replace(
            ptr=info.ptr + first * size,
            array=None if info.array is None else info.array[:, first:],
        )
        if config.rows:
            return strided(found, (1, rows, width), (rows * pitch, pitch, size))
        return strided(found, (rows, pieces, width), (pitch, width * size, size))

    body = min(config.columns, columns)
    rest = (columns - pieces * body) // pieces
    done = pieces * (body + rest)
    found = [part(0, body)]
    if config.rest:
        found.append(part(pieces * body, rest))
    if config.last:
        tail = info._replace(
            ptr=info.ptr + done * size,
            array=None if info.array is None else info.array[:, done:],
        )
        found.append(strided(tail, (rows, columns - done), (pitch, size)))
    return found


def cut(columns: int, rows: int = 0, wgs: int = 1, lanes: int = 32) -> Config:
    if rows:
        across = 2 * lanes
        if columns < across:
            return Config(rows, lanes, across)
        return Config(rows, lanes, columns // across * across, across if columns % across else 0)
    pieces = 8 * wgs
    body = columns // (64 * pieces) * 64
    behind = columns - pieces * body
    return Config(
        0, 32, body, 64 if behind >= pieces else 0, pieces if behind % pieces else 0, wgs
    )


def _without(config: Config, *names: str) -> tuple[str, ...]:
    return tuple(
        f"{name}_{part}"
        for name in names
        for part, there in (("rest", config.rest), ("last", config.last))
        if not there
    )


@functools.cache
def forward(config: Config, log: bool) -> Kernel:
    """Return the kernel ``(*windows(x), *windows(y))`` of y = softmax(x), or of its logarithm."""
    height, columns, rest, wgs = config.rows, config.columns, config.rest, config.wgs
    last, long, masked = config.last, not config.rows, config.masked
    tiles, along = f"rows {config.lanes}", f"row {config.lanes}"
    behind = f"row {lanes_for(last or 8)}"

    @numpipe_kernel(
        grid=lambda x: (x.shape[0] if long else cdiv(x.shape[1], height),),
        grid_names="block",
        num_compute_wgs=wgs,
        warp_specialized=False,
        compiler_params=FAST,
        without=_without(config, "x", "y"),
    )
    def softmax_rows(x, x_rest, x_last, y, y_rest, y_last):  # type: ignore[no-untyped-def]
        # what the compiler knows of sizes and strides leaves out the code for others
        size = np.dtype(x.dtype).itemsize
        if x.strides[2] != size or y.strides[2] != size:
            return
        if rest and (x_rest.strides[2] != size or y_rest.strides[2] != size):
            return
        if not masked and (x.shape[2] != columns or y.shape[2] != columns):
            return
        block, wg = axis_index("block"), axis_index("wg")
        if long:
            first, rows = block, ds(wg * 8, 8)
        else:
            first, rows = 0, ds(block * height, height)

        def loaded(tile, layout, columns, there):  # type: ignore[no-untyped-def]
            wide = tile.astype(np.float32)
            return np.where(layout_cast(iota(columns), layout) < there, wide, -np.inf)

        a = load_tile(x.at[first, rows, ds(0, columns)], tiles)
        if rest:
            b = load_tile(x_rest.at[first, rows, ds(0, rest)], tiles)
        if last:
            c = load_tile(x_last.at[block, ds(0, last)], behind)
        if not masked:
            a = a.astype(np.float32)
        else:
            a = loaded(a, along, columns, x.shape[2])
        top = a.max(axis=1)
        if rest:
            b = loaded(b, along, rest, x_rest.shape[2])
            top = np.maximum(top, b.max(axis=1))
        if long:
            top = np.maximum(top, LOWEST)
        a = a - top[:, None]
        e = np.exp(a)
        total = e.sum(axis=1)
        if rest:
            b = b - top[:, None]
            f = np.exp(b)
            total = total + f.sum(axis=1)
        if long:
            tops, totals, met = scratch(
                (
                    SMEM((8 * wgs,), np.float32),
                    SMEM((8 * wgs,), np.float32),
                    Barrier(num_arrivals=wgs),
                )
            )
            tops[rows] = top
            totals[rows] = total
            barrier_arrive(met)
            barrier_wait(met)
            peak = tops[...].max()
            if last:
                c = loaded(c, behind, last, x_last.shape[1])
                peak = max(peak, c.max())
                c = c - peak
                g = np.exp(c)
            whole = (totals[...] * np.exp(tops[...] - peak)).sum()
            if last:
                whole = whole + g.sum()
            total = layout_cast(full(8, whole, np.float32), "column 32")
            top = top - peak
        if log:
            less = (np.log(total) - top if long else np.log(total))[:, None]
            y[first, rows, ds(0, columns)] = a - less
            if rest:
                y_rest[first, rows, ds(0, rest)] = b - less
            if last:
                if wg == 0:
                    y_last[block, ds(0, last)] = c - np.log(
                        layout_cast(full(last, whole, np.float32), behind)
                    )
        else:
            scale = (np.exp(top) / total if long else 1.0 / total)[:, None]
            y[first, rows, ds(0, columns)] = e * scale
            if rest:
                y_rest[first, rows, ds(0, rest)] = f * scale
            if last:
                if wg == 0:
                    y_last[block, ds(0, last)] = g / whole

    return softmax_rows


@functools.cache
def backward(config: Config, log: bool) -> Kernel:
    """Return the kernel ``(*windows(g), *windows(y), *windows(dx))`` of the gradient dx of x, of y
    = softmax(x) or its logarithm and a gradient g of y."""
    height, columns, rest, wgs = config.rows, config.columns, config.rest, config.wgs
    last, long, masked = config.last, not config.rows, config.masked
    tiles = f"rows {config.lanes}"
    behind = f"row {lanes_for(last or 8)}"

    @numpipe_kernel(
        grid=lambda g: (g.shape[0] if long else cdiv(g.shape[1], height),),
        grid_names="block",
        num_compute_wgs=wgs,
        warp_specialized=False,
        compiler_params=FAST,
        without=_without(config, "g", "y", "dx"),
    )
    def softmax_rows_gradient(  # type: ignore[no-untyped-def]
        g, g_rest, g_last, y, y_rest, y_last, dx, dx_rest, dx_last
    ):
        size = np.dtype(g.dtype).itemsize
        if g.strides[2] != size or y.strides[2] != size or dx.strides[2] != size:
            return
        if rest:
            if g_rest.strides[2] != size or y_rest.strides[2] != size or dx_rest.strides[2] != size:
                return
        if not masked:
            if g.shape[2] != columns or y.shape[2] != columns or dx.shape[2] != columns:
                return
        block, wg = axis_index("block"), axis_index("wg")
        if long:
            first, rows = block, ds(wg * 8, 8)
        else:
            first, rows = 0, ds(block * height, height)

        def terms(g, y):  # type: ignore[no-untyped-def]
            return g.astype(np.float32) if log else g.astype(np.float32) * y.astype(np.float32)

        def gradient(g, y, total):  # type: ignore[no-untyped-def]
            g, y = g.astype(np.float32), y.astype(np.float32)
            return g - np.exp(y) * total if log else (g - total) * y

        g0 = load_tile(g.at[first, rows, ds(0, columns)], tiles)
        y0 = load_tile(y.at[first, rows, ds(0, columns)], tiles)
        if rest:
            g1 = load_tile(g_rest.at[first, rows, ds(0, rest)], tiles)
            y1 = load_tile(y_rest.at[first, rows, ds(0, rest)], tiles)
        if last:
            g2 = load_tile(g_last.at[block, ds(0, last)], behind)
            y2 = load_tile(y_last.at[block, ds(0, last)], behind)
        parts = terms(g0, y0).sum(axis=1)
        if rest:
            parts = parts + terms(g1, y1).sum(axis=1)
        if long:
            totals, met = scratch((SMEM((8 * wgs,), np.float32), Barrier(num_arrivals=wgs)))
            totals[rows] = parts
            barrier_arrive(met)
            barrier_wait(met)
            total = totals[...].sum()
            if last:
                total = total + terms(g2, y2).sum()
        else:
            total = parts[:, None]
        dx[first, rows, ds(0, columns)] = gradient(g0, y0, total)
        if rest:
            dx_rest[first, rows, ds(0, rest)] = gradient(g1, y1, total)
        if last:
            if wg == 0:
                dx_last[block, ds(0, last)] = gradient(g2, y2, total)

    return softmax_rows_gradient
