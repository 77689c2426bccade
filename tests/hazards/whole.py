"""Hazards of whole warpgroups and CTAs: named barriers, collective instructions, register
reallocation, deadlocks, and operands that the hardware does not support."""

from __future__ import annotations

import numpy as np

import numpipe
from numpipe import SMEM, Barrier, PipelineDeadlock, SimulationError, ds
from numpipe.core.lanes import one_lane
from numpipe.core.machine import current
from numpipe.intrinsics import (
    barrier,
    cp_async_bulk,
    elect,
    fence,
    mbarrier,
    memory,
    setmaxnreg,
    special,
    wgmma,
)

from .catalogue import F32, integers, kernel, machine, zeros

DONE = np.array([7])
ONE = np.ones((64, 64), F32)
PANEL = integers(64, 64)
READY = 60 * 1024


# ---- named barriers
@machine(
    "named-barrier-mismatch",
    r"bar_sync 1 with (256|384) threads, but whole.py:\d+ in \w+ uses it with (256|384) at the "
    r"same time; every participant must give the same number",
    gives=DONE,
    error=SimulationError,
    warpgroups=3,
)
def warpgroups_that_count_differently(fixed, out):
    if current().warpgroup < 2:
        barrier.sync(1, 256 if fixed else 256 + 128 * current().warpgroup)
    out[0] = 7


@machine(
    "named-barrier-mismatch",
    r"bar_sync 1 with 128 threads, but nothing orders this after the use of the barrier at .*use "
    r"another barrier",
    gives=DONE,
    warpgroups=2,
)
def two_warpgroups_with_one_barrier_for_themselves(fixed, out):
    barrier.sync(1 + current().warpgroup if fixed else 1, 128)
    out[0] = 7


@machine(
    "named-barrier-mismatch",
    r"named barrier [12]: 128 of 256 threads \(at whole.py:.*named barrier [12]: 128 of 256 "
    r"threads \(at whole.py:",
    gives=DONE,
    error=PipelineDeadlock,
    warpgroups=2,
)
def two_numbers_for_one_meeting(fixed, out):
    barrier.sync(1 if fixed else 1 + current().warpgroup, 256)
    out[0] = 7


@machine(
    "named-barrier-mismatch",
    r"bar_(sync|arrive) 1 with 256 threads, but nothing orders this after the use of the barrier "
    r"at .*wait for the end of that use",
    gives=DONE,
    warpgroups=2,
)
def a_turn_given_twice(fixed, out):
    for _ in range(2):
        if current().warpgroup == 0:
            barrier.arrive(1, 256)
            if fixed:
                barrier.sync(2, 256)
        else:
            barrier.sync(1, 256)
            if fixed:
                barrier.arrive(2, 256)
    out[0] = 7


@kernel(
    zeros(128, 64, dtype=F32),
    hazard="named-barrier-mismatch",
    says=r"named barrier 3 \(the turn 'store' of compute warpgroup 0\): 128 of 256 threads \(at "
    r"whole.py:\d+.*must enter the blocks of a numpipe.turn equally often",
    gives=np.concatenate([ONE, ONE]),
    error=PipelineDeadlock,
    num_compute_wgs=2,
    warp_specialized=False,
)
def a_turn_that_one_warpgroup_does_not_take(y, *, fixed: numpipe.Static):
    wg = numpipe.axis_index("wg")
    tile = numpipe.zeros((64, 64), np.float32)
    for _ in range(2):
        if fixed or wg == 0:
            with numpipe.turn("store"):
                tile = tile + 0.5
    y[ds(wg * 64, 64), ds(0, 64)] = tile


@kernel(
    zeros(128, 64, dtype=F32),
    hazard="named-barrier-mismatch",
    says=r"the turn 'store' of compute warpgroup [01]\).*must enter the blocks of a numpipe.turn "
    r"equally often",
    gives=np.concatenate([ONE, ONE]),
    error=PipelineDeadlock,
    num_compute_wgs=2,
    warp_specialized=False,
)
def a_turn_more_of_the_second_warpgroup(y, *, fixed: numpipe.Static):
    wg = numpipe.axis_index("wg")
    tile = numpipe.zeros((64, 64), np.float32)
    for _ in range(2 if fixed else 2 + wg):
        with numpipe.turn("store"):
            tile = tile + 0.5
    y[ds(wg * 64, 64), ds(0, 64)] = tile


# ---- all lanes
@machine(
    "divergent-aligned",
    r"bar_sync needs all 128 lanes of the warpgroup, but lanes='one'; call it outside one_lane",
    gives=DONE,
    error=SimulationError,
)
def a_barrier_by_one_lane(fixed, out):
    if fixed:
        barrier.sync(1, 128)
    else:
        one_lane(barrier.sync, 1, 128)
    out[0] = 7


@machine(
    "divergent-aligned",
    r"wgmma_wait needs all 128 lanes of the warpgroup, but lanes='warps'",
    gives=DONE,
    error=SimulationError,
)
def products_waited_for_by_a_lane_of_each_warp(fixed, out):
    current().scoped("all" if fixed else "warps", wgmma.wait_group, (0,))
    out[0] = 7


@machine(
    "divergent-aligned",
    r"setmaxnreg needs all 128 lanes of the warpgroup, but lanes='one'",
    gives=DONE,
    error=SimulationError,
)
def registers_given_back_by_one_lane(fixed, out):
    if fixed:
        setmaxnreg.dec(40)
    else:
        one_lane(setmaxnreg.dec, 40)
    out[0] = 7


@kernel(
    zeros(64, 64, dtype=F32),
    hazard="divergent-aligned",
    says=r"a value that differs between 128 lanes controls the code, .*use "
    r"one_lane\(function, …\)",
    gives=ONE,
    error=SimulationError,
    warp_specialized=False,
)
def a_barrier_behind_a_branch_by_lane(y, *, fixed: numpipe.Static):
    if fixed or special.lane_index() < 16:
        barrier.sync(1, 128)
    y[ds(0, 64), ds(0, 64)] = numpipe.zeros((64, 64), np.float32) + 1.0


@kernel(
    zeros(64, 64, dtype=F32),
    hazard="divergent-aligned",
    says=r"elect_sync\(\) with lanes='all': a branch that only one lane takes diverges within the "
    r"warpgroup.*use numpipe's one_lane\(function, ...\) for the branch",
    gives=ONE,
    error=SimulationError,
    warp_specialized=False,
)
def a_branch_of_the_elected_lane(y, *, fixed: numpipe.Static):
    if fixed or elect.elect_sync():
        barrier.sync(1, 128)
    y[ds(0, 64), ds(0, 64)] = numpipe.zeros((64, 64), np.float32) + 1.0


# ---- registers
@machine(
    "register-budget",
    r"registers: 240 \+ 240 \+ 32 per lane = 512 x 128 = 65536 wanted, the CTA holds 64512: this "
    r"can never be granted; the counts of the warpgroups must add up to at most 504",
    gives=DONE,
    error=PipelineDeadlock,
    warpgroups=3,
)
def eight_registers_too_many(fixed, out):
    if current().warpgroup == 2:
        setmaxnreg.dec(24 if fixed else 32)
    else:
        setmaxnreg.inc(240)
    out[0] = 7


@kernel(
    zeros(64, 64, dtype=F32),
    hazard="register-budget",
    says=r"registers: 168 \+ 232 \+ 232 per lane = 632 x 128 = 80896 wanted, the CTA holds 64512: "
    r"this can never be granted",
    gives=ONE,
    error=PipelineDeadlock,
    num_compute_wgs=3,
    warp_specialized=False,
)
def nobody_gives_registers_back(y, *, fixed: numpipe.Static):
    wg = numpipe.axis_index("wg")
    if wg == 0:
        if fixed:
            numpipe.set_max_registers(40, "decrease")
        y[ds(0, 64), ds(0, 64)] = numpipe.zeros((64, 64), np.float32) + 1.0
    else:
        numpipe.set_max_registers(232, "increase")


# ---- deadlocks
@kernel(
    zeros(64, 64, dtype=F32),
    hazard="deadlock",
    says=r"every warpgroup waits and nothing is in flight.*warpgroup 0 \(compute\): blocked on "
    r"barrier @ whole.py:\d+ \(1\) phase 0.*warpgroup 1 \(compute\): blocked on barrier @ "
    r"whole.py:\d+ \(0\) phase 0",
    gives=ONE,
    error=PipelineDeadlock,
    num_compute_wgs=2,
    warp_specialized=False,
)
def each_waits_for_the_other(y, *, fixed: numpipe.Static):
    wg = numpipe.axis_index("wg")
    first, second = numpipe.scratch((Barrier(), Barrier()))
    if wg == 0:
        if fixed:
            numpipe.barrier_arrive(first)
        numpipe.barrier_wait(second)
        if not fixed:
            numpipe.barrier_arrive(first)
        y[ds(0, 64), ds(0, 64)] = numpipe.zeros((64, 64), np.float32) + 1.0
    else:
        numpipe.barrier_wait(first)
        numpipe.barrier_arrive(second)


@machine(
    "deadlock",
    r"every warpgroup waits.*bar_sync 1: 128 of 256 threads have arrived \(warpgroup 0 "
    r"\(compute\)\).*blocked on mbarrier at 61440 phase 0",
    gives=DONE,
    error=PipelineDeadlock,
    warpgroups=2,
)
def a_named_barrier_against_an_mbarrier(fixed, out):
    if current().warpgroup == 0:
        one_lane(mbarrier.init, READY, 128)
    barrier.sync(0, 256)
    if current().warpgroup == 0:
        if fixed:
            mbarrier.arrive(READY)
        barrier.sync(1, 256)
        if not fixed:
            mbarrier.arrive(READY)
    else:
        mbarrier.wait(READY, 0, -1)
        barrier.sync(1, 256)
    out[0] = 7


@machine(
    "too-few-arrivals",
    r"\d+ tests in a row failed while nothing else happened.*warpgroup 0 \(compute\): blocked on "
    r"mbarrier at 61440 phase 0, which it polls at whole.py:\d+.*fix: +128 more "
    r"arrivals in phase 0 of mbarrier at 61440",
    gives=DONE,
    error=PipelineDeadlock,
)
def polls_for_an_arrival_that_comes_behind(fixed, out):
    current().sm.poll_limit = 100
    one_lane(mbarrier.init, READY, 128)
    barrier.sync(0, 128)
    if fixed:
        mbarrier.arrive(READY)
    while not mbarrier.test_wait(READY, 0):
        pass
    mbarrier.wait(READY, 0, -1)
    out[0] = 7


# ---- operands
def panel(x, coords, address):
    mbarrier.init(READY, 1)
    fence.mbarrier_init()
    mbarrier.arrive_expect_tx(READY, x.nbytes)
    cp_async_bulk.load(address, x, coords, READY)


@machine(
    "illegal-instruction",
    r"tma_load of x at coordinates \(0, 3\): the innermost is 6 bytes into a row; it must be a "
    r"multiple of 16",
    PANEL,
    gives=DONE,
    error=SimulationError,
)
def a_load_from_the_middle_of_a_chunk(fixed, x, out):
    one_lane(panel, x, (0, 8 if fixed else 3), 0)
    barrier.sync(0, 128)
    mbarrier.wait(READY, 0, -1)
    out[0] = 7


@machine(
    "illegal-instruction",
    r"tma_load of x at SMEM\[64\]; the TMA needs a multiple of 128",
    PANEL,
    gives=DONE,
    error=SimulationError,
)
def a_slot_that_is_not_aligned(fixed, x, out):
    one_lane(panel, x, (0, 0), 1024 if fixed else 64)
    barrier.sync(0, 128)
    mbarrier.wait(READY, 0, -1)
    out[0] = 7


@kernel(
    PANEL,
    zeros(64, 64),
    hazard="out-of-bounds",
    says=r"tma_store of y at coordinates \(0, -64\): a store must not start at a negative "
    r"coordinate",
    gives=PANEL,
    error=SimulationError,
)
def a_store_before_the_array(x, y, *, fixed: numpipe.Static):
    tile, landed = numpipe.scratch((SMEM((64, 64), np.float16), Barrier()))
    numpipe.copy_gmem_to_smem(x.at[ds(0, 64), ds(0, 64)], tile, landed)
    numpipe.barrier_wait(landed)
    numpipe.copy_smem_to_gmem(tile, y.at[ds(0, 64), ds(0 if fixed else x.shape[0] - 128, 64)])


# ---- bounds
@machine(
    "out-of-bounds",
    r"tma_load of x touches SMEM\[62464:70656\), but the CTA has 65536 bytes of shared memory",
    PANEL,
    gives=DONE,
    error=SimulationError,
)
def a_slot_beyond_the_shared_memory(fixed, x, out):
    one_lane(panel, x, (0, 0), 0 if fixed else 61 * 1024)
    barrier.sync(0, 128)
    mbarrier.wait(READY, 0, -1)
    out[0] = 7


@machine(
    "out-of-bounds",
    r"store_word touches SMEM\[65536:65540\), but the CTA has 65536 bytes",
    gives=DONE,
    error=SimulationError,
)
def a_counter_beyond_the_shared_memory(fixed, out):
    at = 65532 if fixed else 65536
    one_lane(memory.store_word, at, 7)
    barrier.sync(0, 128)
    out[0] = memory.load_word(at)
