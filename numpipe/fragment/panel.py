"""Panels: 64 rows of at most 128 bytes of a register tile, and how they are written to swizzled shared memory."""

from __future__ import annotations

import functools

import numpy as np

from .._layout import swizzled
from .._machine import current
from .tile import Tile


def panel_columns(columns: int, itemsize: int) -> int:
    """Columns of a panel: the widest of 128, 64, 32, 16 bytes that divides the tile's row."""
    width = next(w for w in (128, 64, 32, 16) if columns * itemsize % w == 0)
    return width // itemsize


def sub_tile(tile: Tile, row: int, column: int, width: int) -> Tile:
    """The 64 x width panel of a tile; in registers a contiguous run, so nothing moves."""
    return Tile(tile.value[row:row + 64, column:column + width], (64, width), tile.dtype)


@functools.lru_cache(maxsize=16)
def _chunks(width: int) -> np.ndarray:
    """Byte offsets of a panel's 16-byte chunks, one row of the result a warp (16 rows of the panel)."""
    linear = np.arange(64 * width // 16, dtype=np.int64) * 16
    return swizzled(linear, width).reshape(4, -1)


def write(panel: Tile, address: int) -> None:
    """Each warp writes its 16 rows of the panel."""
    rows = np.ascontiguousarray(panel.value).view(np.uint8)
    current().smem_write(_chunks(rows.shape[1]) + address, rows.reshape(4, -1, 16), "staging panel")
