"""Tiles of other shapes in the same registers, on the GPU."""

from __future__ import annotations

from typing import Any

from ...core import numba as nb
from ...core.op import cuda_meaning
from . import warp_parts as source
from .tile_cuda import TileType, assembled, registers


@cuda_meaning(source.with_rows)
def _with_rows(tile: Any, rows: Any, layout: Any = None) -> Any:
    have, result = map(TileType, source.forms(tile, rows, layout))
    builder, args = yield result(tile, rows, nb.none if layout is None else layout)
    parts = registers(builder, have, builder.cast(args[0], tile, have))
    # a tile may have registers for rows that it has not
    return assembled(builder, result, (2 * parts)[: result.registers])
