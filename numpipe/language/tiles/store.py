"""``c[rows, columns] = tile``: a register tile to global memory, clipped at the array's edges.

======================================  ===============================================================================
index                                   value
======================================  ===============================================================================
``c[ds(i, 128), ds(j, 64)]``            a tile (128, 64), or one with a single row or column: ``c[ds(i, 64), ds(j, 1)]``
``bias[ds(j, 64)]``                     a vector (64,), along columns or along rows
======================================  ===============================================================================

The index of an array of more dimensions has an integer along each of the others: ``c[b, ds(i, 128), ds(j, 64)] = tile``, or
``c[b, ds(i, 128), head, ds(j, 64)] = tile``, ``sums[b, head, ds(i, 128)] = vector``. What `ds` selects may pass the array's end
and is clipped. An integer outside its dimension, or a negative start, is an error simulated. The GPU writes nothing outside the
array; below 0 a TMA store stops the kernel with an illegal instruction (measured on an H200).

Arrays whose rows TMA can address take the store ring: panels through swizzled shared memory, so that the stores of a tile
overlap the loads and products of the next. Other arrays, tiles whose columns do not lie along the last dimension, vectors, and
tiles of one row or column, are written by the lanes directly; of those that hold the same element, one writes it.
"""

from __future__ import annotations

from typing import Any

from ...arch.dtypes import BOOL
from ...core.machine import current, failure
from ...core.op import op
from ...diagnostics.errors import SimulationError, SpecError
from .layouts import ACCUMULATOR, Form
from .panel import Batch, batches, panel_columns
from .refs import All, Ds, GmemRef, method_of, whole_slices
from .store_ring import put
from .tile import Tile
from .views import block_axes, is_slice


def check(what: str, name: str, dtype: Any, sizes: tuple[int | None, ...], form: Form) -> None:
    """The block that an index selects must be the tile's shape, and the types must agree; `what`: how a message begins."""
    if None in sizes:
        raise SpecError(f"{what}: ':' has no compile-time size here; use ds(start, size)")
    if tuple(sizes) != tuple(form.shape):
        raise SpecError(f"{what}: the index selects {sizes}, the tile is {form.shape}")
    if form.dtype == BOOL:
        raise SpecError(f"{what}: the tile is a mask: store mask.astype(np.int32), or what it chooses, np.where(mask, x, y)")
    if dtype != form.dtype:
        raise SpecError(f"{what}: the array is {dtype}, the tile {form.dtype}: store tile.astype({name}.dtype)")


MEND = "store to it by its own name, or in a function that is called by name and gets it as an argument"
"""where a call did not know an array for an output"""


def stored(name: str) -> str:
    """How a message about a store begins."""
    return f"'{name}[…] = tile'"


def through_tma(array: Any, axes: tuple[int, ...], form: Form) -> bool:
    """Whether a tile, lying along `axes` of this array, takes the store ring."""
    whole = form.layout == ACCUMULATOR and form.shape[1] * form.dtype.itemsize % 16 == 0  # panels are 16 bytes wide at least
    return bool(whole and array.tma and array.tma_store and array.order == "row" and axes[1] == array.ndim - 1)


@method_of(GmemRef, "__setitem__")
def _write(ref: GmemRef, index: Any, tile: Any) -> None:
    store_tile(ref, whole_slices(index), tile)


@op
def store_tile(ref: GmemRef, parts: tuple[Any, ...], tile: Any) -> None:
    """Store `tile` to ``ref[parts]``; nothing in the memory role."""
    axes = block_axes(ref.name, ref.name, ref.array.ndim, [is_slice(part) for part in parts], parts)
    if not isinstance(tile, Tile):
        raise SpecError(f"'{ref.name}[…] = value': the value must be a register tile, got {type(tile).__name__}")
    ref.unit.check_output(ref.index, stored(ref.name), MEND)
    sizes = tuple(None if isinstance(parts[axis], All) else parts[axis].size for axis in axes)
    check(stored(ref.name), ref.name, ref.dtype, sizes, tile.form)
    if not tile.inert:
        start = tuple(int(part.start if isinstance(part, Ds) else part) for part in parts)
        write_out(ref, axes, start, tile, stored(ref.name))


def write_out(ref: GmemRef, axes: tuple[int, ...], start: tuple[int, ...], tile: Tile, what: str, reduction: str = "") -> None:
    """Bring a tile that fits to the array, or reduce it into the array; `what`: how a message begins."""
    array, through = ref.array, through_tma(ref.unit.arrays[ref.index], axes, tile.form)
    first = tuple(start[axis] for axis in axes)
    if min(first) < 0:
        given = str(first) if len(first) > 1 else str(first[0])
        raise failure(SimulationError, "out-of-bounds", f"{what}: negative start {given}: " + (
            "a TMA store stops the kernel there" if through else "the GPU writes what lies inside"),
            "starts from 0 on: what sticks out at the end is clipped", f"stores to '{ref.name}'")
    for axis, (place, size) in enumerate(zip(start, array.shape, strict=True)):
        if axis not in axes and not 0 <= place < size:
            raise failure(
                SimulationError, "out-of-bounds", f"{what}: index {place} along dimension {axis} is outside the array's {size}" + (
                    "; a TMA store stops the kernel there" if place < 0 else "; the GPU writes nothing there"),
                f"an index in 0…{size - 1}", f"stores to '{ref.name}'")
    if through:
        column = first[1] * ref.dtype.itemsize
        if column % 16:
            raise SpecError(f"{what}: column {first[1]} of {ref.dtype} is {column} B into a row; TMA stores start at multiples of "
                            "16 B")
        width = panel_columns(tile.shape[1], tile.dtype.itemsize)
        panels = tile.shape[0] // 64 * (tile.shape[1] // width)
        for places in batches(tile.shape, width, ref.unit.plan_staging(panels)):
            put(ref, Batch(tile, places, width, (axes[0], axes[1]), reduction), start)
        return
    sizes = [min(size, array.shape[axis] - start[axis]) for size, axis in zip(tile.shape, axes, strict=True)]
    if min(sizes) > 0:
        where: list[Any] = list(start)
        for axis, size in zip(axes, sizes, strict=True):
            where[axis] = slice(start[axis], start[axis] + size)
        current().gmem_write(array, tuple(where), tile.value[tuple(slice(size) for size in sizes)], ref.name, reduction)
