"""Grids of more than three dimensions. A GPU's grid has only x, y and z, so the launch folds the
other dimensions into x.

Dimensions 0, 1 and 2 map to x, y and z, as in any grid, so clusters work as usual. Dimensions
beyond the third follow dimension 0 along x::

    grid (a, b, c, d, e)    launched as (a * d * e, b, c)
                            dimension 0: x % a, dimension 3: x // a % d, dimension 4: x // a // d

The sizes along x are scalars that the kernel passes itself; its entry keeps them in shared memory,
where `plan.context` reads them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ..arch.dimensions import Dim3, Ints, Names

SIZE = "np__grid_{}"
"""The name of the scalar that holds a dimension's size."""
MOST = 32
"""Dimensions that a grid may have, as many as an array of NumPy 1."""


def along_x(rank: int) -> Ints:
    """Return the dimensions that are folded into x together: none if the grid has at most three
    dimensions.

    >>> along_x(5), along_x(3)
    ((0, 3, 4), ())
    """
    return (0, *range(3, rank)) if rank > 3 else ()


def names(rank: int) -> Names:
    """Return the names of the scalars that hold the sizes of these dimensions."""
    return tuple(SIZE.format(dimension) for dimension in along_x(rank))


def sizes(dims: Sequence[int]) -> Ints:
    """Return the sizes of the dimensions that are folded into x."""
    return tuple(dims[dimension] for dimension in along_x(len(dims)))


def launched(dims: Sequence[int]) -> Dim3:
    """Return the CTAs along x, y and z.

    >>> launched((2, 3, 5, 7, 11)), launched((4,)), launched(())
    ((154, 3, 5), (4, 1, 1), (1, 1, 1))
    """
    x, y, z = (*dims, 1, 1, 1)[:3]
    return x * math.prod(dims[3:]), y, z


def index(x: Any, known: Sequence, dimension: int) -> Any:
    """Return a CTA's index along a dimension that is folded into x, given its index along x and
    `known`, the `sizes`. All are ints, or values of compiled code."""
    place = 0 if dimension == 0 else dimension - 2
    for size in known[:place]:
        x = x // size
    return x if place == len(known) - 1 else x % known[place]
