"""Tiles of one row, spread over a warpgroup, as the parts that its warps hold.

Lane l of warp w holds columns 256 p + 64 w + 2 l + o of a row, o = 0 or 1. The same registers form
a tile by rows (8, columns / 8): the first half are row w, the others row w + 4.
Reductions along the rows of that tile need shuffles only.
"""

from __future__ import annotations

from typing import Any

from ...core.op import op
from ...diagnostics.errors import SpecError
from .conversions import moved
from .layouts import ROW, Form
from .row_layouts import LANES, ROWS, WHOLE
from .tile import Tile, form_of

PARTS = 8
WARPS = 4
STEP = 512
"""columns of the row that its parts have 64 of"""
SPREAD = f"{ROW} {WHOLE}"
"""layout of a row that is spread over a warpgroup"""


def forms(tile: Any) -> tuple[Form, Form]:
    """Return the forms of a row and of its parts, given a tile that is one of them. Raises
    SpecError if the columns of the row are not a multiple of `STEP`."""
    form = form_of(tile, "'parts of a row'")
    if form is None or len(form.shape) != 2 or form.shape[0] not in (1, PARTS):
        raise SpecError(f"parts of a row: expected a tile (1, columns), got {form or tile}")
    columns = form.shape[0] * form.shape[1]
    if columns % STEP:
        raise SpecError(
            f"parts of a row: expected a multiple of {STEP} columns, got {form}; fix: load "
            f"{-(-columns // STEP) * STEP} columns, of which those outside the array are 0"
        )
    return (
        Form((1, columns), form.dtype, SPREAD),
        Form((PARTS, columns // PARTS), form.dtype, f"{ROWS} {LANES[0]}"),
    )


@op
def split_row(tile: Any) -> Tile:
    """Return the parts (8, columns / 8) of a tile (1, columns), in the registers of the tile."""
    row, parts = forms(tile)
    if tile.inert:
        return Tile(None, parts)
    pieces = moved(tile, row).value.reshape(PARTS // WARPS, -1, WARPS, 2 * LANES[0])
    return Tile(pieces.swapaxes(1, 2).reshape(parts.shape), parts)


@op
def join_row(tile: Any) -> Tile:
    """Return the tile (1, columns) that has these parts (8, columns / 8)."""
    row, parts = forms(tile)
    if tile.inert:
        return Tile(None, row)
    pieces = moved(tile, parts).value.reshape(PARTS // WARPS, WARPS, -1, 2 * LANES[0])
    return Tile(pieces.swapaxes(1, 2).reshape(row.shape), row)
