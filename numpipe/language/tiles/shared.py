"""``tile[...]`` and ``tile[...] = value``: register tiles from and to shared memory.

Both are accesses of the generic proxy by the four warps of a warpgroup, each to its own 16 rows of every 64. A load has ended
when the operation returns, so that releasing the slot (mbarrier.arrive) is all that must follow it. The warp that stored something
sees it at once; others do after a barrier; TMA and wgmma after ``fence.proxy.async`` of the writers and a barrier (PTX ISA, "Memory
Consistency Model: Proxies").
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from ...core.machine import current
from ...core.op import called
from ...diagnostics.errors import SpecError
from ...plan.layout import Layout, swizzled
from .layouts import Form, only_accumulator
from .order import before_access
from .refs import READ_ONLY, SmemLike, SmemTile, method_of
from .tile import Tile, cast_to_store, check_shape, form_of


def load_form(tile: SmemLike, what: str = "tile[…]") -> Form:
    """Return the form of the register tile that a load gives; SpecError for a tile of 8-bit elements with contiguous columns."""
    if tile.layout.itemsize == 1 and tile.layout.inner == 0:
        raise SpecError(f"{what}: the columns of this {tile.dtype} tile are contiguous, and lanes move two elements of a row: use "
                        "the tile itself where this is tile.T, or pass the array with its rows contiguous, "
                        "np.ascontiguousarray(a)")
    return Form(check_shape(tile.layout.shape, tile.dtype, what), tile.dtype)


def check_store(tile: SmemLike, value: Any) -> None:
    """Raise SpecError unless a value can be stored to a shared-memory tile of this shape and type."""
    what = "tile[…] = value"
    if not tile.writable:
        raise SpecError(READ_ONLY)
    form = form_of(value, what)
    if form is None:
        raise SpecError(f"{what}: the value must be a register tile, got {called(value)}")
    have = load_form(tile, what)
    only_accumulator(form, what)
    if form.shape != have.shape:
        raise SpecError(f"{what}: the tile is {have.shape}, the value {form.shape}: store to a part of it, "
                        "tile[ds(start, size), :] = value")
    if form.dtype != have.dtype:
        raise SpecError(f"{what}: the tile is {have.dtype}, the value {form.dtype}: store value.astype(tile.dtype)")


@functools.lru_cache(maxsize=256)
def _chunks(layout: Layout) -> np.ndarray:
    """Return the byte offsets of a tile's 16-byte chunks, a row of the result for each warp."""
    lines = np.arange(layout.shape[1 - layout.inner])[:, None]
    inside = np.arange(0, layout.shape[layout.inner] * layout.itemsize, 16)
    offsets = swizzled(lines * layout.width + inside % layout.width, layout.width) + inside // layout.width * layout.panel_stride
    return np.ascontiguousarray(_by_warp(offsets, layout)).reshape(4, -1)


def _by_warp(table: np.ndarray, layout: Layout) -> np.ndarray:
    """Return a view (warps, …) of a table (lines, chunks, …): warp w has rows 16 w … 16 w + 15 of every 64."""
    axis = 1 - layout.inner  # along which the tile's rows lie
    of_a_warp = 16 if axis == 0 else layout.itemsize  # 16 rows, or the chunks that have them
    split = table.reshape(*table.shape[:axis], -1, 4, of_a_warp, *table.shape[axis + 1:])
    return np.moveaxis(split, axis + 1, 0)


def _to_bytes(value: np.ndarray, layout: Layout) -> np.ndarray:
    """Return a tile's elements as (warps, chunks, 16) bytes."""
    lines = np.ascontiguousarray(value if layout.inner == 1 else value.T).view(np.uint8)
    return np.ascontiguousarray(_by_warp(lines.reshape(lines.shape[0], -1, 16), layout)).reshape(4, -1, 16)


def _from_bytes(found: np.ndarray, layout: Layout, dtype: np.dtype) -> np.ndarray:
    """Return a tile's elements from (warps, chunks, 16) bytes."""
    lines = np.empty((layout.shape[1 - layout.inner], layout.shape[layout.inner] * layout.itemsize // 16, 16), np.uint8)
    warps = _by_warp(lines, layout)
    warps[...] = found.reshape(warps.shape)
    value = lines.reshape(len(lines), -1).view(dtype)
    return value if layout.inner == 1 else np.ascontiguousarray(value.T)


@method_of(SmemTile, "__getitem__")
def load(whole: SmemTile, index: Any) -> Tile:
    """Return a shared-memory tile, or a part of it, as a register tile, which has no value in the memory role."""
    tile = whole.at[index]
    form = load_form(tile)
    if tile.memory:
        return Tile(None, form)
    before_access(tile)
    found = current().smem_read(_chunks(tile.layout) + tile.address, "tile[…]")
    return Tile(_from_bytes(found, tile.layout, tile.dtype), form)


@method_of(SmemTile, "__setitem__")
def store(whole: SmemTile, index: Any, value: Any) -> None:
    """Store a register tile to a shared-memory tile, or to a part of it; nothing in the memory role."""
    tile = whole.at[index]
    value = cast_to_store(value, tile.dtype)
    check_store(tile, value)
    if not tile.memory:
        before_access(tile)
        write(tile.layout, tile.address, value.value, "tile[…] = value")


def write(layout: Layout, address: int, value: np.ndarray, what: str) -> None:
    """Store a register tile to shared memory at `address`, in this layout: each warp its rows."""
    current().smem_write(_chunks(layout) + address, _to_bytes(value, layout), what)
