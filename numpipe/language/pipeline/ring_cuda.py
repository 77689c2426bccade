"""The ring's operations on the GPU: a plan's constants, address arithmetic, and the copies of a
step."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Iterator
from typing import Any

from ...arch.dimensions import Ints
from ...core import numba as nb
from ...core.formula_cuda import Value
from ...core.inert import REASON
from ...core.inert_cuda import STEERLESS
from ...core.numba import BOOLEAN, I32, I64
from ...core.op import cuda_meaning
from ...diagnostics.errors import CompileError
from ...plan.block import wrong_indices
from ...plan.context_cuda import CompiledContext, ContextType, counter_pointer
from ...plan.outside_cuda import narrowed
from ...plan.plans import RingPlan
from ...plan.profiling_cuda import of_ring
from ..tiles.refs_cuda import SmemType
from ..tiles.tma_cuda import Copy
from . import ring as source
from .bounds_cuda import bounded, sized


class RingType(source.RingFacts, nb.Type):  # type: ignore[misc]
    """The type of a load ring in one role of a loop. The type has the plan, the arrays, and the
    parts that every step waits for (`Ring.waited`); the value has the grid, the steps, and the
    ring's counter at the start of the loop.

    If the role `copies`, the value also has the address of the tensor maps (one per operand in a
    kernel that runs on several GPUs), the index maps with their captures, and the sizes of arrays
    whose blocks must lie inside (`sized`). The type's name omits what only messages use, so that
    pipelines on one ring share its type, and its functions are compiled once, with few arguments.
    """

    def __init__(
        self,
        context: ContextType,
        plan: RingPlan,
        refs: Any,
        index_maps: Any,
        rank: int,
        waited: Ints = (),
        copies: bool = True,
    ) -> None:
        self.np = context
        self.plan = plan
        self.refs = refs
        self.rank = rank
        self.waited = waited
        self.copies = copies
        self.index_maps = index_maps if copies else nb.Tuple(())
        self.sized = sized(plan, context.unit) if copies else ()
        one = I64
        self.table = nb.UniTuple(one, len(plan.args)) if context.unit.gpus else one
        unnamed = dataclasses.replace(plan, name="", labels=())
        nb.Type.__init__(
            self,
            name=f"ring({context}, {unnamed}, {refs}, {self.index_maps}, {rank}, {waited}, "
            f"{copies})",
        )

    def compiled(self, builder: Any, value: Any) -> RingValue:
        return RingValue(builder, self, value)


class RingValue:
    """A compiled ring, as a `formula` sees it; `value` is the structure."""

    def __init__(self, builder: Any, ring: RingType, value: Any) -> None:
        self.builder = builder
        self.type = ring
        self.value = value
        self.plan = ring.plan
        self.np = CompiledContext(ring.np, builder, lambda: self.fields.np)

    @functools.cached_property
    def fields(self) -> Any:
        return self.builder.fields(self.type, self.value)

    @property
    def first(self) -> Any:
        return Value(self.builder, self.fields.first)

    @property
    def steps(self) -> Value:
        return Value(self.builder, self.fields.steps)

    @property
    def grid(self) -> list[Value]:
        return [Value(self.builder, size) for size in self.builder.unpack_tuple(self.fields.grid)]


nb.struct_model(
    RingType,
    lambda ty: [
        ("np", ty.np),
        *([("table", ty.table), ("index_maps", ty.index_maps)] if ty.copies else []),
        *((f"sizes{number}", nb.UniTuple(I32, ty.plan.blocks[number].rank)) for number in ty.sized),
        ("grid", nb.UniTuple(I32, ty.rank)),
        ("steps", I32),
        ("first", I32),
    ],
    *("first", "grid"),
)


def _constant_of_part(operation: Any, function: Any, type: Any) -> None:
    """Implement an operation (ring, part, …) as a compile-time constant, ``function(plan, part,
    …)``."""

    @cuda_meaning(operation)
    def typer(ring: Any, *given: Any) -> Any:
        builder, _ = yield type
        return builder.context.get_constant(type, function(ring.plan, *map(nb.literal, given)))


_constant_of_part(source.stage_bytes, RingPlan.expected, I32)
_constant_of_part(
    source.begins_consumed, lambda plan, part: part in plan.parts_of("consumed"), BOOLEAN
)
_constant_of_part(source.announces, RingPlan.announces, BOOLEAN)
nb.constant_attributes(
    RingType,
    I32,
    slots=lambda ring: ring.plan.slots,
    delay=lambda ring: ring.plan.delay,
    unreleased=lambda ring: ring.unreleased,
    writers=lambda ring: 128 * ring.np.unit.compute_wgs,
)
nb.constant_attributes(RingType, BOOLEAN, private=lambda ring: bool(ring.plan.private))


@cuda_meaning(source.each)
def _each(ring: Any, parts: Any, part: Any, function: Any, *args: Any) -> Any:
    numbers = [
        nb.immediate(number)
        for number in ring.plan.chosen(nb.literal(parts), nb.literal(part), ring.waited)
    ]
    for kind, _ in numbers:
        nb.returns(function, (ring, kind, *args))
    builder, values = yield
    for kind, number in numbers:
        builder.apply(function, (ring, kind, *args), (values[0], number, *values[4:]))


def counter_of(builder: Any, ring: RingType, context_value: Any) -> Any:
    """Return the address of a ring's step counter."""
    return counter_pointer(builder, context_value, ring.plan.index)


@cuda_meaning(source.set_steps_done)
def _set_steps_done(ring: Any, steps: Any) -> Any:
    builder, args = yield nb.VOID(ring, I32)
    value = RingValue(builder, ring, args[0])
    done = value.first + blocks_in(value, Value(builder, args[1]))
    builder.store(done.value, counter_of(builder, ring, value.fields.np))


# ---- steps of the pipeline and steps of the ring
def blocks_in(ring: RingValue, steps: Any) -> Any:
    """Implement `ring.blocks_in`."""
    if ring.plan.dims is None:
        return steps
    builder = ring.builder
    some = builder.icmp_signed(">", steps.value, 0)
    count = nb.cgutils.alloca_once_value(builder, nb.const(0))
    with builder.if_then(some):
        last: Any = source.own_step(ring, steps - 1)[0] + 1
        builder.store(last.value if isinstance(last, Value) else last, count)
    return Value(builder, builder.load(count))


@cuda_meaning(source.blocks_of)
def _blocks_of(ring: Any) -> Any:
    builder, args = yield I32
    value = RingValue(builder, ring, args[0])
    return blocks_in(value, value.steps).value


cuda_meaning(source.note)(of_ring)
cuda_meaning(source.note_released)(nb.no_code)
cuda_meaning(source.check_released)(nb.no_code)


def index_maps_return(ring: RingType, indices: Any, operands: Iterable[int] | None = None) -> list:
    """Return the types that the index maps of a ring's operands return. Raises SpecError for types
    that cannot be the start of a block."""
    plan, returned = ring.plan, []
    for number in range(len(plan.args)) if operands is None else operands:
        index_map, block = ring.index_maps[number], plan.blocks[number]
        if isinstance(index_map, nb.NoneType):
            returned.append(nb.UniTuple(I32, block.rank))
            continue
        kinds = nb.returns(index_map, indices)
        what = source.index_map_of(ring.np.unit, plan, number)
        if not isinstance(kinds, nb.BaseTuple) or len(kinds) != block.rank:
            raise wrong_indices(what, block.rank, kinds)
        for coordinate in kinds:
            if isinstance(coordinate, tuple(STEERLESS)):
                raise CompileError(f"{what}: {getattr(coordinate, 'what', coordinate)} {REASON}")
            if not isinstance(coordinate, nb.Integer):
                raise wrong_indices(what, block.rank, kinds)
        returned.append(kinds)
    return returned


def start_of(ring: RingValue, number: int, kinds: Any, indices: Any, index_values: Any) -> list:
    """Implement `ring.start_of` for an index map that returns `kinds`."""
    builder, block, index_map = ring.builder, ring.plan.blocks[number], ring.type.index_maps[number]
    if isinstance(index_map, nb.NoneType):
        at = builder.make_tuple(kinds, [nb.const(0)] * block.rank)
    else:
        mapped = builder.extract_value(ring.fields.index_maps, number)
        at = builder.apply_value(
            index_map,
            mapped,
            indices,
            builder.unpack_tuple(index_values),
        )
    parts, checked = builder.unpack_tuple(at), number in ring.type.sized
    start = [
        builder.mul(
            narrowed(builder, part) if checked else builder.cast(part, kind, I32),
            scale,
        )
        for part, kind, scale in zip(parts, kinds, block.scales, strict=True)
    ]
    if not checked:
        return start
    unit = ring.np.unit
    sizes = builder.unpack_tuple(getattr(ring.fields, f"sizes{number}"))
    return bounded(
        builder, unit, ring.plan, number, source.index_map_of(unit, ring.plan, number), start, sizes
    )


@cuda_meaning(source.copy_in)
def _copy_in(ring: Any, indices: Any, slot: Any, part: Any) -> Any:
    operands = ring.plan.parts[nb.literal(part)]
    returned = index_maps_return(ring, indices, operands)
    builder, args = yield nb.VOID(ring, indices, I32, part)
    kind = nb.types.literal("ready")
    of_slot = args[0], nb.nothing, args[2], args[3]
    barrier = builder.apply(source.barrier, (ring, kind, I32, part), of_slot)
    kinds = dict(zip(operands, returned, strict=True))
    value = RingValue(builder, ring, args[0])
    for copy in copies_of(value, kinds, indices, args[1], args[2], barrier):
        copy.load()


def stage_of(ring: RingValue, slot: Any) -> Any:
    stage: Any = source.stage_of.function(ring, Value(ring.builder, slot))
    return stage.value


def copies_of(
    ring: RingValue,
    operands: dict[int, Any],
    indices: Any,
    at_step: Any,
    slot: Any,
    arrival: Any = None,
) -> Iterator[Copy]:
    """Implement `ring.copies_of`; `operands` has the types that their index maps return."""
    builder, unit, plan = ring.builder, ring.np.unit, ring.plan
    stage = stage_of(ring, slot)
    for number, kinds in operands.items():
        start = start_of(ring, number, kinds, indices, at_step)
        table = ring.fields.table
        if unit.gpus:
            table = builder.extract_value(table, number)
        copy = Copy(builder, unit, plan.copies[number], table, start, stage, arrival)
        block = plan.blocks[number]
        if block.along:
            copy.share(block.sharing(plan.cluster))
        yield copy


@cuda_meaning(source.tiles_of)
def _tiles_of(ring: Any, slot: Any) -> Any:
    plan, role = ring.plan, ring.np.role
    tiles = nb.Tuple(
        [
            SmemType(layout, ref.arg.dtype, ring.np.unit.debugged, role, plan.written)
            for layout, ref in zip(plan.layouts, ring.refs, strict=True)
        ]
    )
    builder, args = yield tiles(ring, I32)
    stage = stage_of(RingValue(builder, ring, args[0]), args[1])
    return builder.make_tuple(tiles, [builder.add(stage, offset) for offset in plan.offsets])


@cuda_meaning(source.unravel)
def _unravel(step: Any, grid: Any) -> Any:
    rank = len(grid)
    indices = nb.UniTuple(I32, rank)
    builder, args = yield indices(I32, nb.UniTuple(I32, rank))
    sizes = [Value(builder, size) for size in builder.unpack_tuple(args[1])]
    found = source.unraveled(Value(builder, args[0]), sizes)
    return builder.make_tuple(indices, [index.value for index in found])


@cuda_meaning(source.next_indices)
def _next_indices(k: Any, indices: Any, grid: Any) -> Any:
    builder, args = yield grid(I32, grid, grid)
    found, sizes = map(builder.unpack_tuple, args[1:])
    carry = nb.const(1)
    for n in reversed(range(1, len(sizes))):
        at = builder.add(found[n], carry)
        inside = builder.icmp_signed("<", at, sizes[n])
        found[n] = builder.select(inside, at, 0)
        carry = builder.select(inside, nb.const(0), 1)
    # in a grid of one dimension, the index is k itself, which LLVM knows more about
    found[0] = builder.add(found[0], carry) if sizes[1:] else args[0]
    return builder.make_tuple(grid, found)
