"""The body form on the GPU: an emitted pipeline is a callable value that runs the loop of the loop
form."""

from __future__ import annotations

from typing import Any

from ...arch.dtypes import FLOAT32
from ...core import numba as nb
from ...core.closure_cuda import BoundType, bound_value
from ...core.inert import REASON
from ...core.inert_cuda import InertType
from ...core.op import cuda_meaning
from ...diagnostics.errors import CompileError
from ...plan.nested_tuples_cuda import build_value, leaf_values, leaves
from ...plan.roles import Role
from ..memory.per_lane import check_lane_carry
from ..memory.per_lane_cuda import as_lane, mapped
from ..tiles.layouts import ACCUMULATOR, said
from ..tiles.shared_tiles_cuda import converge
from ..tiles.tile_cuda import InFlightType, TileType, undefined
from . import body_form as source
from .chains import running
from .pipelines_cuda import AllocationsType, StepsType, steps_type, steps_value


class EmittedType(source.EmittedPipeline, nb.Type):  # type: ignore[misc]
    def __init__(self, *given: Any) -> None:
        source.EmittedPipeline.__init__(self, *given)
        nb.Type.__init__(
            self,
            name=f"emitted({self.pipe}, {self.body}, {self.compute}, {self.carry}, {self.last})",
        )

    def call_of(self, indices: Any, tiles: Any, carry: Any) -> tuple[Any, tuple]:
        """Return the types of the body as it is called, and of its arguments."""
        given = indices, *tiles, *([] if carry == nb.none else [carry])
        if self.by_lane:
            given = tuple(map(as_lane, given))
        return as_lane(self.body) if self.by_lane else self.body, self.facts.packed(
            given, lambda rest: nb.Tuple(list(rest))
        )


nb.struct_model(
    EmittedType,
    lambda ty: [("pipe", ty.pipe), ("body", ty.body), ("compute", ty.compute), ("carry", ty.carry)],
)


@cuda_meaning(source.emitted)
def _emitted(
    pipe: Any,
    body: Any,
    compute: Any,
    coroutine: Any,
    carry: Any,
    state: Any,
    last: Any,
) -> Any:
    carry = nb.unliteral(carry)
    value = EmittedType(pipe, body, compute, nb.literal(coroutine), carry, state, nb.literal(last))
    result = BoundType(source.run, value)
    builder, args = yield result(pipe, body, compute, coroutine, carry, state, last)
    emitted = builder.struct(value, pipe=args[0], body=args[1], compute=args[2], carry=args[4])
    return bound_value(builder, result, emitted)


@cuda_meaning(source.get_allocations)
def _get_allocations(pipeline: Any, *refs: Any) -> Any:
    allocations = source.allocations_of(
        pipeline, pipeline.captures if isinstance(pipeline, BoundType) else None, refs
    )
    yield AllocationsType(allocations.plans)


@cuda_meaning(source.run)
def _run(emitted: EmittedType, *refs: Any) -> Any:
    pipe, arrays = emitted.pipe, nb.Tuple(list(refs))
    if pipe.single and emitted.idle:
        inert = mapped(_inert, emitted.carry)
        builder, _ = yield inert
        return _no_value(builder, inert)
    if pipe.inert_grid is not None:
        raise CompileError(f"{pipe.where}: grid: {pipe.inert_grid} {REASON}")
    captured = nb.Tuple([emitted, arrays])
    runner = BoundType(source.run_carry, captured)
    function, given = (emitted.compute, runner) if emitted.in_context else (runner, emitted.carry)
    loop, unit = _steps_of(emitted, arrays).loop, pipe.unit
    with running(unit.running, unit.kernel, (ring.plan for ring in (*loop.rings, *loop.outs))):
        returned = nb.returns(function, [given])
    builder, args = yield returned
    value = builder.fields(emitted, args[0])
    bound = bound_value(
        builder,
        runner,
        builder.make_tuple(captured, [args[0], builder.make_tuple(arrays, args[1:])]),
    )
    called = (value.compute, bound) if emitted.in_context else (bound, value.carry)
    return builder.apply_value(function, called[0], [given], [called[1]])


def _inert(carry: Any) -> Any:
    """Return the type in the memory role of a part of a single-stream pipeline's final carry."""
    if isinstance(carry, InFlightType):
        return carry.tile
    return carry if isinstance(carry, (TileType, nb.NoneType)) else InertType(source.CARRY)


def _no_value(builder: Any, ty: Any) -> Any:
    """Return an undefined value of a type."""
    return build_value(
        builder,
        ty,
        iter(
            [undefined(part) if isinstance(part, TileType) else nb.nothing for part in leaves(ty)]
        ),
    )


def _steps_of(emitted: EmittedType, refs: Any) -> StepsType:
    return steps_type(
        emitted.pipe, refs, int(emitted.facts.pipelines), emitted.facts.products, emitted.last
    )


@cuda_meaning(source.emitted_steps)
def _steps(emitted: Any, refs: Any) -> Any:
    result = _steps_of(emitted, refs)
    builder, args = yield result
    return steps_value(
        builder,
        result,
        emitted.pipe,
        builder.fields(emitted, args[0]).pipe,
        refs,
        args[1],
    )


@cuda_meaning(source.first_carry)
def _first_carry(emitted: Any, refs: Any, carry: Any) -> Any:
    """Return the initial carry in the carry's type: a type that a step takes and returns, which is
    found by iteration."""
    steps = _steps_of(emitted, refs)

    def fixed(kind: Any) -> Any:
        """Return the type that the steps keep if they begin with `kind`. A tile is in flight from
        its first product on; a vector in either layout takes the layout that a step returns."""
        while True:
            returned = nb.returns(*emitted.call_of(*steps.yield_type, kind))
            joined = _joined(kind, returned)
            if joined is None:
                raise source.carry_changes(emitted, _kind(kind), _kind(returned))
            if joined == kind:
                return kind
            kind = joined

    kind = given = nb.unliteral(carry)
    if emitted.by_lane:
        check_lane_carry(emitted.pipe.where, _kind(given))
    if not emitted.idle:
        # Each type costs a compile of the body, so if the body has products, try first whether
        # tiles are in flight.
        try:
            role = emitted.pipe.np.role
            kind = fixed(
                mapped(lambda part: _in_flight(part, role), given)
                if emitted.facts.products
                else given
            )
        except CompileError:
            kind = fixed(given)  # the body only reads this tile of the carry and adds nothing to it
    builder, args = yield kind
    return _convert(builder, args[2], carry, kind)


@cuda_meaning(source.next_carry)
def _next_carry(emitted: Any, indices: Any, tiles: Any, carry: Any) -> Any:
    function, argtypes = emitted.call_of(indices, tiles, carry)
    returned = carry if emitted.idle else nb.returns(function, argtypes)
    builder, args = yield carry
    if emitted.idle:
        return args[3]
    values = [
        args[1],
        *builder.unpack_tuple(args[2]),
        *([] if carry == nb.none else [args[3]]),
    ]
    values = list(
        emitted.facts.packed(tuple(values), lambda rest: builder.make_tuple(argtypes[-1], rest))
    )
    body = builder.fields(emitted, args[0]).body
    value = builder.apply_value(function, body, argtypes, values)
    if emitted.by_lane:
        # one lane releases the slots for its warp, after the other lanes have read them
        converge(builder)
    return _convert(builder, value, returned, carry)


# ---- types of carries
def _in_flight(carry: Any, role: Role) -> Any:
    """Return the type of a part of a carry, in flight if it is a tile."""
    accumulator = (
        isinstance(carry, TileType) and carry.dtype == FLOAT32 and carry.layout == ACCUMULATOR
    )
    return InFlightType(carry, role) if accumulator else carry


def _joined(one: Any, other: Any) -> Any:
    """Return the common type of a carry that may have either type, or None."""
    if isinstance(one, nb.BaseTuple):
        if not isinstance(other, nb.BaseTuple) or len(one) != len(other):
            return None
        parts = [_joined(a, b) for a, b in zip(one, other, strict=True)]
        return None if None in parts else nb.tuple_of(one, parts)
    if one == other:
        return one
    if isinstance(one, (TileType, InFlightType)) and isinstance(other, (TileType, InFlightType)):
        return one.unify(None, other) or other.unify(None, one)
    return one if isinstance(other, nb.IntegerLiteral) and isinstance(one, nb.Integer) else None


def _convert(builder: Any, value: Any, have: Any, want: Any) -> Any:
    if have == want:
        return value
    parts = zip(leaf_values(builder, have, value), leaves(have), leaves(want), strict=True)
    return build_value(builder, want, (builder.cast(v, h, w) for v, h, w in parts))


def _kind(carry: Any) -> str:
    """Return a carry's type as the simulated SM shows it."""
    if isinstance(carry, nb.BaseTuple):
        return f"({', '.join(map(_kind, carry))})"
    tile = carry.tile if isinstance(carry, InFlightType) else carry
    if isinstance(tile, TileType):
        return said(tile.shape, tile.dtype, tile.layout)
    return "NoneType" if isinstance(carry, nb.NoneType) else str(nb.unliteral(carry))
