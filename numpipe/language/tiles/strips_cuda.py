"""Strips of a register tile on the GPU: ranges of its registers."""

from __future__ import annotations

from typing import Any

from ...core import numba as nb
from ...core.op import cuda_meaning
from . import strips as source
from .layouts import BLOCK, Form
from .refs_cuda import I32
from .store_ring_cuda import registers_of
from .tile_cuda import TileType, assembled, registers, undefined


@cuda_meaning(source.map_columns)
def _map_columns(typing_context: Any, function: Any, tile: Any, width: Any) -> Any:
    strip = TileType(source.strip_form(tile, width))
    argtypes = (strip, I32)
    part = nb.returns(typing_context, function, argtypes)
    source.check_result(strip.form, part)
    result = TileType(Form(tile.shape, part.dtype))
    context, builder, args = yield result(function, tile, width)
    every, results, (rows, columns) = (
        registers(builder, tile, args[1]),
        [undefined(result)] * result.registers,
        strip.shape,
    )
    for first in range(0, tile.shape[1], columns):
        value = assembled(
            builder,
            strip,
            [
                x
                for row in range(0, rows, BLOCK)
                for x in every[registers_of(tile, row, first, columns)]
            ],
        )
        found = nb.call_value(
            context, builder, function, args[0], argtypes, (value, nb.const(first))
        )[1]
        for row in range(0, rows, BLOCK):
            block = registers(builder, part, found)[registers_of(part, row, 0, columns)]
            results[registers_of(result, row, first, columns)] = block
    return assembled(builder, result, results)
