"""Strips of a register tile on the GPU: runs of its registers."""

from __future__ import annotations

from typing import Any

from ...arch.dtypes import packing
from ...core import numba as nb
from ...core.op import cuda_meaning
from . import strips as source
from .layouts import Form, places
from .tile_cuda import TileType, assembled, registers, undefined

I32 = nb.types.int32


def _run(tile: TileType, strip: TileType, first: int) -> list[int]:
    """The registers of a tile that a strip from column `first` on is made of, in the strip's order."""
    each = packing(tile.dtype).per_register
    number = {place: i // each for i, place in enumerate(places(tile.shape, tile.layout)) if i % each == 0}
    return [number[row, column + first] for row, column in places(strip.shape, strip.layout)[::each]]  # type: ignore[operator]


@cuda_meaning(source.map_columns)
def _map_columns(typing_context: Any, function: Any, tile: Any, width: Any) -> Any:
    strip = TileType(source.strip_form(tile, width))
    argtypes = (strip, I32)
    part = nb.returns(typing_context, function, argtypes)
    source.check_result(strip.form, part)
    result = TileType(Form(tile.shape, part.dtype))
    context, builder, args = yield result(function, tile, width)
    every, made = registers(builder, tile, args[1]), [undefined(result)] * result.registers
    for first in range(0, tile.shape[1], strip.shape[1]):
        given = assembled(builder, strip, [every[i] for i in _run(tile, strip, first)])
        found = nb.call_value(context, builder, function, args[0], argtypes, (given, nb.const(first)))[1]
        for i, value in zip(_run(result, part, first), registers(builder, part, found), strict=True):
            made[i] = value
    return assembled(builder, result, made)
