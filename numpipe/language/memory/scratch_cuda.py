"""Shared memory that a kernel allocates, as Numba values: plans in the types, addresses in the
values."""

from __future__ import annotations

import math
import operator
from typing import Any

from ...arch.dimensions import Ints
from ...core import numba as nb
from ...core.inert_cuda import InertType
from ...core.numba import I32
from ...core.op import cuda_meaning, immediate
from ...diagnostics.errors import CompileError, SpecError
from ...plan.allocations import BarrierPlan, SmemPlan, parse
from ...plan.context_cuda import ContextType, own_part
from ...plan.outside_cuda import within
from ...plan.roles import Role
from ...plan.unit import Unit
from ..tiles.refs_cuda import AtType, SharedType, SmemType, inside, view, with_at
from . import scratch as source


class SlotsType(nb.Type):  # type: ignore[misc]
    def __init__(
        self, plan: SmemPlan, debugged: Unit | None, role: Role, tile: type[SharedType] = SmemType
    ) -> None:
        self.plan, self.tile = plan, tile(plan.kind.layout, plan.kind.dtype, debugged, role, True)
        super().__init__(name=f"slots({plan}, {self.tile})")

    def at(self, target: AtType, index: Any) -> Any:
        parts, lead = index_parts(index), self.plan.slots
        source.check_slots(lead, parts)
        tile, further = (
            view(self.tile, index, len(lead)) if len(parts) > len(lead) else (self.tile, None)
        )
        builder, args = yield tile
        address = builder.fields(self, builder.fields(target, args[0]).of).address
        number = _linear(
            builder,
            lead,
            parts[: len(lead)],
            index,
            args[1],
            self.tile.debugged if self.tile.role.computes else None,
            self.tile.together,
        )
        address = builder.add(address, builder.mul(number, self.plan.kind.stride))
        return (
            address
            if further is None
            else further(
                builder,
                address,
                inside(builder, self.tile, index, args[1], "tile.at[…]", len(lead)),
            )
        )


class BarriersType(source.BarrierFacts, nb.FieldsType):
    """The Numba type of barriers of an allocation, in one role; the value holds the context and the
    number of the first barrier."""

    operand = "barrier"

    np: ContextType
    plan: BarrierPlan
    shape: Ints

    def at(self, target: AtType, index: Any) -> Any:
        parts = index_parts(index)
        left = source.check_barriers(self.shape, parts)
        result = BarriersType(self.np, self.plan, left)
        builder, args = yield result
        have = builder.fields(self, builder.fields(target, args[0]).of)
        number = _linear(
            builder,
            self.shape[: len(parts)],
            parts,
            index,
            args[1],
            self.np.unit.debugged if self.np.computes else None,
        )
        first = builder.add(have.first, builder.mul(number, math.prod(left)))
        return builder.struct(result, np=have.np, first=first)


nb.struct_model(SlotsType, lambda ty: [("address", I32)])
nb.struct_model(BarriersType, lambda ty: [("np", ty.np), ("first", I32)])
with_at(SlotsType)
with_at(BarriersType)
nb.constant_attributes(
    SlotsType, None, shape=lambda ty: ty.plan.kind.shape, dtype=lambda ty: ty.plan.kind.dtype.name
)
nb.constant_attributes(BarriersType, None, shape=lambda ty: ty.shape)


# ---- views
def index_parts(index: Any) -> tuple:
    return tuple(index) if isinstance(index, nb.BaseTuple) else (index,)


def _linear(
    builder: Any,
    shape: Ints,
    parts: Any,
    index: Any,
    value: Any,
    debugged: Unit | None,
    together: bool = True,
) -> Any:
    """Return the `scratch.linear` number of an index of type `index`. `together` says whether all
    lanes have the same index."""
    number = nb.const(0)
    for axis, (size, part) in enumerate(zip(shape, parts, strict=True)):
        if isinstance(part, InertType):
            continue
        place = builder.extract_value(value, axis) if isinstance(index, nb.BaseTuple) else value
        place = within(
            builder,
            debugged,
            "….at[…]: index",
            axis,
            builder.cast(place, part, I32),
            size - 1,
            together,
        )
        number = builder.add(builder.mul(number, size), place)
    return number


def _no_value(target: Any, index: Any = None) -> None:
    if isinstance(target, SlotsType) and index is not None:
        raise SpecError(source.NO_SLOTS)
    if isinstance(target, BarriersType):
        raise (
            CompileError(source.NO_VALUE)
            if index is None
            else SpecError(source.NO_VALUE + "; barriers.at[i] is one of several")
        )


nb.overload(operator.getitem, _no_value)
nb.overload(bool, _no_value)


# ---- allocations
def _type(np_: ContextType, tree: Any) -> Any:
    if isinstance(tree, tuple):
        return nb.Tuple([_type(np_, part) for part in tree])
    if isinstance(tree, BarrierPlan):
        return BarriersType(np_, tree, tree.kind.shape)
    slots = SlotsType(tree, np_.unit.debugged, np_.role)
    return slots if tree.slots else slots.tile


def _value(builder: Any, ty: Any, tree: Any, np_type: ContextType, np_: Any) -> Any:
    if isinstance(tree, tuple):
        return builder.make_tuple(
            ty,
            [_value(builder, t, part, np_type, np_) for t, part in zip(ty, tree, strict=True)],
        )
    if isinstance(tree, BarrierPlan):
        return builder.struct(ty, np=np_, first=nb.const(0))
    address = own_part(builder, np_type.unit, tree.memory, tree.offset)
    return builder.struct(ty, address=address) if tree.slots else address


def barrier_address(builder: Any, ty: BarriersType, value: Any) -> Any:
    first = builder.fields(ty, value).first
    return builder.add(own_part(builder, ty.np.unit, ty.plan.memory), builder.shl(first, 3))


def _planned(np_: Any, site: Any, kind: Any, shared: bool, array: Any = None) -> Any:
    site = source.site_of(nb.literal(site), array)
    tree = np_.unit.plan_scratch(site, parse(nb.literal(kind)), shared).tree
    result = _type(np_, tree)
    builder, args = yield result
    return _value(builder, result, tree, np_, args[0])


@cuda_meaning(source.scratch)
def _scratch(np_: Any, site: Any, kind: Any, of: Any = None) -> Any:
    return _planned(np_, site, kind, True, of)


@cuda_meaning(source.scoped)
def _scoped(np_: Any, site: Any, kind: Any, axes: Any) -> Any:
    axes = immediate("run_scoped", "collective_axes", axes)
    return _planned(np_, site, kind, source.shared_by(np_.unit, axes))


@cuda_meaning(source.run_scoped)
def _run_scoped(np_: Any, site: Any, function: Any, *given: Any) -> Any:
    *kinds, axes = given
    unit, places = np_.unit, source.sites(nb.literal(site), len(kinds))
    shared = source.shared_by(unit, immediate("run_scoped", "collective_axes", axes))
    trees = [
        unit.plan_scratch(place, parse(nb.literal(kind)), shared).tree
        if isinstance(kind, nb.types.StringLiteral)
        else None
        for place, kind in zip(places, kinds, strict=True)
    ]
    argtypes = [
        kind if tree is None else _type(np_, tree) for kind, tree in zip(kinds, trees, strict=True)
    ]
    result = nb.returns(function, argtypes)
    builder, args = yield result
    values = [
        value if tree is None else _value(builder, ty, tree, np_, args[0])
        for value, ty, tree in zip(args[3:-1], argtypes, trees, strict=True)
    ]
    return builder.apply_value(function, args[2], argtypes, values)
