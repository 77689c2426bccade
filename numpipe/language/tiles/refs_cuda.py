"""References as Numba values: the type has the layout and dtype, the value has the address."""

from __future__ import annotations

import functools
import operator
from typing import Any, TypeVar

import numpy as np

from ...core import numba as nb
from ...core.inert_cuda import STEERLESS, InertType, steers
from ...core.numba import I32, I64
from ...core.op import constant, cuda_meaning, entry_operation
from ...plan.context import StoringFacts
from ...plan.context_cuda import CompiledContext, ContextType
from ...plan.layout import Layout
from ...plan.outside_cuda import within
from ...plan.plans import ArrayArg
from ...plan.roles import Role
from ...plan.unit import Unit
from . import refs
from .tile import TileLike

_S = TypeVar("_S", bound="SharedType")


class DsType(nb.Type, refs.Ds):  # type: ignore[misc]
    """The type of a `ds`. `start`: a compile-time constant, or None if the start is known only at
    run time."""

    def __init__(
        self,
        size: int,
        inert: bool,
        start: int | None = None,
        most: int | None = None,
        least: int = 0,
    ) -> None:
        self.size, self.inert, self.start, self.least = size, inert, start, least
        self.most = start if most is None else most
        name = f"ds({size}{', inert' * inert}{', stop' * self.limited})"
        super().__init__(name=name)  # type: ignore[call-arg]

    @property
    def key(self) -> tuple:
        return self.size, self.inert, self.start, self.most, self.least, self.limited

    def unify(self, context: Any, other: Any) -> Any:
        return (
            DsType(self.size, self.inert)
            if type(other) is DsType and self.key[:2] == other.key[:2]
            else None
        )


nb.lower_cast(DsType, DsType)(lambda builder, fromty, toty, value: value)


class LimitedType(DsType):
    """The type of a `ds` with a stop; its value is a pair (start, stop)."""

    limited = True

    def unify(self, context: Any, other: Any) -> Any:
        return self if self == other else None


class SpanType(nb.Type, refs.Span):  # type: ignore[misc]
    def __init__(self, start: int | None, stop: int | None) -> None:
        self.start, self.stop = start, stop
        super().__init__(name=repr(self))  # type: ignore[call-arg]

    def __repr__(self) -> str:
        return refs.Span.__repr__(self)


class AllType(nb.Type, refs.All):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__(name=":")


class SharedType(nb.FieldsType):
    """The type of a `refs.SharedTile`. `debugged`: the unit, in a kernel compiled with debug, which
    its records of hazards refer to."""

    what = "a shared-memory tile"
    together = True
    """whether all lanes of a warpgroup have the same indices"""

    layout: Layout
    dtype: np.dtype
    debugged: Unit | None
    role: Role
    writable: bool = False

    def of(self: _S, layout: Layout) -> _S:
        """Return the type of a view of this tile with this layout."""
        return type(self)(layout, self.dtype, self.debugged, self.role, self.writable)

    def at(self, target: AtType, index: Any) -> Any:
        if isinstance(index, TileLike):
            return self.indexed(target, index)
        return self.part(target, index)

    def indexed(self, target: AtType, index: Any) -> Any:
        raise NotImplementedError

    def part(self, target: AtType, index: Any) -> Any:
        part, address = view(self, index)
        builder, args = yield part
        place = inside(builder, self, index, args[1], "tile.at[…]")
        return address(builder, builder.fields(target, args[0]).of, place)


class SmemType(SharedType, refs.SmemLike):
    pass


class AtType(nb.FieldsType):
    """The type of ``x.at``. Indexing it gives a view, typed by the method `at` of the type of x."""

    of: Any


class GmemType(StoringFacts, nb.FieldsType):
    """Array argument `index` of a kernel, as one role sees it. `by_lane`: in per-lane code, where
    elements belong to a lane. `form`: "flat", as an array of one dimension; "words", as words."""

    unit: Unit
    index: int
    role: Role
    by_lane: bool = False
    form: str = ""

    @property
    def arg(self) -> ArrayArg:
        arg = self.unit.arrays[self.index]
        return getattr(arg, self.form) if self.form else arg

    @property
    def np(self) -> ContextType:
        return ContextType(self.unit, self.role)

    def compiled(self, builder: Any, value: Any) -> GmemValue:
        return GmemValue(builder, self, value)


class GmemValue:
    """A compiled reference, as a `formula` sees it, in a kernel whose references hold the
    context."""

    def __init__(self, builder: Any, ty: GmemType, value: Any) -> None:
        self.unit = ty.unit
        self.np = CompiledContext(ty.np, builder, lambda: builder.fields(ty, value).np)


STEERLESS.append(SmemType)
for _type in (DsType, SmemType):
    nb.machine_model(_type, lambda ty: nb.i32)
nb.struct_model(LimitedType, lambda ty: [("start", I32), ("stop", I32)])
nb.struct_model(AtType, lambda ty: [("of", ty.of)])
for _opaque in (AllType, SpanType):
    nb.register_model(_opaque)(nb.models.OpaqueModel)


def _held(ty: GmemType) -> list[tuple[str, Any]]:
    """Return the context's field, which references have in some kernels only."""
    return [("np", ty.np)] if ty.unit.references_hold_context else []


nb.struct_model(
    GmemType,
    lambda ty: [
        ("table", I64),
        ("pointer", I64),
        ("shape", nb.UniTuple(I32, ty.arg.ndim)),
        ("strides", nb.UniTuple(I64, ty.arg.ndim)),
        *_held(ty),
    ],
)


@cuda_meaning(refs.ds)
def _ds(start: Any, size: Any, stop: Any = None, most: Any = None, least: Any = 0) -> Any:
    given = start
    bounds = nb.none if most is None else most, nb.types.literal(0) if least == 0 else least
    if isinstance(start, refs.Index) and start.mode == "zero":
        start = start.value
    limited = stop is not None and not isinstance(stop, (nb.NoneType, nb.types.Omitted))
    for value, error in ((stop, refs.no_stop), (start, refs.no_start))[not limited :]:
        if not isinstance(value, (nb.Integer, nb.Boolean, InertType)):
            steers(value)
            raise error(value)
    inert = isinstance(start, InertType) or isinstance(stop, InertType)
    kind: DsType
    if limited:
        kind = LimitedType(refs.ds_size(size), inert)
    else:
        known = start.literal_value if isinstance(start, nb.IntegerLiteral) else None
        largest = None if most is None else constant("ds", "most", most)
        smallest = constant("ds", "least", least)
        kind = DsType(refs.ds_size(size), inert, known, largest, smallest)
    builder, args = yield kind(
        given if inert or isinstance(given, refs.Index) else I32,
        size,
        nb.none if not limited else stop if inert else I32,
        *bounds,
    )
    first = nb.const(0) if inert else _start(builder, given, args[0])
    if not limited:
        return first
    return builder.struct(kind, start=first, stop=nb.const(0) if inert else args[2])


def _start(builder: Any, given: Any, value: Any) -> Any:
    """Return the start as int32, without its mode."""
    if not isinstance(given, refs.Index):
        return value
    return builder.cast(builder.fields(given, value).value, given.value, I32)


@cuda_meaning(refs.span)
def _span(start: Any, stop: Any) -> Any:
    bounds = (
        None if isinstance(bound, nb.NoneType) else nb.literal(bound) for bound in (start, stop)
    )
    yield SpanType(*bounds)


@cuda_meaning(refs.whole)
def _whole() -> Any:
    yield AllType()


def with_at(kind: type) -> None:
    """Give values of a type the attribute ``at``."""
    nb.attribute(
        kind,
        "at",
        AtType,
        lambda builder, ty, value: builder.struct(AtType(ty), of=value),
    )


nb.attribute(
    DsType,
    "start",
    lambda ty: None if ty.limited else I32,
    lambda builder, ty, value: value,
)
nb.constant_attributes(DsType, None, size=lambda ty: ty.size)
nb.attribute(SharedType, "T", lambda ty: ty.of(ty.layout.T), lambda builder, ty, value: value)
with_at(SharedType)
nb.constant_attributes(
    SharedType, None, shape=lambda ty: ty.layout.sides, dtype=lambda ty: ty.dtype.name
)
nb.constant_attributes(
    GmemType, None, dtype=lambda ty: ty.arg.dtype.name, ndim=lambda ty: ty.arg.ndim
)
nb.attribute(
    GmemType,
    "shape",
    lambda ty: nb.UniTuple(I32, ty.arg.ndim),
    lambda builder, ty, value: builder.fields(ty, value).shape,
)


def _strides(builder: Any, ty: GmemType, value: Any) -> Any:
    """Return strides in bytes. The `nsw` flag lets LLVM derive the stride in elements from a
    comparison."""
    of, size = nb.UniTuple(I64, ty.arg.ndim), nb.const(ty.arg.dtype.itemsize, nb.i64)
    strides = builder.unpack_tuple(builder.fields(ty, value).strides)
    return builder.make_tuple(of, [builder.mul(each, size, flags=["nsw"]) for each in strides])


nb.attribute(GmemType, "strides", lambda ty: nb.UniTuple(I64, ty.arg.ndim), _strides)


def _one_dimension(form: str) -> None:
    def typer(ty: GmemType) -> GmemType:
        if form == "words":
            refs.check_words(ty.arg.dtype, ty.by_lane)
        return GmemType(ty.unit, ty.index, ty.role, ty.by_lane, form)

    def codegen(builder: Any, ty: GmemType, value: Any) -> Any:
        array = builder.fields(ty, value)
        size = functools.reduce(builder.mul, builder.unpack_tuple(array.shape))
        pointer = array.pointer
        if form == "words" and ty.arg.dtype.itemsize == 2:
            odd = builder.and_(builder.lshr(builder.trunc(pointer), 1), 1)
            size = builder.lshr(builder.add(builder.add(size, odd), 1), 1)
            pointer = builder.and_(pointer, -4)
        same = {name: getattr(array, name) for name in ("table", *dict(_held(ty)))}
        return builder.struct(
            typer(ty),
            pointer=pointer,
            shape=builder.make_tuple(nb.UniTuple(I32, 1), [size]),
            strides=builder.make_tuple(nb.UniTuple(I64, 1), [nb.const(1, nb.i64)]),
            **same,
        )

    nb.attribute(GmemType, form, typer, codegen)


_one_dimension("flat")
_one_dimension("words")


refs.whole_slices.register(nb.Type)(
    lambda index: tuple(index) if isinstance(index, nb.BaseTuple) else (index,)
)


refs.is_whole.register(nb.Type)(lambda index: isinstance(index, nb.types.EllipsisType))


def view(tile: SharedType, index: Any, before: int = 0) -> tuple[Any, Any]:
    """Return the part of a tile that an index selects: (type, ``codegen(builder, address, index) ->
    address``).

    `before`: the number of parts of the index that select a slot, and come first.
    """
    if isinstance(index, nb.types.EllipsisType):
        return tile, lambda builder, address, index: address
    layout, scales, tupled = tile.layout, [], isinstance(index, nb.BaseTuple)
    for axis, part in enumerate(_slices(tile, index, before), 2 - len(layout.sides)):
        scale = 0
        if isinstance(part, DsType):
            layout, scale = layout.sliced(axis, part.size)
            scale = 0 if part.inert else scale
            if part.start is not None:
                refs.check_start(tile.layout, axis, part.start, part.size, "tile.at[…]", False)
                refs.check_aligned(tile.layout, axis, part.start, part.size)
        scales.append(scale)

    def codegen(builder: Any, address: Any, index: Any) -> Any:
        for axis, scale in enumerate(scales, before):
            if scale:
                start = builder.extract_value(index, axis) if tupled else index
                address = builder.add(address, builder.mul(start, scale))
        return address

    return tile.of(layout), codegen


def _slices(tile: SharedType, index: Any, before: int) -> tuple:
    return refs.slices(nb.Tuple(tuple(index)[before:]) if before else index, tile.layout)


def inside(
    builder: Any, tile: SharedType, index: Any, value: Any, what: str, before: int = 0
) -> Any:
    """Return the value of an index that selects a part of a tile; `what` names the index in
    reports, and `before` is as for `view`.

    In a kernel compiled with debug, a run-time start outside the tile is reported and replaced by
    0.
    """
    if tile.debugged is None or not tile.role.computes or refs.is_whole(index):
        return value
    tupled = isinstance(index, nb.BaseTuple)
    for axis, part in enumerate(_slices(tile, index, before)):
        if isinstance(part, AllType) or part.inert or part.start is not None:
            continue
        start = builder.extract_value(value, before + axis) if tupled else value
        last = tile.layout.sides[axis] - part.size
        of = f"{what}: ds(start, {part.size}) of a tile {tile.layout.sides} in shared memory: start"
        start = within(builder, tile.debugged, of, axis, start, last, tile.together)
        value = builder.insert_value(value, start, before + axis) if tupled else start
    return value


nb.overload(
    operator.getitem,
    lambda target, index: target.of.at(target, index) if isinstance(target, AtType) else None,
)


def new_ref(unit: Unit, index: int, role: Role) -> Any:
    """Return an operation that creates the reference to array argument `index` from the kernel's
    parameters (entry code)."""
    rank = unit.arrays[index].ndim
    ty = GmemType(unit, index, role)
    held = [kind for _, kind in _held(ty)]

    def typer(*args: Any) -> Any:
        builder, values = yield ty(*held, *[I64] * (2 + 2 * rank))
        np_, (table, pointer, *sizes) = values[: len(held)], values[len(held) :]
        shape = builder.make_tuple(nb.UniTuple(I32, rank), [builder.trunc(v) for v in sizes[:rank]])
        strides = builder.make_tuple(nb.UniTuple(I64, rank), sizes[rank:])
        return builder.struct(
            ty,
            table=table,
            pointer=pointer,
            shape=shape,
            strides=strides,
            **dict(zip(("np",), np_, strict=False)),
        )

    return entry_operation(typer)
