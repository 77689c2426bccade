"""Accumulators in register order on the GPU: the same registers, of another type."""

from __future__ import annotations

from typing import Any

from ...core.op import cuda_meaning
from . import register_order as source
from .tile_cuda import TileType, assembled, registers


@cuda_meaning(source.to_register_order)
def _to(tile: Any) -> Any:
    return (yield from _renamed(TileType(source.to_form(tile)), tile))


@cuda_meaning(source.from_register_order)
def _from(tile: Any, shape: Any) -> Any:
    return (yield from _renamed(TileType(source.from_form(tile, shape)), tile))


def _renamed(result: TileType, tile: Any) -> Any:
    builder, args = yield result
    return assembled(builder, result, registers(builder, tile, args[0]))
