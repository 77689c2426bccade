"""Strips of a register tile: computing on some columns at a time to save registers.

A 64 x 256 tile occupies 128 registers of each lane. Each further value in an elementwise
computation takes as many again: a residual, or an intermediate result. With strips, these registers
are needed for one strip only::

    columns   0 … 63           64 … 127         128 … 191        192 … 255
              function(x, 0)   function(x, 64)  function(x, 128) function(x, 192)

In each lane the columns of a strip are separate registers, so splitting a tile into strips and
joining them moves no data.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from ...core.op import called, constant, op
from ...diagnostics.argument_checks import is_int
from ...diagnostics.errors import SpecError
from .conversions import moved
from .layouts import GROUP, Form
from .row_layouts import lanes_for
from .tile import Tile, form_of, tile_form
from .top_k import by_row

__all__ = ["map_columns"]


def strip_form(tile: Any, width: Any) -> tuple[Form, Form]:
    """Return (the form that a tile is moved to, the form of its strips of `width` columns). Raises
    SpecError if the tile cannot be divided into them."""
    width, form = constant("map_columns", "width", width), tile_form(tile, "map_columns")
    if len(form.shape) != 2:
        raise SpecError(
            f"map_columns: only a two-dimensional tile has strips of columns, got {form}"
        )
    if not is_int(width) or width < GROUP or width % GROUP or form.shape[1] % width:
        raise SpecError(
            f"map_columns: width={width!r}: expected a multiple of 8 that divides the "
            f"{form.shape[1]} columns of a tile {form.shape}"
        )
    shape = (form.shape[0], int(width))
    form = by_row(form)
    if form.name.lanes and width % form.record.units[-1]:
        form = replace(form, layout=f"{form.name.word} {lanes_for(int(width))}")
    return form, replace(form, shape=shape)


def check_result(strip: Form, part: Any) -> None:
    """Raise SpecError for a function that does not return a tile of the strip's shape."""
    form = form_of(part, "map_columns")
    if form is None or form.shape != strip.shape:
        raise SpecError(
            "map_columns: function(strip, first) must return a tile of the strip's shape "
            f"{strip.shape}, of any dtype, got {form or called(part)}"
        )


@op
def map_columns(function: Callable[[Any, Any], Any], tile: Any, width: int) -> Any:
    """Call ``function(strip, first)`` for each strip of `width` columns of a tile, and join the
    results into one tile.

    function  nested in the kernel, or a `numpipe.function`; `first` is the strip's first column in
              the tile, an int32. Returns a tile of the strip's shape
    tile      two-dimensional: a sum of products, settled
    width     columns, a compile-time multiple of 8 that divides the tile's number of columns

    Use it in epilogues: the values that `function` loads and computes occupy registers for one
    strip at a time (32 per lane for each value of 64 x 64)::

        def finish(x, first):
            x = x + residual[ds(row, 64), ds(column + first, 64)].astype(np.float32)
            return np.maximum(x, 0.0).astype(c.dtype)


        c[ds(row, 64), ds(column, 256)] = numpipe.map_columns(finish, acc, 64)

    Raises SpecError for a width that does not divide the tile, and for a function that returns
    another shape.
    """
    form, strip = strip_form(tile, width)
    tile, parts = moved(tile, form), []
    for first in range(0, tile.shape[1], width):
        value = None if tile.inert else tile.value[:, first : first + width]
        part = function(Tile(value, strip), np.int32(first))
        check_result(strip, part)
        parts.append(moved(part, replace(part.form, layout=strip.layout)))
    if any(part.dtype != parts[0].dtype for part in parts):
        raise SpecError(
            "map_columns: function must return tiles of one dtype, got "
            + ", ".join(str(part.dtype) for part in parts)
        )
    inert = any(part.inert for part in parts)
    return Tile(
        None if inert else np.concatenate([part.value for part in parts], axis=1),
        replace(form, dtype=parts[0].dtype),
    )
