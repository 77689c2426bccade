"""What is said of a NaN that a kernel stores, by the simulator and of a record of the GPU alike."""

from __future__ import annotations

FIX = (
    "look for what makes it: inf - inf, 0 * inf, 0 / 0, a root or logarithm below 0, elements "
    "that nobody has written"
)


def said(target: str, place: tuple[int, ...], count: int, who: str = "") -> str:
    """Return the message for the first of `count` NaN that are stored to `target`, at a place of a
    tile, a vector, or a number.

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
