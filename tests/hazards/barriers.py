"""Hazards of mbarriers: initialization, phases, bytes and arrivals."""

from __future__ import annotations

import numpy as np

import numpipe
from numpipe import SMEM, Barrier, BlockSpec, PipelineDeadlock, SimulationError, ds
from numpipe.core.lanes import one_lane
from numpipe.core.machine import current
from numpipe.intrinsics import barrier, cp_async_bulk, fence, mbarrier, memory

from .catalogue import F32, integers, kernel, machine, zeros

X = integers(64, 192)
PANEL = integers(64, 64)
ONE = np.ones((64, 64), F32)
DONE = np.array([7])
READY, FREE = 60 * 1024, 60 * 1024 + 8
emit = numpipe.emit_pipeline_warp_specialized


def begin(*counts, fenced=True):
    """Initialize an mbarrier for each count by lane 0, from READY on."""
    for number, count in enumerate(counts):
        mbarrier.init(READY + 8 * number, count)
    if fenced:
        fence.mbarrier_init()


def panel(x, coords, nbytes, address=0):
    mbarrier.arrive_expect_tx(READY, nbytes)
    cp_async_bulk.load(address, x, coords, READY)


# ---- initialization
@machine(
    "missing-init-fence",
    r"tma_load on mbarrier at 61440, whose initialization at barriers.py:\d+ in begin the TMA may "
    r"not see; fence_mbarrier_init by the lane that initialized it",
    PANEL,
    gives=DONE,
)
def the_first_copy_of_an_unfenced_barrier(fixed, x, out):
    one_lane(lambda: begin(1, fenced=fixed))
    barrier.sync(0, 128)
    one_lane(panel, x, (0, 0), x.nbytes)
    mbarrier.wait(READY, 0, -1)
    out[0] = 7


@machine(
    "missing-init-fence",
    r"mbar_(arrive|wait) on (SMEM\[61440\], where no mbarrier has been initialized yet; initialize "
    r"it, then fence_mbarrier_init, then bar_sync|mbarrier at 61440, but nothing orders this after "
    r"its initialization at .*; bar_sync between the two)",
    gives=DONE,
    warpgroups=2,
)
def a_barrier_used_before_the_cta_has_met(fixed, out):
    if current().warpgroup == 0:
        one_lane(begin, 128)
    if fixed:
        barrier.sync(0, 256)
    if current().warpgroup == 0:
        mbarrier.arrive(READY)
    else:
        mbarrier.wait(READY, 0, -1)
        out[0] = 7


@machine(
    "barrier-reinitialised",
    r"mbar_init on mbarrier at 61440, live since barriers.py:\d+ in begin; mbar_inval it first",
    gives=DONE,
    error=SimulationError,
)
def initialised_twice(fixed, out):
    one_lane(begin, 128)
    barrier.sync(0, 128)
    mbarrier.arrive(READY)
    mbarrier.wait(READY, 0, -1)
    barrier.sync(0, 128)
    if fixed:
        one_lane(mbarrier.inval, READY)
    one_lane(begin, 1)
    barrier.sync(0, 128)
    one_lane(mbarrier.arrive, READY)
    mbarrier.wait(READY, 0, -1)
    out[0] = 7


@machine(
    "barrier-reinitialised",
    r"mbar_inval on mbarrier at 61440 in the middle of phase 0: 4 of 8 arrivals pending",
    gives=DONE,
    error=SimulationError,
    warpgroups=2,
)
def invalidated_while_somebody_has_still_to_arrive(fixed, out):
    machine_ = current()
    if machine_.warpgroup == 0:
        one_lane(begin, 8)
    barrier.sync(0, 256)
    if machine_.warpgroup == 0:
        machine_.scoped("warps", mbarrier.arrive, (READY,))
        if fixed:
            mbarrier.wait(READY, 0, -1)
            barrier.sync(1, 128)
        one_lane(mbarrier.inval, READY)
        barrier.sync(0, 256)
    else:
        if not fixed:
            barrier.sync(0, 256)
        machine_.scoped("warps", mbarrier.arrive, (READY,))
        if fixed:
            barrier.sync(0, 256)
        out[0] = 7


@machine(
    "barrier-reinitialised",
    r"mbar_inval on mbarrier at 61440, but nothing orders this after its use by warp 1 of "
    r"warpgroup 0 \(compute\) at barriers.py:\d+ in \w+.*",
    gives=DONE,
)
def invalidated_while_other_warps_may_still_wait(fixed, out):
    one_lane(begin, 128)
    barrier.sync(0, 128)
    mbarrier.arrive(READY)
    mbarrier.wait(READY, 0, -1)
    if fixed:
        barrier.sync(0, 128)
    one_lane(mbarrier.inval, READY)
    out[0] = 7


@machine(
    "barrier-reinitialised",
    r"mbar_inval on mbarrier at 61440 in the middle of phase 0: 1 of 1 arrivals pending, -?\d+ "
    r"bytes missing, [01] copies in flight",
    PANEL,
    gives=DONE,
    error=SimulationError,
)
def invalidated_while_a_copy_is_on_its_way(fixed, x, out):
    one_lane(begin, 1)
    barrier.sync(0, 128)
    one_lane(announced_late, x, fixed)
    barrier.sync(0, 128)
    mbarrier.wait(READY, 0, -1)
    out[0] = 7


def announced_late(x, fixed):
    cp_async_bulk.load(0, x, (0, 0), READY)
    if not fixed:
        mbarrier.inval(READY)
    mbarrier.arrive_expect_tx(READY, x.nbytes)


@machine(
    "barrier-reinitialised",
    r"write \(store_word\) writes SMEM\[61440:61444\), where mbarrier \(mbarrier at 61440\) is in "
    r"use \(at barriers.py:\d+ in (begin|its_bytes_are_used_again_too_early)\).*mbar_inval them "
    r"before their bytes are reused",
    gives=DONE,
    error=SimulationError,
    warpgroups=2,
)
def its_bytes_are_used_again_too_early(fixed, out):
    if current().warpgroup == 0:
        one_lane(begin, 1)
    barrier.sync(0, 256)
    if current().warpgroup == 0:
        one_lane(mbarrier.inval, READY)
    if fixed:
        barrier.sync(0, 256)
    if current().warpgroup == 1:
        one_lane(memory.store_word, READY, 7)
        barrier.sync(1, 128)
        out[0] = memory.load_word(READY)


@machine(
    "barrier-reinitialised",
    r"TMA load \(x\) fills SMEM\[57344:65536\), where mbarrier \(mbarrier at 61440\) is in use "
    r".*place mbarriers outside the slots",
    PANEL,
    gives=DONE,
    error=SimulationError,
)
def a_slot_over_its_own_barrier(fixed, x, out):
    one_lane(begin, 1)
    barrier.sync(0, 128)
    one_lane(panel, x, (0, 0), x.nbytes, 0 if fixed else 56 * 1024)
    mbarrier.wait(READY, 0, -1)
    out[0] = 7


# ---- phases
@machine(
    "wrong-phase",
    r"waited for phase 2 of mbarrier at 61440 for step 3, and returned on the stale "
    r"state of an earlier phase of the same parity",
    gives=DONE,
)
def a_phase_two_ahead(fixed, out):
    one_lane(begin, 128)
    barrier.sync(0, 128)
    mbarrier.arrive(READY)
    mbarrier.wait(READY, 0, 0)
    mbarrier.wait(READY, 0 if fixed else 2, 3)
    out[0] = 7


@kernel(
    X,
    zeros(128, 64, dtype=F32),
    hazard="wrong-phase",
    says=r"waited for phase 0 of barrier @ barriers.py:\d+ \(0\), but the mbarrier has already "
    r"reached phase 1: the phase was missed",
    gives=np.concatenate([ONE, ONE + 1]),
    num_compute_wgs=2,
    warp_specialized=False,
)
def a_warpgroup_that_waits_for_every_second_phase(x, y, *, fixed: numpipe.Static):
    wg = numpipe.axis_index("wg")
    turn, back = numpipe.scratch((Barrier(), Barrier()))
    if wg == 0:
        numpipe.barrier_arrive(turn)
        numpipe.barrier_wait(turn)
        if fixed:
            numpipe.barrier_wait(back)
        numpipe.barrier_arrive(turn)
        numpipe.barrier_wait(turn)
        if not fixed:
            numpipe.barrier_arrive(back)
        y[ds(0, 64), ds(0, 64)] = numpipe.zeros((64, 64), np.float32) + 1.0
    else:
        if fixed:
            numpipe.barrier_wait(turn)
            numpipe.barrier_arrive(back)
        else:
            numpipe.barrier_wait(back)
        numpipe.barrier_wait(turn)
        y[ds(64, 64), ds(0, 64)] = numpipe.zeros((64, 64), np.float32) + 2.0


@kernel(
    zeros(64, 64, dtype=F32),
    hazard="phase-unobserved",
    says=r"the CTA ends, but no warpgroup has waited for phase 0 of barrier @ barriers.py:\d+: "
    r".*wait for each phase",
    gives=ONE,
)
def a_phase_that_nobody_waits_for(y, *, fixed: numpipe.Static):
    done = numpipe.scratch(Barrier())
    numpipe.barrier_arrive(done)
    if fixed:
        numpipe.barrier_wait(done)
    y[ds(0, 64), ds(0, 64)] = numpipe.zeros((64, 64), np.float32) + 1.0


@kernel(
    X,
    zeros(64, 64),
    hazard="phase-unobserved",
    says=r"the CTA ends, but no warpgroup has waited for phase 1 of barrier @ barriers.py:\d+ "
    r"\(1\): .*wait for each phase",
    gives=X[:, :64],
    num_compute_wgs=2,
    warp_specialized=False,
)
def the_last_phase_is_not_waited_for(x, y, *, fixed: numpipe.Static):
    wg = numpipe.axis_index("wg")
    tile, landed, read = numpipe.scratch((SMEM((64, 64), np.float16), Barrier(), Barrier()))
    if wg == 0:
        for k in range(2):
            numpipe.copy_gmem_to_smem(x.at[ds(0, 64), ds(64 - k * 64, 64)], tile, landed)
            numpipe.barrier_wait(landed)
            numpipe.barrier_arrive(read)
            if fixed or k == 0:
                numpipe.barrier_wait(read)
        y[ds(0, 64), ds(0, 64)] = tile[...]


# ---- bytes
@machine(
    "wrong-expect-tx",
    r"(4096 more than phase 0 expects \(4096 announced\)|completes with 1 of its copies still in "
    r"flight: expect_tx announced 4096)",
    PANEL,
    gives=DONE,
    error=SimulationError,
)
def too_few_bytes_announced(fixed, x, out):
    one_lane(begin, 1)
    barrier.sync(0, 128)
    one_lane(panel, x, (0, 0), x.nbytes if fixed else x.nbytes // 2)
    mbarrier.wait(READY, 0, -1)
    out[0] = 7


@machine(
    "wrong-expect-tx",
    r"mbarrier at 61440 is still missing 4096 bytes and no copy is in flight: expect_tx announced "
    r"12288 bytes, but the copies of this phase brought 8192",
    PANEL,
    gives=DONE,
    error=PipelineDeadlock,
)
def too_many_bytes_announced(fixed, x, out):
    one_lane(begin, 1)
    barrier.sync(0, 128)
    one_lane(panel, x, (0, 0), x.nbytes if fixed else x.nbytes * 3 // 2)
    mbarrier.wait(READY, 0, -1)
    out[0] = 7


# ---- arrivals
@kernel(
    X,
    zeros(64, 64, dtype=F32),
    hazard="too-many-arrivals",
    says=r"on barrier @ barriers.py:\d+.*(nothing orders this after the end of phase 0|phase 0 "
    r"has only 0 of 4 pending)",
    gives=X[:, :64].astype(F32) @ X[:, 64:128].astype(F32),
    error=SimulationError,
)
def two_copies_on_a_barrier_of_one(x, y, *, fixed: numpipe.Static):
    half = SMEM((64, 64), np.float16)
    left, right, landed = numpipe.scratch((half, half, Barrier(num_arrivals=2 if fixed else 1)))
    numpipe.copy_gmem_to_smem(x.at[ds(0, 64), ds(0, 64)], left, landed)
    numpipe.copy_gmem_to_smem(x.at[ds(0, 64), ds(64, 64)], right, landed)
    numpipe.barrier_wait(landed)
    y[ds(0, 64), ds(0, 64)] = numpipe.wgmma_wait(
        numpipe.wgmma(numpipe.zeros((64, 64), np.float32), left, right), 0
    )


@kernel(
    zeros(64, 64, dtype=F32),
    hazard="too-many-arrivals",
    says=r"arrives on barrier @ barriers.py:\d+ in phase 1, but nothing orders this after the end "
    r"of phase 0",
    gives=ONE,
)
def arrives_for_a_phase_that_may_not_have_begun(y, *, fixed: numpipe.Static):
    done = numpipe.scratch(Barrier())
    numpipe.barrier_arrive(done)
    if fixed:
        numpipe.barrier_wait(done)
    numpipe.barrier_arrive(done)
    numpipe.barrier_wait(done)
    y[ds(0, 64), ds(0, 64)] = numpipe.zeros((64, 64), np.float32) + 1.0


@kernel(
    X,
    zeros(64, 64, dtype=F32),
    hazard="too-many-arrivals",
    says=r"warpgroup 0 \(compute\) of CTA \(0, 0, 0\) arrives twice on consumed\[0\] for "
    r"in_specs\[0\] 'x' of x @ barriers.py:\d+ for step 0",
    gives=X.reshape(64, 3, 64).astype(F32).sum(axis=1),
)
def a_slot_released_twice(x, y, *, fixed: numpipe.Static):
    def body(indices, tile, free, acc):
        acc = acc + tile[...].astype(np.float32)
        numpipe.barrier_arrive(free)
        if not fixed:
            numpipe.barrier_arrive(free)
        return acc

    def compute(pipeline):
        y[ds(0, 64), ds(0, 64)] = pipeline(numpipe.zeros((64, 64), np.float32))

    emit(
        body,
        grid=(3,),
        in_specs=(BlockSpec((64, 64), lambda k: (0, k)),),
        compute_context=compute,
        manual_consumed_barriers=True,
    )(x)


@kernel(
    X,
    zeros(64, 64, dtype=F32),
    hazard="too-few-arrivals",
    says=r"warpgroup 0 \(compute\) of CTA \(0, 0, 0\) did not arrive on consumed\[0\] for "
    r"in_specs\[0\] 'x' of x @ barriers.py:\d+ for step 0",
    gives=X.reshape(64, 3, 64).astype(F32).sum(axis=1),
    error=PipelineDeadlock,
)
def a_slot_that_is_never_released(x, y, *, fixed: numpipe.Static):
    def body(indices, tile, free, acc):
        acc = acc + tile[...].astype(np.float32)
        if fixed:
            numpipe.barrier_arrive(free)
        return acc

    def compute(pipeline):
        y[ds(0, 64), ds(0, 64)] = pipeline(numpipe.zeros((64, 64), np.float32))

    emit(
        body,
        grid=(3,),
        in_specs=(BlockSpec((64, 64), lambda k: (0, k)),),
        compute_context=compute,
        manual_consumed_barriers=True,
    )(x)


@kernel(
    X,
    zeros(128, 64, dtype=F32),
    hazard="too-few-arrivals",
    says=r"warpgroup 1 \(compute\) of CTA \(0, 0, 0\) did not arrive on consumed\[0\] for "
    r"in_specs\[0\] 'x' of x @ barriers.py:\d+ for step 2",
    gives=np.concatenate([X.reshape(64, 3, 64).astype(F32).sum(axis=1)] * 2),
    error=PipelineDeadlock,
    num_compute_wgs=2,
)
def a_loop_in_which_one_warpgroup_does_not_release(x, y, *, fixed: numpipe.Static):
    wg = numpipe.axis_index("wg")
    acc = numpipe.zeros((64, 64), np.float32)
    pipe = numpipe.pipeline(
        grid=(3,),
        manual_produced_barriers=True,
        manual_consumed_barriers=True,
        in_specs=(BlockSpec((64, 64), lambda k: (0, k)),),
    )
    for (k,), (tile,), (ready,), (free,) in pipe(x):
        numpipe.barrier_wait(ready)
        acc = acc + tile[...].astype(np.float32)
        if fixed or wg == 0 or k < 2:
            numpipe.barrier_arrive(free)
    y[ds(wg * 64, 64), ds(0, 64)] = acc


@kernel(
    X,
    zeros(64, 64, dtype=F32),
    hazard="too-many-arrivals",
    says=r"warpgroup 0 \(compute\) of CTA \(0, 0, 0\) arrives twice on consumed\[0\] for "
    r"in_specs\[0\] 'x' of x @ barriers.py:\d+ for step 0",
    gives=X.reshape(64, 3, 64).astype(F32).sum(axis=1),
)
def a_loop_that_releases_a_slot_twice(x, y, *, fixed: numpipe.Static):
    acc = numpipe.zeros((64, 64), np.float32)
    pipe = numpipe.pipeline(
        grid=(3,), manual_consumed_barriers=True, in_specs=(BlockSpec((64, 64), lambda k: (0, k)),)
    )
    for _, (tile,), (free,) in pipe(x):
        acc = acc + tile[...].astype(np.float32)
        numpipe.barrier_arrive(free)
        if not fixed:
            numpipe.barrier_arrive(free)
    y[ds(0, 64), ds(0, 64)] = acc


@kernel(
    X,
    zeros(64, 64),
    hazard="too-few-arrivals",
    says=r"hint: barrier @ barriers.py:\d+ is still missing 4 of 8 arrivals in phase 0: a "
    r"barrier_arrive or a copy is missing, or the count is higher",
    gives=X[:, :64],
    error=PipelineDeadlock,
)
def one_copy_on_a_barrier_of_two(x, y, *, fixed: numpipe.Static):
    tile, landed = numpipe.scratch(
        (SMEM((64, 64), np.float16), Barrier(num_arrivals=1 if fixed else 2))
    )
    numpipe.copy_gmem_to_smem(x.at[ds(0, 64), ds(0, 64)], tile, landed)
    numpipe.barrier_wait(landed)
    y[ds(0, 64), ds(0, 64)] = tile[...]


@kernel(
    zeros(64, 64, dtype=F32),
    hazard="too-few-arrivals",
    says=r"the CTA ends in the middle of phase 0 of barrier @ barriers.py:\d+: 4 of 8 arrivals "
    r"missing .*num_arrivals is too high",
    gives=ONE,
)
def ends_in_the_middle_of_a_phase(y, *, fixed: numpipe.Static):
    done = numpipe.scratch(Barrier(num_arrivals=1 if fixed else 2))
    numpipe.barrier_arrive(done)
    y[ds(0, 64), ds(0, 64)] = numpipe.zeros((64, 64), np.float32) + 1.0
    if fixed:
        numpipe.barrier_wait(done)


@machine(
    "too-few-arrivals",
    r"mbarrier at 61440 is still missing 3 of 4 arrivals in phase 0",
    gives=DONE,
    error=PipelineDeadlock,
    warpgroups=2,
)
def one_warp_arrives_for_four(fixed, out):
    machine_ = current()
    if machine_.warpgroup == 0:
        one_lane(begin, 4)
        one_lane(memory.store_word, 0, 7)
    barrier.sync(0, 256)
    if machine_.warpgroup == 0:
        machine_.scoped("warps" if fixed else "one", mbarrier.arrive, (READY,))
    else:
        mbarrier.wait(READY, 0, -1)
        out[0] = memory.load_word(0)
