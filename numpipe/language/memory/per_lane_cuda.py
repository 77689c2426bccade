"""Code for each lane on the GPU: ld.shared and st.shared through a tile's swizzle, and shuffles."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from ...arch.dtypes import BFLOAT16
from ...core import numba as nb
from ...core.arith import is_integer
from ...core.arith_cuda import convert, type_of
from ...core.closure_cuda import BoundType
from ...core.formula_cuda import Value as Int
from ...core.numba import F16, F32, I32
from ...core.op import cuda_meaning, with_parameters
from ...diagnostics.errors import SpecError
from ...plan.layout import swizzled
from ...plan.nested_tuples_cuda import leaves, made, tree_of
from ..tiles.elements_cuda import in_type
from ..tiles.refs import READ_ONLY
from ..tiles.refs_cuda import GmemType, SharedType, SmemType
from ..tiles.shared_atomics_cuda import emit
from . import per_lane as source
from .scratch_cuda import SlotsType, index_parts


class LaneTileType(SharedType):
    together = False

    def part(self, target: Any, index: Any) -> Any:
        if not all(map(is_integer, index_parts(index))):
            return (yield from super().part(target, index))
        source.check_element(index_parts(index), str(index), self.layout)
        builder, args = yield LaneElementType(self)
        return _place(builder, self, builder.fields(target, args[0]).of, index, args[1])


class LaneElementType(nb.FieldsType):
    """The Numba type of a `per_lane.LaneElement`; its value is the address."""

    operand = source.LaneElement.operand

    tile: LaneTileType

    def update(self, name: str, value: Any) -> Any:
        source.check_update(name, self.tile, value)
        builder, args = yield nb.VOID(self, value)
        number = in_type(builder, args[1], value, self.tile.dtype)
        emit(builder, name.removeprefix("atomic_"), self.tile.dtype, args[0], number)


for _type in (LaneTileType, LaneElementType):
    nb.machine_model(_type, lambda ty: nb.i32)


def as_lane(ty: Any) -> Any:
    """Return the type of a value in a lane's code (`per_lane.as_lane`); the value itself is
    unchanged."""
    if isinstance(ty, SmemType):
        return LaneTileType(ty.layout, ty.dtype, ty.debugged, ty.role, ty.writable)
    if isinstance(ty, SlotsType):
        return SlotsType(ty.plan, ty.tile.debugged, ty.tile.role, LaneTileType)
    if isinstance(ty, GmemType):
        return GmemType(ty.unit, ty.index, ty.role, by_lane=True, form=ty.form)
    if isinstance(ty, nb.BaseTuple):
        return mapped(as_lane, ty)
    return BoundType(ty.function, as_lane(ty.captures)) if isinstance(ty, BoundType) else ty


def mapped(function: Callable[[Any], Any], ty: Any) -> Any:
    """Apply `per_lane.mapped` to types."""
    return tree_of(ty).build(map(function, leaves(ty)), made)


# ---- the lane's index
def _index(operation: Any, mask: int | None) -> None:
    @cuda_meaning(operation)
    def typer() -> Any:
        builder, _ = yield I32
        thread = builder.thread_index()
        return thread if mask is None else builder.and_(thread, mask)


_index(source.lane_index, source.LANES - 1)
_index(source.thread_index, None)
_index(source.lane_in_warp, 31)


# ---- shuffles
_MODES = {
    source.shfl_sync: ("idx", 31),
    source.shfl_up_sync: ("up", 0),
    source.shfl_down_sync: ("down", 31),
    source.shfl_xor_sync: ("bfly", 31),
}


def _shuffle(operation: Any, mode: str, clamp: int) -> None:
    name, parameters = operation.__name__, list(inspect.signature(operation.function).parameters)

    def typer(mask: Any, value: Any, amount: Any) -> Any:
        source.check_shuffled(name, value)
        source.check_integers(name, **{parameters[0]: mask, parameters[2]: amount})
        kind = nb.unliteral(value)
        builder, args = yield kind(mask, kind, amount)
        lanes, by = builder.cast(args[0], mask, I32), builder.cast(args[2], amount, I32)

        def word(bits: Any) -> Any:
            return builder.emit_asm(
                nb.i32,
                [bits, by, lanes],
                f"shfl.sync.{mode}.b32 $0, $1, $2, {clamp}, $3;",
                memory=False,
            )

        return _by_words(builder, args[1], word)

    cuda_meaning(operation)(
        with_parameters(typer, inspect.signature(operation.function).parameters)
    )


def _by_words(builder: Any, value: Any, word: Any) -> Any:
    """Move a number 32 bits at a time, with ``word(bits)``."""
    machine = value.type
    width = {nb.f32: 32}.get(machine) or (64 if str(machine) == "double" else machine.width)
    whole = nb.ir.IntType(width)
    bits = value if machine == whole else builder.bitcast(value, whole)
    if width == 16:
        moved = builder.trunc(word(builder.zext(bits)), whole)
    elif width == 32:
        moved = word(bits)
    else:
        low, high = (word(builder.trunc(builder.lshr(bits, shift))) for shift in (0, 32))
        moved = builder.or_(builder.zext(low, nb.i64), builder.shl(builder.zext(high, nb.i64), 32))
    return moved if machine == whole else builder.bitcast(moved, machine)


for _operation, (_mode, _clamp) in _MODES.items():
    _shuffle(_operation, _mode, _clamp)


@cuda_meaning(source.syncwarp)
def _syncwarp(mask: Any) -> Any:
    source.check_integers("syncwarp", mask=mask)
    builder, args = yield
    builder.execute(
        [builder.cast(args[0], mask, I32)],
        "bar.warp.sync $0;",
    )


# ---- elements of tiles
def _place(builder: Any, tile: LaneTileType, address: Any, index: Any, value: Any) -> Any:
    """Return the swizzled address of an element."""
    values = builder.unpack_tuple(value) if isinstance(index, nb.BaseTuple) else [value]
    places = [
        Int(builder, builder.cast(part, ty, I32))
        for ty, part in zip(index_parts(index), values, strict=True)
    ]
    at = tile.layout.offset(*(Int(builder, nb.const(0)), *places)[-2:]) + Int(builder, address)
    return swizzled(at, tile.layout.width).value


def _element(dtype: np.dtype) -> Any:
    """Return the type that an element has in a kernel."""
    return F32 if dtype == BFLOAT16 else F16 if dtype == np.float16 else type_of(dtype)


def _load(builder: Any, dtype: np.dtype, address: Any) -> Any:
    if dtype == BFLOAT16:
        half = builder.emit_asm(nb.i16, [address], "ld.shared.b16 $0, [$1];")
        return builder.bitcast(builder.shl(builder.zext(half), 16), nb.f32)
    if dtype.itemsize == 1:
        byte = builder.emit_asm(nb.i16, [address], "ld.shared.u8 $0, [$1];")
        return builder.trunc(byte, nb.i8)
    if dtype.kind == "f" and dtype.itemsize > 2:
        machine = nb.f32 if dtype.itemsize == 4 else nb.f64
    else:
        machine = nb.ir.IntType(8 * dtype.itemsize)
    return builder.emit_asm(machine, [address], f"ld.shared.b{8 * dtype.itemsize} $0, [$1];")


def _store(builder: Any, dtype: np.dtype, address: Any, value: Any) -> None:
    if dtype == BFLOAT16:
        value = builder.pure_asm(nb.i16, [value], "cvt.rn.bf16.f32 $0, $1;")
    if dtype.itemsize == 1:
        value = builder.zext(value, nb.i16)
    builder.execute([address, value], f"st.shared.b{8 * dtype.itemsize} [$0], $1;")


def _get_item(target: Any, index: Any) -> Any:
    if not isinstance(target, LaneTileType):
        return None
    source.check_element(index_parts(index), str(index), target.layout)
    builder, args = yield _element(target.dtype)(target, index)
    return _load(builder, target.dtype, _place(builder, target, args[0], index, args[1]))


def _set_item(target: Any, index: Any, value: Any) -> Any:
    if not isinstance(target, LaneTileType):
        return None
    tile, kind = target, nb.unliteral(value)
    if not tile.writable:
        raise SpecError(READ_ONLY)
    source.check_element(index_parts(index), str(index), target.layout)
    source.check_stored(tile.dtype, value)
    builder, args = yield nb.none(target, index, kind)
    number = convert(builder, args[2], kind, _element(tile.dtype))
    _store(builder, tile.dtype, _place(builder, tile, args[0], index, args[1]), number)


nb.overload(operator.getitem, _get_item)
nb.overload(operator.setitem, _set_item)
