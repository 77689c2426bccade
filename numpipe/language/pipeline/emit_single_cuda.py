"""The body form of a single-stream pipeline on the GPU."""

from __future__ import annotations

from typing import Any

from ...core import numba as nb
from ...core.closure_cuda import bound_type, bound_value
from ...core.inert import REASON
from ...core.inert_cuda import InertType
from ...core.op import cuda_meaning
from ...diagnostics.errors import CompileError
from ..memory.per_lane_cuda import mapped
from ..tiles.tile_cuda import InFlightType, TileType
from . import emit_single as source
from .emit import check_body, run_carry, run_steps
from .emit_cuda import EmittedType, facts_of
from .pipelines_cuda import made


@cuda_meaning(source.make_alone)
def _make_alone(_context: Any, np_: Any, grid: Any, in_specs: Any, out_specs: Any, slots: Any, delay: Any, steps_of: Any,
                known: Any, site: Any) -> Any:
    return made(np_, grid, in_specs, out_specs, slots, delay, steps_of, known, site, single=True, default=source.SLOTS)


@cuda_meaning(source.emitted_alone)
def _emitted_alone(_context: Any, pipe: Any, body: Any, init_carry: Any) -> Any:
    carry = nb.unliteral(init_carry)
    check_body(pipe, facts_of(body), body, carry != nb.types.none, "init_carry")
    value = EmittedType(pipe, body, nb.types.none, carry)
    result = bound_type(source.run_alone, value)
    context, builder, args = yield result(pipe, body, carry)
    emitted = nb.struct(context, builder, value, pipe=args[0], body=args[1], carry=args[2])
    return bound_value(context, builder, result, emitted)


@cuda_meaning(source.run_alone)
def _run_alone(typing_context: Any, emitted: EmittedType, *refs: Any) -> Any:
    carry = emitted.carry
    if emitted.pipe.context.role == "memory" and not emitted.mirrored:
        inert = mapped(_inert, carry)
        context, builder, _ = yield inert(emitted, *refs)
        return _no_value(context, builder, inert)
    if emitted.pipe.inert_grid is not None:
        raise CompileError(f"{emitted.pipe.where}: grid: {emitted.pipe.inert_grid} {REASON}")
    arrays = nb.types.Tuple(list(refs))
    captured = nb.types.Tuple([emitted, arrays])
    alone = carry == nb.types.none
    function, argtypes = (run_steps, (emitted, arrays)) if alone else (run_carry, (captured, carry))
    returned = nb.returns(typing_context, function, argtypes)
    context, builder, args = yield returned(emitted, *refs)
    packed = context.make_tuple(builder, arrays, args[1:])
    if alone:
        return nb.call(context, builder, function, argtypes, (args[0], packed))[1]
    bound = context.make_tuple(builder, captured, [args[0], packed])
    initial = nb.fields(context, builder, emitted, args[0]).carry
    return nb.call(context, builder, function, argtypes, (bound, initial))[1]


def _inert(carry: Any) -> Any:
    """The type of a part of a final carry in the memory role."""
    if isinstance(carry, InFlightType):
        return carry.tile
    return carry if isinstance(carry, (TileType, nb.types.NoneType)) else InertType(source.CARRY)


def _no_value(context: Any, builder: Any, ty: Any) -> Any:
    """Something of that type."""
    if isinstance(ty, nb.types.BaseTuple):
        return context.make_tuple(builder, ty, [_no_value(context, builder, part) for part in ty])
    return nb.ir.Constant(ty.machine, nb.ir.Undefined) if isinstance(ty, TileType) else nb.nothing(context)
