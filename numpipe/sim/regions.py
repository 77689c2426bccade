"""Regions of global memory: views of one allocation share a *region*, and the maps of its elements.

A region is a range of addresses that holds arrays whose ranges overlap. Its unit is a number of
bytes that divides the element size and offsets of each of these arrays. A map has a number for each
unit, and is viewed through each array with the array's shape and strides. As further arrays are
added, regions merge and their units get finer; the maps keep their contents.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..arch.dimensions import Dim3, Ints
from .gmem_accesses import Codes, Index


class Region:
    """Addresses [lo, hi) in units of `unit` bytes, with maps that hold the code of an access for
    each unit; 0 for none."""

    def __init__(self, lo: int, hi: int, unit: int) -> None:
        self.lo, self.hi, self.unit = lo, hi, unit
        self.places: list[Place] = []
        self.open = False
        """Whether any access has written there."""
        size = (hi - lo) // unit  # pages of maps that are never used take no memory
        self.written: Codes = np.zeros(size, np.int32)
        """The newest write; where CTAs reduce together, the first one's."""
        self.read: Codes = np.zeros(size, np.int32)
        """The first read."""

    def adopt(self, other: Region) -> None:
        """Take over the arrays and maps of a region within this one, whose units are multiples of
        this one's."""
        scale, start = other.unit // self.unit, (other.lo - self.lo) // self.unit
        part = slice(start, start + (other.hi - other.lo) // self.unit)
        self.open |= other.open
        self.written[part], self.read[part] = (
            np.repeat(other.written, scale),
            np.repeat(other.read, scale),
        )
        for place in other.places:
            place.join(self)


class Place:
    """An array in its region; `written` and `read` are the region's maps, viewed through the
    array."""

    def __init__(self, array: np.ndarray, fresh: bool) -> None:
        self.array = array
        self.address = int(array.ctypes.data)
        self.fresh = fresh
        """Whether its elements are uninitialized until the kernel writes them."""
        self.seen: dict[Any, set[Ints]] = {}
        """The places from which boxes have been read, by their shape."""
        self.region: Region
        self.written: Codes
        self.read: Codes

    def join(self, region: Region) -> None:
        self.region = region
        region.places.append(self)
        self.written, self.read = self._view(region.written), self._view(region.read)

    def _view(self, codes: Codes) -> Codes:
        """Return a map in the array's shape, with an additional last dimension for the units of an
        element if it has several."""
        array, region = self.array, self.region
        if not array.size:
            return np.empty(array.shape, np.int32)
        each = array.dtype.itemsize // region.unit
        strides = [
            4 * (stride // region.unit) if size > 1 else 0
            for size, stride in zip(array.shape, array.strides, strict=True)
        ]
        return np.ndarray(
            (*array.shape, *[each][: each > 1]),
            np.int32,
            codes,
            4 * ((self.address - region.lo) // region.unit),
            (*strides, *[4][: each > 1]),
        )


def bounds(array: np.ndarray) -> tuple[int, int]:
    """Return the addresses [lo, hi) in which an array's elements lie."""
    lo = hi = int(array.ctypes.data)
    if not array.size:
        return lo, hi
    reach = [(size - 1) * stride for size, stride in zip(array.shape, array.strides, strict=True)]
    return lo + sum(part for part in reach if part < 0), hi + sum(
        part for part in reach if part > 0
    ) + array.dtype.itemsize


def joined(arrays: Sequence[np.ndarray]) -> list[Dim3]:
    """Return the memory of arrays, merging arrays that overlap.

    Each entry is (first byte, one past the last byte, the smallest index of an array there), in
    this order.
    """
    found: list[Dim3] = []
    for lo, hi, number in sorted((*bounds(array), number) for number, array in enumerate(arrays)):
        if found and lo < found[-1][1]:
            first, last, least = found.pop()
            lo, hi, number = first, max(last, hi), min(least, number)
        found.append((lo, hi, number))
    return found


def settle(place: Place, regions: list[Region]) -> None:
    """Add an array to the region that it overlaps, and merge the regions if it overlaps several."""
    array, (lo, hi) = place.array, bounds(place.array)
    joined = [region for region in regions if region.lo < hi and lo < region.hi]
    lo = min([lo, *(region.lo for region in joined)])
    hi = max([hi, *(region.hi for region in joined)])
    steps = [stride for size, stride in zip(array.shape, array.strides, strict=True) if size > 1]
    units = [n for region in joined for n in (region.unit, region.lo - lo)]
    region = Region(lo, hi, math.gcd(array.dtype.itemsize, place.address - lo, *steps, *units))
    if len(joined) == 1 and (joined[0].lo, joined[0].hi, joined[0].unit) == (lo, hi, region.unit):
        region = joined[0]
    else:
        for other in joined:
            region.adopt(other)
            regions.remove(other)
        regions.append(region)
    place.join(region)


def overlap(place: Place, index: Index, other: Place, theirs: Index) -> bool:
    """Return whether parts of two arrays have bytes in common."""
    if place is other:
        return all(
            max(a.start, b.start) < min(a.stop, b.stop) for a, b in zip(index, theirs, strict=True)
        )
    return bool(np.shares_memory(place.array[index], other.array[theirs]))
