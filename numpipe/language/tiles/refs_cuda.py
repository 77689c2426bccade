"""References as Numba values: layouts and types in the type, addresses in the value."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from ...core import numba as nb
from ...core.inert_cuda import STEERLESS, InertType, steers
from ...core.op import cuda_meaning, entry_operation
from ...plan.context_cuda import ContextType
from ...plan.layout import Layout
from ...plan.unit import Unit
from . import refs

I32 = nb.types.int32


class DsType(nb.types.Type, refs.Ds):  # type: ignore[misc]
    """`start`: where that is a constant, and not 0; else it is known at run time, as what one of two constants becomes."""

    def __init__(self, size: int, inert: bool, start: int | None = None) -> None:
        self.size, self.inert, self.start = size, inert, start
        super().__init__(name=f"ds({size}{', inert' if inert else ''})")  # type: ignore[call-arg]

    @property
    def key(self) -> tuple[int, bool, int | None]:
        return self.size, self.inert, self.start

    def unify(self, context: Any, other: Any) -> Any:
        return DsType(self.size, self.inert) if isinstance(other, DsType) and self.key[:2] == other.key[:2] else None


nb.lower_cast(DsType, DsType)(lambda context, builder, fromty, toty, value: value)


class AllType(nb.types.Type, refs.All):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__(name=":")


class SmemType(nb.types.Type, refs.SmemLike):  # type: ignore[misc]
    what, operand = "a shared-memory tile", "tile"

    def __init__(self, layout: Layout, dtype: np.dtype, role: str, writable: bool = False) -> None:
        self.layout, self.dtype, self.role, self.writable = layout, dtype, role, writable
        super().__init__(name=f"smem({layout}, {dtype}, {role}{', writable' * writable})")

    def of(self, layout: Layout) -> SmemType:
        """A view of it."""
        return SmemType(layout, self.dtype, self.role, self.writable)


class AtType(nb.types.Type):  # type: ignore[misc]
    def __init__(self, tile: SmemType) -> None:
        self.tile = tile
        super().__init__(name=f"at({tile})")


class GmemType(nb.types.Type):  # type: ignore[misc]
    """Array argument `index` of a kernel, as one role sees it."""

    def __init__(self, unit: Unit, index: int, role: str) -> None:
        self.unit, self.index, self.role, self.arg = unit, index, role, unit.arrays[index]
        super().__init__(name=f"gmem({unit.kernel}#{unit.serial}, {index}, {role})")


STEERLESS.append(SmemType)
for _type in (DsType, SmemType, AtType):
    nb.machine_model(_type, lambda ty: nb.i32)
nb.register_model(AllType)(nb.models.OpaqueModel)


def _profiled(ty: GmemType) -> list[tuple[str, Any]]:
    """With a profile a reference knows the context that it was made in: stores are events."""
    return [("np", ContextType(ty.unit, ty.role))] if ty.unit.params.profile_space else []


nb.struct_model(GmemType, lambda ty: [
    ("table", nb.types.int64), ("pointer", nb.types.int64), ("shape", nb.types.UniTuple(I32, ty.arg.ndim)),
    ("strides", nb.types.UniTuple(nb.types.int64, ty.arg.ndim)), *_profiled(ty)])


def gmem_value(context: Any, builder: Any, ty: GmemType, value: Any) -> Any:
    return nb.fields(context, builder, ty, value)


@cuda_meaning(refs.ds)
def _ds(_context: Any, start: Any, size: Any) -> Any:
    if not isinstance(start, (nb.types.Integer, nb.types.Boolean, InertType)):
        steers(start)
        raise refs.no_start(start)
    known = start.literal_value or None if isinstance(start, nb.types.IntegerLiteral) else None
    value = DsType(refs.ds_size(size), isinstance(start, InertType), known)
    if value.inert:
        return value(start, size), lambda context, builder, sig, args: nb.const(0)
    return value(I32, size), lambda context, builder, sig, args: args[0]


@cuda_meaning(refs.whole)
def _whole(_context: Any) -> Any:
    return AllType()(), lambda context, builder, sig, args: nb.nothing(context)


nb.attribute(SmemType, "T", lambda ty: ty.of(ty.layout.T), lambda c, b, ty, value: value)
nb.attribute(SmemType, "at", AtType, lambda c, b, ty, value: value)
nb.constant_attributes(SmemType, None, shape=lambda ty: ty.layout.shape, dtype=lambda ty: ty.dtype.name)
nb.constant_attributes(GmemType, None, dtype=lambda ty: ty.arg.dtype.name, ndim=lambda ty: ty.arg.ndim)
nb.attribute(GmemType, "shape", lambda ty: nb.types.UniTuple(I32, ty.arg.ndim),
             lambda c, b, ty, value: gmem_value(c, b, ty, value).shape)


refs.whole_slices.register(nb.types.Type)(lambda index: tuple(index) if isinstance(index, nb.types.BaseTuple) else (index,))


def view(tile: SmemType, index: Any) -> tuple[SmemType, Any]:
    """The part of a tile that an index selects: (type, ``codegen(builder, address, index) -> address``)."""
    if isinstance(index, nb.types.EllipsisType):
        return tile, lambda builder, address, index: address
    layout, scales = tile.layout, []
    for axis, part in enumerate(refs.two(index, "a tile")):
        scale = 0
        if isinstance(part, DsType):
            layout, scale = layout.sliced(axis, part.size, "tile.at[…]")
            scale = 0 if part.inert else scale
            if part.start is not None:
                refs.check_start(tile.layout, axis, part.start, part.size)
        scales.append(scale)

    def codegen(builder: Any, address: Any, index: Any) -> Any:
        for axis, scale in enumerate(scales):
            if scale:
                start = builder.extract_value(index, axis)
                address = builder.add(address, builder.mul(start, nb.const(scale)))
        return address

    return tile.of(layout), codegen


def _indexed(target: Any, index: Any) -> Any:
    if not isinstance(target, AtType):
        return None
    part, address = view(target.tile, index)
    return part(target, index), lambda context, builder, sig, args: address(builder, *args)


nb.binary(operator.getitem, _indexed)


def new_ref(unit: Unit, index: int, role: str) -> Any:
    """An operation that makes the reference of array argument `index` from the kernel's parameters (entry code)."""
    rank = unit.arrays[index].ndim
    ty = GmemType(unit, index, role)
    profiled = [kind for _, kind in _profiled(ty)]

    def typer(_context: Any, *args: Any) -> Any:
        context, builder, values = yield ty(*profiled, *[nb.types.int64] * (2 + 2 * rank))
        ref = nb.cgutils.create_struct_proxy(ty)(context, builder)
        if profiled:
            ref.np, values = values[0], values[1:]
        ref.table, ref.pointer = values[:2]
        ref.shape = context.make_tuple(builder, nb.types.UniTuple(I32, rank),
                                       [builder.trunc(v, nb.i32) for v in values[2:2 + rank]])
        ref.strides = context.make_tuple(builder, nb.types.UniTuple(nb.types.int64, rank), values[2 + rank:])
        return ref._getvalue()

    return entry_operation(typer)
