"""``c[rows, columns] = tile``: a register tile to global memory, clipped at the array's edges.

Arrays whose rows TMA can address take the store ring: panels through swizzled shared memory, so that the stores of a tile
overlap the loads and products of the next. Other arrays are written by the lanes directly.
"""

from __future__ import annotations

from typing import Any

from ._machine import current
from ._op import op
from .errors import SpecError
from .fragment.panel import Batch, batches, panel_columns
from .fragment.tile import Tile
from .refs import All, GmemRef
from .ring import put


def check(name: str, dtype: Any, ndim: int, sizes: tuple[int | None, int | None], shape: tuple[int, int], tile: Any) -> None:
    """The block an index selects must be the tile's shape, and the types must agree."""
    if ndim != 2:
        raise SpecError(f"'{name}[…] = tile': the array has {ndim} dimensions, tiles are stored to 2-D arrays")
    if None in sizes:
        raise SpecError(f"'{name}[…] = tile': ':' has no compile-time size here; use ds(start, size) in both dimensions")
    if tuple(sizes) != tuple(shape):
        raise SpecError(f"'{name}[…] = tile': the index selects {sizes}, the tile is {shape}")
    if dtype != tile:
        raise SpecError(f"'{name}[…] = tile': the array is {dtype}, the tile {tile}: store tile.astype({name}.dtype)")


def check_output(array: Any) -> None:
    """A store must be one that the call knew of: to an input it would be lost, or overwrite what may not be written."""
    if not array.output:
        raise SpecError(f"'{array.name}[…] = tile': the call took '{array.name}' for an input, because the kernel's source shows "
                        "no store to it: store to it by its own name, or in a function that is called by name and gets it as an "
                        "argument")


def through_tma(array: Any) -> bool:
    """Whether stores to this array take the store ring."""
    return bool(array.tma and array.tma_store and array.order == "row")


@op
def store_tile(ref: GmemRef, rows: Any, columns: Any, tile: Any) -> None:
    """Store `tile` to ``ref[rows, columns]``; nothing in the memory role."""
    if not isinstance(tile, Tile):
        raise SpecError(f"'{ref.name}[…] = value': the value must be a register tile, got {type(tile).__name__}")
    check_output(ref.unit.arrays[ref.index])
    sizes = tuple(None if isinstance(part, All) else part.size for part in (rows, columns))
    check(ref.name, ref.dtype, ref.array.ndim, sizes, tile.shape, tile.dtype)  # type: ignore[arg-type]
    if tile.inert:
        return
    row, column = int(rows.start), int(columns.start)
    if row < 0 or column < 0:
        raise SpecError(f"'{ref.name}[…] = tile': negative start ({row}, {column})")
    if column * ref.dtype.itemsize % 16 and through_tma(ref.unit.arrays[ref.index]):
        raise SpecError(f"'{ref.name}[…] = tile': column {column} of {ref.dtype} is {column * ref.dtype.itemsize} B into a row; "
                        "TMA stores start at multiples of 16 B")
    if through_tma(ref.unit.arrays[ref.index]):
        width = panel_columns(tile.shape[1], tile.dtype.itemsize)
        panels = tile.shape[0] // 64 * (tile.shape[1] // width)
        for places in batches(tile.shape, width, ref.unit.plan_staging(panels)):
            put(ref, Batch(tile, places, width), row, column)
        return
    limit = (min(tile.shape[0], ref.array.shape[0] - row), min(tile.shape[1], ref.array.shape[1] - column))
    if limit[0] > 0 and limit[1] > 0:
        index = (slice(row, row + limit[0]), slice(column, column + limit[1]))
        current().gmem_write(ref.array, index, tile.value[: limit[0], : limit[1]], f"store to {ref.name}")
