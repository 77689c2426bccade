"""Tile loops, which share the tiles of the output out among the CTAs, and `planar_snake`.

Both roles run the same loop, so the memory role loads tile t + 1 while the compute role stores tile
t. The loop decides which tile numbers are this CTA's, and an order (`orders`) which indices tile
number t has. A host table's next row is read while a tile is computed: its way from memory would
otherwise lie before the tile's first load.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np

from ...core.arith import divisor, is_integer, kind, remainder
from ...core.functions import function
from ...core.machine import current
from ...core.op import called, check, constant, formula, op, outside
from ...diagnostics.argument_checks import told, whole
from ...diagnostics.errors import SpecError
from ...plan.context import Context
from ...plan.plans import ArrayArg
from .orders.tile_numbers import in_strip
from .orders.tile_order import NAMES, misfit

__all__ = ["nd_loop", "planar_snake", "tiles"]

KNOWN = (
    f"{', '.join(map(repr, NAMES))}, an object of numpipe.orders, or a host table (a 2-D int32 "
    "array argument)"
)
"""the values of order="""


def tiles(*counts: Any, order: Any = "row", group: int = 16, dynamic: bool = False) -> NoReturn:
    """``for m, n in numpipe.tiles(m_tiles, n_tiles, order="grouped"):`` inside a kernel: this CTA's
    share of the tiles.

    counts  tiles per dimension, run-time int32 values
    order   "row", "column", "grouped", "snake" or "hilbert"; an object of `numpipe.orders`; or a
            host table, a 2-D int32 array argument with a row of indices for each tile
    group   rows of tiles in a strip of "grouped" and "snake", which may be a run-time value; 1000
            to 2000 rows of the output are a good size
    dynamic True: a CTA that has ended a tile takes the next one from a counter of the launch, so
            that quicker CTAs compute more (`tile_scheduler`); a compile-time constant. All CTAs run
            the same loops, with the same counts, to their ends.

    "row" takes one to three counts, the other orders two, or three: planes one after the other.
    With a host table the counts are the grid whose tiles it lists, or one count is the number of
    its rows, and the loop has as many indices as it unpacks.

    Without `dynamic` CTA i of G takes tiles i, i + G, i + 2 G, …: with a persistent grid one CTA a
    SM loops over its share. With it CTA i begins with tile i. In a kernel that names the axes of
    its clusters (`cluster_names`) that is true of clusters: all CTAs of one go through the same
    tiles, and ``m * axis_size("cluster") + axis_index("cluster")`` is the one of neighbours that a
    CTA computes.
    """
    raise outside("tiles")


def nd_loop(grid: tuple[Any, ...]) -> NoReturn:
    """``for i, j in numpipe.nd_loop((m, n)):`` inside a kernel: this CTA's share of a grid, the
    last index fastest.

    grid  run-time int32 sizes, one for each index, any number of them

    CTA i of G takes places i, i + G, i + 2 G, … of the grid in row order, which is what `tiles`
    does with one to three counts: that has other orders too. All CTAs together, of all dimensions
    of the kernel's grid, walk it once.
    """
    raise outside("nd_loop")


def clusters(np_: Any, counts: Sequence[Any]) -> list[Any]:
    """Return the number of clusters along x, y and z, for numbers of CTAs."""
    return [
        count if of == 1 else count // of
        for count, of in zip(counts, np_.unit.cluster, strict=True)
    ]


@formula(context=True)
def own_place(np_: Context) -> Any:
    """Return the linear index of this CTA, or of its cluster where the kernel names their axes."""
    x, y, z = clusters(np_, np_.cta)
    width, height, _ = clusters(np_, np_.grid)
    return x + width * (y + height * z)


@check
def check_count(number: Any, count: Any) -> None:
    """Raise SpecError for a count of tiles, in dimension `number`, that is no integer."""
    if kind(count) is None and hasattr(count, "__len__"):
        raise SpecError(
            "a loop over tiles takes its counts one by one, numpipe.tiles(m, n), got a tuple"
        )
    if kind(count) is not None and not is_integer(count):
        raise SpecError(
            f"a loop over tiles takes integers, got {called(count)} for dimension "
            f"{constant('tiles', 'number', number)}: // divides integers, cdiv rounds up"
        )
    # a value: the kernel is simulated, and how far it is, tiles tell
    if isinstance(count, (int, np.integer)):
        current().note("tiles", dimension=int(number), count=int(count))


@formula(context=True)
def tile_stride(np_: Context) -> Any:
    """Return the number of CTAs, or of clusters where the kernel names their axes: the CTAs of one
    go through the same tiles."""
    x, y, z = clusters(np_, np_.grid)
    return x * (y * z)


@check
def check_table(table: Any, columns: int, grid: tuple[Any, ...]) -> None:
    """Raise SpecError for an array that is no host table of `columns` indices a tile, or does not
    visit each tile of `grid` once.

    `grid` is () where the loop has one count, the rows that it walks. Only the simulated SM looks
    at the indices.
    """
    arg = getattr(table, "arg", None)
    if not isinstance(arg, ArrayArg):
        raise SpecError(f"numpipe.tiles: order= is {KNOWN}; got a run-time {called(table)}")
    if arg.ndim != 2 or arg.dtype != np.int32:
        raise SpecError(
            f"tiles(order='{arg.name}'): a host table is a 2-D int32 array, got {arg.ndim}-D "
            f"{arg.dtype}"
        )
    array = getattr(table, "array", None)  # its type has none
    wrong = (
        None
        if array is None
        else misfit(array, tuple(int(n) for n in grid) if grid else None, columns)
    )
    if wrong is not None:
        raise SpecError(f"tiles(order='{arg.name}'): {wrong}")


@op
def table_entry(table: Any, t: Any, end: Any, columns: int) -> tuple[Any, ...]:
    """Return the indices in row t of a host table, read through the read-only cache; from row `end`
    on zeros, without a read."""
    if int(t) >= int(end):
        return (np.int32(0),) * columns
    if int(t) >= len(table.array):
        raise SpecError(
            f"tiles({int(end)}, order='{table.name}'): the table has {len(table.array)} rows"
        )
    return tuple(np.int32(i) for i in table.array[int(t), :columns])


def wrong_snake(minor_dim: Any, tile_width: Any) -> str:
    """Return what is wrong with these arguments of a kernel's call, "" for nothing; None is a value
    of run time."""
    if not whole(0, 1).holds(minor_dim):
        return (
            "planar_snake: minor_dim must be 0 or 1, a compile-time constant: the dimension that "
            "is cut into strips, got "
            + ("a run-time value" if minor_dim is None else told(minor_dim))
        )
    if tile_width is not None and not whole(1).holds(tile_width):
        return f"planar_snake: tile_width must be at least 1, got {told(tile_width)}"
    return ""


@function
def planar_snake(lin: Any, shape: Any, minor_dim: Any, tile_width: Any) -> Any:
    """Return place number `lin` of a `shape` plane, a pair of indices, in a kernel or on the host.

    The plane is cut along dimension `minor_dim` (0 or 1) into strips `tile_width` wide, the last
    one perhaps narrower. A strip is walked along the other dimension, its whole width at each
    place; every second strip is walked backwards, so that each begins where the one before has
    ended. CTAs that run at the same time then share blocks in the L2 cache. For a shape of (4, 5),
    minor_dim=1, tile_width=2::

         0  1 | 14 15 | 16
         2  3 | 12 13 | 17
         4  5 | 10 11 | 18
         6  7 |  8  9 | 19

    lin         0 … shape[0] * shape[1] - 1
    shape       rows and columns
    minor_dim   0 or 1, a compile-time constant in a kernel; the others may be run-time int32
    tile_width  at least 1

    >>> [tuple(map(int, planar_snake(lin, (4, 5), 1, 2))) for lin in (2, 7, 8, 15, 16)]
    [(1, 0), (3, 1), (3, 2), (0, 3), (0, 4)]
    """
    major = shape[1 - minor_dim]
    strip, across, along = in_strip(lin, shape[minor_dim], tile_width, divisor(tile_width * major))
    if remainder(strip, 2) == 1:
        along = major - 1 - along
    if minor_dim == 1:
        return along, across
    return across, along
