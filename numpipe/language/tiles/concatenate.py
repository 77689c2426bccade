"""``np.concatenate`` of register tiles: each lane keeps the registers that it has."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from ...core.op import called, constant, op
from ...diagnostics.errors import SpecError
from ...plan.context import Context
from .elementwise import check_axis
from .layouts import EITHER, Form
from .refs import ALL, Span
from .tile import Tile, TileLike, form_of
from .tile_slices import elements_of, part_form

CALL = "np.concatenate"


def joined_form(tiles: Any, axis: Any) -> tuple[Form, list[tuple[int, ...]]]:
    """Return (form, places) of tiles one after another along `axis`; ``places[i]`` lists which
    elements of a lane are the elements of tile i.

    `tiles`, a tuple, and `axis` may be values or Numba types. Raises SpecError for tiles that
    differ in dtype, layout or another dimension, and for sizes at which other lanes would need
    elements.
    """
    together = not isinstance(tiles, TileLike) and isinstance(tiles, Iterable)
    forms = [form_of(tile, f"'{CALL}'") for tile in tiles] if together else []
    if not forms or any(form is None for form in forms):
        got = f"({', '.join(map(called, tiles))})" if together else called(tiles)
        raise SpecError(f"{CALL}((a, b), axis) takes a tuple of register tiles, got {got}")
    first = min((form for form in forms if form), key=lambda form: form.layout == EITHER)
    along = check_axis(first, constant(CALL, "axis", axis), CALL)
    for form in forms:
        assert form is not None
        here, there = (
            (of.dtype, len(of.shape), of.shape[:along], of.shape[along + 1 :])
            for of in (first, form)
        )
        if here != there or form.layout not in (first.layout, EITHER):
            raise SpecError(
                f"{CALL} along dimension {along} of tiles {first} and {form}: they differ in more "
                "than that dimension's size: convert with .astype(dtype) or "
                "numpipe.layout_cast(tile, layout)"
            )
    sizes = [form.shape[along] for form in forms if form is not None]
    shape = (*first.shape[:along], sum(sizes), *first.shape[along + 1 :])
    result, places, start = Form(shape, first.dtype, first.layout), [], 0
    for size in sizes:
        index: list[Any] = [ALL] * len(shape)
        index[along] = Span(start, start + size)
        part, slices = part_form(result, index)
        places.append(elements_of(result, part, slices))
        start += size
    return result, places


@op(context=True, numpy=np.concatenate)
def concatenate(np_: Context, arrays: Any, axis: Any = 0) -> Tile:
    """Implement ``np.concatenate((a, b, …), axis)`` for register tiles of one dtype and layout."""
    form, _ = joined_form(arrays, axis)
    if not np_.computes:
        return Tile(None, form)
    return Tile(np.concatenate([tile.value for tile in arrays], axis), form)
