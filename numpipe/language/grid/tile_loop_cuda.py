"""Tile loops on the GPU."""

from __future__ import annotations

from typing import Any

from ...core import numba as nb
from ...core.numba import I32
from ...core.op import cuda_meaning
from . import tile_loop as source

# $0 an index, $1 its address, $2 the row, $3 the number of rows
_ENTRY = (
    "{ .reg .pred there; setp.lt.s32 there, $2, $3; mov.b32 $0, 0; @there ld.global.nc.b32 $0, "
    "[$1]; }"
)


@cuda_meaning(source.next_static_tile)
def _next_tile(tile: Any, stride: Any, end: Any) -> Any:
    builder, args = yield I32(I32, I32, I32)
    return builder.add(args[0], args[1])


@cuda_meaning(source.table_entry)
def _table_entry(table: Any, t: Any, end: Any, columns: Any) -> Any:
    count = nb.literal(columns)
    result = nb.UniTuple(I32, count)
    builder, args = yield result(table, I32, I32, columns)
    ref = builder.fields(table, args[0])
    strides = [builder.extract_value(ref.strides, axis) for axis in (0, 1)]
    row = builder.mul(builder.sext(args[1], nb.i64), strides[0])
    found = []
    for column in range(count):
        element = builder.add(row, builder.mul(strides[1], column))
        address = builder.add(ref.pointer, builder.shl(element, 2))
        found.append(
            builder.emit_asm(nb.i32, [address, args[1], args[2]], _ENTRY, early=True, memory=False)
        )
    return builder.make_tuple(result, found)
