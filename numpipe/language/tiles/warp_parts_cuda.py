"""Rows and the parts that warps hold of them, on the GPU: the same registers."""

from __future__ import annotations

from typing import Any

from ...core.op import cuda_meaning
from . import warp_parts as source
from .tile_cuda import TileType, assembled, registers


def _same_registers(have: TileType, result: TileType, tile: Any) -> Any:
    context, builder, args = yield result(tile)
    value = context.cast(builder, args[0], tile, have)
    return assembled(builder, result, registers(builder, have, value))


@cuda_meaning(source.split_row)
def _split(_context: Any, tile: Any) -> Any:
    row, parts = map(TileType, source.forms(tile))
    return (yield from _same_registers(row, parts, tile))


@cuda_meaning(source.join_row)
def _join(_context: Any, tile: Any) -> Any:
    row, parts = map(TileType, source.forms(tile))
    return (yield from _same_registers(parts, row, tile))
