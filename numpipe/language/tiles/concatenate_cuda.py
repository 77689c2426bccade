"""``np.concatenate`` of register tiles on the GPU: their registers, in the order of the result."""

from __future__ import annotations

from typing import Any

from ...arch.dtypes import packing
from ...core.op import cuda_meaning
from . import concatenate as source
from .layouts import Form
from .tile_cuda import TileType, assembled, part_of_either, undefined


@cuda_meaning(source.concatenate)
def _concatenate(_context: Any, np_: Any, arrays: Any, axis: Any) -> Any:
    form, places = source.joined_form(arrays, axis)
    result, each = TileType(form), packing(form.dtype).per_register
    _, builder, args = yield result(np_, arrays, axis)
    if not np_.computes:
        return undefined(result)
    found: list[Any] = [None] * result.registers
    for number, (tile, elements) in enumerate(zip(arrays, places, strict=True)):
        part = TileType(Form(tile.shape, form.dtype, form.layout))
        parts = part_of_either(builder, tile, builder.extract_value(args[1], number), part)
        for register, element in zip(parts, elements[::each], strict=True):
            found[element // each] = register
    return assembled(builder, result, found)
