"""Tile loops: which tiles of the output this CTA computes, and in which order.

Both roles run the same loop, so the memory role loads tile t + 1 while the compute role stores tile t. An order (`orders`) is asked
for the indices of tile number t; which numbers are this CTA's is decided here. A host table's next row is read while a tile is
computed: its way from memory would otherwise lie before the tile's first load.
"""

from __future__ import annotations

import math
from typing import Any, NoReturn

import numpy as np

from ...core.arith import is_integer, kind
from ...core.machine import current
from ...core.op import called, check, constant, op, outside
from ...diagnostics.errors import SpecError
from ...plan.context import Context
from ...plan.plans import ArrayArg
from .orders.order import NAMES, misfit

__all__ = ["nd_loop", "tiles"]

KNOWN = f"{', '.join(map(repr, NAMES))}, an object of numpipe.orders, or a host table (a 2-D int32 array argument)"
"""what an order may be"""


def tiles(*counts: Any, order: Any = "row", group: int = 16, dynamic: bool = False) -> NoReturn:
    """``for m, n in numpipe.tiles(m_tiles, n_tiles, order="grouped"):`` inside a kernel: this CTA's share of the tiles.

    counts  tiles per dimension, run-time int32 values
    order   "row", "column", "grouped", "snake" or "hilbert"; an object of `numpipe.orders`; or a host table, a 2-D int32 array
            argument with a row of indices for each tile
    group   rows of tiles in a strip of "grouped" and "snake", which may be a run-time value; 1000 to 2000 rows of the output are
            a good size
    dynamic True: a CTA takes the next tile of the order when it has ended one, from a counter that all CTAs of the launch share, so
            that quicker CTAs compute more tiles (see `tile_scheduler`); a compile-time constant. All CTAs run the same
            loops, with the same counts, to their ends.

    "row" takes one to three counts, the other orders two, or three: planes one after the other. With a host table the counts are
    the grid whose tiles it lists, or one count is the number of its rows, and the loop has as many indices as it unpacks.

    Without `dynamic` CTA i of G takes tiles i, i + G, i + 2 G, …: with a persistent grid one CTA a SM loops over its share. With it
    CTA i begins with tile i. In a kernel that names the axes of its clusters (`cluster_names`) that is true of clusters: all CTAs
    of one go through the same tiles, and ``m * axis_size("cluster") + axis_index("cluster")`` is the one of neighbours that a CTA
    computes.
    """
    raise outside("tiles")


def nd_loop(grid: tuple[Any, ...]) -> NoReturn:
    """``for i, j in numpipe.nd_loop((m, n)):`` inside a kernel: this CTA's share of a grid, the last index fastest.

    grid  run-time int32 sizes, one for each index, any number of them

    CTA i of G takes places i, i + G, i + 2 G, … of the grid in row order, which is what `tiles` does with one to three counts:
    that has other orders too. All CTAs together, of all dimensions of the kernel's grid, walk it once.
    """
    raise outside("nd_loop")


@op(context=True)
def before_first_tile(np_: Context) -> Any:
    """Linear index of this CTA's cluster, less the number of clusters: the loop adds that at its top."""
    machine, cluster = current(), np_.unit.cluster
    x, y, z = (at // of for at, of in zip(machine.cta, cluster, strict=True))
    width, height, _ = (n // of for n, of in zip(machine.grid, cluster, strict=True))
    return np.int32(x + width * (y + height * z)) - tile_stride.function(np_)


@check
def check_count(number: Any, count: Any) -> None:
    """SpecError for a count of tiles that is no integer; `number` is which of them."""
    if kind(count) is not None and not is_integer(count):
        raise SpecError(f"a loop over tiles takes integers, got {called(count)} for dimension "
                        f"{constant('tiles', 'number', number)}: // divides integers, cdiv rounds up")


@op(context=True)
def tile_stride(np_: Context) -> Any:
    """Number of CTAs, or of clusters where the kernel names their axes: the CTAs of one go through the same tiles."""
    return np.int32(math.prod(current().grid) // math.prod(np_.unit.cluster))


@check
def check_table(table: Any, columns: int, grid: tuple[Any, ...]) -> None:
    """SpecError for an array that is no host table of so many indices, or does not visit each tile of `grid` once.

    `grid` is () where the loop has one count, the rows that it walks. The simulated SM looks at the numbers too.
    """
    arg = getattr(table, "arg", None)
    if not isinstance(arg, ArrayArg):
        raise SpecError(f"numpipe.tiles: order= is {KNOWN}; got a run-time {called(table)}")
    if arg.ndim != 2 or arg.dtype != np.int32:
        raise SpecError(f"tiles(order='{arg.name}'): a host table is a 2-D int32 array, got {arg.ndim}-D {arg.dtype}")
    array = getattr(table, "array", None)  # its type has none
    wrong = None if array is None else misfit(array, tuple(int(n) for n in grid) if grid else None, columns)
    if wrong is not None:
        raise SpecError(f"tiles(order='{arg.name}'): {wrong}")


@op
def table_entry(table: Any, t: Any, end: Any, columns: int) -> tuple[Any, ...]:
    """The indices in row t of a host table, read through the read-only cache; zeros from row `end` on, where nothing is read."""
    if int(t) >= int(end):
        return (np.int32(0),) * columns
    if int(t) >= len(table.array):
        raise SpecError(f"tiles({int(end)}, order='{table.name}'): the table has {len(table.array)} rows")
    return tuple(np.int32(i) for i in table.array[int(t), :columns])
