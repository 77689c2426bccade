"""The message about a NaN that a kernel stores, for the simulator and for records of the GPU."""

from __future__ import annotations

FIX = (
    "look for its origin: inf - inf, 0 * inf, 0 / 0, a root or logarithm of a negative number, "
    "or elements that were never written"
)


def said(target: str, place: tuple[int, ...], count: int, who: str = "") -> str:
    """Return the message for `count` NaNs stored to `target`, of which the first is at `place` of a
    tile or a vector (empty for a number).

    >>> said("c[…]", (3, 17), 1).partition(": ")[0]
    "'c[…] = …' stores a NaN, element (3, 17) of the tile"
    """
    at = (
        f", element {place} of the tile"
        if len(place) > 1
        else f", element {place[0]} of the vector"
        if place
        else ""
    )
    return (
        f"'{target} = …' stores a NaN{at}{who}"
        + (f", and {count - 1} more" if count > 1 else "")
        + f": {FIX}"
    )
