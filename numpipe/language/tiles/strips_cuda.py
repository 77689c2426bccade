"""Strips of a register tile on the GPU: runs of its registers."""

from __future__ import annotations

from typing import Any

from ...arch.dtypes import packing
from ...core import numba as nb
from ...core.op import cuda_meaning, immediate
from ...diagnostics.errors import SpecError
from . import strips as source
from .layouts import places
from .tile_cuda import InFlightType, TileType, assembled, registers, settled, undefined

I32 = nb.types.int32


def _run(tile: TileType, strip: TileType, first: int) -> list[int]:
    """The registers of a tile that a strip from column `first` on is made of, in the strip's order."""
    each = packing(tile.dtype).per_register
    number = {place: i // each for i, place in enumerate(places(tile.shape, tile.layout)) if i % each == 0}
    return [number[row, column + first] for row, column in places(strip.shape, strip.layout)[::each]]  # type: ignore[operator]


@cuda_meaning(source.map_columns)
def _map_columns(typing_context: Any, function: Any, tile: Any, width: Any) -> Any:
    if not isinstance(tile, (TileType, InFlightType)):
        raise SpecError(f"map_columns: the second argument is a register tile, got {tile}")
    whole = settled(tile, "map_columns")
    strip = TileType.of(source.check_strips(whole.form, immediate("map_columns", "width", width)))
    argtypes = (strip, I32)
    part = nb.returns(typing_context, function, argtypes)
    source.check_result(strip.form, part.form if isinstance(part, TileType) else None, part)
    result = TileType(whole.shape, part.dtype)
    context, builder, args = yield result(function, tile, width)
    every, made = registers(builder, whole, args[1]), [undefined(result)] * result.registers
    for first in range(0, whole.shape[1], strip.shape[1]):
        given = assembled(builder, strip, [every[i] for i in _run(whole, strip, first)])
        found = nb.call_value(context, builder, function, args[0], argtypes, (given, nb.const(first)))[1]
        for i, value in zip(_run(result, part, first), registers(builder, part, found), strict=True):
            made[i] = value
    return assembled(builder, result, made)
