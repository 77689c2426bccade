"""Positions, ranks and shares in a cluster: CTAs that run at the same time and access each other's
shared memory.

A CTA has a position in its cluster, (x, y, z), and a rank, x fastest. CTAs *along* some dimensions
of a cluster differ only in these dimensions. A block that all of them load is cut into as many
shares, and each CTA copies its share to all of them::

    cluster (2, 2)      a: along y      b: along x       fills slots of ...         is freed by ...
    rank 0 at (0, 0)    0 and 2         0 and 1          0, 1, 2                    0, 1, 2
    rank 3 at (1, 1)    1 and 3         2 and 3          1, 2, 3                    1, 2, 3

The functions work on ints in the simulator and on values of compiled code.

PTX ISA, "Cluster of Cooperative Thread Arrays"; "cp.async.bulk.tensor": .multicast::cluster.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from ..arch.dimensions import Dim3, Ints

Dims: TypeAlias = Dim3
ALONE: Dims = (1, 1, 1)
"""A cluster of one CTA."""
ROWS = 8
"""Rows that are swizzled together. The rows of a share are a multiple of this."""


def rank_of(place: Sequence, dims: Dims) -> Any:
    """Return the rank of the CTA at a position in its cluster.

    >>> rank_of((1, 1, 0), (2, 2, 1))
    3
    """
    x, y, z = place
    return x + (y + z * dims[1]) * dims[0]


def first_of(place: Sequence, dims: Dims, along: Sequence[int]) -> Any:
    """Return the lowest rank among the CTAs along some dimensions, given the position of any of
    them.

    >>> first_of((1, 1, 0), (2, 2, 1), (1,))
    1
    """
    return rank_of([at * 0 if axis in along else at for axis, at in enumerate(place)], dims)


def place_of(cta: Sequence, dims: Dims) -> tuple[Any, Any, Any]:
    """Return the position in its cluster of a CTA of the grid."""
    x, y, z = (at % of for at, of in zip(cta, dims, strict=True))
    return x, y, z


def shifted(place: Dims, shift: Dims, dims: Dims) -> Dims:
    """Return the position at a distance `shift` in a cluster, wrapping around."""
    x, y, z = ((at + by) % of for at, by, of in zip(place, shift, dims, strict=True))
    return x, y, z


@functools.lru_cache(maxsize=256)
def shifts(dims: Dims, groups: tuple[Ints, ...]) -> tuple[Dims, ...]:
    """Return the shifts from a CTA to the CTAs along the dimensions of any of `groups`, itself
    first.

    >>> shifts((2, 2, 1), ((0,), (1,)))
    ((0, 0, 0), (0, 1, 0), (1, 0, 0))
    """
    found = {(0, 0, 0)}
    for along in groups:
        x, y, z = (range(of if axis in along else 1) for axis, of in enumerate(dims))
        found |= set(itertools.product(x, y, z))
    return tuple(sorted(found))


def share_of(place: Sequence, dims: Dims, along: Sequence[int]) -> Any:
    """Return which share this CTA loads of a block that all CTAs along these dimensions load."""
    number = 0
    for axis in reversed(along):
        number = number * dims[axis] + place[axis]
    return number


def mask_of(dims: Dims, along: Ints) -> int:
    """Return a bit mask of the ranks of the CTAs along some dimensions, counted from the first of
    them: PTX's ctaMask, shifted right by `first_of`.

    >>> bin(mask_of((2, 2, 1), (1,)))
    '0b101'
    """
    return sum(1 << rank_of(shift, dims) for shift in shifts(dims, (along,)))


@dataclass(frozen=True)
class Sharing:
    """How the CTAs along some dimensions of a cluster load one tile together. Each CTA loads a
    share and copies it to all of them.

    dims    the size of the cluster
    along   the dimensions of the cluster along which these CTAs lie
    across  the array's dimension along which the tile is cut
    rows    rows of a share
    width   bytes of a row, in a panel of the tile
    """

    dims: Dims
    along: Ints
    across: int
    rows: int
    width: int

    @property
    def shares(self) -> int:
        return math.prod(self.dims[axis] for axis in self.along)
