"""``np.concatenate`` of register tiles on the GPU: their registers, in the order of the result."""

from __future__ import annotations

from typing import Any

from ...arch.dtypes import packing
from ...core.op import cuda_meaning
from . import concatenate as source
from .tile_cuda import TileType, assembled, registers, undefined


@cuda_meaning(source.concatenate)
def _concatenate(np_: Any, arrays: Any, axis: Any) -> Any:
    form, parts = source.joined_form(arrays, axis)
    result, each = TileType(form), packing(form.dtype).per_register
    builder, args = yield result
    if not np_.computes:
        return undefined(result)
    found = registers(builder, result, undefined(result))
    for number, (tile, (part, elements)) in enumerate(zip(arrays, parts, strict=True)):
        value = builder.extract_value(args[1], number)
        value = builder.cast(value, tile, TileType(part))
        for register, element in zip(
            registers(builder, TileType(part), value), elements[::each], strict=True
        ):
            if element >= 0:
                found[element // each] = register
    return assembled(builder, result, found)
