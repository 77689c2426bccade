"""Panels: 64 rows of at most 128 bytes of a register tile, and how they lie in swizzled shared memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ...plan.layout import Layout, row_width
from .layouts import Form
from .tile import Tile


def panel_columns(columns: int, itemsize: int) -> int:
    """Columns of a panel: the widest of 128, 64, 32, 16 bytes that divides the tile's row."""
    return row_width(columns * itemsize) // itemsize


def sub_tile(tile: Tile, row: int, column: int, width: int) -> Tile:
    """The 64 x width panel of a tile; in registers a contiguous run, so nothing moves."""
    return Tile(tile.value[row:row + 64, column:column + width], Form((64, width), tile.dtype))


def batches(shape: tuple[int, ...], width: int, slots: int) -> list[tuple[tuple[int, int], ...]]:
    """(row, column) of a tile's panels, in batches of at most `slots`."""
    places = [(i, j) for i in range(0, shape[0], 64) for j in range(0, shape[1], width)]
    return [tuple(places[k:k + slots]) for k in range(0, len(places), slots)]


@dataclass(frozen=True)
class Batch:
    """Some panels of a tile, stored together: `axes` are the dimensions of the array along which its rows and columns lie.

    `reduction`: how an element is combined with the array's, "" to store it.
    """

    tile: Tile
    places: tuple[tuple[int, int], ...]
    width: int
    axes: tuple[int, int] = (0, 1)
    reduction: str = ""

    def panels(self) -> Iterator[tuple[Tile, int, int]]:
        """(panel, row, column) of each."""
        for row, column in self.places:
            yield sub_tile(self.tile, row, column, self.width), row, column


def panel_layout(columns: int, itemsize: int) -> Layout:
    """How a panel of so many columns lies in shared memory."""
    width: Any = columns * itemsize
    return Layout((64, columns), itemsize, 1, width, 64 * width)
