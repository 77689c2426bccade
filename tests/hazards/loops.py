"""Hazards of loops that never end: in one warpgroup, across barriers, in per-lane code."""

from __future__ import annotations

import numpy as np

import numpipe
from numpipe import Barrier, PipelineDeadlock, ds

from .catalogue import F32, kernel, zeros

ONE = np.ones((64, 64), F32)
TURN = (
    r"warpgroups loop without progress.*no warpgroup has accessed a tile or an array.*fix: +end "
    r"the loop by a count"
)
ALONE = (
    r"has run \d+ iterations of this loop without an operation in it.*: change in the body "
    r"what the loop's condition"
)
HAND = {"num_compute_wgs": 2, "warp_specialized": False, "wg_axis": "wg", "error": PipelineDeadlock}


@kernel(zeros(64, 64, dtype=F32), hazard="livelock", says=TURN, gives=ONE, **HAND)
def a_barrier_handed_to_and_fro_for_ever(y, *, fixed: numpipe.Static):
    there, back = numpipe.scratch((Barrier(), Barrier()))
    rounds = 0
    while rounds < 3:
        if numpipe.axis_index("wg") == 0:
            numpipe.barrier_arrive(there)
            numpipe.barrier_wait(back)
        else:
            numpipe.barrier_wait(there)
            numpipe.barrier_arrive(back)
        if fixed:
            rounds += 1
    if numpipe.axis_index("wg") == 0:
        y[ds(0, 64), ds(0, 64)] = numpipe.zeros((64, 64), np.float32) + 1.0


@kernel(zeros(64, 64, dtype=F32), hazard="livelock", says=TURN, gives=ONE, **HAND)
def a_meeting_that_nobody_leaves(y, *, fixed: numpipe.Static):
    met = numpipe.scratch(Barrier(num_arrivals=2))
    left = 4
    while left > 0:
        numpipe.barrier_arrive(met)
        numpipe.barrier_wait(met)
        left -= 1 if fixed else 0
    if numpipe.axis_index("wg") == 0:
        y[ds(0, 64), ds(0, 64)] = numpipe.zeros((64, 64), np.float32) + 1.0


@kernel(
    zeros(64, 64, dtype=F32),
    hazard="livelock",
    says=TURN,
    gives=ONE,
    warp_specialized=False,
    error=PipelineDeadlock,
)
def a_barrier_of_ones_own_for_ever(y, *, fixed: numpipe.Static):
    done = numpipe.scratch(Barrier())
    rounds = 0
    while rounds < 2:
        numpipe.barrier_arrive(done)
        numpipe.barrier_wait(done)
        if fixed:
            rounds += 1
    y[ds(0, 64), ds(0, 64)] = numpipe.zeros((64, 64), np.float32) + 1.0


@kernel(
    zeros(64, 64, dtype=F32),
    hazard="livelock",
    says=ALONE,
    gives=ONE,
    warp_specialized=False,
    error=PipelineDeadlock,
)
def an_empty_loop(y, *, fixed: numpipe.Static):
    rounds = 0
    while rounds < 1:
        if fixed:
            rounds += 1
    y[ds(0, 64), ds(0, 64)] = numpipe.zeros((64, 64), np.float32) + 1.0


@kernel(zeros(64, 64, dtype=F32), hazard="livelock", says=ALONE, gives=ONE, error=PipelineDeadlock)
def a_loop_that_steps_over_its_end(y, *, fixed: numpipe.Static):
    at = 1
    while (at < 64) if fixed else (at != 64):
        at = at * 3 % 1024
    y[ds(0, 64), ds(0, 64)] = numpipe.zeros((64, 64), np.float32) + 1.0


@kernel(
    zeros(64, 64, dtype=F32),
    hazard="livelock",
    says=ALONE,
    gives=ONE,
    num_compute_wgs=2,
    warp_specialized=False,
    wg_axis="wg",
    error=PipelineDeadlock,
)
def one_of_two_warpgroups_that_never_ends(y, *, fixed: numpipe.Static):
    more = 0 if fixed else 1 - numpipe.axis_index("wg")
    while more > 0:
        pass
    if numpipe.axis_index("wg") == 0:
        y[ds(0, 64), ds(0, 64)] = numpipe.zeros((64, 64), np.float32) + 1.0


@kernel(
    zeros(64, 64, dtype=F32),
    hazard="livelock",
    says=r"warpgroups loop without progress.*no warpgroup has accessed a tile or an array",
    gives=ONE,
    warp_specialized=False,
    error=PipelineDeadlock,
)
def four_warps_that_meet_for_ever(y, *, fixed: numpipe.Static):
    rounds = 0
    while rounds < 2:
        numpipe.commit_smem()
        rounds += 1 if fixed else 0
    y[ds(0, 64), ds(0, 64)] = numpipe.zeros((64, 64), np.float32) + 1.0


@kernel(
    zeros(64, 64, dtype=F32),
    hazard="livelock",
    says=ALONE,
    gives=ONE,
    warp_specialized=False,
    error=PipelineDeadlock,
)
def an_outer_count_that_the_inner_loop_sets_back(y, *, fixed: numpipe.Static):
    rounds = 0
    while rounds < 3:
        rounds += 1
        inner = 0
        while inner < 2:
            inner += 1
        if not fixed:
            rounds -= 1
    y[ds(0, 64), ds(0, 64)] = numpipe.zeros((64, 64), np.float32) + 1.0


@kernel(
    zeros(64, 64, dtype=F32),
    hazard="livelock",
    says=TURN,
    gives=ONE,
    num_compute_wgs=3,
    warp_specialized=False,
    wg_axis="wg",
    error=PipelineDeadlock,
)
def a_round_of_three_that_never_ends(y, *, fixed: numpipe.Static):
    turns = numpipe.scratch(Barrier(num_barriers=3))
    wg = numpipe.axis_index("wg")
    more = 2
    while more > 0:
        if wg == 0:
            numpipe.barrier_arrive(turns.at[0])
            numpipe.barrier_wait(turns.at[2])
        elif wg == 1:
            numpipe.barrier_wait(turns.at[0])
            numpipe.barrier_arrive(turns.at[1])
        else:
            numpipe.barrier_wait(turns.at[1])
            numpipe.barrier_arrive(turns.at[2])
        if fixed:
            more -= 1
    if wg == 0:
        y[ds(0, 64), ds(0, 64)] = numpipe.zeros((64, 64), np.float32) + 1.0
