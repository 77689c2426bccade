"""`planar_snake`: an order of a plane's tiles in which neighbours in time are neighbours in the plane."""

from __future__ import annotations

from typing import Any

from ...core.arith import divisor, remainder
from ...core.functions import function
from .orders.places import in_strip

__all__ = ["planar_snake"]


def wrong(minor_dim: Any, tile_width: Any) -> str:
    """What is wrong with these arguments of a kernel's call, "" for nothing; None for a value of run time."""
    if minor_dim is None or isinstance(minor_dim, bool) or minor_dim not in (0, 1):
        return ("planar_snake: minor_dim must be 0 or 1, a compile-time constant: the dimension that is cut into strips, got "
                + ("a run-time value" if minor_dim is None else repr(minor_dim)))
    if isinstance(tile_width, int) and tile_width < 1:
        return f"planar_snake: tile_width must be at least 1, got {tile_width}"
    return ""


@function
def planar_snake(lin: Any, shape: Any, minor_dim: Any, tile_width: Any) -> Any:
    """Place number `lin` of a `shape` plane, as a pair of indices, in a kernel or on the host.

    The plane is cut along dimension `minor_dim` (0 or 1) into strips `tile_width` wide, the last one perhaps narrower. A strip is
    walked along the other dimension, its whole width at each place; every second strip is walked backwards, so that each begins
    where the one before has ended. CTAs that run at the same time then share blocks in the L2 cache. For a shape of (4, 5),
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
