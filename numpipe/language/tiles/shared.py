"""``tile[...]`` and ``tile[...] = value``: register tiles from and to shared memory.

Both are accesses of the generic proxy by the four warps of a warpgroup, each to its own 16 rows of every 64. A load has ended
when the operation returns, so that releasing the slot (mbarrier.arrive) is all that must follow it. What a store wrote is seen
by the warp that wrote it; by others after a barrier; by TMA and wgmma after ``fence.proxy.async`` of the writers and a barrier
(PTX ISA, "Memory Consistency Model: Proxies").
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from ...core.machine import current
from ...core.op import op
from ...diagnostics.errors import SpecError
from ...plan.layout import Layout, swizzled
from .layouts import Form, only_accumulator
from .order import before_access
from .refs import READ_ONLY, SmemTile, method_of
from .tile import Tile, check_shape


def check_load(layout: Layout, dtype: np.dtype) -> tuple[int, int]:
    """The shape of the register tile that a load gives, or a SpecError."""
    _check_order(layout, dtype, "tile[…]")
    return check_shape(layout.shape, dtype, "tile[…]")


def check_store(layout: Layout, dtype: np.dtype, writable: bool, value: Form) -> None:
    """SpecError unless a register tile of this form can be stored there."""
    if not writable:
        raise SpecError(READ_ONLY)
    _check_order(layout, dtype, "tile[…] = value")
    check_shape(layout.shape, dtype, "tile[…] = value")
    only_accumulator(value, "tile[…] = value")
    shape, kind = value.shape, value.dtype
    if shape != layout.shape:
        raise SpecError(f"tile[…] = value: the tile is {layout.shape}, the value {shape}: store to a part of it, "
                        "tile[ds(start, size), :] = value")
    if kind != dtype:
        raise SpecError(f"tile[…] = value: the tile is {dtype}, the value {kind}: store value.astype(tile.dtype)")


def _check_order(layout: Layout, dtype: np.dtype, what: str) -> None:
    """SpecError for columns of bytes: no instruction turns them into rows."""
    if layout.itemsize == 1 and layout.inner == 0:
        raise SpecError(f"{what}: the columns of this {dtype} tile are contiguous, and lanes move two elements of a row: use the "
                        "tile itself where this is tile.T, or pass the array with its rows contiguous, np.ascontiguousarray(a)")


def no_tile(given: object) -> SpecError:
    """The error for a value that is no register tile."""
    return SpecError(f"tile[…] = value: the value must be a register tile, got {given}")


@functools.lru_cache(maxsize=256)
def _chunks(layout: Layout) -> np.ndarray:
    """Byte offsets of a tile's 16-byte chunks, one row of the result a warp."""
    lines = np.arange(layout.shape[1 - layout.inner])[:, None]
    inside = np.arange(0, layout.shape[layout.inner] * layout.itemsize, 16)
    offsets = swizzled(lines * layout.width + inside % layout.width, layout.width) + inside // layout.width * layout.panel_stride
    return np.ascontiguousarray(_by_warp(offsets, layout)).reshape(4, -1)


def _by_warp(table: np.ndarray, layout: Layout) -> np.ndarray:
    """A view (warps, …) of a table (lines, chunks, …): warp w has rows 16 w … 16 w + 15 of every 64."""
    axis = 1 - layout.inner  # along which the tile's rows lie
    of_a_warp = 16 if axis == 0 else layout.itemsize  # 16 rows, or the chunks that have them
    split = table.reshape(*table.shape[:axis], -1, 4, of_a_warp, *table.shape[axis + 1:])
    return np.moveaxis(split, axis + 1, 0)


def _to_bytes(value: np.ndarray, layout: Layout) -> np.ndarray:
    """A tile's elements as (warps, chunks, 16) bytes."""
    lines = np.ascontiguousarray(value if layout.inner == 1 else value.T).view(np.uint8)
    return np.ascontiguousarray(_by_warp(lines.reshape(lines.shape[0], -1, 16), layout)).reshape(4, -1, 16)


def _from_bytes(found: np.ndarray, layout: Layout, dtype: np.dtype) -> np.ndarray:
    """The inverse of `_to_bytes`."""
    lines = np.empty((layout.shape[1 - layout.inner], layout.shape[layout.inner] * layout.itemsize // 16, 16), np.uint8)
    warps = _by_warp(lines, layout)
    warps[...] = found.reshape(warps.shape)
    value = lines.reshape(len(lines), -1).view(dtype)
    return value if layout.inner == 1 else np.ascontiguousarray(value.T)


@method_of(SmemTile, "__getitem__")
def _load_part(tile: SmemTile, index: Any) -> Tile:
    return load_tile(tile.at[index])


@method_of(SmemTile, "__setitem__")
def _store_part(tile: SmemTile, index: Any, value: Any) -> None:
    store_shared(tile.at[index], value)


@op
def load_tile(tile: SmemTile) -> Tile:
    """The whole of a shared-memory tile (or view) as a register tile; no value in the memory role."""
    shape = check_load(tile.layout, tile.dtype)
    if tile.memory:
        return Tile(None, shape, tile.dtype)
    before_access(tile)
    found = current().smem_read(_chunks(tile.layout) + tile.address, "tile[…]")
    return Tile(_from_bytes(found, tile.layout, tile.dtype), shape, tile.dtype)


@op
def store_shared(tile: SmemTile, value: Any) -> None:
    """Store a register tile to a whole shared-memory tile (or view); nothing in the memory role."""
    if not isinstance(value, Tile):
        if not tile.writable:
            raise SpecError(READ_ONLY)
        raise no_tile(type(value).__name__)
    check_store(tile.layout, tile.dtype, tile.writable, value.form)
    if not tile.memory:
        before_access(tile)
        current().smem_write(_chunks(tile.layout) + tile.address, _to_bytes(value.value, tile.layout), "tile[…] = value")
