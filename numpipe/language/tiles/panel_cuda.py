"""Panels on the GPU: stmatrix for 16-bit types, stores of two columns for others, into swizzled rows."""

from __future__ import annotations

from typing import Any

from ...core import numba as nb
from ...plan.layout import Layout
from .shared_cuda import write_registers
from .tile_cuda import TileType, words


def sub_tile(builder: Any, tile: TileType, value: Any, row: int, column: int, width: int) -> tuple[TileType, Any]:
    """The 64 x width panel at (row, column): a contiguous run of the tile's registers."""
    panel = TileType((64, width), tile.dtype)
    per_block = tile.registers * 64 // tile.shape[0]
    first = row // 64 * per_block + column * panel.registers // width
    result = nb.ir.Constant(panel.machine, nb.ir.Undefined)
    for i in range(panel.registers):
        result = builder.insert_value(result, builder.extract_value(value, first + i), i)
    return panel, result


def _swizzle(builder: Any, offset: Any, width: int) -> Any:
    """XOR swizzle of an offset in a panel (panels start at multiples of 1024)."""
    mask = {16: 0, 32: 1, 64: 3, 128: 7}[width]
    if not mask:
        return offset
    row_bits = builder.and_(builder.lshr(offset, nb.const(7)), nb.const(mask))
    return builder.xor(offset, builder.shl(row_bits, nb.const(4)))


def write(builder: Any, panel: TileType, value: Any, address: Any) -> None:
    """Registers -> the panel at `address`, every warp its 16 rows."""
    width = panel.shape[1] * panel.dtype.itemsize
    thread = builder.and_(nb.thread_index(builder), nb.const(127))
    lane = builder.and_(thread, nb.const(31))
    warp_row = builder.lshr(builder.and_(thread, nb.const(96)), nb.const(1))  # 16 rows a warp
    registers = words(builder, panel, value)
    if panel.dtype.itemsize != 2:
        layout = Layout(panel.shape, panel.dtype.itemsize, 1, width, 64 * width)  # type: ignore[arg-type]
        write_registers(builder, layout, address, registers)
        return
    row = builder.add(warp_row, builder.and_(lane, nb.const(15)))
    chunk = builder.shl(builder.lshr(lane, nb.const(4)), nb.const(4))
    count = 4 if width > 16 else 2  # lanes 16… address the second 8 columns of an x4
    offset = builder.add(builder.mul(row, nb.const(width)), chunk if count == 4 else nb.const(0))
    base = builder.add(address, _swizzle(builder, offset, width))
    for q in range(panel.registers // count):
        at = builder.xor(base, nb.const(q << 5))
        names = ", ".join(f"${i + 1}" for i in range(count))
        nb.emit_asm(builder, nb.void, [at, *registers[count * q:count * q + count]],
                    f"stmatrix.sync.aligned.m8n8.x{count}.shared.b16 [$0], {{{names}}};", "r" + ",r" * count + ",~{memory}")
