"""Rows that are read in blocks, for rows of any length: kernels that take a row twice.

A CTA has one row. Its warpgroups read a block of it at each step, and each lane keeps a running
maximum and sum of its own columns, so that warps exchange numbers once a row. The second pass takes
the blocks in reverse: the last ones are still in the L2 cache.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ..core.functions import function
from ..core.static_range import static_range
from ..kernels.decorator import kernel
from ..kernels.kernel import Kernel
from ..kernels.rows import LOWEST, Rows
from ..language.tiles.elementwise import full, iota
from ..language.tiles.refs import ds
from ..language.tiles.warp_parts import STEP
from ..plan.context import axis_index, program_id
from ..plan.params import CompilerParams

WARPGROUPS = 4
"""that share a row"""
BLOCK = 4096
"""most columns of a warpgroup's block: 32 elements per lane, of which the next block has as many in
registers"""


@dataclass(frozen=True)
class Blocks:
    """How a row is cut.

    columns  columns of a warpgroup's block
    whole    blocks of all warpgroups that are inside the row
    tail     whether a last block is partly inside
    wgs      warpgroups that share a row
    """

    columns: int
    whole: int
    tail: bool
    wgs: int = WARPGROUPS


def cut(columns: int, wgs: int = WARPGROUPS, block: int = BLOCK) -> Blocks:
    """Return the blocks of a row of this many columns.

    >>> cut(128256)
    Blocks(columns=4096, whole=7, tail=True, wgs=4)
    """
    steps = -(-columns // (wgs * block))
    wide = -(-columns // (steps * wgs * STEP)) * STEP
    return Blocks(wide, columns // (wgs * wide), columns % (wgs * wide) > 0, wgs)


class Functions(NamedTuple):
    """Functions of `Blocks` for kernels; r is the index of the row, n its length.

    ``normalizer(x, r, n)``      (top, total): the maximum of the row and the sum of
                                 exp(x - top), each (1, 1)
    ``sums(x, y, r, n, term)``   the sum of term(x, y) over the row, (1, 1); y may be x
    ``block(k)``, ``last()``     the columns of block k, and of the tail
    ``column(j)``                the column of each element of a block, (1, columns)
    """

    normalizer: Any
    sums: Any
    block: Any
    last: Any
    column: Any


@functools.cache
def functions(blocks: Blocks) -> Functions:
    """Return the functions of a cut."""
    columns, whole, tail, wgs = blocks.columns, blocks.whole, blocks.tail, blocks.wgs
    steps = columns // STEP
    lanes = Rows(1, STEP, wgs, whole=STEP)
    """the numbers of all lanes, as a row of the CTA"""

    @function
    def block(k):  # type: ignore[no-untyped-def]
        start = (k * wgs + axis_index("wg")) * columns
        return ds(start, columns, most=(whole * wgs - 1) * columns)

    @function
    def last():  # type: ignore[no-untyped-def]
        return ds((whole * wgs + axis_index("wg")) * columns, columns)

    @function
    def column(k):  # type: ignore[no-untyped-def]
        return iota((1, columns), 1) + (k * wgs + axis_index("wg")) * columns

    @function
    def online(tile, tops, totals):  # type: ignore[no-untyped-def]
        """Return the maxima and sums of lanes after another block."""
        highest = tops
        for c in static_range(steps):
            highest = np.maximum(highest, tile[:, STEP * c : STEP * (c + 1)])
        totals = totals * np.exp(tops - highest)
        for c in static_range(steps):
            totals = totals + np.exp(tile[:, STEP * c : STEP * (c + 1)] - highest)
        return highest, totals

    @function
    def normalizer(x, r, n):  # type: ignore[no-untyped-def]
        tops, totals = full((1, STEP), LOWEST, np.float32), full((1, STEP), 0.0, np.float32)
        if whole > 0:
            tile = x[r, block(0)]
            for k in range(1, whole):
                following = x[r, block(k)]
                tops, totals = online(tile.astype(np.float32), tops, totals)
                tile = following
            tops, totals = online(tile.astype(np.float32), tops, totals)
        if tail:
            end = x[r, last()].astype(np.float32)
            end = np.where(column(whole) < n, end, -np.inf)
            tops, totals = online(end, tops, totals)
        top = lanes.max(tops, STEP * wgs)
        return top, lanes.sum(totals * np.exp(tops - top), STEP * wgs)

    @function
    def added(tile, totals):  # type: ignore[no-untyped-def]
        for c in static_range(steps):
            totals = totals + tile[:, STEP * c : STEP * (c + 1)]
        return totals

    @function
    def sums(x, y, r, term):  # type: ignore[no-untyped-def]
        totals = full((1, STEP), 0.0, np.float32)
        for k in range(whole):
            j = block(k)
            tile = term(x[r, j].astype(np.float32), y[r, j].astype(np.float32))
            totals = added(tile, totals)
        if tail:
            j = last()
            tile = term(x[r, j].astype(np.float32), y[r, j].astype(np.float32))
            totals = added(tile, totals)
        return lanes.sum(totals, STEP * wgs)

    return Functions(normalizer, sums, block, last, column)


def blocks_kernel(blocks: Blocks, **options: Any) -> Callable[[Callable[..., Any]], Kernel]:
    """Turn a function into a kernel with a CTA for each row of its first array."""
    params = CompilerParams(approx_math=True, unsafe_no_auto_barriers=True)
    return kernel(  # type: ignore[no-any-return]
        num_compute_wgs=blocks.wgs,
        warp_specialized=False,
        static_dims=(-1,),
        compiler_params=params,
        **options,
    )


@functools.cache
def forward(blocks: Blocks, log: bool) -> Kernel:
    """Return the kernel ``(x, y)`` of y = softmax(x), or log_softmax(x)."""
    of = functions(blocks)
    normalizer, block, last, whole = of.normalizer, of.block, of.last, blocks.whole

    @blocks_kernel(blocks, grid=lambda x: (x.shape[0],))
    def softmax_blocks(x, y):  # type: ignore[no-untyped-def]
        r = ds(program_id(0), 1)
        top, total = normalizer(x, r, x.shape[1])
        less, scale = np.log(total), 1.0 / total

        def result(tile):  # type: ignore[no-untyped-def]
            tile = tile.astype(np.float32) - top
            return tile - less if log else np.exp(tile) * scale

        if blocks.tail:
            y[r, last()] = result(x[r, last()])
        for k in range(whole):
            j = block(whole - 1 - k)
            y[r, j] = result(x[r, j])

    return softmax_blocks


@functools.cache
def backward(blocks: Blocks, log: bool) -> Kernel:
    """Return the kernel ``(g, y, dx)`` of the gradient dx of x, given y = softmax(x) or
    log_softmax(x) and the gradient g of y."""
    of = functions(blocks)
    sums, block, last, whole = of.sums, of.block, of.last, blocks.whole

    @blocks_kernel(blocks, grid=lambda g: (g.shape[0],))
    def softmax_blocks_gradient(g, y, dx):  # type: ignore[no-untyped-def]
        r = ds(program_id(0), 1)

        def term(g, y):  # type: ignore[no-untyped-def]
            return g if log else g * y

        total = sums(g, y, r, term)

        def result(g, y):  # type: ignore[no-untyped-def]
            g, y = g.astype(np.float32), y.astype(np.float32)
            return g - np.exp(y) * total if log else (g - total) * y

        if blocks.tail:
            dx[r, last()] = result(g[r, last()], y[r, last()])
        for k in range(whole):
            j = block(whole - 1 - k)
            dx[r, j] = result(g[r, j], y[r, j])

    return softmax_blocks_gradient
