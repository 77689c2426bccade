"""``c[rows, columns] = tile`` on the GPU."""

from __future__ import annotations

import operator
from typing import Any

from . import _numba as nb
from . import store as source
from ._op import cuda_meaning
from .errors import SpecError
from .fragment.panel import batches, panel_columns
from .fragment.tile import FLOAT32
from .fragment.tile_cuda import InFlightType, TileType, settled
from .refs import READ_ONLY
from .refs_cuda import DsType, GmemType, SmemType, gmem_value, parts
from .ring import put
from .ring_cuda import BatchType

I32 = nb.types.int32


@cuda_meaning(source.store_tile)
def _store_tile(typing_context: Any, ref: Any, rows: Any, columns: Any, tile: Any) -> Any:
    if not isinstance(tile, (TileType, InFlightType)):
        raise SpecError(f"'{ref.arg.name}[…] = value': the value must be a register tile, got {tile}")
    source.check_output(ref.arg)
    value_type = settled(tile, f"'{ref.arg.name}[…] = tile'")
    sizes = tuple(part.size if isinstance(part, DsType) else None for part in (rows, columns))
    source.check(ref.arg.name, ref.arg.dtype, ref.arg.ndim, sizes, value_type.shape, value_type.dtype)  # type: ignore[arg-type]
    width = panel_columns(value_type.shape[1], value_type.dtype.itemsize)
    panels = value_type.shape[0] // 64 * (value_type.shape[1] // width)
    through = source.through_tma(ref.arg)
    if ref.role == "compute" and through:
        parts_of = [BatchType(value_type, places, width)
                    for places in batches(value_type.shape, width, ref.unit.plan_staging(panels))]
        for batch in parts_of:
            nb.returns(typing_context, put, (ref, batch, I32, I32))

    def codegen(context: Any, builder: Any, _sig: Any, args: Any) -> Any:
        if ref.role == "memory":
            return nb.nothing(context)
        ref_value, row, column, value = args
        if not through:
            _store_by_lanes(context, builder, ref, value_type, ref_value, row, column, value)
            return nb.nothing(context)
        for batch in parts_of:
            nb.call(context, builder, put, (ref, batch, I32, I32), (ref_value, value, row, column))
        return nb.nothing(context)

    return nb.types.void(ref, rows, columns, tile), codegen


def _store_by_lanes(context: Any, builder: Any, ref: GmemType, tile: TileType, ref_value: Any, row: Any, column: Any,
                    value: Any) -> None:
    """Each lane its own elements, bounds checked; any strides."""
    array = gmem_value(context, builder, ref, ref_value)
    shape = [builder.extract_value(array.shape, axis) for axis in (0, 1)]
    strides = [builder.extract_value(array.strides, axis) for axis in (0, 1)]
    itemsize = tile.dtype.itemsize
    thread = builder.and_(nb.thread_index(builder), nb.const(127))
    lane = builder.and_(thread, nb.const(31))
    lane_row = builder.add(builder.lshr(builder.and_(thread, nb.const(96)), nb.const(1)), builder.lshr(lane, nb.const(2)))
    lane_column = builder.add(column, builder.shl(builder.and_(lane, nb.const(3)), nb.const(1)))
    per_block = tile.shape[1] // 2  # accumulator elements of a lane in a block of 64 rows
    for block in range(tile.shape[0] // 64):
        for half in (0, 1):
            r = builder.add(builder.add(row, lane_row), nb.const(64 * block + 8 * half))
            with builder.if_then(builder.icmp_signed("<", r, shape[0])):
                line = builder.add(array.pointer, builder.mul(builder.sext(r, nb.i64), builder.mul(
                    strides[0], nb.const(itemsize, nb.i64))))
                for j in range(tile.shape[1] // 8):
                    for odd in (0, 1):
                        c = builder.add(lane_column, nb.const(8 * j + odd))
                        with builder.if_then(builder.icmp_signed("<", c, shape[1])):
                            address = builder.add(line, builder.mul(builder.sext(c, nb.i64), builder.mul(
                                strides[1], nb.const(itemsize, nb.i64))))
                            element = block * per_block + 4 * j + 2 * half + odd
                            _store_element(builder, tile, value, element, address)


def _store_element(builder: Any, tile: TileType, value: Any, element: int, address: Any) -> None:
    if tile.dtype == FLOAT32:
        nb.emit_asm(builder, nb.void, [address, builder.extract_value(value, element)], "st.global.f32 [$0], $1;", "l,f,~{memory}")
        return
    packed = builder.extract_value(value, element // 2)
    bits = builder.trunc(builder.lshr(packed, nb.const(16)) if element % 2 else packed, nb.i16)
    nb.emit_asm(builder, nb.void, [address, bits], "st.global.b16 [$0], $1;", "l,h,~{memory}")


@nb.typing_registry.register_global(operator.setitem)
class _SetItem(nb.AbstractTemplate):  # type: ignore[misc]
    key = operator.setitem

    def generic(self, args: Any, kws: Any) -> Any:
        target, index, value = args
        if isinstance(target, SmemType):
            raise SpecError(READ_ONLY)
        if not isinstance(target, GmemType):
            return None
        rows, columns = parts(index, f"array '{target.arg.name}'")
        nb.returns(self.context, source.store_tile, (target, rows, columns, value))
        return nb.signature(nb.types.none, target, index, value)


@nb.lowering_registry.lower(operator.setitem, GmemType, nb.types.Any, nb.types.Any)
def _set_item(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    ref, index, value = sig.args
    rows, columns = (builder.extract_value(args[1], axis) for axis in (0, 1))
    nb.call(context, builder, source.store_tile, (ref, index[0], index[1], value), (args[0], rows, columns, args[2]))
    return nb.nothing(context)
