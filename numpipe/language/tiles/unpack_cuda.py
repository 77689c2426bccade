"""Packed tiles on the GPU: a 128-bit load of shared memory for each lane of a quad, and the
conversion of one byte of each word by the PTX of the element's record."""

from __future__ import annotations

from typing import Any

from ...core import numba as nb
from ...core.formula_cuda import Value
from ...core.op import cuda_meaning
from . import unpack as source
from .fence_order import before_access
from .shared_tiles_cuda import converge
from .tile_cuda import TileType, assembled, undefined
from .words_cuda import load_words


@cuda_meaning(source.unpack)
def _unpack(tile: Any, element: Any, dtype: Any) -> Any:
    packed, form = source.plan(tile, element, dtype)
    result = TileType(form)
    builder, args = yield result
    if not tile.role.computes:
        return undefined(result)
    builder.apply(before_access, (tile,), (args[0],))
    lane: Any = Value(builder, builder.lane_index())
    start = builder.add(args[0], source.lane_start(tile.layout, lane).value)
    selector = ((lane & 3) * 0x1111).value
    text = packed.unpack[form.dtype.name]
    found: list = [None] * result.registers
    for access in source.accesses(tile.layout):
        at = builder.add(builder.xor(start, access.xor), access.add)
        for n, word in enumerate(load_words(builder, nb.i32, "b32", at, access.count)):
            found[access.first + 2 * n] = builder.pure_asm(nb.i32, [word, selector], text)
    converge(builder)
    return assembled(builder, result, found)
