"""Outputs on the GPU: constants of an output ring's plan, the storing lane, and the stores of a block."""

from __future__ import annotations

from typing import Any

from . import _numba as nb
from . import outputs as source
from ._op import cuda_meaning
from .intrinsics import cp_async_bulk
from .refs_cuda import gmem_value
from .ring_cuda import constant_of_plan, index_maps_return, ring_value, stage_of, start_of
from .steps_cuda import loop_value

I32, I64 = nb.types.int32, nb.types.int64

constant_of_plan(source.several, lambda plan: plan.slots > 1, nb.types.boolean)
constant_of_plan(source.is_private, lambda plan: bool(plan.private), nb.types.boolean)
constant_of_plan(source.barrier_of, lambda plan: source.SHARED_BARRIER)


@cuda_meaning(source.over_outputs)
def _over_outputs(typing_context: Any, loop: Any, function: Any, *args: Any) -> Any:
    for ring in loop.outs:
        nb.returns(typing_context, function, (ring, *args))

    def codegen(context: Any, builder: Any, _sig: Any, values: Any) -> Any:
        rings = loop_value(context, builder, loop, values[0]).outs
        for number, ring in enumerate(loop.outs):
            nb.call(context, builder, function, (ring, *args), (builder.extract_value(rings, number), *values[2:]))
        return nb.nothing(context)

    return nb.types.void(loop, function, *args), codegen


@cuda_meaning(source.threads_of)
def _threads_of(_context: Any, ring: Any) -> Any:
    return I32(ring), lambda context, builder, sig, args: nb.const(128 * ring.context.unit.compute_wgs)


@cuda_meaning(source.await_slot)
def _await_slot(_context: Any, ring: Any) -> Any:
    kind, value = nb.immediate(source.unread(ring.plan))

    def codegen(context: Any, builder: Any, _sig: Any, args: Any) -> Any:
        return nb.call(context, builder, cp_async_bulk.wait_group_read, (kind,), (value,))[1]

    return nb.types.void(ring), codegen


@cuda_meaning(source.first_lane)
def _first_lane(typing_context: Any, ring: Any, function: Any, *args: Any) -> Any:
    nb.returns(typing_context, function, args)
    first = 4 * ring.context.unit.first_compute

    def codegen(context: Any, builder: Any, _sig: Any, values: Any) -> Any:
        warp = builder.lshr(nb.thread_index(builder), nb.const(5))
        if ring.plan.private:
            warp, first_warp = builder.and_(warp, nb.const(3)), 0
        else:
            first_warp = first
        elected = nb.emit_asm(builder, nb.i32, [], "{ .reg .pred p; elect.sync _|p, 0xffffffff; selp.b32 $0, 1, 0, p; }", "=r")
        chosen = builder.and_(builder.icmp_unsigned("==", warp, nb.const(first_warp)),
                              builder.icmp_unsigned("!=", elected, nb.const(0)))
        with builder.if_then(chosen):
            nb.call(context, builder, function, args, values[2:])
        return nb.nothing(context)

    return nb.types.void(ring, function, *args), codegen


@cuda_meaning(source.check_start)
def _check_start(typing_context: Any, ring: Any, indices: Any) -> Any:
    index_maps_return(typing_context, ring, indices)
    return nb.types.void(ring, indices), lambda context, builder, sig, args: nb.nothing(context)


@cuda_meaning(source.copy_block)
def _copy_block(typing_context: Any, ring: Any, indices: Any, slot: Any) -> Any:
    plan, unit = ring.plan, ring.context.unit
    returned = index_maps_return(typing_context, ring, indices)
    maps = [unit.map_slot(source.stored_map(plan, number)) for number in range(len(plan.args))]

    def codegen(context: Any, builder: Any, _sig: Any, args: Any) -> Any:
        value = ring_value(context, builder, ring, args[0])
        stage = stage_of(builder, ring, args[2])
        for number, block in enumerate(plan.blocks):
            start = start_of(context, builder, ring, value, number, returned[number], indices, args[1])
            layout, place = block.layout, nb.types.UniTuple(I32, block.rank)
            ref = gmem_value(context, builder, ring.refs[number], builder.extract_value(value.refs, number))
            tensor = builder.add(ref.table, nb.const(128 * maps[number], nb.i64))
            for panel in range(layout.panels):
                at = list(start)
                at[block.contiguous] = builder.add(at[block.contiguous], nb.const(panel * layout.per_panel))
                coords = context.make_tuple(builder, place, block.in_memory(at))
                address = builder.add(stage, nb.const(plan.offsets[number] + panel * layout.panel_stride))
                nb.call(context, builder, cp_async_bulk.store, (I64, place, I32), (tensor, coords, address))
        nb.call(context, builder, cp_async_bulk.commit_group, (), ())
        return nb.nothing(context)

    return nb.types.void(ring, indices, I32), codegen
