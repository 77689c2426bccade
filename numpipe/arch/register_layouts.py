"""Records of register layouts: which elements of a tile each lane of a warpgroup holds, and in
which order of its registers.

The row of an element is a distance given by the lane's number plus a distance given by the
register, and so is its column. A `RegisterLayout` lists both, and everything else about a layout
follows from them: which lane and register hold an element, which lanes share a row, which lanes
hold copies, and where the pattern repeats.
"""

from __future__ import annotations

import functools
import itertools
import operator
from dataclasses import dataclass, replace
from typing import Any

from .dimensions import Ints

LANES = 128
"""Lanes of a warpgroup."""
WARP, WARPS = 31, 96
"""The bits of a lane's number in the warpgroup that are its number in the warp, and those that are
its warp."""
Place = tuple[int | None, int | None]
"""(row, column); None along a dimension that a layout does not have."""


@dataclass(frozen=True)
class Bits:
    """Neighboring bits of a lane's number, which count rows or columns.

    mask     the bits; 0: none
    step     rows or columns from one value of the bits to the next
    shifted  whether to shift the lane's number before masking it, which gives the same value with
             other instructions; only for a step of 1
    """

    mask: int
    step: int
    shifted: bool = False

    def distance(self, lane: Any) -> Any:
        """Return the rows or columns that these bits of `lane` amount to; `lane` is an int, a NumPy
        array or an LLVM value.

        >>> Bits(28, 1).distance(13), Bits(3, 2).distance(13)
        (3, 2)
        """
        lowest = self.mask & -self.mask
        unit = self.step & -self.step
        shift = lowest.bit_length() - unit.bit_length()
        if self.shifted:
            return (lane >> shift) & (self.mask >> shift)
        # with a step of 1 the shift drops lower bits, so the mask may keep them
        part = lane & (self.mask | max(lowest, 1) - 1 if self.step == 1 else self.mask)
        return (part >> shift if shift > 0 else part << -shift) * (self.step // unit)


@dataclass(frozen=True)
class Registers:
    """Elements of a lane that are `step` rows (`axis` 0) or columns (1) apart: `count` elements, or
    as many as the tile has if `count` is 0."""

    axis: int
    step: int
    count: int = 0


@dataclass(frozen=True)
class Part:
    """A part of an element's position. It is selected by one of `count` registers of a lane,
    "lanes" of a warp, or "warps" (`holder`); neighbors are `step` rows (`axis` 0) or columns (1)
    apart."""

    holder: str
    axis: int
    step: int
    count: int


@dataclass(frozen=True)
class RegisterLayout:
    """A layout of tiles in the registers of a warpgroup.

    name       the name in kernels, ``numpipe.layout_cast(tile, name)``
    lanes      the bits of a lane's number that give its row, and the bits that give its column
    registers  the elements of a lane, slowest changing first; a vector's layout has one axis only
    """

    name: str
    lanes: tuple[tuple[Bits, ...], tuple[Bits, ...]]
    registers: tuple[Registers, ...]

    @property
    def axes(self) -> Ints:
        """The dimensions along which elements of a lane differ: (0, 1) for a tile, (0,) or (1,) for
        a vector."""
        return tuple(sorted({each.axis for each in self.registers}))

    @property
    def units(self) -> Ints:
        """The rows and columns after which the pattern repeats."""
        return tuple(each.step for each in sorted(self.registers, key=_axis) if not each.count)

    def along(self, axis: int) -> RegisterLayout:
        """Return the layout of a vector that is broadcast to tiles: along their rows (axis 0) or
        along their columns (1)."""
        return replace(self, registers=tuple(each for each in self.registers if each.axis == axis))

    def own(self, lane: Any) -> tuple[Any, Any]:
        """Return the (row, column) of a lane's first element. `lane` is its number in the
        warpgroup: an int, a NumPy array or an LLVM value."""
        row, column = (
            functools.reduce(operator.add, (bits.distance(lane) for bits in axis))
            for axis in self.lanes
        )
        return row, column

    def places(self, shape: Ints) -> tuple[Place, ...]:
        """Return the elements of a lane as distances from its first, in the order of its
        registers."""
        distances = itertools.product(
            *(
                range(0, each.count * each.step or shape[-each.axis], each.step)
                for each in self.registers
            )
        )
        numbers = [
            [n for n, each in enumerate(self.registers) if each.axis == axis] for axis in (0, 1)
        ]
        row, column = (
            (lambda found, own=own: sum(found[n] for n in own)) if own else (lambda found: None)
            for own in numbers
        )
        return tuple((row(found), column(found)) for found in distances)

    def holders(self, shape: Ints) -> dict[Place, list[tuple[int, int]]]:
        """Return, for the position of each element of a tile, every (lane, index in the lane's
        registers) that holds it."""
        found: dict[Place, list[tuple[int, int]]] = {}
        places = self.places(shape)
        for lane in range(LANES):
            own = self.own(lane)
            for number, place in enumerate(places):
                at = (
                    None if distance is None else start + distance
                    for start, distance in zip(own, place, strict=True)
                )
                found.setdefault((next(at), next(at)), []).append((lane, number))
        return found

    def mask(self, *axes: int) -> int:
        """Return the bits of a lane's number that its row (axis 0), or its column (1), depends
        on."""
        return sum(bits.mask for axis in axes for bits in self.lanes[axis])

    @property
    def copies(self) -> int:
        """The bits of a lane's number that change nothing: lanes that differ only in these bits
        hold the same elements."""
        return LANES - 1 & ~self.mask(*self.axes)

    @property
    def warps(self) -> int:
        """How many warps together hold all elements."""
        return 1 << (self.mask(*self.axes) & WARPS).bit_count()

    def parts(self, shape: Ints) -> list[Part]:
        """Return the parts of the positions of a tile's elements: first registers, in their order,
        then lanes, with the lanes that share a row first, then warps."""
        return [
            Part("registers", each.axis, each.step, each.count or shape[-each.axis] // each.step)
            for each in self.registers
        ] + [
            Part(holder, axis, bits.step << skipped.bit_count(), 1 << own.bit_count())
            for holder, of, below in (("lanes", WARP, 0), ("warps", WARPS, WARP))
            for axis in reversed(self.axes)
            for bits in self.lanes[axis]
            if (own := bits.mask & of) | (skipped := bits.mask & below) and own
        ]

    def distances(self, *axes: int) -> Ints:
        """Return the distances between lanes of a warp that hold different rows (axis 0) or columns
        (1): a power of two for each step of a butterfly shuffle, in the order of `axes`."""
        return tuple(
            1 << bit for axis in axes for bit in range(5) if self.mask(axis) & WARP & 1 << bit
        )


def _axis(registers: Registers) -> int:
    return registers.axis


FRAGMENTS = RegisterLayout(
    "accumulator",
    ((Bits(WARPS, 16), Bits(28, 1)), (Bits(3, 2),)),
    (Registers(0, 64), Registers(1, 8), Registers(0, 8, 2), Registers(1, 1, 2)),
)
"""Accumulators of ``wgmma`` m64nN, in which the rows of each warp are fragments of ``mma.sync``
m16n8 (PTX ISA, "Register Fragments for wgmma", "Matrix Fragments for mma.m16n8k16")."""
