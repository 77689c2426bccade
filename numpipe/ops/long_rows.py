"""Rows of any length, which kernels read in blocks, once or twice.

A CTA has one row. Its warpgroups read a block of it at each step, and each lane keeps a running
maximum and sum of its own columns, so that warps exchange numbers once a row. The second pass takes
the blocks in reverse: the last ones are still in the L2 cache.
"""

# tiles and schedules in kernels have no types
# mypy: disable-error-code="no-untyped-def, attr-defined, operator, arg-type, call-overload"

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
from ..kernels.row_kernels import LOWEST, Rows
from ..language.tiles.elementwise import full, iota
from ..language.tiles.refs import ds
from ..language.tiles.warp_parts import STEP
from ..plan.context import axis_index
from ..plan.params import CompilerParams

WARPGROUPS = 4
"""that share a row"""
BLOCK = 8192
"""most bytes of a warpgroup's block. A lane has two blocks in 32 registers."""
NARROW = 1024
"""columns of a warpgroup's blocks where a row ends"""


@dataclass(frozen=True)
class Blocks:
    """How a row is cut.

    columns  columns of a warpgroup's block
    whole    number of steps; each is a block of every warpgroup
    tail     number of further steps, of narrow blocks, the last of which ends beyond the row
    wgs      warpgroups that share a row
    narrow   columns of a warpgroup's narrow block
    """

    columns: int
    whole: int
    tail: int
    wgs: int = WARPGROUPS
    narrow: int = NARROW


def cut(
    columns: int, itemsize: int, wgs: int = WARPGROUPS, block: int = BLOCK, narrow: int = NARROW
) -> Blocks:
    """Return the blocks of a row of this many columns.

    >>> cut(128256, 2)
    Blocks(columns=4096, whole=7, tail=4, wgs=4, narrow=1024)
    """
    # elements of rows at odd addresses are loaded one by one, each to a register
    wide = block // (4 if columns * itemsize % 4 else itemsize)
    whole = columns // (wgs * wide)
    return Blocks(wide, whole, -(-(columns - whole * wgs * wide) // (wgs * narrow)), wgs, narrow)


class Functions(NamedTuple):
    """Functions of `Blocks` for kernels; r is the index of the row, n its length.

    ``normalizer(x, r, n)``      (top, total, plain): the maximum of the row, the sum of
                                 exp(x - top), and with `plain` the sum of x, each (1, 1)
    ``sums(x, y, r, term)``      the sum of term(x, y) over the row, (1, 1); y may be x
    ``block(k)``, ``end(k)``     the columns of block k, and of narrow block k
    ``column(k)``, ``column_end(k)``
                                 the column of each of their elements, (1, columns)
    """

    normalizer: Any
    sums: Any
    block: Any
    end: Any
    column: Any
    column_end: Any


@functools.cache
def functions(blocks: Blocks, plain: bool = False) -> Functions:
    """Return the functions of a cut."""
    columns, whole, wgs, narrow = blocks.columns, blocks.whole, blocks.wgs, blocks.narrow
    # the numbers of all lanes, as a row of the CTA
    lanes = Rows(1, STEP, wgs, whole=STEP)

    @function
    def block(k):
        start = (k * wgs + axis_index("wg")) * columns
        return ds(start, columns, most=(whole * wgs - 1) * columns)

    @function
    def first(k):
        return whole * wgs * columns + (k * wgs + axis_index("wg")) * narrow

    @function
    def end(k):
        return ds(first(k), narrow)

    @function
    def column(k):
        return iota((1, columns), 1) + (k * wgs + axis_index("wg")) * columns

    @function
    def column_end(k):
        return iota((1, narrow), 1) + first(k)

    def lane_steps(width: int) -> tuple[Any, Any]:
        """Return the functions that add a block of this width to the numbers of lanes."""

        @function
        def added(tile, totals):
            for c in static_range(0, width, STEP):
                totals = totals + tile[:, c : c + STEP]
            return totals

        @function
        def online(tile, tops, totals, sums):
            tile, highest = tile.astype(np.float32), tops
            for c in static_range(0, width, STEP):
                highest = np.maximum(highest, tile[:, c : c + STEP])
            totals = totals * np.exp(tops - highest)
            for c in static_range(0, width, STEP):
                totals = totals + np.exp(tile[:, c : c + STEP] - highest)
            return highest, totals, added(tile, sums) if plain else sums

        return online, added

    # of whole blocks, and of narrow ones
    (online, added), (online_end, added_end) = lane_steps(columns), lane_steps(narrow)

    @function
    def normalizer(x, r, n):
        tops, totals = full((1, STEP), LOWEST, np.float32), full((1, STEP), 0.0, np.float32)
        sums = totals
        if whole > 0:
            tile = x[r, block(0)]
            for k in range(1, whole):
                following = x[r, block(k)]
                tops, totals, sums = online(tile, tops, totals, sums)
                tile = following
            tops, totals, sums = online(tile, tops, totals, sums)
        for k in range(blocks.tail):
            tile = x[r, end(k)].astype(np.float32)
            if plain:
                sums = added_end(tile, sums)
            tile = np.where(column_end(k) < n, tile, -np.inf)
            tops, totals, _ = online_end(tile, tops, totals, sums)
        top = lanes.max(tops, STEP * wgs)
        total = lanes.sum(totals * np.exp(tops - top), STEP * wgs)
        return top, total, lanes.sum(sums, STEP * wgs) if plain else total

    @function
    def sums(x, y, r, term):
        totals = full((1, STEP), 0.0, np.float32)
        for k in range(whole):
            j = block(k)
            tile = term(x[r, j].astype(np.float32), y[r, j].astype(np.float32))
            totals = added(tile, totals)
        for k in range(blocks.tail):
            j = end(k)
            tile = term(x[r, j].astype(np.float32), y[r, j].astype(np.float32))
            totals = added_end(tile, totals)
        return lanes.sum(totals, STEP * wgs)

    return Functions(normalizer, sums, block, end, column, column_end)


def blocks_kernel(
    blocks: Blocks, debug: bool = False, **options: Any
) -> Callable[[Callable[..., Any]], Kernel]:
    """Turn a function into a kernel with a CTA for each row of its first array."""
    params = CompilerParams(
        approx_math=True, ctas_per_sm=8 // blocks.wgs, unsafe_no_auto_barriers=True, debug=debug
    )
    return kernel(  # type: ignore[no-any-return]
        num_compute_wgs=blocks.wgs,
        warp_specialized=False,
        static_dims=(-1,),
        compiler_params=params,
        **options,
    )
