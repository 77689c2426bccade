"""Barrier phases on the GPU: one bit per barrier, in an int32 next to the ring counters.

With a run-time index, the bits stay in a register; an array of counters would be in local memory.
"""

from __future__ import annotations

from typing import Any

from ...core import numba as nb
from ...core.inert_cuda import InertType
from ...core.numba import BOOLEAN, I32
from ...core.op import cuda_meaning
from ...intrinsics import mbarrier
from ...plan.context_cuda import counter_pointer
from ...plan.plans import COUNTERS
from ..tiles.cluster_arrivals_cuda import arrive
from ..tiles.fence_order_cuda import own_barrier
from . import phases as source
from .scratch_cuda import BarriersType, barrier_address


def _word(builder: Any, ty: BarriersType, value: Any) -> tuple[Any, Any]:
    """Return (the address of the phases of an allocation's barriers, the number of this
    barrier)."""
    fields = builder.fields(ty, value)
    return counter_pointer(builder, fields.np, COUNTERS + ty.plan.index), fields.first


nb.attribute(BarriersType, "address", lambda ty: I32, barrier_address)


@cuda_meaning(source.next_phase)
def _next_phase(barrier: Any) -> Any:
    builder, args = yield I32
    pointer, number = _word(builder, barrier, args[0])
    return builder.and_(builder.lshr(builder.load(pointer), number), 1)


@cuda_meaning(source.passed)
def _passed(barrier: Any) -> Any:
    builder, args = yield
    pointer, number = _word(builder, barrier, args[0])
    builder.store(builder.xor(builder.load(pointer), builder.shl(1, number)), pointer)


@cuda_meaning(source.arrive_at_peers)
def _arrive_at_peers(barrier: Any) -> Any:
    builder, args = yield
    arrive(
        builder,
        barrier.plan.peers,
        barrier.plan.cluster,
        barrier_address(builder, barrier, args[0]),
        barrier.plan.led,
        barrier.plan.wide,
    )


@cuda_meaning(source.test)
def _test(barrier: Any) -> Any:
    source.check_test(barrier)
    if not barrier.np.computes:
        yield InertType(source.STATE)
        return None
    builder, args = yield BOOLEAN
    phase = builder.apply(source.next_phase, (barrier,), args)
    address = barrier_address(builder, barrier, args[0])
    complete = builder.issue(mbarrier.test_wait, address, phase)
    # The warps may test at different moments, so a phase counts as complete only if all of them saw
    # it complete.
    barrier_number = own_barrier(builder)
    answer = builder.emit_asm(
        nb.i32,
        [builder.zext(complete), barrier_number],
        "{ .reg .pred mine, all; setp.ne.u32 mine, $1, 0; bar.red.and.pred all, $2, 128, mine; "
        "selp.b32 $0, 1, 0, all; }",
    )
    return builder.icmp_unsigned("!=", answer, 0)
