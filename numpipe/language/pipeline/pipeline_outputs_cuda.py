"""Outputs on the GPU: the constants of an output ring's plan, the lane that stores, and the stores
of a block."""

from __future__ import annotations

from typing import Any

from ...core import numba as nb
from ...core.lanes_cuda import elected, elected_in_warp
from ...core.numba import I32
from ...core.op import cuda_meaning
from ...intrinsics import cp_async_bulk
from . import pipeline_outputs as source
from .ring_cuda import RingValue, copies_of, index_maps_return


@cuda_meaning(source.await_slot)
def _await_slot(ring: Any) -> Any:
    kind, value = nb.immediate(source.unread(ring.plan))
    builder, _ = yield
    return builder.apply(cp_async_bulk.wait_group_read, (kind,), (value,))


@cuda_meaning(source.first_lane)
def _first_lane(ring: Any, function: Any, *args: Any) -> Any:
    nb.returns(function, args)
    first = nb.const(4 * ring.np.unit.first_compute)
    builder, values = yield
    if ring.plan.private:
        chosen = elected(builder)
    else:
        warp = builder.lshr(builder.thread_index(), 5)
        chosen = builder.and_(builder.icmp_unsigned("==", warp, first), elected_in_warp(builder))
    with builder.if_then(chosen):
        builder.apply(function, args, values[2:])
    builder.join()


cuda_meaning(source.declare)(nb.no_code)


@cuda_meaning(source.check_start)
def _check_start(ring: Any, indices: Any) -> Any:
    index_maps_return(ring, indices)
    yield


@cuda_meaning(source.copy_block)
def _copy_block(ring: Any, indices: Any, slot: Any) -> Any:
    returned = dict(enumerate(index_maps_return(ring, indices)))
    for plan in ring.plan.copies:
        ring.np.unit.map_slot(plan.request)
    builder, args = yield nb.VOID(ring, indices, I32)
    value = RingValue(builder, ring, args[0])
    for copy in copies_of(value, returned, indices, args[1], args[2]):
        copy.store()
    builder.issue(cp_async_bulk.commit_group)
