"""Scatters: ``y[rows, :] = tile``, ``y[ds(i, 64), columns] = tile``, ``y[at] = vector`` store rows,
columns or elements at given indices.

The indices are an int32 vector. Each lane has the indices of its own elements, and stores them; a
vector that lies otherwise is moved first. ``:`` selects a whole dimension, of which the tile must
have as many elements.

An index outside the array is the hazard `out-of-bounds` on the simulated SM; on the GPU nothing is
written there. Two equal indices are the hazard `unordered-accesses`: it is undefined which lane
stores last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ...arch.dimensions import Ints
from ...arch.dtypes import INT32
from ...core.machine import current, failure
from ...diagnostics.errors import SimulationError, SpecError
from .array_views import check_inside, ends, index_form
from .conversions import moved
from .layouts import ACCUMULATOR, Form
from .refs import All, Ds, GmemRef
from .tile import Tile, TileLike, form_of


def scattered(parts: Sequence) -> int | None:
    """Return which part of an index is a vector of indices, or None."""
    return next((axis for axis, part in enumerate(parts) if isinstance(part, TileLike)), None)


def sizes_of(parts: Sequence, axes: Sequence[int]) -> Ints:
    """Return the shape that an index selects."""
    return tuple(
        parts[axis].shape[0] if isinstance(parts[axis], TileLike) else parts[axis].size
        for axis in axes
    )


def all_of_tile(parts: tuple, tile: Any) -> tuple:
    """Return an index in which each ``:`` is replaced by a range as long as the stored tile."""
    if not isinstance(tile, TileLike) or not any(isinstance(part, All) for part in parts):
        return parts
    sizes = iter(tile.shape)
    found = [
        (part, next(sizes, None) if isinstance(part, (All, Ds, TileLike)) else None)
        for part in parts
    ]
    return tuple(
        Ds(0, size) if isinstance(part, All) and size is not None else part for part, size in found
    )


def check_all(ref: GmemRef, given: Sequence, parts: Sequence, what: str) -> None:
    """Raise SimulationError for a ``:`` that selects more, or fewer, elements than the tile has."""
    for axis, (whole, part) in enumerate(zip(given, parts, strict=True)):
        if isinstance(whole, All) and ref.array.shape[axis] != part.size:
            raise SimulationError(
                f"{what}: ':' selects all {ref.array.shape[axis]} elements of '{ref.name}' along "
                f"dimension {axis}, but the tile has {part.size}; fix: write ds(0, {part.size}), "
                "which is clipped at the array's end"
            )


def check_scatter(name: str, parts: Sequence) -> None:
    """Raise SpecError unless one part of an index is a vector of int32. `parts` are the parts of
    the index along the tile's dimensions."""
    what = f"'{name}[…] = tile'"
    vectors = [form_of(part, what) for part in parts if isinstance(part, TileLike)]
    vector, *others = vectors
    if others or vector is None or len(vector.shape) != 1 or vector.dtype != INT32:
        raise SpecError(
            f"{what}: only one part of the index may be a vector of int32, with ds(start, size) "
            f"and integers for the others, got {' and '.join(map(str, vectors))}"
        )


def stored_form(form: Form, parts: Sequence) -> Form:
    """Return the form in which a tile is stored: a coalesced one whose places are scattered is
    moved."""
    scatters = scattered(parts) is not None and form.name.vector
    return replace(form, layout=ACCUMULATOR) if scatters else form


def scatter(
    ref: GmemRef,
    axes: Sequence[int],
    parts: Sequence,
    tile: Tile,
    what: str,
    moded: bool = False,
) -> None:
    """Store a tile that fits. Elements that a `ds` selects past the end of the array are dropped.

    `moded`: the vector of indices has a mode, which has been applied, so indices outside the array
    are dropped too.
    """
    along = scattered(parts)
    assert along is not None
    tile = moved(tile, stored_form(tile.form, parts))
    moved(parts[along], index_form(tile.form, axes.index(along), parts[along].form))
    check_inside(
        ref,
        tuple(parts),
        tuple(axes),
        what,
        "the GPU writes nothing",
        "the GPU writes nothing",
        "stores to",
    )
    where: list[slice] = []
    for part, size in zip(parts, ends(ref, parts), strict=True):
        start, count = (
            (int(part.start), part.size)
            if isinstance(part, Ds)
            else (0 if isinstance(part, TileLike) else int(part), 1)
        )
        if start < 0:
            raise failure(
                SimulationError,
                "out-of-bounds",
                f"{what}: negative start {start}: the GPU writes only elements inside the array",
                "starts of 0 or more: elements past the end are clipped",
                f"stores to '{ref.name}'",
            )
        where.append(slice(start, max(start, min(start + count, size))))
    shape = [1] * len(parts)
    for axis, size in zip(axes, tile.shape, strict=True):
        shape[axis] = size
    taken = tuple(
        slice(None) if axis == along else slice(part.stop - part.start)
        for axis, part in enumerate(where)
    )
    values, places = tile.value.reshape(shape)[taken], parts[along].value
    if moded:
        inside = (places >= 0) & (places < ref.array.shape[along])
        values, places = np.compress(inside, values, axis=along), places[inside]
    if values.size:
        current().gmem_scatter(ref.array, tuple(where), along, places, values, ref.name)
