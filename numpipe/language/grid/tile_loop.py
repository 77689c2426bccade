"""Tile loops, which distribute the tiles of the output over the CTAs, and `planar_snake`.

Both roles run the same loop, so the memory role loads tile t + 1 while the compute role stores tile
t. The loop decides which tile numbers belong to this CTA, and an order (`orders`) maps tile number
t to indices. The next row of a host table is read while a tile is computed; otherwise the latency
of that read would delay the tile's first load.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np

from ...core.arith import divisor, is_integer, kind, remainder
from ...core.functions import function
from ...core.machine import current
from ...core.op import called, check, constant, formula, op, outside
from ...diagnostics.argument_checks import POSITIVE, told, whole
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
"""The values of order=."""


def tiles(*counts: Any, order: Any = "row", group: int = 16, dynamic: bool = False) -> NoReturn:
    """Iterate over this CTA's share of the tiles, inside a kernel: ``for m, n in
    numpipe.tiles(m_tiles, n_tiles, order="grouped"):``.

    counts  tiles per dimension, run-time int32 values
    order   "row", "column", "grouped" or "snake"; an object of `numpipe.orders`; or a
            host table, a 2-D int32 array argument with one row of indices per tile
    group   rows of tiles in a strip of "grouped" and "snake", which may be a run-time value; strips
            of 1000 to 2000 rows of the output work well
    dynamic True: a CTA that has finished a tile takes the next one from a counter of the launch, so
            that faster CTAs compute more tiles (`tile_scheduler`); a compile-time constant. All
            CTAs must run the same loops, with the same counts, to the end.

    "row" takes one to three counts. The other orders take two, or three: planes one after the
    other. With a host table the counts are the grid whose tiles it lists, or a single count is the
    number of its rows, and the loop has as many indices as it unpacks.

    Without `dynamic`, CTA i of G takes tiles i, i + G, i + 2 G, …: in a persistent grid, one CTA
    per SM loops over its share. With `dynamic`, CTA i begins with tile i. In a kernel that names
    its cluster axes (`cluster_names`) this applies to clusters instead of CTAs: all CTAs of a
    cluster loop over the same tiles, and ``m * axis_size("cluster") + axis_index("cluster")``
    selects one of several neighboring tiles for each CTA.
    """
    raise outside("tiles")


def nd_loop(grid: tuple) -> NoReturn:
    """Iterate over this CTA's share of a grid, the last index fastest, inside a kernel: ``for i, j
    in numpipe.nd_loop((m, n)):``.

    grid  run-time int32 sizes, one for each index, any number of them

    CTA i of G takes places i, i + G, i + 2 G, … of the grid in row-major order. Together, the CTAs
    of all dimensions of the kernel's grid visit each place once. With one to three sizes this is
    the same as `tiles`, which also offers other orders.
    """
    raise outside("nd_loop")


def clusters(np_: Any, counts: Sequence) -> list:
    """Return the number of clusters along x, y and z, given numbers of CTAs."""
    return [
        count if of == 1 else count // of
        for count, of in zip(counts, np_.unit.cluster, strict=True)
    ]


@formula
def own_place(np_: Context) -> Any:
    """Return the linear index of this CTA, or of its cluster if the kernel names its cluster
    axes."""
    x, y, z = clusters(np_, np_.cta)
    width, height, _ = clusters(np_, np_.grid)
    return x + width * (y + height * z)


@check
def check_count(number: Any, count: Any) -> None:
    """Raise SpecError if the count of tiles in dimension `number` is not an integer."""
    if kind(count) is None and hasattr(count, "__len__"):
        raise SpecError(
            "a loop over tiles takes its counts as separate arguments, got a tuple; fix: "
            "numpipe.tiles(m, n)"
        )
    if kind(count) is not None and not is_integer(count):
        raise SpecError(
            f"a loop over tiles takes integers, got {called(count)} for dimension "
            f"{constant('tiles', 'number', number)}; fix: // divides integers, cdiv rounds up"
        )
    # A value means that the kernel is simulated; record the tiles to report its progress.
    if isinstance(count, (int, np.integer)):
        current().note("tiles", dimension=int(number), count=int(count))


@formula
def tile_stride(np_: Context) -> Any:
    """Return the number of CTAs, or of clusters if the kernel names its cluster axes: the CTAs of a
    cluster loop over the same tiles."""
    x, y, z = clusters(np_, np_.grid)
    return x * (y * z)


@op
def next_static_tile(tile: Any, stride: Any, end: Any) -> Any:
    """Return the tile after `tile` in a loop to `end`."""
    return np.int32(current().next_tile(int(tile), int(stride), int(end)))


@check
def check_table(table: Any, columns: int, grid: tuple) -> None:
    """Raise SpecError for an array that is not a host table with `columns` indices per tile, or
    that does not visit each tile of `grid` once.

    `grid` is () if the loop has a single count, the number of rows to walk. The indices are checked
    only on the simulated SM.
    """
    arg = getattr(table, "arg", None)
    if not isinstance(arg, ArrayArg):
        raise SpecError(f"numpipe.tiles: order= must be {KNOWN}; got a run-time {called(table)}")
    if arg.ndim != 2 or arg.dtype != np.int32:
        raise SpecError(
            f"tiles(order='{arg.name}'): a host table must be a 2-D int32 array, got {arg.ndim}-D "
            f"{arg.dtype}"
        )
    array = getattr(table, "array", None)  # Numba types have no array
    wrong = (
        None
        if array is None
        else misfit(array, tuple(int(n) for n in grid) if grid else None, columns)
    )
    if wrong is not None:
        raise SpecError(f"tiles(order='{arg.name}'): {wrong}")


@op
def table_entry(table: Any, t: Any, end: Any, columns: int) -> tuple:
    """Return the indices in row t of a host table, read through the read-only cache. From row `end`
    on, return zeros without reading."""
    if int(t) >= int(end):
        return (np.int32(0),) * columns
    if int(t) >= len(table.array):
        raise SpecError(
            f"tiles({int(end)}, order='{table.name}'): the table has {len(table.array)} rows"
        )
    return tuple(np.int32(i) for i in table.array[int(t), :columns])


def _wrong_snake(known: Any, again: Any) -> str:
    """Return what is wrong with these compile-time arguments of a call in a kernel, or ""."""
    minor_dim, tile_width = map(known.get, ("minor_dim", "tile_width"))
    if not whole(0, 1).holds(minor_dim):
        return (
            "planar_snake: minor_dim must be 0 or 1, a compile-time constant: the dimension that "
            "is cut into strips, got "
            + ("a run-time value" if minor_dim is None else told(minor_dim))
        )
    if tile_width is not None and not POSITIVE.holds(tile_width):
        return f"planar_snake: tile_width must be at least 1, got {told(tile_width)}"
    return ""


@function
def planar_snake(lin: Any, shape: Any, minor_dim: Any, tile_width: Any) -> Any:
    """Return the indices of place number `lin` of a plane of `shape`, walked in a snake order.
    Works in a kernel and on the host.

    The plane is cut along dimension `minor_dim` (0 or 1) into strips `tile_width` wide; the last
    strip may be narrower. A strip is walked along the other dimension, its whole width at each
    place, and every second strip is walked backwards, so that each begins where the previous one
    ended. CTAs that run at the same time then share blocks in the L2 cache. For a shape of (4, 5),
    minor_dim=1, tile_width=2::

         0  1 | 14 15 | 16
         2  3 | 12 13 | 17
         4  5 | 10 11 | 18
         6  7 |  8  9 | 19

    lin         0 … shape[0] * shape[1] - 1
    shape       rows and columns
    minor_dim   0 or 1, a compile-time constant in a kernel; the other arguments may be run-time
                int32
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


planar_snake.refusal = _wrong_snake
