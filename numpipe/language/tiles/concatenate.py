"""``np.concatenate`` of register tiles. Each lane keeps its registers, except of tiles that lie in
other lanes than their part of the result."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from ...arch.dimensions import Ints
from ...core.op import called, constant, context_op
from ...diagnostics.errors import SpecError
from ...plan.context import Context
from .conversions import moved
from .elementwise import check_axis
from .layout_names import COLUMN, ROW, ROWS
from .layouts import Form
from .refs import ALL, Span
from .tile import Tile, TileLike, check_form, form_of
from .tile_slices import elements_of, part_form, steps

CALL = "np.concatenate"


def joined_form(tiles: Any, axis: Any) -> tuple[Form, list[tuple[Form, Ints]]]:
    """Return (form, parts) of tiles one after another along `axis`. For each tile, `parts` has the
    form in which its registers are used, and which elements of a lane of the result they are.

    `tiles`, a tuple, and `axis` may be values or Numba types. Raises SpecError for tiles that
    differ in dtype or another dimension, and for sizes at which other lanes would need elements.
    """
    together = not isinstance(tiles, TileLike) and isinstance(tiles, Iterable)
    given = [form_of(tile, f"'{CALL}'") for tile in tiles] if together else []
    forms = [form for form in given if form is not None]
    if not forms or len(forms) < len(given):
        got = f"({', '.join(map(called, tiles))})" if together else called(tiles)
        raise SpecError(f"{CALL}((a, b), axis) takes a tuple of register tiles, got {got}")
    first, start, parts = forms[0], 0, []
    along = check_axis(first, constant(CALL, "axis", axis), CALL)
    for form in forms:
        here, there = (
            (of.dtype, len(of.shape), of.shape[:along], of.shape[along + 1 :])
            for of in (first, form)
        )
        if here != there:
            raise SpecError(
                f"{CALL} along dimension {along} of tiles {first} and {form}: they differ in more "
                "than that dimension's size; fix: convert the dtype with .astype(dtype)"
            )
    shape = list(first.shape)
    shape[along] = sum(form.shape[along] for form in forms)
    result = check_form(tuple(shape), first.dtype, CALL).settled(ROW, COLUMN)
    words = (ROWS, ROW) if along == len(shape) - 1 else (ROWS,)
    if (
        first.name.lanes
        and first.name.word in words
        and not any(form.shape[along] % steps(first)[along] for form in forms[:-1])
    ):
        result = replace(result, layout=first.layout)
    for form in forms:
        index: list = [ALL] * len(shape)
        index[along] = Span(start, start + form.shape[along])
        part, slices = part_form(result, index)
        parts.append((part, elements_of(result, part, slices)))
        start += form.shape[along]
    return result, parts


@context_op(numpy=np.concatenate)
def concatenate(np_: Context, arrays: Any, axis: Any = 0) -> Tile:
    """Implement ``np.concatenate((a, b, …), axis)`` for register tiles of one dtype."""
    form, parts = joined_form(arrays, axis)
    if not np_.computes:
        return Tile(None, form)
    tiles = [moved(tile, part) for tile, (part, _) in zip(arrays, parts, strict=True)]
    return Tile(np.concatenate([tile.value for tile in tiles], axis), form)
