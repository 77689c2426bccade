"""Panels on the GPU: parts of a tile's registers, stored as those of any tile are."""

from __future__ import annotations

from typing import Any

from .layouts import Form
from .panel import panel_layout
from .shared_cuda import write_registers
from .tile_cuda import TileType, assembled, words


def sub_tile(builder: Any, tile: TileType, value: Any, row: int, column: int, width: int) -> tuple[TileType, Any]:
    """The 64 x width panel at (row, column): a contiguous run of the tile's registers."""
    panel = TileType(Form((64, width), tile.dtype))
    per_block = tile.registers * 64 // tile.shape[0]
    first = row // 64 * per_block + column * panel.registers // width
    return panel, assembled(builder, panel, [builder.extract_value(value, first + i) for i in range(panel.registers)])


def write(builder: Any, panel: TileType, value: Any, address: Any) -> None:
    """Registers -> the panel at `address`, every warp its 16 rows."""
    write_registers(builder, panel_layout(panel.shape[1], panel.dtype.itemsize), address, words(builder, panel, value))
