"""Strips of a register tile on the GPU: ranges of its registers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ...arch.dtypes import packing
from ...core import numba as nb
from ...core.numba import I32
from ...core.op import cuda_meaning
from . import strips as source
from .tile_cuda import TileType, assembled, registers, undefined
from .tile_slices import elements_of


@cuda_meaning(source.map_columns)
def _map_columns(function: Any, tile: Any, width: Any) -> Any:
    form, strip_form = source.strip_form(tile, width)
    tile, strip = TileType(form), TileType(strip_form)
    argtypes = (strip, I32)
    part = nb.returns(function, argtypes)
    source.check_result(strip.form, part)
    made = TileType(replace(strip.form, dtype=part.dtype))
    result = TileType(replace(form, dtype=part.dtype))
    builder, args = yield result(function, tile, width)
    every, results = registers(builder, tile, args[1]), [undefined(result)] * result.registers
    rows, columns = strip.shape
    for first in range(0, tile.shape[1], columns):
        taken = elements_of(form, strip.form, (slice(0, rows), slice(first, first + columns)))
        each = packing(strip.dtype).per_register
        value = assembled(builder, strip, [every[i // each] for i in taken[::each]])
        found = builder.apply_value(function, args[0], argtypes, (value, nb.const(first)))
        found = builder.cast(found, part, made)
        each = packing(made.dtype).per_register
        for i, register in zip(taken[::each], registers(builder, made, found), strict=True):
            results[i // each] = register
    return assembled(builder, result, results)
