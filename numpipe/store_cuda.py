"""``c[rows, columns] = tile`` on the GPU."""

from __future__ import annotations

import operator
from typing import Any

from . import _numba as nb
from . import store as source
from ._op import cuda_meaning
from .errors import SpecError
from .fragment.panel import batches, panel_columns
from .fragment.tile import INT32
from .fragment.tile_cuda import InFlightType, TileType, settled
from .inert_cuda import InertType
from .refs_cuda import AllType, DsType, GmemType, gmem_value
from .store_ring import put
from .store_ring_cuda import BatchType

I32 = nb.types.int32


@cuda_meaning(source.store_tile)
def _store_tile(typing_context: Any, ref: Any, index: Any, tile: Any) -> Any:
    parts = tuple(index)
    axes = source.tile_axes(ref.arg.name, ref.arg.ndim, [_is_slice(part) for part in parts],
                            f"({', '.join(map(str, parts))}{',' * (len(parts) == 1)})")
    if not isinstance(tile, (TileType, InFlightType)):
        raise SpecError(f"'{ref.arg.name}[…] = value': the value must be a register tile, got {tile}")
    ref.unit.check_output(ref.index, f"'{ref.arg.name}[…] = tile'", source.MEND)
    value_type = settled(tile, f"'{ref.arg.name}[…] = tile'")
    sizes = tuple(parts[axis].size if isinstance(parts[axis], DsType) else None for axis in axes)
    source.check(ref.arg.name, ref.arg.dtype, sizes, value_type.shape, value_type.dtype)  # type: ignore[arg-type]
    width = panel_columns(value_type.shape[1], value_type.dtype.itemsize)
    panels = value_type.shape[0] // 64 * (value_type.shape[1] // width)
    through = source.through_tma(ref.arg, axes)
    place = nb.types.UniTuple(I32, len(parts))
    if ref.role == "compute" and through:
        parts_of = [BatchType(value_type, places, width, axes)
                    for places in batches(value_type.shape, width, ref.unit.plan_staging(panels))]
        for batch in parts_of:
            nb.returns(typing_context, put, (ref, batch, place))

    def codegen(context: Any, builder: Any, _sig: Any, args: Any) -> Any:
        if ref.role == "memory":
            return nb.nothing(context)
        ref_value, places, value = args
        start = [found if isinstance(part, DsType) else context.cast(builder, found, part, I32)
                 for part, found in zip(parts, nb.cgutils.unpack_tuple(builder, places), strict=True)]
        if not through:
            _store_by_lanes(context, builder, ref, value_type, ref_value, start, axes, value)
            return nb.nothing(context)
        for batch in parts_of:
            nb.call(context, builder, put, (ref, batch, place), (ref_value, value, context.make_tuple(builder, place, start)))
        return nb.nothing(context)

    return nb.types.void(ref, index, tile), codegen


def _is_slice(part: Any) -> bool | None:
    if isinstance(part, (DsType, AllType)):
        return True
    return False if isinstance(part, (nb.types.Integer, InertType)) else None


def _store_by_lanes(context: Any, builder: Any, ref: GmemType, tile: TileType, ref_value: Any, start: list[Any],
                    axes: tuple[int, int], value: Any) -> None:
    """Each lane its own elements, bounds checked (unsigned: a negative index is outside too); any strides."""
    array = gmem_value(context, builder, ref, ref_value)
    shape, strides = (nb.cgutils.unpack_tuple(builder, of) for of in (array.shape, array.strides))
    itemsize = tile.dtype.itemsize
    base, inside = array.pointer, nb.const(1, nb.i1)
    for axis, place in enumerate(start):
        if axis not in axes:
            inside = builder.and_(inside, builder.icmp_unsigned("<", place, shape[axis]))
            base = builder.add(base, builder.mul(builder.sext(place, nb.i64), builder.mul(
                strides[axis], nb.const(itemsize, nb.i64))))
    with builder.if_then(inside):
        _store_plane(builder, tile, value, base, [[of[axis] for axis in axes] for of in (start, shape, strides)])
    nb.join(builder)


def _store_plane(builder: Any, tile: TileType, value: Any, base: Any, plane: list[list[Any]]) -> None:
    """A tile's elements to the plane of the array at address `base`, clipped; `plane`: its (start, shape, strides)."""
    (row, column), shape, strides = plane
    itemsize = tile.dtype.itemsize
    thread = builder.and_(nb.thread_index(builder), nb.const(127))
    lane = builder.and_(thread, nb.const(31))
    lane_row = builder.add(builder.lshr(builder.and_(thread, nb.const(96)), nb.const(1)), builder.lshr(lane, nb.const(2)))
    lane_column = builder.add(column, builder.shl(builder.and_(lane, nb.const(3)), nb.const(1)))
    per_block = tile.shape[1] // 2  # accumulator elements of a lane in a block of 64 rows
    for block in range(tile.shape[0] // 64):
        for half in (0, 1):
            r = builder.add(builder.add(row, lane_row), nb.const(64 * block + 8 * half))
            with builder.if_then(builder.icmp_unsigned("<", r, shape[0])):
                line = builder.add(base, builder.mul(builder.sext(r, nb.i64), builder.mul(
                    strides[0], nb.const(itemsize, nb.i64))))
                for j in range(tile.shape[1] // 8):
                    for odd in (0, 1):
                        c = builder.add(lane_column, nb.const(8 * j + odd))
                        with builder.if_then(builder.icmp_unsigned("<", c, shape[1])):
                            address = builder.add(line, builder.mul(builder.sext(c, nb.i64), builder.mul(
                                strides[1], nb.const(itemsize, nb.i64))))
                            element = block * per_block + 4 * j + 2 * half + odd
                            _store_element(builder, tile, value, element, address)


def _store_element(builder: Any, tile: TileType, value: Any, element: int, address: Any) -> None:
    if tile.dtype.itemsize == 4:
        word = builder.extract_value(value, element)
        word = builder.bitcast(word, nb.f32) if tile.dtype == INT32 else word
        nb.emit_asm(builder, nb.void, [address, word], "st.global.f32 [$0], $1;", "l,f,~{memory}")
        return
    packed = builder.extract_value(value, element // 2)
    bits = builder.trunc(builder.lshr(packed, nb.const(16)) if element % 2 else packed, nb.i16)
    nb.emit_asm(builder, nb.void, [address, bits], "st.global.b16 [$0], $1;", "l,h,~{memory}")


@nb.typing_registry.register_global(operator.setitem)
class _SetItem(nb.AbstractTemplate):  # type: ignore[misc]
    key = operator.setitem

    def generic(self, args: Any, kws: Any) -> Any:
        target, index, value = args
        if not isinstance(target, GmemType):
            return None
        whole = index if isinstance(index, nb.types.BaseTuple) else nb.types.Tuple([index])
        nb.returns(self.context, source.store_tile, (target, whole, value))
        return nb.signature(nb.types.none, target, index, value)


@nb.lowering_registry.lower(operator.setitem, GmemType, nb.types.Any, nb.types.Any)
def _set_item(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    nb.call(context, builder, source.store_tile, sig.args, args)
    return nb.nothing(context)
