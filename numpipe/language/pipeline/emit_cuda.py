"""The body form on the GPU: an emitted pipeline is a callable value; its loop is that of the loop form."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...arch.dtypes import FLOAT32
from ...core import numba as nb
from ...core.closure_cuda import BoundType, bound_type, bound_value
from ...core.facts import Facts
from ...core.inert import REASON
from ...core.inert_cuda import InertType
from ...core.op import cuda_meaning
from ...diagnostics.errors import CompileError, SpecError
from ...plan.trees_cuda import build_value, leaf_values, leaves
from ..memory.per_lane import check_lane_carry
from ..memory.per_lane_cuda import as_lane, mapped
from ..tiles.layouts import ACCUMULATOR, said
from ..tiles.shared_cuda import converge
from ..tiles.tile_cuda import InFlightType, TileType, undefined
from . import emit as source
from .chains import check_shared, running
from .pipelines import plan_rings
from .pipelines_cuda import AllocationsType, PipelineType, StepsType, arrays_of, steps_type, steps_value

I32 = nb.types.int32


def facts_of(function: Any) -> Facts | None:
    return function.facts if isinstance(function, BoundType) else None


class EmittedType(source.EmittedFacts, nb.types.Type):  # type: ignore[misc]
    def __init__(self, pipe: PipelineType, body: Any, compute: Any, coroutine: int, carry: Any, state: Any, last: int) -> None:
        told = [(facts_of(function), function) for function in (body, compute)]
        source.EmittedFacts.__init__(self, pipe, told[0], None if compute == nb.types.none else told[1], coroutine,
                                     carry != nb.types.none, state, last, pipe.context.role == "memory")
        self.body, self.compute, self.carry = body, compute, carry
        nb.types.Type.__init__(self, name=f"emitted({pipe}, {body}, {compute}, {carry}, {last})")

    def step(self, indices: Any, tiles: Any, carry: Any) -> tuple[Any, tuple[Any, ...]]:
        """The types of the body, as it is called, and of its arguments."""
        given = indices, *tiles, *([] if carry == nb.types.none else [carry])
        return (as_lane(self.body), tuple(map(as_lane, given))) if self.by_lane else (self.body, given)


nb.struct_model(EmittedType, lambda ty: [("pipe", ty.pipe), ("body", ty.body), ("compute", ty.compute), ("carry", ty.carry)])


@cuda_meaning(source.emitted)
def _emitted(_context: Any, pipe: Any, body: Any, compute: Any, coroutine: Any, carry: Any, state: Any, last: Any) -> Any:
    carry = nb.unliteral(carry)
    value = EmittedType(pipe, body, compute, nb.literal(coroutine), carry, _state(state), nb.literal(last))
    result = bound_type(source.run, value)
    context, builder, args = yield result(pipe, body, compute, coroutine, carry, state, last)
    emitted = nb.struct(context, builder, value, pipe=args[0], body=args[1], compute=args[2], carry=args[4])
    return bound_value(context, builder, result, emitted)


def _state(ty: Any) -> Any:
    """A pipeline_state as `check_state` knows it: of a run-time integer the type alone is known."""
    if isinstance(ty, nb.types.NoneType):
        return None
    if isinstance(ty, (nb.types.Integer, InertType)) and not hasattr(ty, "literal_value"):
        return np.int32(0)
    return ty.literal_value if hasattr(ty, "literal_value") else ty


@cuda_meaning(source.get_allocations)
def _get_allocations(_context: Any, pipeline: Any, *refs: Any) -> Any:
    emitted = pipeline.captures if isinstance(pipeline, BoundType) else None
    pipe = emitted.pipe if isinstance(emitted, EmittedType) else pipeline
    if not isinstance(pipe, PipelineType):
        raise SpecError(f"get_allocations(…) is of a pipeline, got {nb.unliteral(pipeline)}")
    check_shared(pipe.where, pipe.single)
    arrays = arrays_of(pipe, nb.types.Tuple(list(refs)))
    result = AllocationsType(tuple(plan for plan, _ in plan_rings(pipe, arrays, None)))
    return result(pipeline, *refs), lambda context, builder, sig, args: nb.nothing(context)


@cuda_meaning(source.run)
def _run(typing_context: Any, emitted: EmittedType, *refs: Any) -> Any:
    pipe, arrays = emitted.pipe, nb.types.Tuple(list(refs))
    if pipe.single and emitted.idle:
        inert = mapped(_inert, emitted.carry)
        context, builder, _ = yield inert(emitted, *refs)
        return _no_value(context, builder, inert)
    if pipe.inert_grid is not None:
        raise CompileError(f"{pipe.where}: grid: {pipe.inert_grid} {REASON}")
    captured = nb.types.Tuple([emitted, arrays])
    runner = bound_type(source.run_carry, captured)
    in_context = emitted.compute != nb.types.none and not emitted.idle
    function, given = (emitted.compute, runner) if in_context else (runner, emitted.carry)
    loop, unit = _steps_of(emitted, arrays).loop, pipe.context.unit
    with running(unit.running, unit.kernel, (ring.plan for ring in (*loop.rings, *loop.outs))):
        returned = nb.returns(typing_context, function, [given])
    context, builder, args = yield returned(emitted, *refs)
    value = nb.fields(context, builder, emitted, args[0])
    bound = bound_value(context, builder, runner, context.make_tuple(
        builder, captured, [args[0], context.make_tuple(builder, arrays, args[1:])]))
    called = (value.compute, bound) if in_context else (bound, value.carry)
    return nb.call_value(context, builder, function, called[0], [given], [called[1]])[1]


def _inert(carry: Any) -> Any:
    """The type of a part of a final carry in the memory role."""
    if isinstance(carry, InFlightType):
        return carry.tile
    return carry if isinstance(carry, (TileType, nb.types.NoneType)) else InertType(source.CARRY)


def _no_value(context: Any, builder: Any, ty: Any) -> Any:
    """Something of that type."""
    return build_value(context, builder, ty, iter([
        undefined(part) if isinstance(part, TileType) else nb.nothing(context) for part in leaves(ty)]))


def _steps_of(emitted: EmittedType, refs: Any) -> StepsType:
    return steps_type(emitted.pipe, refs, int(emitted.facts.pipelines), emitted.facts.products, emitted.last)


@cuda_meaning(source.emitted_steps)
def _steps(_context: Any, emitted: Any, refs: Any) -> Any:
    result = _steps_of(emitted, refs)
    context, builder, args = yield result(emitted, refs)
    return steps_value(context, builder, result, emitted.pipe, nb.fields(context, builder, emitted, args[0]).pipe, refs, args[1])


@cuda_meaning(source.first_carry)
def _first_carry(typing_context: Any, emitted: Any, refs: Any, carry: Any) -> Any:
    """The carry's type is the one that a step maps to itself."""
    steps = _steps_of(emitted, refs)

    def fixed(kind: Any) -> Any:
        """The type that the steps keep when they begin with `kind`: a tile becomes a tile in flight with its first product."""
        for _ in range(3):
            returned = nb.returns(typing_context, *emitted.step(steps.indices, steps.tiles, kind))
            joined = _joined(kind, returned)
            if joined is None:
                raise CompileError(source.carry_changes(emitted.pipe.where, emitted.facts.name, _said(given), _said(returned)))
            if joined == kind:
                break
            kind = joined
        return kind

    kind = given = mapped(_strong, carry)
    if emitted.by_lane:
        check_lane_carry(emitted.pipe.where, _said(given))
    if not emitted.idle:
        try:  # each type is a compile of the body: with products in it, what will be in flight is taken for it at once
            role = emitted.pipe.context.role
            kind = fixed(mapped(lambda part: _in_flight(part, role), given) if emitted.facts.products else given)
        except CompileError:
            kind = fixed(given)  # the body reads a tile of the carry that nothing is added to
    context, builder, args = yield kind(emitted, refs, carry)
    return _convert(context, builder, args[2], carry, kind)


@cuda_meaning(source.next_carry)
def _next_carry(typing_context: Any, emitted: Any, indices: Any, tiles: Any, carry: Any) -> Any:
    function, argtypes = emitted.step(indices, tiles, carry)
    returned = carry if emitted.idle else nb.returns(typing_context, function, argtypes)
    context, builder, args = yield carry(emitted, indices, tiles, carry)
    if emitted.idle:
        return args[3]
    values = [args[1], *nb.cgutils.unpack_tuple(builder, args[2]), args[3]]
    body = nb.fields(context, builder, emitted, args[0]).body
    value = nb.call_value(context, builder, function, body, argtypes, values[:len(argtypes)])[1]
    if emitted.by_lane:
        converge(builder)  # one lane releases the slots for its warp: the others have read them
    return _convert(context, builder, value, returned, carry)


# ---- types of carries
def _strong(carry: Any) -> Any:
    """The type of a part of an initial carry: Python's numbers become int32 and float32."""
    return I32 if isinstance(carry, nb.types.IntegerLiteral) else nb.unliteral(carry)


def _in_flight(carry: Any, role: str) -> Any:
    """The type of a part of a carry, where a tile may be in flight."""
    accumulator = isinstance(carry, TileType) and carry.dtype == FLOAT32 and carry.layout == ACCUMULATOR
    return InFlightType(carry, role) if accumulator else carry


def _joined(one: Any, other: Any) -> Any:
    """The type of a carry that is both, or None."""
    if isinstance(one, nb.types.BaseTuple):
        if not isinstance(other, nb.types.BaseTuple) or len(one) != len(other):
            return None
        parts = [_joined(a, b) for a, b in zip(one, other, strict=True)]
        return None if None in parts else nb.tuple_of(one, parts)
    if one == other:
        return one
    in_flight = isinstance(one, InFlightType) and other == one.tile, isinstance(other, InFlightType) and one == other.tile
    if any(in_flight):
        return one if in_flight[0] else other
    return one if isinstance(other, nb.types.IntegerLiteral) and isinstance(one, nb.types.Integer) else None


def _convert(context: Any, builder: Any, value: Any, have: Any, want: Any) -> Any:
    if have == want:
        return value
    parts = zip(leaf_values(builder, have, value), leaves(have), leaves(want), strict=True)
    return build_value(context, builder, want, (context.cast(builder, v, h, w) for v, h, w in parts))


def _said(carry: Any) -> str:
    """A carry's type as the simulated SM says it."""
    if isinstance(carry, nb.types.BaseTuple):
        return f"({', '.join(map(_said, carry))})"
    tile = carry.tile if isinstance(carry, InFlightType) else carry
    if isinstance(tile, TileType):
        return said(tile.shape, tile.dtype, tile.layout)
    return "NoneType" if isinstance(carry, nb.types.NoneType) else str(nb.unliteral(carry))
