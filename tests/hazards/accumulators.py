"""Hazards of wgmma registers: accumulators read while in flight or used without wgmma.fence, and
operands that are overwritten."""

from __future__ import annotations

import numpy as np

import numpipe
from numpipe import SMEM, Barrier, BlockSpec, ds
from numpipe.core.lanes import one_lane
from numpipe.core.machine import Mma, current
from numpipe.intrinsics import barrier, cp_async_bulk, fence, mbarrier
from tests.kernels.sim_pipelines import descriptor

from .catalogue import F16, F32, integers, kernel, machine, zeros

X = integers(64, 64)
SQUARE = X.astype(F32) @ X.astype(F32)
GRAM = X.astype(F32) @ X.astype(F32).T
FIX = "commit, then wgmma_wait with few enough groups pending"


# ---- accumulators read in flight
@kernel(
    X,
    zeros(64, 64, dtype=F32),
    hazard="accumulator-in-flight",
    says=r"the accumulator of the wgmma at accumulators.py:\d+ .*is read before wgmma_wait has "
    rf"covered it: batch 1, drained up to 0; {FIX}",
    gives=SQUARE,
)
def stored_before_it_was_waited_for(x, y, *, fixed: numpipe.Static):
    tile, landed = numpipe.scratch((SMEM((64, 64), np.float16), Barrier()))
    numpipe.copy_gmem_to_smem(x.at[ds(0, 64), ds(0, 64)], tile, landed)
    numpipe.barrier_wait(landed)
    acc = numpipe.wgmma(numpipe.zeros((64, 64), np.float32), tile, tile)
    if fixed:
        acc = numpipe.wgmma_wait(acc, 0)
    y[ds(0, 64), ds(0, 64)] = acc


@kernel(
    X,
    zeros(64, 64, dtype=F32),
    hazard="accumulator-in-flight",
    says=r"the accumulator of the wgmma at .* is read before wgmma_wait has covered it: batch 2, "
    rf"drained up to 1; {FIX}",
    gives=2 * SQUARE,
)
def the_newest_of_two_left_in_flight(x, y, *, fixed: numpipe.Static):
    tile, landed = numpipe.scratch((SMEM((64, 64), np.float16), Barrier()))
    numpipe.copy_gmem_to_smem(x.at[ds(0, 64), ds(0, 64)], tile, landed)
    numpipe.barrier_wait(landed)
    first = numpipe.wgmma(numpipe.zeros((64, 64), np.float32), tile, tile)
    second = numpipe.wgmma(numpipe.zeros((64, 64), np.float32), tile, tile)
    first = numpipe.wgmma_wait(first, 0 if fixed else 1)
    second = numpipe.wgmma_wait(second, 0 if fixed else 1)
    y[ds(0, 64), ds(0, 64)] = first + second


@kernel(
    X,
    zeros(64, 64, dtype=F32),
    hazard="accumulator-in-flight",
    says=rf"is read before wgmma_wait has covered it: batch 1, drained up to 0; {FIX}.*of "
    r"step 0 \(slot 0\)",
    gives=SQUARE,
)
def read_in_the_step_that_issued_it(x, y, *, fixed: numpipe.Static):
    for _, (tile,) in numpipe.pipeline(
        grid=(1,), in_specs=(BlockSpec((64, 64), lambda k: (0, 0)),)
    )(x):
        acc = numpipe.wgmma(numpipe.zeros((64, 64), np.float32), tile, tile)
        if fixed:
            acc = numpipe.wgmma_wait(acc, 0)
        y[ds(0, 64), ds(0, 64)] = acc * 1.0


@kernel(
    X,
    zeros(64, 64, dtype=F32),
    hazard="accumulator-in-flight",
    says=r"is read after a later wgmma, at accumulators.py:\d+ .*, took over its registers; read "
    r"the newest one",
    gives=2 * SQUARE,
)
def read_after_a_later_product_took_its_registers(x, y, *, fixed: numpipe.Static):
    tile, landed = numpipe.scratch((SMEM((64, 64), np.float16), Barrier()))
    numpipe.copy_gmem_to_smem(x.at[ds(0, 64), ds(0, 64)], tile, landed)
    numpipe.barrier_wait(landed)
    first = numpipe.wgmma(numpipe.zeros((64, 64), np.float32), tile, tile)
    second = numpipe.wgmma_wait(numpipe.wgmma(first, tile, tile), 0)
    if fixed:
        y[ds(0, 64), ds(0, 64)] = second
    else:
        y[ds(0, 64), ds(0, 64)] = numpipe.wgmma_wait(first, 0)


# ---- written on the intrinsics
READY = 60 * 1024
STEPS = tuple(
    (descriptor(32 * i, 16, 1024, 128), descriptor(32 * i, 16, 1024, 128)) for i in range(4)
)
BATCH = Mma(64, F16, "k", "k", (STEPS,))
FROM_REGISTERS = Mma(64, F16, "k", "k", (tuple((0, b) for _, b in STEPS),))
REUSE = "wgmma_wait with few enough groups pending before they are used again, or other registers"


def loaded(x):
    one_lane(load, x)
    barrier.sync(0, 128)
    mbarrier.wait(READY, 0, -1)


def load(x):
    mbarrier.init(READY, 1)
    fence.mbarrier_init()
    mbarrier.arrive_expect_tx(READY, x.nbytes)
    cp_async_bulk.load(0, x, (0, 0), READY)


@machine(
    "accumulator-in-flight",
    rf"is read before wgmma_wait has covered it: batch 1, drained up to 0; {FIX}",
    X,
    gives=GRAM,
)
def waited_for_a_product_that_was_not_committed(fixed, x, out):
    loaded(x)
    wg = current()
    wg.wgmma_fence()
    acc = wg.wgmma(np.zeros((64, 64), F32), BATCH)
    if fixed:
        wg.wgmma_commit()
    wg.wgmma_wait(0)
    out.array[...] = acc.read()


@machine(
    "operand-in-flight",
    r"registers that the wgmma at accumulators.py:\d+ .* takes as its A operand were overwritten "
    rf"before wgmma_wait has covered it: batch 1; {REUSE}",
    X,
    gives=GRAM,
)
def registers_of_an_operand_used_again(fixed, x, out):
    loaded(x)
    wg, operand = current(), X.copy()
    wg.wgmma_fence()
    acc = wg.wgmma(np.zeros((64, 64), F32), FROM_REGISTERS, operand)
    wg.wgmma_commit()
    if fixed:
        wg.wgmma_wait(0)
    operand[:, 8:] = 0
    wg.wgmma_wait(0)
    out.array[...] = acc.read()


@machine(
    "operand-in-flight",
    rf"were overwritten before wgmma_wait has covered it: batch 2; {REUSE}",
    X,
    gives=GRAM,
)
def the_newer_of_two_operands_used_again(fixed, x, out):
    loaded(x)
    wg, first, second = current(), X.copy(), X.copy()
    for operand in (first, second):
        wg.wgmma_fence()
        acc = wg.wgmma(np.zeros((64, 64), F32), FROM_REGISTERS, operand)
        wg.wgmma_commit()
    wg.wgmma_wait(1)
    (first if fixed else second)[0, 0] += 1
    wg.wgmma_wait(0)
    out.array[...] = acc.read()


@machine(
    "missing-wgmma-fence",
    r"wgmma on registers that something else has written, without a wgmma_fence in between .*; "
    r"wgmma_fence before the first wgmma of a group",
    X,
    gives=GRAM,
)
def no_fence_before_the_first_product(fixed, x, out):
    loaded(x)
    wg = current()
    if fixed:
        wg.wgmma_fence()
    acc = wg.wgmma(np.zeros((64, 64), F32), BATCH)
    wg.wgmma_commit()
    wg.wgmma_wait(0)
    out.array[...] = acc.read()


@machine(
    "missing-wgmma-fence",
    r"wgmma on an accumulator that was read since the last wgmma_fence; call wgmma_fence again, "
    r"which orders register accesses",
    X,
    gives=2 * GRAM,
)
def no_fence_after_the_accumulator_was_read(fixed, x, out):
    loaded(x)
    wg = current()
    wg.wgmma_fence()
    acc = wg.wgmma(np.zeros((64, 64), F32), BATCH)
    wg.wgmma_commit()
    wg.wgmma_wait(0)
    assert acc.read().any()
    if fixed:
        wg.wgmma_fence()
    acc = wg.wgmma(acc, BATCH)
    wg.wgmma_commit()
    wg.wgmma_wait(0)
    out.array[...] = acc.read()
