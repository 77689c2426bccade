"""Boxes: the part of an array in global memory that a TMA copy moves, and the places of its bytes
in shared memory.

Rows of the box (its innermost dimension) are contiguous. With a swizzle, the 16-byte chunk index is
XORed with the row: address bits [4, 4+b) ^= bits [7, 7+b), b = log2(swizzle / 16). The bits are
bits of the absolute address, so the pattern of a box depends on its start modulo 1024.

PTX ISA, "Tensors" (tensor dimension, box, interleave and swizzle modes).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..arch.dimensions import Ints
from ..core.machine import TensorMap

Intervals = tuple[tuple[int, int], ...]
"""[begin, end) of bytes, in order."""
UPDATES = {
    "add": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}
"""The effect of lane atomics on an element, as NumPy functions of two arguments."""
_REDUCED: dict[str, Callable[[Any, Any], np.ndarray]] = {
    **UPDATES,
    "": lambda old, new: new,
    "inc": lambda old, new: np.where(old >= new, 0, old + np.ones_like(old)),
    "dec": lambda old, new: np.where((old == 0) | (old > new), new, old - np.ones_like(old)),
}


def combined(reduction: str, old: np.ndarray, new: np.ndarray) -> np.ndarray:
    """Return what `old` elements become by a reduction, or by a store if `reduction` is "", by a
    TMA copy or by lanes."""
    with np.errstate(all="ignore"):  # floats overflow to inf, integers wrap
        return _REDUCED[reduction](old, new)


def swizzled(chunks: np.ndarray, swizzle: int) -> np.ndarray:
    """Return the chunk number at which the hardware puts 16-byte chunk number `chunks` (address /
    16).

    >>> swizzled(np.arange(8, 12), 128).tolist()
    [9, 8, 11, 10]
    """
    return chunks ^ (chunks >> 3 & (swizzle // 16 - 1)) if swizzle else chunks


@functools.lru_cache(maxsize=1024)
def _pattern(count: int, swizzle: int, start: int) -> tuple[np.ndarray, Intervals]:
    """Return (chunk table, bytes touched) relative to the 1024-byte line that contains the start of
    the box, at offset `start`."""
    table = swizzled(start // 16 + np.arange(count), swizzle)
    return table, intervals(16 * table, 16)


@dataclass(frozen=True)
class Box:
    """The geometry of a TensorMap."""

    tensor: TensorMap

    def footprint(self, address: int) -> tuple[np.ndarray | slice, list[tuple[int, int]]]:
        """Return (index into the 16-byte chunks of shared memory, byte intervals) of the box at
        `address`."""
        nbytes = self.tensor.nbytes
        if not self.tensor.swizzle:
            return slice(address // 16, (address + nbytes) // 16), [(address, address + nbytes)]
        line = address & ~1023
        table, touched = _pattern(nbytes // 16, self.tensor.swizzle, address - line)
        return table + line // 16, [(lo + line, hi + line) for lo, hi in touched]

    def elements(self, coords: Ints) -> tuple[slice, ...]:
        """Return the part of the array that the box at `coords` covers, empty if it lies
        outside."""
        return tuple(
            [
                slice(start if start > 0 else 0, max(min(start + extent, size), start, 0))
                for start, extent, size in zip(
                    coords, self.tensor.box, self.tensor.array.shape, strict=True
                )
            ]
        )

    def _within(self, coords: Ints, part: tuple[slice, ...]) -> tuple[slice, ...]:
        """Return the position of a part of the array within the box at `coords`."""
        return tuple(
            [
                slice(each.start - start, each.stop - start)
                for each, start in zip(part, coords, strict=True)
            ]
        )

    def fetch(self, coords: Ints) -> np.ndarray:
        """Return the box at `coords` as contiguous 16-byte chunks; elements outside the array are
        zeros (or NaN)."""
        part = self.elements(coords)
        box = self.tensor.array[part]
        if box.shape != tuple(self.tensor.box):
            inside = box
            box = np.full(self.tensor.box, np.nan if self.tensor.fill == "nan" else 0, box.dtype)
            if inside.size:
                box[self._within(coords, part)] = inside
        return np.ascontiguousarray(box).reshape(-1).view(np.complex128)

    def put(self, coords: Ints, chunks: np.ndarray, reduction: str = "") -> None:
        """Write the part of the box at `coords` that lies inside the array, or reduce it into the
        array."""
        array, part = self.tensor.array, self.elements(coords)
        if array[part].size:
            new = chunks.view(array.dtype).reshape(self.tensor.box)[self._within(coords, part)]
            array[part] = combined(reduction, array[part], new)


def intervals(addresses: np.ndarray, width: int) -> Intervals:
    """Return the merged, sorted intervals covered by `width` bytes at each address.

    >>> intervals(np.array([64, 16, 32]), 16)
    ((16, 48), (64, 80))
    """
    flat = np.unique(addresses)
    if not flat.size:
        return ()
    breaks = np.flatnonzero(np.diff(flat) > width)
    first = np.concatenate(([0], breaks + 1))
    last = np.concatenate((breaks, [flat.size - 1]))
    return tuple((int(flat[a]), int(flat[b]) + width) for a, b in zip(first, last, strict=True))
