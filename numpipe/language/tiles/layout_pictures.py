"""Pictures of register tiles: which lane holds each element, and in which register."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...arch.dimensions import Ints
from ...arch.dtypes import packing
from ...diagnostics.argument_checks import STRING, element_type, require, told, whole, word
from ...diagnostics.errors import SpecError
from .layout_names import COALESCED, COLUMN, ROW, name_of
from .layouts import Form, by_rows, coalesced_form
from .tile import check_form

__all__ = ["show_layout"]

CELL, HIGH, MARGIN = 46, 22, 34
"""Pixels: width and height of an element, and the margin around the picture for row and column
numbers."""
COLORS = ("#dbe9f6", "#fde3cf", "#ddf1dc", "#ece3f4")
"""Colors of the lanes of a quad."""


@dataclass(frozen=True)
class Picture:
    """A drawing: notebooks display it, `save` writes it, and ``str`` returns its SVG text."""

    title: str
    rows: Ints
    """Numbers next to the rows; -1 for none."""
    columns: Ints
    cells: tuple[tuple[int, int, int, str], ...]
    """(index into `rows`, index into `columns`, lane, text)"""

    def __str__(self) -> str:
        cells = []
        for row, column, lane, text in self.cells:
            x, y = MARGIN + CELL * column, MARGIN + HIGH * row
            cells.append(
                f'<rect x="{x}" y="{y}" width="{CELL}" height="{HIGH}" fill="{COLORS[lane % 4]}" '
                f'stroke="#999"/><text x="{x + CELL / 2}" y="{y + 15}" '
                f'text-anchor="middle">{text}</text>'
            )
        labels = [
            (MARGIN + CELL * (i + 0.5), MARGIN - 8, "middle", n) for i, n in enumerate(self.columns)
        ]
        labels += [(MARGIN - 6, MARGIN + HIGH * i + 15, "end", n) for i, n in enumerate(self.rows)]
        numbers = [
            f'<text x="{x}" y="{y}" text-anchor="{anchor}">{number}</text>'
            for x, y, anchor, number in labels
            if number >= 0
        ]
        width, height = 2 * MARGIN + CELL * len(self.columns), MARGIN + HIGH * len(self.rows) + 8
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
            'font-family="sans-serif" '
            f'font-size="10"><title>{self.title}</title>{"".join(numbers)}{"".join(cells)}</svg>'
        )

    def _repr_svg_(self) -> str:
        return str(self)

    def save(self, path: str | Path) -> None:
        """Write the picture to an .svg file. Raises SpecError for any other extension."""
        if Path(path).suffix != ".svg":
            raise SpecError(f"show_layout: a picture can only be saved as .svg, got {str(path)!r}")
        Path(path).write_text(str(self), encoding="utf8")


def holders(form: Form, warp: int) -> dict[tuple[int, int], list[tuple[int, int]]]:
    """Return (lane, register) for each lane of a warp that holds an element, by (row, column), -1
    for a missing dimension.

    A register of an 8-bit or 16-bit type has two elements; the one with the lower column, or row,
    is in its low half.
    """
    found, each = {}, packing(form.dtype).per_register
    for (row, column), every in form.record.holders(form.covered).items():
        inside = (row or 0) < form.shape[0] and (column or 0) < form.shape[-1]
        if inside and (
            lanes := [(lane % 32, n // each) for lane, n in every if lane // 32 == warp]
        ):
            found[-1 if row is None else row, -1 if column is None else column] = lanes
    return found


def show_layout(
    shape: Any,
    dtype: Any = np.float32,
    *,
    along: str = ROW,
    layout: str = "accumulator",
    warp: int = 0,
) -> Picture:
    """Draw which lane of a warp holds each element of a register tile: ``T5:2`` is register 2 of
    lane 5.

    shape  (M, N) for a tile, of which the 16 rows of one warp in a block of 64 are drawn; or (n,)
           for a vector
    dtype  float32, int32, bool, or a smaller type, two elements of which share a register
    along  for a vector: "row", along the columns of a tile, or "column", along its rows. An element
           that many lanes hold is drawn with the first lane and the number of other lanes.
    layout for a tile (M, N): "accumulator", "coalesced" or by rows, "rows", "rows 32"; for a vector
           also "row 32", "column 32"
    warp   0 … 3

    A 16-bit tile is drawn as the accumulator that it was packed from, which is also the layout of
    an A operand of wgmma (PTX ISA, "Register Fragments for wgmma"). Raises SpecError for shapes
    that tiles do not support.

    >>> "T31:3" in str(show_layout((64, 8)))
    True
    """
    require("show_layout", locals(), along=word(ROW, COLUMN), layout=STRING, warp=whole(0, 3))
    form = check_form(shape, element_type("show_layout", dtype), "show_layout")
    form = form.settled(along)
    if name_of(layout).by_row:
        form = by_rows(form, layout, "show_layout")
    elif layout == COALESCED:
        form = coalesced_form(form, "show_layout")
    elif layout != "accumulator":
        raise SpecError(
            f"show_layout: layout must be 'accumulator', 'coalesced' or 'rows', got {told(layout)}"
        )
    found = holders(form, warp)
    rows, columns = sorted({row for row, _ in found}), sorted({column for _, column in found})
    cells = []
    for (row, column), lanes in sorted(found.items()):
        lane, register = lanes[0]
        more = f"+{len(lanes) - 1}" if len(lanes) > 1 else ""
        cells.append((rows.index(row), columns.index(column), lane, f"T{lane}:{register}{more}"))
    return Picture(f"{form}, warp {warp}", tuple(rows), tuple(columns), tuple(cells))
