"""The boxes of a copy: which TMA instructions move a tile between a view of an array and shared memory.

A TMA instruction moves one box of the array, of at most 256 elements a side, to or from contiguous shared memory (PTX ISA,
"Tensors: Box"). A tile takes one for each of its panels (`plan.layout`), and more where it has more rows than a box may have.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...diagnostics.errors import SpecError
from ...plan.layout import Layout
from ...plan.plans import ArrayArg, MapRequest

MAX_SIDE = 256
"""elements of a TMA box along a dimension"""


@dataclass(frozen=True)
class Boxes:
    """The TMA copies of a tile: one tensor map, and for each where it starts.

    places  (byte offset in the tile, rows, columns), from the tile's start
    axes    the array's dimensions that are the tile's rows and columns
    """

    request: MapRequest
    places: tuple[tuple[int, int, int], ...]
    axes: tuple[int, ...]
    reverse: bool
    nbytes: int

    def in_memory(self, at: Any) -> Any:
        """Coordinates in the order of memory, contiguous dimension last."""
        return tuple(reversed(at)) if self.reverse else tuple(at)


def cut(array: ArrayArg, index: int, axes: tuple[int, ...], layout: Layout, written: bool) -> Boxes:
    """The boxes of a tile of this layout: a panel each, or a part of one where it has more rows than a box may have."""
    inner, outer = layout.inner, 1 - layout.inner
    rows = _side(layout.shape[outer], 8)
    places = []
    for panel in range(layout.panels):
        for row in range(0, layout.shape[outer], rows):
            start = (row, panel * layout.per_panel) if inner else (panel * layout.per_panel, row)
            places.append((panel * layout.panel_stride + row * layout.width, *start))
    sides = (rows, layout.per_panel) if inner else (layout.per_panel, rows)
    return Boxes(_request(array, index, axes, sides, layout.swizzle, written), tuple(places), axes, array.order != "row",
                 layout.nbytes)


def _request(array: ArrayArg, index: int, axes: tuple[int, ...], sides: Sequence[int], swizzle: int, written: bool) -> MapRequest:
    """The tensor map of boxes that have these sides along two of the array's dimensions."""
    box = [1] * array.ndim
    box[axes[0]], box[axes[1]] = sides
    return MapRequest(index, tuple(box if array.order == "row" else reversed(box)), swizzle, written=written)


def cut_prefetch(array: ArrayArg, index: int, axes: tuple[int, ...], sizes: tuple[int, ...]) -> Boxes:
    """The boxes of a prefetch, which has no tile: as few as can be."""
    if contiguous(array) not in axes:
        raise SpecError(f"async_prefetch: dimension {contiguous(array)} of '{array.name}' is contiguous: a ds(start, size) has to "
                        "be there")
    inner = axes.index(contiguous(array))
    unit = 16 // array.dtype.itemsize
    if sizes[inner] % unit:
        raise SpecError(f"async_prefetch: {array.name}.at[…] has {sizes[inner]} elements along dimension {axes[inner]}, which is "
                        f"contiguous: the TMA moves multiples of 16 B, {unit} elements")
    box_sides = [0, 0]
    box_sides[inner], box_sides[1 - inner] = _side(sizes[inner], unit), _side(sizes[1 - inner], 1)
    places = [(0, row, column) for row in range(0, sizes[0], box_sides[0]) for column in range(0, sizes[1], box_sides[1])]
    return Boxes(_request(array, index, axes, box_sides, 0, False), tuple(places), axes, array.order != "row",
                 math.prod(sizes) * array.dtype.itemsize)


def _side(size: int, unit: int) -> int:
    """The largest side of a box that divides `size`."""
    return next(side for side in range(min(size, MAX_SIDE) // unit * unit, 0, -unit) if size % side == 0)


def contiguous(array: ArrayArg) -> int:
    return array.ndim - 1 if array.order == "row" else 0
