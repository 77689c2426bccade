"""``c[rows, columns] = tile``: a register tile to global memory, clipped at the array's edges.

The index of an array of more dimensions has an integer along each of the others: ``c[b, ds(i, 128), ds(j, 64)] = tile``, or
``c[b, ds(i, 128), head, ds(j, 64)] = tile``. What `ds` selects may pass the array's end and is clipped. An integer outside its
dimension, or a negative start, is an error simulated. The GPU writes nothing outside the array; below 0 a TMA store stops
the kernel with an illegal instruction (measured on an H200).

Arrays whose rows TMA can address take the store ring: panels through swizzled shared memory, so that the stores of a tile
overlap the loads and products of the next. Other arrays, and tiles whose columns do not lie along the last dimension, are
written by the lanes directly.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ._machine import current, failure
from ._op import op
from .errors import SimulationError, SpecError
from .fragment.panel import Batch, batches, panel_columns
from .fragment.tile import BOOL, Tile
from .inert import Inert
from .refs import All, Ds, GmemRef
from .store_ring import put


def tile_axes(name: str, ndim: int, along: Sequence[bool | None], got: object) -> tuple[int, int]:
    """The dimensions of the array along which a tile's rows and columns lie.

    `along` says of each part of the index whether it is a slice: False for an integer, None for what may not be there.
    """
    if ndim < 2:
        raise SpecError(f"'{name}[…] = tile': the array has {ndim} dimension{'s' * (ndim != 1)}, tiles are stored to arrays of "
                        "2 and more")
    if ndim == 2 and (len(along) != 2 or not all(along)):
        raise SpecError(f"array '{name}' is indexed by two of ds(start, size) and ':', got {got}")
    axes = tuple(axis for axis, slice_ in enumerate(along) if slice_)
    if len(along) != ndim or None in along or len(axes) != 2:
        raise SpecError(f"array '{name}' has {ndim} dimensions and is indexed by ds(start, size) along two of them, which are the "
                        f"tile's rows and columns, and by an integer along the others, got {got}")
    return axes[0], axes[1]


def check(name: str, dtype: Any, sizes: tuple[int | None, int | None], shape: tuple[int, ...], tile: Any) -> None:
    """The block an index selects must be the tile's shape, and the types must agree."""
    if None in sizes:
        raise SpecError(f"'{name}[…] = tile': ':' has no compile-time size here; use ds(start, size) in both dimensions")
    if tuple(sizes) != tuple(shape):
        raise SpecError(f"'{name}[…] = tile': the index selects {sizes}, the tile is {shape}")
    if tile == BOOL:
        raise SpecError(f"'{name}[…] = tile': the tile is a mask: store mask.astype(np.int32), or what it chooses, "
                        "np.where(mask, x, y)")
    if dtype != tile:
        raise SpecError(f"'{name}[…] = tile': the array is {dtype}, the tile {tile}: store tile.astype({name}.dtype)")


MEND = "store to it by its own name, or in a function that is called by name and gets it as an argument"
"""where a call did not know an array for an output"""


def through_tma(array: Any, axes: tuple[int, int]) -> bool:
    """Whether stores to this array, of tiles that lie along `axes`, take the store ring."""
    return bool(array.tma and array.tma_store and array.order == "row" and axes[1] == array.ndim - 1)


def _is_slice(part: Any) -> bool | None:
    if isinstance(part, (Ds, All)):
        return True
    integer = isinstance(part, (int, np.integer)) and not isinstance(part, (bool, np.bool_))
    return False if integer or isinstance(part, Inert) else None


@op
def store_tile(ref: GmemRef, parts: tuple[Any, ...], tile: Any) -> None:
    """Store `tile` to ``ref[parts]``; nothing in the memory role."""
    array, target = ref.array, ref.unit.arrays[ref.index]
    axes = tile_axes(ref.name, array.ndim, [_is_slice(part) for part in parts], parts)
    if not isinstance(tile, Tile):
        raise SpecError(f"'{ref.name}[…] = value': the value must be a register tile, got {type(tile).__name__}")
    ref.unit.check_output(ref.index, f"'{ref.name}[…] = tile'", MEND)
    sizes = tuple(None if isinstance(parts[axis], All) else parts[axis].size for axis in axes)
    check(ref.name, ref.dtype, sizes, tile.shape, tile.dtype)  # type: ignore[arg-type]
    if tile.inert:
        return
    start = tuple(int(part.start if isinstance(part, Ds) else part) for part in parts)
    row, column = (start[axis] for axis in axes)
    if row < 0 or column < 0:
        raise failure(SimulationError, "out-of-bounds", f"'{ref.name}[…] = tile': negative start ({row}, {column}): " + (
            "a TMA store stops the kernel there" if through_tma(target, axes) else "the GPU writes what lies inside"),
            "starts from 0 on: what sticks out at the end is clipped", f"stores to '{ref.name}'")
    for axis, (place, size) in enumerate(zip(start, array.shape, strict=True)):
        if axis not in axes and not 0 <= place < size:
            raise failure(
                SimulationError, "out-of-bounds", f"'{ref.name}[…] = tile': index {place} along dimension {axis} is outside the "
                f"array's {size}" + ("; a TMA store stops the kernel there" if place < 0 else "; the GPU writes nothing there"),
                f"an index in 0…{size - 1}", f"stores to '{ref.name}'")
    through = through_tma(target, axes)
    if column * ref.dtype.itemsize % 16 and through:
        raise SpecError(f"'{ref.name}[…] = tile': column {column} of {ref.dtype} is {column * ref.dtype.itemsize} B into a row; "
                        "TMA stores start at multiples of 16 B")
    if through:
        width = panel_columns(tile.shape[1], tile.dtype.itemsize)
        panels = tile.shape[0] // 64 * (tile.shape[1] // width)
        for places in batches(tile.shape, width, ref.unit.plan_staging(panels)):
            put(ref, Batch(tile, places, width, axes), start)
        return
    rows, columns = (min(size, array.shape[axis] - start[axis]) for size, axis in zip(tile.shape, axes, strict=True))
    if rows > 0 and columns > 0:
        where: list[Any] = list(start)
        where[axes[0]], where[axes[1]] = slice(row, row + rows), slice(column, column + columns)
        current().gmem_write(array, tuple(where), tile.value[:rows, :columns], ref.name)
