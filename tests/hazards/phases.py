"""Hazards of missed phases: nothing orders a wait before the end of the next phase, and parity
alone cannot tell the two apart."""

from __future__ import annotations

import numpy as np

import numpipe
from numpipe import SMEM, Barrier, ds
from numpipe.core.lanes import one_lane
from numpipe.core.machine import current
from numpipe.intrinsics import barrier, mbarrier

from .barriers import DONE, ONE, READY, X, begin
from .catalogue import F32, kernel, machine, zeros

ABA = (
    r"waited for phase 0 of barrier @ phases.py:\d+ \(0\), but (warpgroup 0 \(compute\) completes "
    r"phase 1 before this wait is known to have ended: if the wait comes later, it finds phase "
    r"1|the mbarrier has already reached phase [12]: the phase was missed).*an arrival by "
    r"warpgroup 1 \(compute\) after each of its waits: on barrier @ .* itself, with a count that "
    r"is one"
)


@kernel(
    zeros(64, 64, dtype=F32),
    hazard="wrong-phase",
    says=ABA,
    gives=ONE,
    num_compute_wgs=2,
    warp_specialized=False,
)
def a_wait_that_may_come_two_phases_later(y, *, fixed: numpipe.Static):
    go, seen = numpipe.scratch((Barrier(), Barrier()))
    if numpipe.axis_index("wg") == 0:
        for i in range(3):
            numpipe.barrier_arrive(go)
            numpipe.barrier_wait(go)
            if fixed and i == 0:
                numpipe.barrier_wait(seen)
    else:
        numpipe.barrier_wait(go)
        if fixed:
            numpipe.barrier_arrive(seen)
        y[ds(0, 64), ds(0, 64)] = numpipe.zeros((64, 64), np.float32) + 1.0


@kernel(
    zeros(64, 64, dtype=F32),
    hazard="wrong-phase",
    says=ABA,
    gives=ONE,
    num_compute_wgs=2,
    warp_specialized=False,
)
def waits_in_step_with_somebody_who_does_not_wait_for_them(y, *, fixed: numpipe.Static):
    go, _ = numpipe.scratch((Barrier(num_arrivals=2 if fixed else 1), Barrier()))
    wg = numpipe.axis_index("wg")
    for _ in range(3):
        if fixed or wg == 0:
            numpipe.barrier_arrive(go)
        numpipe.barrier_wait(go)
    if wg == 0:
        y[ds(0, 64), ds(0, 64)] = numpipe.zeros((64, 64), np.float32) + 1.0


@kernel(
    zeros(64, 64, dtype=F32),
    hazard="wrong-phase",
    says=r"one barrier_arrive on barrier @ phases.py:\d+ by warpgroup 1 \(compute\) and one by "
    r"each of the others: phase \d counts 2 of warpgroup 0 \(compute\), and none of warpgroup "
    r"1",
    gives=ONE,
    num_compute_wgs=2,
    warp_specialized=False,
)
def one_warpgroup_arrives_twice_and_the_other_never(y, *, fixed: numpipe.Static):
    met = numpipe.scratch(Barrier(num_arrivals=2))
    wg = numpipe.axis_index("wg")
    for _ in range(3):
        if fixed or wg == 0:
            numpipe.barrier_arrive(met)
        if not fixed and wg == 0:
            numpipe.barrier_arrive(met)
        numpipe.barrier_wait(met)
    if wg == 0:
        y[ds(0, 64), ds(0, 64)] = numpipe.zeros((64, 64), np.float32) + 1.0


MISSED = r"before this wait is known to have ended|the phase was missed"


@kernel(
    zeros(64, 64, dtype=F32),
    hazard="wrong-phase",
    says=MISSED,
    gives=ONE,
    num_compute_wgs=3,
    warp_specialized=False,
)
def two_that_wait_and_one_that_tells(y, *, fixed: numpipe.Static):
    go, seen = numpipe.scratch((Barrier(), Barrier(num_arrivals=2 if fixed else 1)))
    wg = numpipe.axis_index("wg")
    for _ in range(3):
        if wg == 0:
            numpipe.barrier_arrive(go)
            numpipe.barrier_wait(seen)
        else:
            numpipe.barrier_wait(go)
            if fixed or wg == 1:
                numpipe.barrier_arrive(seen)
    if wg == 2:
        y[ds(0, 64), ds(0, 64)] = numpipe.zeros((64, 64), np.float32) + 1.0


@kernel(
    zeros(64, 64, dtype=F32),
    hazard="wrong-phase",
    says=MISSED,
    gives=ONE,
    num_compute_wgs=2,
    warp_specialized=False,
)
def a_slot_by_hand_that_comes_round_without_its_reader(y, *, fixed: numpipe.Static):
    filled, free = numpipe.scratch((Barrier(num_barriers=2), Barrier(num_barriers=2)))
    wg = numpipe.axis_index("wg")
    for k in range(4):
        if wg == 0:
            if fixed and k > 1:
                numpipe.barrier_wait(free.at[k % 2])
            numpipe.barrier_arrive(filled.at[k % 2])
            numpipe.barrier_wait(filled.at[k % 2])
        else:
            numpipe.barrier_wait(filled.at[k % 2])
            if fixed and k < 2:
                numpipe.barrier_arrive(free.at[k % 2])
    if wg == 1:
        y[ds(0, 64), ds(0, 64)] = numpipe.zeros((64, 64), np.float32) + 1.0


@kernel(
    X,
    zeros(64, 64),
    hazard="wrong-phase",
    says=MISSED,
    gives=X[:, :64],
    num_compute_wgs=2,
    warp_specialized=False,
)
def a_copy_that_ends_a_second_phase_before_the_other_has_looked(x, y, *, fixed: numpipe.Static):
    tile, other, landed, seen = numpipe.scratch(
        (SMEM((64, 64), np.float16), SMEM((64, 64), np.float16), Barrier(), Barrier())
    )
    if numpipe.axis_index("wg") == 0:
        numpipe.copy_gmem_to_smem(x.at[ds(0, 64), ds(0, 64)], tile, landed)
        numpipe.barrier_wait(landed)
        if fixed:
            numpipe.barrier_wait(seen)
        numpipe.copy_gmem_to_smem(x.at[ds(0, 64), ds(64, 64)], other, landed)
        numpipe.barrier_wait(landed)
    else:
        numpipe.barrier_wait(landed)
        if fixed:
            numpipe.barrier_arrive(seen)
        y[ds(0, 64), ds(0, 64)] = tile[...]


@machine("wrong-phase", MISSED, gives=DONE, warpgroups=2)
def an_mbarrier_tested_and_ended_by_one_warpgroup(fixed, out):
    if current().warpgroup == 0:
        one_lane(begin, 128)
    barrier.sync(0, 256)
    if current().warpgroup == 0:
        mbarrier.arrive(READY)
        mbarrier.wait(READY, 0, -1)
        if fixed:
            barrier.sync(1, 256)
        mbarrier.arrive(READY)
        mbarrier.wait(READY, 1, -1)
    else:
        mbarrier.wait(READY, 0, -1)
        if fixed:
            barrier.sync(1, 256)
        out[0] = 7


@machine(
    "wrong-phase",
    r"waited for phase 1 of mbarrier at 61440, (and returned on the stale state of an earlier "
    r"phase|but nothing orders this after the end of phase 0: if it comes earlier, it returns on "
    r"the stale state of an earlier phase.*wait for phase 0 too)",
    gives=DONE,
    warpgroups=2,
)
def a_wait_that_may_come_before_the_phase_before_has_ended(fixed, out):
    if current().warpgroup == 0:
        one_lane(begin, 128)
    barrier.sync(0, 256)
    if current().warpgroup == 0:
        for phase in range(2):
            mbarrier.arrive(READY)
            mbarrier.wait(READY, phase, -1)
            barrier.sync(1, 256 if fixed else 128)
    else:
        if fixed:
            mbarrier.wait(READY, 0, -1)
            barrier.sync(1, 256)
        mbarrier.wait(READY, 1, -1)
        if fixed:
            barrier.sync(1, 256)
        out[0] = 7


@machine(
    "wrong-phase",
    r"waited for phase 0 of mbarrier at 61440, but phase 1 completes before this wait by all four "
    r"warps is known to have ended.*a barrier of the four warps \(bar_sync\) between",
    gives=DONE,
)
def a_lane_that_goes_on_while_other_warps_may_still_wait(fixed, out):
    one_lane(begin, 1)
    barrier.sync(0, 128)
    for phase in range(2):
        one_lane(mbarrier.arrive, READY)
        mbarrier.wait(READY, phase, -1)
        if fixed:
            barrier.sync(0, 128)
    out[0] = 7
