"""Tiles of other shapes in the same registers, so that warps have whole rows of them.

A row that is spread over a warpgroup, (1, N), has parts (8, N / 8), two for each warp, and groups
(N / 128, 128) of adjacent columns. Reductions along the rows of these tiles need shuffles only.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ...arch.dimensions import round_up
from ...core.functions import function
from ...core.op import constant, op
from ...diagnostics.errors import SpecError
from .conversions import moved
from .layout_names import ROW, ROWS
from .layouts import Form, by_rows
from .register_order import renamed
from .row_layouts import WHOLE
from .tile import Tile, form_of

PARTS, GROUP = 8, 128
"""parts of a row, and columns of a group"""
STEP = 512
"""columns of which a warp has 128 adjacent ones"""
SPREAD = f"{ROW} {WHOLE}"
"""layout of a row that is spread over a warpgroup"""


def forms(tile: Any, rows: Any, layout: Any) -> tuple[Form, Form]:
    """Return the form that a tile is moved to and that of its registers in `with_rows`. Raises
    SpecError for a single row whose columns are not a multiple of `STEP`."""
    form, rows = form_of(tile, "'with_rows'"), constant("with_rows", "rows", rows)
    if form is None or len(form.shape) != 2:
        raise SpecError(f"with_rows: expected a tile (M, N), got {form or tile}")
    height, size = form.shape[0], form.shape[0] * form.shape[1]
    rows = rows or size // GROUP
    if 1 in (rows, height) and size % STEP:
        raise SpecError(
            f"with_rows: expected a multiple of {STEP} columns, got {form}; fix: load "
            f"{round_up(size, STEP)} columns, of which those outside the array are 0"
        )
    have = form if height > 1 or form.name.lanes == WHOLE else replace(form, layout=SPREAD)
    layout = constant("with_rows", "layout", layout)
    if not layout and rows == height and have.name.run == 2:
        return have, have
    layout = layout or f"{ROWS} {WHOLE if rows == 1 else 32}"
    return have, by_rows(Form((rows, size // rows), form.dtype), layout, "with_rows")


@op
def with_rows(tile: Any, rows: int, layout: str | None = None) -> Tile:
    """Return the registers of a tile (M, N) as a tile of `rows` rows: 8 parts of a row, groups of
    rows (0), or the rows that have these groups."""
    have, result = forms(tile, rows, layout)
    return renamed(moved(tile, have), result)


@function
def split_row(tile):  # type: ignore[no-untyped-def]
    """Return the parts (8, N / 8) of a tile (1, N)."""
    return with_rows(tile, PARTS)


@function
def join_row(tile):  # type: ignore[no-untyped-def]
    """Return the tile (1, N) that has these parts."""
    return with_rows(tile, 1)
