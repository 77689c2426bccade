"""Helpers that compute the indices of tile number t in each order. Kernels, the simulator and the
host run the same code.

Each order has two helpers. ``begin`` runs once, before a loop, and prepares divisors: dividing by
one of them takes a product and a correction (`arith.divide`), where plain divisions cost 3 % of a
GEMM at K = 512. ``place`` runs for each tile. Numbers are int32 and computed by functions, because
Numba would compile Python's operators on int32 as int64. Rows and columns are counted in tiles::

    begun = begin_grouped(rows, columns, group)
    m, n = place_grouped(t, begun, group)
"""
# mypy: disable-error-code=no-untyped-def

import numpy as np

from ....core.arith import add, divide, divisor, mul, quotient, remainder, sub
from ....core.op import helper


@helper
def begin_row(rows, columns):
    return divisor(columns)


@helper
def place_row(t, begun):
    m = divide(t, begun)
    return m, sub(t, mul(m, begun[0]))


@helper
def begin_column(rows, columns):
    return divisor(rows)


@helper
def place_column(t, begun):
    n = divide(t, begun)
    return sub(t, mul(n, begun[0])), n


@helper
def in_strip(t, rows, group, by_strip):
    """Return (strip, row, column) of tile t, where `rows` are cut into strips of `group` and each
    strip is walked column by column.

    `by_strip` is the `divisor` for the number of tiles in a whole strip. The last strip may be
    narrower.
    """
    strip = divide(t, by_strip)
    inside = sub(t, mul(strip, by_strip[0]))
    first = mul(strip, group)
    left = sub(rows, first)
    if left >= group:  # in all strips but the last, the divisor is precomputed
        return strip, add(first, remainder(inside, group)), quotient(inside, group)
    return strip, add(first, remainder(inside, left)), quotient(inside, left)


@helper
def begin_strips(rows, columns, group):
    return rows, columns, divisor(mul(group, columns))


@helper
def place_grouped(t, begun, group):
    place = in_strip(t, begun[0], group, begun[2])
    return place[1], place[2]


@helper
def place_snake(t, begun, group):
    strip, m, n = in_strip(t, begun[0], group, begun[2])
    if remainder(strip, 2) == 1:
        return m, sub(sub(begun[1], 1), n)
    return m, n


# ---- a first index outside a plane
@helper
def in_plane(t, by_plane):
    """Return (plane, tile number within the plane)."""
    plane = divide(t, by_plane)
    return plane, sub(t, mul(plane, by_plane[0]))


@helper
def only_plane(place):
    """Return the indices in a grid with a single plane."""
    return np.int32(0), place[0], place[1]


@helper
def with_plane(plane, place):
    return plane, place[0], place[1]


@helper
def place_line(t):
    """Return the index in a one-dimensional grid: the tile's number."""
    return (t,)
