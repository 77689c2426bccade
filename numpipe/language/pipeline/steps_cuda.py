"""A pipeline's loop as a Numba value: its rings, arrays and step counts."""

from __future__ import annotations

from typing import Any

from ...core import numba as nb
from ...core.op import cuda_meaning
from ...plan.context_cuda import ContextType
from ...plan.trees import Tree
from ...plan.trees_cuda import build_value, made
from ..tiles import products
from ..tiles.refs_cuda import SmemType
from . import steps as source
from .order_tokens import skip_turn
from .ring import set_steps_done, slot_of, step_of, tiles_of
from .ring_cuda import RingType
from .steps import Place

I32 = nb.types.int32


class LoopType(source.LoopFacts, nb.types.Type):  # type: ignore[misc]
    """The type of `steps.Loop`: what is known when the kernel is compiled, as far as its role uses it. Loops that are equal in
    that are compiled once."""

    def __init__(self, context: ContextType, rings: tuple[RingType, ...], arrays: tuple[Any, ...], tree: Tree,
                 places: tuple[Place | None, ...], manual: tuple[str, ...], rank: int, unequal: bool, groups: int,
                 outs: tuple[RingType, ...] = (), passes_turn: bool = False, tokens: tuple[int, ...] = ()) -> None:
        self.context, self.rings, self.arrays, self.tree, self.places = context, rings, arrays, tree, places
        self.manual, self.rank, self.unequal, self.outs = manual, rank, unequal, outs
        computes = context.role == "compute"
        self.pending = source.pending_groups(rings, groups) if computes else None
        self.passes_turn = passes_turn and computes
        self.tokens = tokens if unequal and computes else ()
        super().__init__(name=f"loop({context}, {rings}, {arrays}, {tree}, {places}, {manual}, {rank}, {unequal}, {self.pending}, "
                              f"{outs}, {self.passes_turn}, {self.tokens})")

    @property
    def ends_empty(self) -> bool:
        return bool(self.context.unit.params.drain)

    @property
    def passed(self) -> list[Any]:
        """The types of the arrays that bodies are given as they are: of others nothing but their type is asked for in a loop."""
        return [array for array, place in zip(self.arrays, self.places, strict=True) if place is None]

    @property
    def grid(self) -> Any:
        return nb.types.UniTuple(I32, self.rank)

    @property
    def tiles(self) -> Any:
        """The type of what `steps.tiles` gives."""
        given = []
        for array, place in zip(self.arrays, self.places, strict=True):
            if place is None:
                given.append(array)
            else:
                plan = (*self.rings, *self.outs)[place.ring].plan
                given.append(SmemType(plan.layouts[place.operand], array.arg.dtype, self.context.role, plan.written))
        return self.tree.build(iter(given), made)


nb.struct_model(LoopType, lambda ty: [
    ("np", ty.context), ("rings", nb.types.Tuple(ty.rings)), ("passed", nb.types.Tuple(ty.passed)), ("grid", ty.grid),
    ("total", I32), ("steps", I32), ("outs", nb.types.Tuple(ty.outs))])


def all_rings(builder: Any, loop: LoopType, value: Any) -> list[tuple[RingType, Any]]:
    """(type, value) of a loop's rings, then of its output rings."""
    return [(ring, builder.extract_value(values, number)) for rings, values in ((loop.rings, value.rings), (loop.outs, value.outs))
            for number, ring in enumerate(rings)]


def each_ring(operation: Any, rings: str) -> None:
    """An operation (loop, function, *args): ``function(ring, *args)`` for each ring of a field of the loop."""

    @cuda_meaning(operation)
    def typer(typing_context: Any, loop: Any, function: Any, *args: Any) -> Any:
        for ring in getattr(loop, rings):
            nb.returns(typing_context, function, (ring, *args))
        context, builder, values = yield nb.types.void(loop, function, *args)
        held = getattr(nb.fields(context, builder, loop, values[0]), rings)
        for number, ring in enumerate(getattr(loop, rings)):
            nb.call(context, builder, function, (ring, *args), (builder.extract_value(held, number), *values[2:]))


each_ring(source.over, "rings")
each_ring(source.over_outputs, "outs")
nb.field_attributes(LoopType, np=lambda loop: loop.context, grid=lambda loop: loop.grid, total=I32)


@cuda_meaning(source.only_if)
def _only_if(typing_context: Any, loop: Any, fact: Any, function: Any, *args: Any) -> Any:
    holds = getattr(loop, nb.literal(fact))
    if holds:
        nb.returns(typing_context, function, (loop, *args))
    context, builder, values = yield nb.types.void(loop, fact, function, *args)
    if holds:
        nb.call(context, builder, function, (loop, *args), (values[0], *values[3:]))


@cuda_meaning(source.finish)
def _finish(_context: Any, loop: Any) -> Any:
    context, builder, args = yield nb.types.void(loop)
    value = nb.fields(context, builder, loop, args[0])
    for ring, own in all_rings(builder, loop, value):
        nb.call(context, builder, set_steps_done, (ring, I32), (own, value.total))


@cuda_meaning(source.await_products)
def _await_products(_context: Any, loop: Any) -> Any:
    context, builder, _ = yield nb.types.void(loop)
    if loop.pending is not None:
        kind, value = nb.immediate(loop.pending)
        nb.call(context, builder, products.drain, (kind,), (value,))


@cuda_meaning(source.pass_tokens)
def _pass_tokens(typing_context: Any, loop: Any) -> Any:
    tokens = [nb.immediate(number) for number in loop.tokens]
    for kind, _ in tokens:
        nb.returns(typing_context, skip_turn, (loop.context, kind))
    context, builder, args = yield nb.types.void(loop)
    for kind, number in tokens:
        nb.call(context, builder, skip_turn, (loop.context, kind), (nb.fields(context, builder, loop, args[0]).np, number))


@cuda_meaning(source.ring_steps)
def _ring_steps(_context: Any, loop: Any, k: Any) -> Any:
    result = nb.types.UniTuple(I32, len(loop.rings) + len(loop.outs))
    context, builder, args = yield result(loop, I32)
    return context.make_tuple(builder, result, [
        nb.call(context, builder, step_of, (ring, I32, I32), (value, args[1], nb.const(0)))[1]
        for ring, value in all_rings(builder, loop, nb.fields(context, builder, loop, args[0]))])


@cuda_meaning(source.tiles)
def _tiles(_context: Any, loop: Any, steps: Any) -> Any:
    context, builder, args = yield loop.tiles(loop, steps)
    value = nb.fields(context, builder, loop, args[0])
    held = []
    for number, (ring, own) in enumerate(all_rings(builder, loop, value)):
        slot = nb.call(context, builder, slot_of, (ring, I32), (own, builder.extract_value(args[1], number)))[1]
        held.append(nb.call(context, builder, tiles_of, (ring, I32), (own, slot))[1])
    passed = iter(nb.cgutils.unpack_tuple(builder, value.passed, len(loop.passed)))
    given = [next(passed) if place is None else builder.extract_value(held[place.ring], place.operand) for place in loop.places]
    return build_value(context, builder, loop.tiles, iter(given))
