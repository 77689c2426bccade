"""Atomics on shared memory: ``numpipe.atomic_add(hist.at[indices], 1)``,
``numpipe.atomic_add(sums[...], tile)``.

====================================  ==============================================================
destination                           operand of each element
====================================  ==============================================================
``hist.at[indices]``                  a vector in shared memory, at the indices in an int32 register
                                      tile: a number, or a tile with the layout of the indices
``tile``, ``tile.at[rows, columns]``  all elements of a tile: a register tile of its shape
``tile.at[i, j]``, ``hist.at[i]``     in per-lane code: an element, for each lane that executes it
====================================  ==============================================================

The lanes execute ``red.shared`` of the CTA (PTX ISA, "red"): int32 and uint32, and float32 sums.
Equal indices are all counted, in any order. A barrier before each atomic (`fence_order`) makes
earlier stores of the warpgroup's other warps visible. Warpgroups that share a tile must synchronize
with barriers of their own, before the first atomic and after the last. An index outside the vector
is the hazard `out-of-bounds` on the simulated SM; the GPU skips it, and reports it in a kernel with
``CompilerParams(debug=True)``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from ...arch.dtypes import INT32
from ...core.machine import current, failure
from ...core.op import called
from ...diagnostics.errors import SimulationError, SpecError
from .conversions import moved
from .elements import as_element, check_number, is_number
from .fence_order import before_access
from .layout_names import COLUMN, EITHER
from .layouts import Form
from .refs import READ_ONLY, SharedTile, SmemLike, SmemTile, method_of
from .scattered_shared import addresses, by_first, held
from .tile import Tile, form_of

_TYPES = {"add": ("int32", "uint32", "float32")}
_INTEGERS = "int32", "uint32"


class IndexedLike:
    """The attributes that elements of a shared vector, at a tile's indices, have in common with
    their Numba type."""

    tile: Any
    form: Form


class Indexed(IndexedLike):
    def __init__(self, tile: SmemTile, index: Any) -> None:
        self.tile, self.form, self.index = tile, index_form(tile, index), index


@method_of(SharedTile, "indexed")
def _indexed(tile: Any, index: Any) -> Indexed:
    return Indexed(tile, index)


def index_form(tile: SmemLike, index: Any) -> Form:
    """Return the form of a tile of indices into a shared tile. Raises SpecError if it is not such a
    tile."""
    form = form_of(index, "tile.at[indices]")
    if not tile.layout.flat or form is None or form.dtype != INT32:
        raise SpecError(
            "tile.at[indices]: an int32 register tile can index only a one-dimensional shared "
            f"tile, SMEM((n,), …), got {form} for a tile {tile.layout.sides}"
        )
    return form


def check_type(name: str, tile: SmemLike) -> None:
    """Raise SpecError for a tile that is not written, or whose type does not support the atomic."""
    known = _TYPES.get(name.removeprefix("atomic_"), _INTEGERS)
    if not tile.writable:
        raise SpecError(READ_ONLY)
    if tile.dtype.name not in known:
        raise SpecError(
            f"{name}: expected {', '.join(known)} for this reduction in shared memory, got "
            f"{tile.dtype}"
        )


def check_shared(name: str, dst: Any, value: Any) -> Form:
    """Return the form in which a shared atomic takes its values. Raises SpecError if it is not
    supported.

    `dst` and `value` may be Numba types. For a number, the form is that of the indices.
    """
    tile = dst.tile if isinstance(dst, IndexedLike) else dst
    check_type(name, tile)
    form = form_of(value, name)
    if form is None:
        if not isinstance(dst, IndexedLike) or not is_number(value):
            also = " or a number" * isinstance(dst, IndexedLike)
            raise SpecError(
                f"{name}(tile, value): the second argument must be a register tile{also}, got "
                f"{called(value)}"
            )
        check_number(name, "the tile", tile.dtype, value)
        indexed: Form = dst.form
        return indexed
    want = dst.form.shape if isinstance(dst, IndexedLike) else tile.layout.sides
    if form.shape != want or form.dtype != tile.dtype:
        raise SpecError(
            f"{name}: the tile is {tile.dtype} {want}, but the value is {form.dtype} "
            f"{form.shape}: both must have the same type and shape"
        )
    return dst.form if isinstance(dst, IndexedLike) and dst.form.layout != EITHER else form


def update_shared(name: str, dst: Any, value: Any, form: Form) -> None:
    """Combine values with elements of a shared tile, on the simulated SM."""
    tile: SmemTile = dst.tile if isinstance(dst, Indexed) else dst
    if not tile.role.computes:
        return
    before_access(tile)
    settled, reduction = form.settled(COLUMN), name.removeprefix("atomic_")
    if isinstance(value, Tile):
        value = moved(value, replace(value.form, layout=settled.layout))
    rows, columns = held(settled)
    across = settled.shape[-1]

    def own(values: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(values).reshape(-1, across)[rows, columns]

    if isinstance(dst, Indexed):
        places = own(dst.index.value)
        wrong = places[(places < 0) | (places >= tile.shape[0])]
        if wrong.size:
            raise failure(
                SimulationError,
                "out-of-bounds",
                f"{name}: index {int(wrong[0])} is outside the tile {tile.shape}; the GPU skips it",
                f"indices in 0…{tile.shape[0] - 1}",
                "updates a tile in shared memory",
            )
        where = tile.address + places.astype(np.int64) * tile.dtype.itemsize
    else:
        where = addresses(tile.layout, tile.address, settled, (0, 0))
    values = (
        own(value.value)
        if isinstance(value, Tile)
        else np.full(where.shape, as_element(name, tile.dtype, value))
    )
    if reduction in ("add", "xor"):  # an element that a warp has several times in `held`
        for warp, numbers in zip(values, rows * across + columns, strict=True):
            warp[np.delete(np.arange(warp.size), np.unique(numbers, return_index=True)[1])] = 0
    by_first(
        current().smem_update,
        settled,
        where,
        values.astype(tile.dtype),
        reduction,
        name,
    )
