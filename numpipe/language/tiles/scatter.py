"""``y[rows, :] = tile``, ``y[ds(i, 64), columns] = tile``, ``y[at] = vector``: rows, columns or elements, each to its own place.

The indices are an int32 vector that lies as the tile does: of rows along rows (column layout), of columns along columns. Each lane
has the indices of its own elements, and stores these. ``:`` is all of a dimension, of which the tile has as many elements.

An index outside the array is the hazard `out-of-bounds` on the simulated SM; on the GPU what it names is not written. Two equal
indices are the hazard `unordered-accesses`: which lane stores last is not known.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ...arch.dtypes import INT32
from ...core.machine import current, failure
from ...diagnostics.errors import SimulationError, SpecError
from .layouts import COLUMN, EITHER, ROW, Form, joined, only_accumulator
from .refs import All, Ds, GmemRef
from .tile import Tile, TileLike, form_of
from .views import check_inside


def scattered(parts: Sequence[Any]) -> int | None:
    """Return which part of an index is a vector of indices; None where none is."""
    return next((axis for axis, part in enumerate(parts) if isinstance(part, TileLike)), None)


def sizes_of(parts: Sequence[Any], axes: Sequence[int]) -> tuple[int, ...]:
    """Return the shape that an index selects."""
    return tuple(parts[axis].shape[0] if isinstance(parts[axis], TileLike) else parts[axis].size for axis in axes)


def all_of_tile(parts: tuple[Any, ...], tile: Any) -> tuple[Any, ...]:
    """Return an index in which each ``:`` has as many elements as the tile that is stored."""
    if not isinstance(tile, TileLike) or not any(isinstance(part, All) for part in parts):
        return parts
    sizes = iter(tile.shape)
    found = [(part, next(sizes, None) if isinstance(part, (All, Ds, TileLike)) else None) for part in parts]
    return tuple(Ds(0, size) if isinstance(part, All) and size is not None else part for part, size in found)


def check_all(ref: GmemRef, given: Sequence[Any], parts: Sequence[Any], what: str) -> None:
    """Raise SimulationError for a ``:`` that selects more, or fewer, elements than the tile has."""
    for axis, (whole, part) in enumerate(zip(given, parts, strict=True)):
        if isinstance(whole, All) and ref.array.shape[axis] != part.size:
            raise SimulationError(f"{what}: ':' is all {ref.array.shape[axis]} elements of '{ref.name}' along dimension {axis}, "
                                  f"the tile has {part.size}: write ds(0, {part.size}), which is clipped at the array's end")


def check_scatter(name: str, parts: Sequence[Any], form: Form) -> None:
    """Raise SpecError unless a tile's lanes have the indices of their elements; `parts` are those along the tile's dimensions."""
    what = f"'{name}[…] = tile'"
    only_accumulator(form, f"{what}, scattered,")
    vectors = [(axis, form_of(part, what)) for axis, part in enumerate(parts) if isinstance(part, TileLike)]
    (axis, vector), *others = vectors
    if others or vector is None or len(vector.shape) != 1 or vector.dtype != INT32:
        raise SpecError(f"{what}: one part of the index may be a vector of int32, the others are ds(start, size) and integers, got "
                        f"{' and '.join(str(each) for _, each in vectors)}")
    if len(parts) == 1:
        if vector.shape == form.shape and joined(vector, Form(form.shape, INT32, form.layout)) is None:
            raise SpecError(f"{what}: the vector lies in {form.layout} layout, its indices in {vector.layout} layout: write "
                            f"numpipe.layout_cast(indices, \"{form.layout}\")")
        return
    want, lines = ((COLUMN, "rows"), (ROW, "columns"))[axis]
    if vector.layout not in (want, EITHER):
        raise SpecError(f"{what}: the indices of a tile's {lines} lie along them ({want} layout), these of {vector.shape[0]} "
                        f"elements lie otherwise ({vector.layout} layout): write numpipe.layout_cast(v, \"{want}\")")


def scatter(ref: GmemRef, axes: Sequence[int], parts: Sequence[Any], tile: Tile, what: str) -> None:
    """Store a tile that fits, one run of neighbouring indices after the other."""
    along = scattered(parts)
    assert along is not None
    indices, size, number = parts[along].value, ref.array.shape[along], list(axes).index(along)
    outside = indices[(indices < 0) | (indices >= size)]
    if outside.size:
        raise failure(SimulationError, "out-of-bounds", f"{what}: index {int(outside[0])} along dimension {along} is outside the "
                      f"array's {size}; the GPU does not write there", f"indices in 0…{size - 1}", f"stores to '{ref.name}'")
    order = np.argsort(indices, kind="stable")
    twice = indices[order][1:][np.diff(indices[order]) == 0]
    if twice.size:
        raise failure(SimulationError, "unordered-accesses", f"{what}: index {int(twice[0])} along dimension {along} comes more "
                      "than once; which of its elements is stored last is not known", "indices that differ, or numpipe.atomic_add",
                      f"stores to '{ref.name}'")
    check_inside(ref, tuple(parts), tuple(axes), what, *["the GPU writes nothing"] * 2, "stores to")
    where: list[Any] = [part if axis not in axes else slice(None) for axis, part in enumerate(parts)]
    taken: list[slice] = [slice(None)] * len(axes)
    for place, axis in enumerate(axes):
        if axis != along:
            start, count = int(parts[axis].start), tile.shape[place]
            if start < 0:
                raise failure(SimulationError, "out-of-bounds", f"{what}: negative start {start}: the GPU writes what lies inside",
                              "starts from 0 on: what sticks out at the end is clipped", f"stores to '{ref.name}'")
            inside = max(0, min(count, ref.array.shape[axis] - start))
            where[axis], taken[place] = slice(start, start + inside), slice(inside)
            if not inside:
                return
    for run in _runs(indices, order):
        where[along] = slice(int(indices[run[0]]), int(indices[run[-1]]) + 1)
        current().gmem_write(ref.array, tuple(int(i) if not isinstance(i, slice) else i for i in where),
                             np.take(tile.value, run, axis=number)[tuple(taken)], ref.name)


def _runs(indices: np.ndarray, order: np.ndarray) -> Iterator[np.ndarray]:
    """Return the positions of indices in rising order, a run for each range of consecutive ones."""
    ends = np.flatnonzero(np.diff(indices[order]) != 1) + 1
    for first, last in itertools.pairwise([0, *ends.tolist(), len(order)]):
        yield order[first:last]
