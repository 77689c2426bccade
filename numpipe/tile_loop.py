"""Tile loops: which tiles of the output this CTA computes, and in which order.

Both roles run the same loop, so the memory role loads tile t + 1 while the compute role stores tile t. ``order="row"``
visits the last index fastest; ``order="grouped"`` visits groups of `group` rows of tiles, rows fastest inside a group, so
that CTAs running at the same time share blocks in L2::

    row, 4 x 3             grouped, 4 x 3, group=2
     0  1  2                0  2  4
     3  4  5                1  3  5
     6  7  8                6  8 10
     9 10 11                7  9 11

A host table is a 2-D int32 array argument with one row of indices a tile: ``tiles(count, order=table)``.
"""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np

from ._machine import current
from ._op import helper, op
from .arith import divide, quotient, remainder
from .errors import SpecError


def tiles(*counts: Any, order: Any = "row", group: int = 16) -> NoReturn:
    """``for m, n in numpipe.tiles(m_tiles, n_tiles, order="grouped"):`` inside a kernel: this CTA's share of the tiles.

    counts  tiles per dimension, run-time int32 values (for a host table: the number of its rows)
    order   "row", "grouped" (two dimensions) or a host table (a 2-D int32 array argument)
    group   rows of tiles in a group, 1000 to 2000 rows of the output are a good size

    CTA i of G takes tiles i, i + G, i + 2 G, …: with a persistent grid one CTA a SM loops over its share.
    """
    raise RuntimeError("numpipe.tiles works inside a kernel only: call it from a @numpipe.kernel function")


def nd_loop(grid: tuple[Any, ...]) -> NoReturn:
    """``for i, j in numpipe.nd_loop((m, n)):`` inside a kernel: this CTA's share of a grid, the last index fastest.

    grid  run-time int32 sizes, one for each index, any number of them

    CTA i of G takes places i, i + G, i + 2 G, … of the grid in row order, which is what `tiles` does with one to three counts:
    that has other orders too. All CTAs together, of all dimensions of the kernel's grid, walk it once.
    """
    raise RuntimeError("numpipe.nd_loop works inside a kernel only: call it from a @numpipe.kernel function")


@op
def before_first_tile() -> Any:
    """Linear index of this CTA, less the number of CTAs: the loop adds that at its top."""
    machine = current()
    x, y, z = machine.cta
    return np.int32(x + machine.grid[0] * (y + machine.grid[1] * z)) - tile_stride()


@op
def check_count(number: int, count: Any) -> None:
    """SpecError for a count of tiles that is no integer; `number` is which of them."""
    if isinstance(count, (float, np.floating)):
        raise SpecError(no_count(number, type(count).__name__))


def no_count(number: int, got: str) -> str:
    return f"a loop over tiles takes integers, got {got} for dimension {number}: // divides integers, cdiv rounds up"


@op
def tile_stride() -> Any:
    """Number of CTAs."""
    x, y, z = current().grid
    return np.int32(x * y * z)


@helper
def row_1(t):  # type: ignore[no-untyped-def]
    """One dimension: the tile is its index."""
    return (t,)


@helper
def row_2(t, by_b):  # type: ignore[no-untyped-def]
    """Row order of a x b tiles."""
    m = divide(t, by_b)
    return m, t - m * by_b[0]


@helper
def row_3(t, by_b, by_c):  # type: ignore[no-untyped-def]
    """Row order of a x b x c tiles."""
    rest = divide(t, by_c)
    m = divide(rest, by_b)
    return m, rest - m * by_b[0], t - rest * by_c[0]


@helper
def grouped_2(t, a, group, by_chunk):  # type: ignore[no-untyped-def]
    """Grouped order of a x b tiles; a chunk is `group` rows, group * b tiles."""
    chunk = divide(t, by_chunk)
    inside = t - chunk * by_chunk[0]
    first = chunk * group
    if a - first >= group:  # all chunks but the last: the divisor is a constant
        return first + remainder(inside, group), quotient(inside, group)
    return first + remainder(inside, a - first), quotient(inside, a - first)


@op
def table_row(table: Any, t: Any, columns: int) -> tuple[Any, ...]:
    """Row t of a host table, read through the read-only cache; `columns` is what the loop's target unpacks."""
    if table.array.ndim != 2 or table.array.dtype != np.int32:
        raise SpecError(f"tiles(order='{table.name}'): a host table is a 2-D int32 array, got {table.array.ndim}-D "
                        f"{table.array.dtype}")
    return tuple(np.int32(i) for i in table.array[int(t), :columns])
