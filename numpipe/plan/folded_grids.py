"""Grids of more than three dimensions: a GPU's grid has x, y and z, so the launch flattens the
others.

Dimensions 0, 1 and 2 lie along x, y and z, as they do in any grid, so that clusters are what they
are there. The dimensions behind follow dimension 0 along x::

    grid (a, b, c, d, e)    launched as (a * d * e, b, c)
                            dimension 0: x % a, dimension 3: x // a % d, dimension 4: x // a // d

The sizes along x are scalars that the kernel passes itself; its entry keeps them in shared memory,
where `plan.context` reads them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

SIZE = "np__grid_{}"
"""the name of the scalar that is a dimension's size"""
MOST = 32
"""dimensions that a grid may have, as NumPy's arrays of old"""


def along_x(rank: int) -> tuple[int, ...]:
    """Return the dimensions that lie along x together: none where a GPU has as many dimensions as
    the grid.

    >>> along_x(5), along_x(3)
    ((0, 3, 4), ())
    """
    return (0, *range(3, rank)) if rank > 3 else ()


def names(rank: int) -> tuple[str, ...]:
    """Return the names of the scalars that are the sizes of these dimensions."""
    return tuple(SIZE.format(dimension) for dimension in along_x(rank))


def rank_of(scalars: Sequence[str]) -> tuple[int, tuple[str, ...]]:
    """Return the rank, 3 where it is less, and the `names`, of the scalars that a kernel passes
    itself.

    >>> rank_of(("np__steps_4", "np__grid_0", "np__grid_3"))
    (4, ('np__grid_0', 'np__grid_3'))
    """
    found = tuple(name for name in scalars if name.startswith(SIZE.format("")))
    return max(3, len(found) + 2), found


def sizes(dims: Sequence[int]) -> tuple[int, ...]:
    """Return the sizes of these dimensions."""
    return tuple(dims[dimension] for dimension in along_x(len(dims)))


def launched(dims: Sequence[int]) -> tuple[int, int, int]:
    """Return the CTAs along x, y and z.

    >>> launched((2, 3, 5, 7, 11)), launched((4,)), launched(())
    ((154, 3, 5), (4, 1, 1), (1, 1, 1))
    """
    x, y, z = (*dims, 1, 1, 1)[:3]
    return x * math.prod(dims[3:]), y, z


def index(x: Any, known: Sequence[Any], dimension: int) -> Any:
    """Return a CTA's index along a dimension that lies along x, of its index along x and of
    `known`, the `sizes`: ints, or the values of compiled code."""
    place = 0 if dimension == 0 else dimension - 2
    for size in known[:place]:
        x = x // size
    return x if place == len(known) - 1 else x % known[place]
