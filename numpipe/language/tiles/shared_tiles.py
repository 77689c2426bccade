"""Loads and stores between register tiles and shared memory: ``tile[...]`` and ``tile[...] =
value``.

Both are generic-proxy accesses by the four warps of a warpgroup, each to its own 16 rows of every
64. One-dimensional tiles, and parts with arbitrary starts, are accessed element by element
(`scattered_shared`). A load is complete when the operation returns, so the slot can then be
released (mbarrier.arrive) without further synchronization. A warp sees its own stores at once.
Other warps see them after a barrier; TMA and wgmma see them after a ``fence.proxy.async`` by the
storing lanes, and a barrier (PTX ISA, "Memory Consistency Model: Proxies").
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ...core.inert import Inert
from ...core.machine import current
from ...diagnostics.errors import SpecError
from ...plan.layout import Layout, swizzled
from .fence_order import before_access
from .layouts import ACCUMULATOR, Form
from .refs import ALL, READ_ONLY, All, SmemLike, SmemTile, check_start, is_whole, method_of, slices
from .scattered_shared import addresses, held
from .scattered_shared import load as load_anywhere
from .scattered_shared import store as store_anywhere
from .tile import Tile, cast_to_store, check_form, tile_form


def chosen(tile: SmemLike, index: Any) -> tuple:
    """Return the parts of an index, or of its type, in a load from a tile or a store to it."""
    return (ALL,) * len(tile.layout.sides) if is_whole(index) else slices(index, tile.layout)


def check_part(tile: SmemLike, parts: Sequence, starts: Sequence, simulated: bool) -> None:
    """Call `refs.check_start` for each part. A start that is unknown is None, and is taken to be
    0."""
    for axis, (part, start) in enumerate(zip(parts, starts, strict=True), 2 - len(parts)):
        if not isinstance(part, All):
            check_start(tile.layout, axis, start or 0, part.size, "tile[…]", simulated)


def load_form(tile: SmemLike, parts: Sequence, what: str = "tile[…]") -> Form:
    """Return the form of the register tile that a load of a part returns."""
    sides = tuple(
        size if isinstance(part, All) else part.size
        for part, size in zip(parts, tile.layout.sides, strict=True)
    )
    return check_form(sides, tile.dtype, what)


def by_rows(tile: SmemLike, form: Form, parts: Sequence, starts: Sequence) -> bool:
    """Return whether a part of a tile starts where the swizzle pattern repeats; starts that are
    unknown (None) are assumed to.

    If so, instructions move whole rows (`addresses`); otherwise, elements are moved one by one
    (`scattered_shared`).
    """
    layout = tile.layout
    if layout.flat or form.layout != ACCUMULATOR or (layout.itemsize == 1 and layout.inner == 0):
        return False
    units = (layout.per_panel, 8) if layout.inner == 0 else (8, layout.per_panel)
    return all(
        isinstance(part, All) or (part.size % unit == 0 and (start is None or start % unit == 0))
        for part, start, unit in zip(parts, starts, units, strict=True)
    )


def check_store(tile: SmemLike, parts: Sequence, value: Any) -> Form:
    """Return the form in which a value is stored to a part of a shared-memory tile. Raises
    SpecError if it does not fit."""
    what = "tile[…] = value"
    if not tile.writable:
        raise SpecError(READ_ONLY)
    form, have = tile_form(value, what, "the value"), load_form(tile, parts, what)
    # rows without gaps may fill a one-dimensional tile
    if form.shape != have.shape and have.shape != (math.prod(form.shape),):
        raise SpecError(
            f"{what}: the tile is {have.shape}, but the value is {form.shape}; fix: store to a "
            "part of it, "
            f"tile[{'ds(start, size)' if len(have.shape) == 1 else 'ds(start, size), :'}] = value"
        )
    if form.dtype != have.dtype:
        raise SpecError(
            f"{what}: the tile is {have.dtype}, but the value is {form.dtype}; fix: store "
            "value.astype(tile.dtype)"
        )
    return form


def layout_of_rows(tile: SmemLike, form: Form) -> Layout:
    """Return the layout of a tile in shared memory as rows of a form."""
    return replace(tile.layout, shape=(1, form.shape[-1])) if tile.layout.flat else tile.layout


@functools.lru_cache(maxsize=256)
def _chunks(layout: Layout) -> np.ndarray:
    """Return the byte offsets of a tile's 16-byte chunks, one row per warp."""
    return np.ascontiguousarray(_by_warp(_lines(layout), layout)).reshape(4, -1)


def _lines(layout: Layout) -> np.ndarray:
    """Return the byte offsets of a tile's 16-byte chunks, one row per line."""
    lines = np.arange(layout.shape[1 - layout.inner])[:, None]
    inside = np.arange(0, layout.shape[layout.inner] * layout.itemsize, 16)
    offsets: np.ndarray = (
        swizzled(lines * layout.width + inside % layout.width, layout.width)
        + inside // layout.width * layout.panel_stride
    )
    return offsets


def _by_warp(table: np.ndarray, layout: Layout) -> np.ndarray:
    """Return a view (warps, …) of a table (lines, chunks, …): warp w has rows 16 w … 16 w + 15 of
    every 64."""
    axis = 1 - layout.inner  # the axis along which the tile's rows lie
    of_a_warp = 16 if axis == 0 else layout.itemsize  # 16 rows, or the chunks that contain them
    split = table.reshape(*table.shape[:axis], -1, 4, of_a_warp, *table.shape[axis + 1 :])
    return np.moveaxis(split, axis + 1, 0)


def _to_bytes(value: np.ndarray, layout: Layout) -> np.ndarray:
    """Return a tile's elements as (warps, chunks, 16) bytes."""
    lines = np.ascontiguousarray(value if layout.inner == 1 else value.T).view(np.uint8)
    return np.ascontiguousarray(_by_warp(lines.reshape(lines.shape[0], -1, 16), layout)).reshape(
        4, -1, 16
    )


def _from_bytes(found: np.ndarray, layout: Layout, dtype: np.dtype) -> np.ndarray:
    """Return a tile's elements from (warps, chunks, 16) bytes."""
    lines = np.empty(
        (layout.shape[1 - layout.inner], layout.shape[layout.inner] * layout.itemsize // 16, 16),
        np.uint8,
    )
    warps = _by_warp(lines, layout)
    warps[...] = found.reshape(warps.shape)
    value = lines.reshape(len(lines), -1).view(dtype)
    return value if layout.inner == 1 else np.ascontiguousarray(value.T)


def part_of(tile: SmemTile, index: Any) -> tuple[tuple, tuple]:
    """Return (parts of an index, their starts). Raises SimulationError for a part that is not
    inside the tile."""
    parts = chosen(tile, index)
    starts = tuple(
        0 if isinstance(part, All) or isinstance(part.start, Inert) else int(part.start)
        for part in parts
    )
    if tile.role.computes:
        check_part(tile, parts, starts, True)
    return parts, starts


@method_of(SmemTile, "__getitem__")
def load(tile: SmemTile, index: Any) -> Tile:
    """Load a shared-memory tile, or a part of it, as a register tile; in the memory role, the tile
    has no value."""
    parts, starts = part_of(tile, index)
    form = load_form(tile, parts)
    if not tile.role.computes:
        return Tile(None, form)
    before_access(tile)
    if not by_rows(tile, form, parts, starts):
        return Tile(load_anywhere(tile.layout, tile.address, form, (0, *starts)[-2:]), form)
    part = tile.at[index]
    return Tile(read(part.layout, part.address, tile.dtype, "tile[…]"), form)


@method_of(SmemTile, "__setitem__")
def store(tile: SmemTile, index: Any, value: Any) -> None:
    """Store a register tile to a shared-memory tile, or to a part of it. In the memory role, this
    does nothing."""
    parts, starts = part_of(tile, index)
    value = cast_to_store(value, tile.dtype)
    form = check_store(tile, parts, value)
    if not tile.role.computes:
        return
    before_access(tile)
    if by_rows(tile, form, parts, starts):
        part = tile.at[index]
        write(part.layout, part.address, value.value, "tile[…] = value")
    else:
        layout = layout_of_rows(tile, form)
        store_anywhere(layout, tile.address, form, (0, *starts)[-2:], value.value)


def write(layout: Layout, address: int | np.ndarray, value: np.ndarray, what: str) -> None:
    """Store a register tile to shared memory in this layout: each warp stores its rows. `address`
    is one address, or a column of one for each warp."""
    current().smem_write(_chunks(layout) + address, _to_bytes(value, layout), what)


def read(layout: Layout, address: int | np.ndarray, dtype: np.dtype, what: str) -> np.ndarray:
    """Return the register tile that `write` stored, or one in the same layout: each warp loads its
    rows."""
    return _from_bytes(current().smem_read(_chunks(layout) + address, what), layout, dtype)


def read_shared(layout: Layout, address: int, dtype: np.dtype) -> np.ndarray:
    """Return the operand b of a product; each of the four warps loads all of it."""
    chunks = _lines(layout) + address
    found = current().smem_read(np.broadcast_to(chunks.reshape(-1), (4, chunks.size)), "mma, b")
    value: np.ndarray = found[0].reshape(len(chunks), -1).view(dtype)
    return value if layout.inner == 1 else np.ascontiguousarray(value.T)


def send(
    layout: Layout, address: int, form: Form, value: np.ndarray, rank: int, mbar: int, what: str
) -> None:
    """Store a register tile to the same address in the CTA with this rank in the cluster; the
    store completes on an mbarrier there."""
    if layout.flat:
        own, elements = addresses(layout, address, form, (0, 0)), value[held(form)[1]]
        current().smem_send(own, elements[..., None].view(np.uint8), rank, mbar, what)
    else:
        current().smem_send(_chunks(layout) + address, _to_bytes(value, layout), rank, mbar, what)
