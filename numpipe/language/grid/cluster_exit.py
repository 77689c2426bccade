"""The end of a kernel in a cluster: a CTA waits until what the others do in its shared memory is
over.

::

    memory role    until all CTAs have released every slot of the rings that they fill together
    compute role   until all CTAs have read the partial sums that this one sent (`reduce_scatter`)

Then all arrivals that the CTA's barriers count have come, and all copies have landed, for its own
warpgroups have waited for them. The cluster's barrier would say the same, but its arrival is a
fence of the whole GPU. (Measured on an H200 was an arrival without the fence, which is not safe:
products of about 12 µs gained 0 to 5 % on cuBLAS. What stands here runs there; what it gains by
itself is not known.) A kernel that reaches into other CTAs by itself (`Unit.meets_at_end`) has it
all the same.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from ...core.arith import sub
from ...core.machine import current
from ...core.op import helper, op
from ...intrinsics import mbarrier
from ...plan.allocations import BarrierPlan
from ...plan.context import Context, counter
from ...plan.plans import RingPlan
from ...plan.unit import Unit
from ..memory import phases
from ..memory.scratch import BarrierRef
from ..pipeline.ring import Ring
from ..pipeline.steps import await_released


def shared_rings(unit: Unit) -> list[RingPlan]:
    """Return the rings that CTAs of a cluster fill for each other, with a step for each block."""
    return [
        dataclasses.replace(plan, dims=None)
        for plan in unit.rings.values()
        if any(len(of) > 1 for of in plan.peers)
    ]


def shared_sums(unit: Unit) -> list[BarrierPlan]:
    """Return the consumed barriers of partial sums that CTAs of a cluster exchange."""
    return [
        of
        for part in unit.scratch.values()
        if part.what
        for of in part.barriers
        if len(of.peers) > 1
    ]


@op
def await_peers(np_: Context) -> None:
    """Wait, before the kernel ends, for what other CTAs of the cluster still do in this one's
    shared memory."""
    unit = np_.unit
    if unit.meets_at_end:
        return
    if np_.loads:
        for plan in shared_rings(unit):
            ring = Ring(np_, plan, (), (), (), counter(np_, plan.index))
            ring.first = np.int32(0)
            await_released(ring)
    if np_.computes:
        for of in shared_sums(unit):
            consumed = BarrierRef(np_, of, unit.number(current().warpgroup), of.kind.shape, 0)
            # else this CTA had no tile; on the GPU the wait then passes at once
            if consumed.address in np_.phases:
                await_read(consumed)


@helper
def await_read(consumed):  # type: ignore[no-untyped-def]
    """Wait until all CTAs have read what was sent in the last exchange, if there was one."""
    mbarrier.wait(consumed.address, sub(phases.next_phase(consumed), 1), -1)
