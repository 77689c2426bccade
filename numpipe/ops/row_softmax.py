"""Kernels of softmax and log_softmax along the rows of a matrix, and of their gradients.

Each row is read once, by plain loads, and stays in registers until its result is stored. All
arithmetic is float32. A short row belongs to a few lanes of one warp. A long row is read as a
matrix with 8 pieces per warpgroup, so that every lane holds a part of it; the warps exchange the
maximum and the sum of each piece once, through shared memory.

`windows` cuts a matrix with rows of any length, at any address, into up to three parts:

======  =========================  =============================  ==================================
part    of short rows              of long rows                   loads
======  =========================  =============================  ==================================
body    (1, rows, columns)         (rows, pieces, columns)        whole tiles; pairs of elements
                                                                  where TMA could address the window
rest    (1, rows, fewer columns    (rows, pieces, fewer than 64)  elements, up to the window's end
        than a tile has)
last    none                       (rows, fewer than pieces)      elements
======  =========================  =============================  ==================================
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..core.arith import cdiv
from ..core.functions import function
from ..diagnostics.errors import SpecError
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
from ..launch.windows import merged, strided
from ..plan.allocations import SMEM, Barrier
from ..plan.context import axis_index
from ..plan.params import CompilerParams
from .long_softmax import launch_long
from .op_outputs import allocated
from .operands import copied, move

# safe without automatic barriers: each element of shared memory is written once, before a barrier
PARAMS = CompilerParams(approx_math=True, unsafe_no_auto_barriers=True)
TYPES = ("float16", "bfloat16", "float32")
MOST = 16384
"""most columns, so that a row fits in the registers of its warpgroups (`long_softmax` has more)"""
LOWEST = float(np.finfo(np.float32).min)
"""lower bound of a piece's maximum: for a piece of all -inf, exp(-inf - LOWEST) is 0 rather than
NaN"""


@dataclass(frozen=True)
class Config:
    """How the rows of a matrix are tiled.

    rows     rows of a warpgroup's tile, a multiple of 8, if rows are short; 0 if rows are long
    lanes    lanes that share a row of a tile
    columns  columns of the body's tiles, a multiple of twice the lanes
    rest     columns of the rest's tiles; 0: there is no rest
    last     elements of the tile for the row's last elements; 0: there is no such tile
    wgs      warpgroups that share a long row
    masked   whether the body's tiles have more columns than the rows
    """

    rows: int
    lanes: int
    columns: int
    rest: int = 0
    last: int = 0
    wgs: int = 1
    masked: bool = False

    @property
    def pieces(self) -> int:
        """Number of pieces that a row is cut into."""
        return 1 if self.rows else 8 * self.wgs


def short(columns: int, rows: int, lanes: int) -> Config:
    """Return the config for tiles of `rows` short rows with `lanes` lanes per row.

    >>> short(1000, 8, 32)
    Config(rows=8, lanes=32, columns=960, rest=64, last=0, wgs=1, masked=False)
    """
    across = 2 * lanes
    if columns < across:
        return Config(rows, lanes, across, masked=True)
    return Config(rows, lanes, columns // across * across, across if columns % across else 0)


def long(columns: int, wgs: int) -> Config:
    """Return the config for long rows that are split across `wgs` warpgroups, at least 512 columns
    each.

    >>> long(5001, 1)
    Config(rows=0, lanes=32, columns=576, rest=64, last=8, wgs=1, masked=False)
    """
    pieces = 8 * wgs
    body = columns // (64 * pieces) * 64
    rest = columns - pieces * body
    return Config(0, 32, body, 64 if rest >= pieces else 0, pieces if rest % pieces else 0, wgs)


@functools.lru_cache(maxsize=1024)
def choose(rows: int, columns: int, itemsize: int, gradient: bool = False) -> Config:
    """Return the config for a matrix of 1 to 16384 columns with elements of `itemsize` bytes.

    Thresholds were measured on an H100. Rows are short as long as a tile of 8 of them leaves
    registers for about three warpgroups per SM; longer rows get one warpgroup per 8192 columns.
    Rows at multiples of 16 bytes are loaded in pairs of elements, and few lanes share a row so that
    the rest is small. Other rows are loaded element by element, which is faster when many adjacent
    lanes share a row.

    >>> choose(65536, 1024, 2).rows, choose(65536, 4096, 2).wgs, choose(65536, 16384, 2).wgs
    (8, 1, 2)
    """
    if columns > {2: (3072, 1536), 4: (2048, 1024)}[itemsize][gradient]:
        return long(columns, 1 if columns <= 8192 else 2)
    if columns <= 8:
        lanes, height = 4, 128
    elif columns * itemsize % 16 == 0:
        lanes = 8 if columns <= (64 if gradient else 320) else 16
        lanes = 32 if columns > (320 if gradient else 640) else lanes
        height = (512 if columns <= 64 else 256) // lanes
    elif columns < (65 if gradient else 128):
        lanes, height = 16, 32 if gradient else 64
    else:
        lanes, height = 32, 8 if gradient or columns >= 256 else 16
    # smaller tiles when there would be too few CTAs for the SMs
    while height > 256 // lanes and rows < 1024 * height:
        height //= 2
    return short(columns, height, lanes)


def windows(info: ArrayInfo, config: Config) -> list[ArrayInfo]:
    """Return the parts of a matrix that the config's kernels take: the body, then the rest and the
    last part if the config has them.

    Raises SpecError for a matrix whose rows are not contiguous.
    """
    (rows, columns), (pitch, step) = info.shape, info.strides
    size, pieces = info.dtype.itemsize, config.pieces
    if columns > 1 and step != size:
        raise SpecError(
            f"row_softmax: expected rows of contiguous elements, {size} bytes apart, got "
            f"{step}; fix: x = numpipe.ops.copy(x)"
        )

    def at(first: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> ArrayInfo:
        array = None if info.array is None else info.array[:, first:]
        return strided(info._replace(ptr=info.ptr + first * size, array=array), shape, strides)

    def part(first: int, width: int) -> ArrayInfo:
        if config.rows:
            return at(first, (1, rows, width), (rows * pitch, pitch, size))
        return at(first, (rows, pieces, width), (pitch, width * size, size))

    body = columns if config.masked else config.columns
    rest = columns // pieces - body
    done = pieces * (body + rest)
    found = [part(0, body)]
    if config.rest:
        found.append(part(pieces * body, rest))
    if config.last:
        found.append(at(done, (rows, columns - done), (pitch, size)))
    return found


def absent(config: Config, *names: str) -> tuple[str, ...]:
    """Return the names of the kernel parameters that a config leaves out, for these arrays."""
    parts = {"rest": config.rest, "last": config.last}
    return tuple(f"{name}_{part}" for name in names for part, size in parts.items() if not size)


@function
def fits(array, columns):  # type: ignore[no-untyped-def]
    """Return whether rows have this many adjacent columns, which holds for all windows.

    The kernels return early otherwise, which lets the compiler drop the code for other layouts.
    """
    return array.strides[2] == np.dtype(array.dtype).itemsize and array.shape[2] == columns


@functools.cache
def forward(config: Config, log: bool) -> Kernel:
    """Return the kernel ``(*windows(x), *windows(y))`` of y = softmax(x), or log_softmax(x)."""
    height, columns, rest, last = config.rows, config.columns, config.rest, config.last
    pieces, wgs, masked = config.pieces, config.wgs, config.masked
    tiles, along = f"rows {config.lanes}", f"row {config.lanes}"
    last_layout = f"row {lanes_for(pieces)}"

    @numpipe_kernel(
        grid=lambda x: (cdiv(x.shape[1], height) if height else x.shape[0],),
        grid_names="block",
        num_compute_wgs=wgs,
        warp_specialized=False,
        compiler_params=PARAMS,
        without=absent(config, "x", "y"),
    )
    def softmax_rows(x, x_rest, x_last, y, y_rest, y_last):  # type: ignore[no-untyped-def]
        end = x.shape[2] if masked else columns
        if not fits(x, end) or not fits(y, end):
            return
        if rest and (not fits(x_rest, x_rest.shape[2]) or not fits(y_rest, y_rest.shape[2])):
            return
        block, wg = axis_index("block"), axis_index("wg")
        if height:
            first, rows = 0, ds(block * height, height)
        else:
            first, rows = block, ds(wg * 8, 8)

        def there(tile, layout, columns, end):  # type: ignore[no-untyped-def]
            inside = layout_cast(iota(columns), layout) < end
            return np.where(inside, tile.astype(np.float32), -np.inf)

        a = load_tile(x.at[first, rows, ds(0, columns)], tiles)
        if rest:
            b = load_tile(x_rest.at[first, rows, ds(0, rest)], tiles)
        if last:
            c = load_tile(x_last.at[block, ds(0, last)], last_layout)
        a = there(a, along, columns, x.shape[2]) if masked else a.astype(np.float32)
        top = a.max(axis=1)  # type: ignore[union-attr]
        if rest:
            b = there(b, along, rest, x_rest.shape[2])
            top = np.maximum(top, b.max(axis=1))
        if not height:
            top = np.maximum(top, LOWEST)
        a = a - top[:, None]
        e = np.exp(a)
        total = e.sum(axis=1)
        if rest:
            b = b - top[:, None]
            f = np.exp(b)
            total = total + f.sum(axis=1)
        if not height:
            tops, totals, met = scratch(
                (
                    SMEM((pieces,), np.float32),
                    SMEM((pieces,), np.float32),
                    Barrier(num_arrivals=wgs),
                )
            )
            tops[rows], totals[rows] = top, total
            barrier_arrive(met)
            barrier_wait(met)
            each = tops[...]
            peak = each.max()
            if last:
                c = there(c, last_layout, last, x_last.shape[1])
                peak = max(peak, c.max())
                c = c - peak
                g = np.exp(c)
            total = (totals[...] * np.exp(each - peak)).sum()
            if last:
                total = total + g.sum()
            top = top - peak
        if log:
            less = np.log(total if height else full(8, total, np.float32))  # type: ignore[arg-type]
            less = less if height else less.max()
            if last and wg == 0:
                y_last[block, ds(0, last)] = c - less
            less = (less if height else less - top)[:, None]
            y[first, rows, ds(0, columns)] = a - less
            if rest:
                y_rest[first, rows, ds(0, rest)] = b - less
        else:
            if last and wg == 0:
                y_last[block, ds(0, last)] = g / total
            scale = (1.0 / total if height else np.exp(top) / total)[:, None]
            y[first, rows, ds(0, columns)] = e * scale
            if rest:
                y_rest[first, rows, ds(0, rest)] = f * scale

    return softmax_rows  # type: ignore[no-any-return]


@functools.cache
def backward(config: Config, log: bool) -> Kernel:
    """Return the kernel ``(*windows(g), *windows(y), *windows(dx))`` that computes the gradient dx
    of x from y = softmax(x) or log_softmax(x) and the gradient g of y."""
    height, columns, rest, last = config.rows, config.columns, config.rest, config.last
    pieces, wgs, masked = config.pieces, config.wgs, config.masked
    tiles, last_layout = f"rows {config.lanes}", f"row {lanes_for(pieces)}"

    @numpipe_kernel(
        grid=lambda g: (cdiv(g.shape[1], height) if height else g.shape[0],),
        grid_names="block",
        num_compute_wgs=wgs,
        warp_specialized=False,
        compiler_params=PARAMS,
        without=absent(config, "g", "y", "dx"),
    )
    def softmax_rows_gradient(  # type: ignore[no-untyped-def]
        g, g_rest, g_last, y, y_rest, y_last, dx, dx_rest, dx_last
    ):
        end = g.shape[2] if masked else columns
        if not fits(g, end) or not fits(y, end) or not fits(dx, end):
            return
        if rest:
            end = g_rest.shape[2]
            if not fits(g_rest, end) or not fits(y_rest, end) or not fits(dx_rest, end):
                return
        block, wg = axis_index("block"), axis_index("wg")
        if height:
            first, rows = 0, ds(block * height, height)
        else:
            first, rows = block, ds(wg * 8, 8)

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
            g2 = load_tile(g_last.at[block, ds(0, last)], last_layout)
            y2 = load_tile(y_last.at[block, ds(0, last)], last_layout)
        parts = terms(g0, y0).sum(axis=1)
        if rest:
            parts = parts + terms(g1, y1).sum(axis=1)
        if height:
            total = parts[:, None]
        else:
            totals, met = scratch((SMEM((pieces,), np.float32), Barrier(num_arrivals=wgs)))
            totals[rows] = parts
            barrier_arrive(met)
            barrier_wait(met)
            total = totals[...].sum()
            if last:
                total = total + terms(g2, y2).sum()
        dx[first, rows, ds(0, columns)] = gradient(g0, y0, total)
        if rest:
            dx_rest[first, rows, ds(0, rest)] = gradient(g1, y1, total)
        if last and wg == 0:
            dx_last[block, ds(0, last)] = gradient(g2, y2, total)

    return softmax_rows_gradient  # type: ignore[no-any-return]


# ---- launches for arrays with any layout
def launch_forward(log: bool) -> Callable[..., None]:
    """Return the launch function of the op y(x)."""

    def launch(x: ArrayInfo, y: ArrayInfo, target: str | None, stream: Any) -> None:
        _launch(forward, log, [x], y, target, stream)

    return launch


def launch_backward(log: bool) -> Callable[..., None]:
    """Return the launch function of the op dx(y, grad)."""

    def launch(
        y: ArrayInfo, grad: ArrayInfo, dx: ArrayInfo, target: str | None, stream: Any
    ) -> None:
        _launch(backward, log, [grad, y], dx, target, stream)

    return launch


def _launch(
    kernel_of: Callable[[Config, bool], Kernel],
    log: bool,
    operands: Sequence[ArrayInfo],
    result: ArrayInfo,
    target: str | None,
    stream: Any,
) -> None:
    """Launch `forward` or `backward`, or for longer rows `launch_long`. Operands whose rows are not
    contiguous are copied first; a result whose rows are not contiguous is computed in a new array
    and copied."""
    *outer, columns = result.shape
    if columns > MOST:
        names = ("x",) if kernel_of is forward else ("g", "y")
        launch_long(dict(zip(names, operands, strict=True)), result, log, target, stream)
        return
    config = choose(
        math.prod(outer), columns, result.dtype.itemsize, gradient=kernel_of is backward
    )
    fresh = result if _matrix(result) else allocated("softmax", result, result.shape, stream)
    arrays = [_matrix(info) or _matrix(copied(info, target, stream)) for info in operands]
    parts = [part for info in (*arrays, _matrix(fresh)) if info for part in windows(info, config)]
    kernel_of(config, log)(*parts, target=target, stream=stream)
    if fresh is not result:
        move(fresh, result, target, stream)


def _matrix(info: ArrayInfo) -> ArrayInfo | None:
    """Return the rows of an array as a matrix, or None if the elements of a row are not adjacent or
    the rows are not evenly spaced."""
    rows, size = merged(info, 1), info.dtype.itemsize
    return rows if rows is not None and (rows.strides[1] == size or rows.shape[1] == 1) else None
