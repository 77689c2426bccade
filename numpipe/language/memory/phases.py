"""Phases of the barriers that a kernel allocates: how arrivals are counted, and which phase a
warpgroup waits for.

Phase p of a barrier completes when `num_arrivals` warpgroups or copies have arrived and the copies'
bytes have landed; phase p + 1 begins at once. A warpgroup's n-th wait is for phase n: each
warpgroup has a counter for each barrier. The GPU keeps only its last bit, because the hardware
waits for a parity. This gives three rules for a kernel:

* a phase may complete only after some warpgroup has waited for the previous one, * a warpgroup that
waits for a barrier at all waits for each of its phases, * when the CTA ends, the last phase has
been waited for and no other has begun.

The simulator reports violations. On the GPU, a wait for a missed phase returns early, or never.

An arrival of a warpgroup is four arrivals on the mbarrier: lane 0 of each warp arrives when its
warp reaches the call. A single lane would have to wait for the other warps first. The lane that
issues a copy also arrives four times (`copies.load`), so that warpgroups and copies can contribute
to the same phase.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...core.inert import Inert
from ...core.lanes import each_warp
from ...core.machine import current
from ...core.op import helper, op
from ...diagnostics.errors import SpecError
from ...intrinsics import barrier as named
from ...intrinsics import cluster, mbarrier
from ...plan.cluster_ranks import first_of, place_of, rank_of, shifted
from ...plan.context import only_if
from .scratch import BarrierRef

STATE = "the state of a barrier"


def check_test(barrier: Any) -> None:
    """Raise SpecError for a test of a barrier that orders stores: only a wait makes the stores
    visible."""
    if barrier.wide:
        raise SpecError(
            f"barrier_test: the barrier is {barrier.plan.kind}, and only a wait makes the stores "
            "of other CTAs visible; fix: call barrier_wait, or also allocate a ClusterBarrier "
            "and test that"
        )


@op
def next_phase(barrier: BarrierRef) -> Any:
    """Return the phase that this warpgroup waits for next; on the GPU, its last bit."""
    return np.int32(barrier.np.phases.get(barrier.address, 0))


@op
def passed(barrier: BarrierRef) -> None:
    """Count this warpgroup's wait for a phase."""
    barrier.np.phases[barrier.address] = barrier.np.phases.get(barrier.address, 0) + 1


@helper
def await_narrow(barrier):  # type: ignore[no-untyped-def]
    mbarrier.wait(barrier.address, next_phase(barrier), -1)


@helper
def await_wide(barrier):  # type: ignore[no-untyped-def]
    mbarrier.wait_cluster(barrier.address, next_phase(barrier), -1)


@helper
def wait(barrier):  # type: ignore[no-untyped-def]
    only_if(barrier, "narrow", await_narrow)
    only_if(barrier, "wide", await_wide)
    passed(barrier)


@op
def arrive_at_peers(barrier: BarrierRef) -> None:
    """Arrive, as a warpgroup, on its own CTA's barrier, on its leader's, or on the barriers of all
    CTAs that share it."""
    plan = barrier.plan
    if len(plan.peers) == 1:
        each_warp(mbarrier.arrive, barrier.address)
        return
    here = place_of(current().cta, plan.cluster)
    if plan.led:
        leader = first_of(here, plan.cluster, plan.led)
        address = cluster.map_shared(barrier.address, leader)
        if plan.wide:
            each_warp(mbarrier.arrive_remote_release, address)
        else:
            each_warp(mbarrier.arrive_remote, address)
    else:
        ranks = tuple(
            rank_of(shifted(here, shift, plan.cluster), plan.cluster) for shift in plan.peers
        )
        current().scoped(
            "warps",
            current().mbar_arrive_cluster,
            (barrier.address, ranks, len(plan.groups) == 1, plan.wide),
        )


@helper
def arrive(barrier):  # type: ignore[no-untyped-def]
    """Arrive on a barrier once for each warp of the warpgroup."""
    named.warp_sync()  # lane 0 also releases what the other lanes did before
    arrive_at_peers(barrier)


@op
def test(barrier: BarrierRef) -> Any:
    """Return whether the next phase is complete; all lanes of the warpgroup get the same answer."""
    check_test(barrier)
    if not barrier.np.computes:
        return Inert(STATE)
    return current().mbar_test(barrier.address, barrier.np.phases.get(barrier.address, 0) & 1)
