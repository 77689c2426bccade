"""Shared memory of the kernel's own as Numba values: plans in the types, addresses in the values."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

from ...core import numba as nb
from ...core.inert_cuda import InertType
from ...core.op import cuda_meaning, immediate
from ...diagnostics.errors import CompileError, SpecError
from ...plan.allocations import BarrierPlan, SmemPlan, parse
from ...plan.context_cuda import ContextType, compute_warpgroup
from ...plan.unit import Unit
from ..tiles.refs_cuda import AllType, DsType, SmemType
from . import shared as source

I32 = nb.types.int32


class SlotsType(nb.types.Type):  # type: ignore[misc]
    def __init__(self, plan: SmemPlan, role: str) -> None:
        self.plan, self.role = plan, role
        super().__init__(name=f"slots({plan}, {role})")

    @property
    def tile(self) -> SmemType:
        return SmemType(self.plan.kind.layout, self.plan.kind.dtype, self.role, True)


class BarriersType(nb.types.Type):  # type: ignore[misc]
    """Barriers of an allocation, as one role sees them; the value has the context and the number of the first."""

    operand = "barrier"

    def __init__(self, context: ContextType, plan: BarrierPlan, shape: tuple[int, ...]) -> None:
        self.context, self.plan, self.shape = context, plan, shape
        super().__init__(name=f"barriers({context}, {plan}, {shape})")

    @property
    def memory(self) -> bool:
        return self.context.memory


class AtType(nb.types.Type):  # type: ignore[misc]
    """``x.at`` of slots, of barriers, and of both and tiles as a lane sees them: indexing with it gives a view."""

    def __init__(self, of: Any) -> None:
        self.of = of
        super().__init__(name=f"at({of})")


def with_at(kind: type) -> None:
    """Values of a type have the attribute ``at``."""
    nb.attribute(kind, "at", AtType, lambda context, builder, ty, value: nb.struct(context, builder, AtType(ty), of=value))


nb.struct_model(SlotsType, lambda ty: [("address", I32)])
nb.struct_model(BarriersType, lambda ty: [("np", ty.context), ("first", I32)])
nb.struct_model(AtType, lambda ty: [("of", ty.of)])
with_at(SlotsType)
with_at(BarriersType)
nb.constant_attributes(SlotsType, None, shape=lambda ty: ty.plan.kind.shape, dtype=lambda ty: ty.plan.kind.dtype.name)
nb.constant_attributes(BarriersType, None, shape=lambda ty: ty.shape)


# ---- views
def _parts(index: Any) -> tuple[Any, ...]:
    return tuple(index) if isinstance(index, nb.types.BaseTuple) else (index,)


def _kind(part: Any) -> str:
    if isinstance(part, nb.types.Integer):
        return "int"
    return "inert" if isinstance(part, InertType) else "other"


def _linear(context: Any, builder: Any, shape: tuple[int, ...], parts: Any, index: Any, value: Any) -> Any:
    """Row-order number of a place, in an index of type `index`."""
    number = nb.const(0)
    for axis, (size, part) in enumerate(zip(shape, parts, strict=True)):
        if isinstance(part, InertType):
            continue
        found = builder.extract_value(value, axis) if isinstance(index, nb.types.BaseTuple) else value
        number = builder.add(builder.mul(number, nb.const(size)), context.cast(builder, found, part, I32))
    return number


def _view(target: Any, index: Any) -> Any:
    if isinstance(target, SlotsType):
        raise SpecError(source.NO_SLOTS)
    if isinstance(target, BarriersType):
        raise SpecError(source.NO_VALUE + "; barriers.at[i] is one of several")
    of = target.of if isinstance(target, AtType) else None
    if isinstance(of, SlotsType):
        return slot(target, of, index)
    return _barrier(target, of, index) if isinstance(of, BarriersType) else None


def slot(target: AtType, slots: SlotsType, index: Any, seen_as: Callable[[SmemType], Any] = lambda tile: tile) -> Any:
    """A view of a slot; `seen_as`: its type, of the tile's."""
    parts, plan = _parts(index), slots.plan
    lead = plan.slots
    source.check_slots(lead, [_kind(part) for part in parts], f"({', '.join(map(str, parts))})")
    here, rest = parts[:len(lead)], parts[len(lead):]
    tile, layout, scales = slots.tile, plan.kind.layout, []
    for axis, part in enumerate(two(rest) if rest else ()):
        scale = 0
        if isinstance(part, DsType):
            layout, scale = layout.sliced(axis, part.size, "tile.at[…]")
        scales.append(0 if getattr(part, "inert", False) else scale)
    context, builder, args = yield seen_as(SmemType(layout, tile.dtype, tile.role, True))(target, index)
    have = nb.fields(context, builder, target, args[0]).of
    address = nb.fields(context, builder, target.of, have).address
    number = _linear(context, builder, lead, here, index, args[1])
    address = builder.add(address, builder.mul(number, nb.const(plan.kind.stride)))
    for axis, scale in enumerate(scales, len(lead)):
        if scale:
            start = builder.extract_value(args[1], axis)
            address = builder.add(address, builder.mul(start, nb.const(scale)))
    return address


def two(parts: Any) -> Any:
    """The parts of a tile's index."""
    if not all(isinstance(part, (DsType, AllType)) for part in parts):
        raise SpecError(f"a tile is indexed by two of ds(start, size) and ':', got ({', '.join(map(str, parts))})")
    return parts


def _barrier(target: AtType, barriers: BarriersType, index: Any) -> Any:
    parts = _parts(index)
    left = source.check_barriers(barriers.shape, [_kind(part) for part in parts], f"({', '.join(map(str, parts))})")
    result = BarriersType(barriers.context, barriers.plan, left)
    context, builder, args = yield result(target, index)
    have = nb.fields(context, builder, barriers, nb.fields(context, builder, target, args[0]).of)
    number = _linear(context, builder, barriers.shape[:len(parts)], parts, index, args[1])
    first = builder.add(have.first, builder.mul(number, nb.const(math.prod(left))))
    return nb.struct(context, builder, result, np=have.np, first=first)


nb.binary(operator.getitem, _view)


def _truth(*args: Any) -> None:
    if any(isinstance(arg, BarriersType) for arg in args):
        raise CompileError(source.NO_VALUE)


nb.binary(bool, _truth)


# ---- allocations
def _type(np_: ContextType, tree: Any) -> Any:
    if isinstance(tree, tuple):
        return nb.types.Tuple([_type(np_, part) for part in tree])
    if isinstance(tree, BarrierPlan):
        return BarriersType(np_, tree, tree.kind.shape)
    slots = SlotsType(tree, np_.role)
    return slots if tree.slots else slots.tile


def _value(context: Any, builder: Any, ty: Any, tree: Any, np_type: ContextType, np_: Any) -> Any:
    if isinstance(tree, tuple):
        return context.make_tuple(builder, ty, [_value(context, builder, t, part, np_type, np_)
                                                for t, part in zip(ty, tree, strict=True)])
    if isinstance(tree, BarrierPlan):
        return nb.struct(context, builder, ty, np=np_, first=nb.const(0))
    address = own_part(builder, np_type.unit, tree)
    if not tree.slots:
        return address
    return nb.struct(context, builder, ty, address=address)


def own_part(builder: Any, unit: Unit, plan: SmemPlan | BarrierPlan) -> Any:
    """Address of a plan's first byte for this warpgroup."""
    address = nb.smem(builder, plan.base)
    if not plan.own:
        return address
    return builder.add(address, builder.mul(compute_warpgroup(builder, unit), nb.const(plan.own)))


def barrier_address(context: Any, builder: Any, ty: BarriersType, value: Any) -> Any:
    first = nb.fields(context, builder, ty, value).first
    return builder.add(own_part(builder, ty.context.unit, ty.plan), builder.shl(first, nb.const(3)))


@cuda_meaning(source.scratch)
def _scratch(_context: Any, np_: Any, site: Any, kind: Any) -> Any:
    tree = np_.unit.plan_scratch(nb.literal(site), parse(nb.literal(kind)), True).tree
    result = _type(np_, tree)
    return result(np_, site, kind), lambda context, builder, sig, args: _value(context, builder, result, tree, np_, args[0])


@cuda_meaning(source.run_scoped)
def _run_scoped(typing_context: Any, np_: Any, site: Any, function: Any, *given: Any) -> Any:
    *kinds, axes = given
    unit, places = np_.unit, source.sites(nb.literal(site), len(kinds))
    shared = source.shared_by(unit, immediate("run_scoped", "collective_axes", axes))
    trees = [unit.plan_scratch(place, parse(nb.literal(kind)), shared).tree if isinstance(kind, nb.types.StringLiteral) else None
             for place, kind in zip(places, kinds, strict=True)]
    argtypes = [kind if tree is None else _type(np_, tree) for kind, tree in zip(kinds, trees, strict=True)]
    result = nb.returns(typing_context, function, argtypes)
    context, builder, args = yield result(np_, site, function, *given)
    values = [value if tree is None else _value(context, builder, ty, tree, np_, args[0])
              for value, ty, tree in zip(args[3:-1], argtypes, trees, strict=True)]
    return nb.call_value(context, builder, function, args[2], argtypes, values)[1]
