"""Hazards of stores: sources overwritten too early, uninitialized bytes, arrays with copies in
flight, and CTAs that end without waiting."""

from __future__ import annotations

import numpy as np

import numpipe
from numpipe import SMEM, Barrier, BlockSpec, ds
from numpipe.core.lanes import one_lane
from numpipe.core.machine import Mma, current
from numpipe.intrinsics import barrier, cp_async_bulk, fence, mbarrier
from tests.kernels.sim_pipelines import descriptor

from .catalogue import F16, F32, integers, kernel, machine, zeros

X = integers(64, 192)
ONE, TWO = np.ones((64, 64), F32), np.full((64, 64), 2, F32)


# ---- the source of a store
@kernel(
    zeros(64, 128, dtype=F32),
    hazard="store-source-reused",
    says=r"write \(tile\[…\] = value\) writes SMEM.* while TMA store \(y\).*fix: "
    r"+wait_smem_to_gmem\(0, wait_read_only=True\) after the group's commit",
    gives=np.concatenate([ONE, TWO], axis=1),
)
def written_again_while_a_store_reads(y, *, fixed: numpipe.Static):
    tile = numpipe.scratch(SMEM((64, 64), np.float32))
    for k in range(2):
        tile[...] = numpipe.zeros((64, 64), np.float32) + (k + 1)
        numpipe.copy_smem_to_gmem(tile, y.at[ds(0, 64), ds(k * 64, 64)])
        if fixed:
            numpipe.wait_smem_to_gmem(0, wait_read_only=True)


@kernel(
    zeros(64, 192, dtype=F32),
    hazard="store-source-reused",
    says=r"write \(tile\[…\] = value\) writes SMEM.* while TMA store \(y\).*fix: "
    r"+wait_smem_to_gmem\(1, wait_read_only=True\) after the group's commit",
    gives=np.concatenate([ONE, TWO, 3 * ONE], axis=1),
)
def one_group_too_many_left_unread(y, *, fixed: numpipe.Static):
    tiles = numpipe.scratch(SMEM((2, 64, 64), np.float32))
    for k in range(3):
        if fixed:
            numpipe.wait_smem_to_gmem(1, wait_read_only=True)
        else:
            numpipe.wait_smem_to_gmem(2, wait_read_only=True)
        tiles.at[k % 2][...] = numpipe.zeros((64, 64), np.float32) + (k + 1)
        numpipe.copy_smem_to_gmem(tiles.at[k % 2], y.at[ds(0, 64), ds(k * 64, 64)])


@kernel(
    zeros(64, 128, dtype=F32),
    hazard="store-source-reused",
    says=r"write \(tile\[…\] = value\) writes SMEM.* while TMA store \(y\).*fix: "
    r"+commit_smem_to_gmem_group after the store, then wait_smem_to_gmem\(0, "
    r"wait_read_only=True\) after the group's commit",
    gives=np.concatenate([ONE, TWO], axis=1),
)
def waited_for_a_group_that_was_not_committed(y, *, fixed: numpipe.Static):
    tile = numpipe.scratch(SMEM((64, 64), np.float32))
    for k in range(2):
        tile[...] = numpipe.zeros((64, 64), np.float32) + (k + 1)
        numpipe.copy_smem_to_gmem(tile, y.at[ds(0, 64), ds(k * 64, 64)], commit_group=False)
        if fixed:
            numpipe.commit_smem_to_gmem_group()
        numpipe.wait_smem_to_gmem(0, wait_read_only=True)
    numpipe.commit_smem_to_gmem_group()


# ---- uninitialized bytes
@kernel(
    zeros(64, 64, dtype=F32),
    hazard="uninitialised-read",
    says=r"read \(tile\[…\]\) reads SMEM\[1024:\d+\), but these bytes have not been written",
    gives=ONE,
)
def scratch_that_nobody_has_set_to_zero(y, *, fixed: numpipe.Static):
    tile = numpipe.scratch(SMEM((64, 64), np.float32))
    if fixed:
        tile[...] = numpipe.zeros((64, 64), np.float32)
    tile[...] = tile[...] + 1.0
    y[ds(0, 64), ds(0, 64)] = tile[...]


@kernel(
    X,
    zeros(128, 64),
    hazard="uninitialised-read",
    says=r"TMA store \(y\) reads SMEM.*, but these bytes have not been written: write all of "
    r"an output tile in every block.*of step 0 \(slot 0\)",
    gives=np.concatenate([X[:, :64]] * 2),
)
def half_of_an_output_is_not_written(x, y, *, fixed: numpipe.Static):
    pipe = numpipe.pipeline(
        grid=(1,),
        in_specs=(BlockSpec((64, 64), lambda k: (0, 0)),),
        out_specs=(BlockSpec((128, 64), lambda k: (0, 0)),),
    )
    for _, (x_tile, y_tile) in pipe(x, y):
        y_tile[ds(0, 64), :] = x_tile[...]
        if fixed:
            y_tile[ds(64, 64), :] = x_tile[...]


@kernel(
    X,
    zeros(64, 192),
    hazard="uninitialised-read",
    says=r"TMA store \(y\) reads SMEM.*, but these bytes have not been written since TMA "
    r"store \(y\) by .*: write all of an output tile in every block",
    gives=X,
)
def a_block_in_a_slot_that_was_stored_before(x, y, *, fixed: numpipe.Static):
    pipe = numpipe.pipeline(
        grid=(3,),
        in_specs=(BlockSpec((64, 64), lambda k: (0, k)),),
        out_specs=(BlockSpec((64, 64), lambda k: (0, k)),),
    )
    for (k,), (x_tile, y_tile) in pipe(x, y):
        if fixed or k != 2:
            y_tile[...] = x_tile[...]


# ---- arrays that are stored and loaded
@kernel(
    integers(64, 256),
    hazard="array-in-transfer",
    says=r"TMA (load|store) \(x\) (reads|writes) the array at x\[0:64, \d+:\d+\] while TMA "
    r"(load|store) \(x\) by .* may still be.*fix: +a pipeline's stores complete when the kernel "
    r"ends",
    gives=np.concatenate([integers(64, 256)[:, 64:], integers(64, 256)[:, 192:]], axis=1),
)
def a_step_loads_what_another_stores(x, *, fixed: numpipe.Static):
    pipe = numpipe.pipeline(
        grid=(3,),
        in_specs=(BlockSpec((64, 64), (lambda k: (0, k + 1)) if fixed else (lambda k: (0, k))),),
        out_specs=(BlockSpec((64, 64), (lambda k: (0, k)) if fixed else (lambda k: (0, k + 1))),),
    )
    for _, (x_tile, y_tile) in pipe(x, x):
        y_tile[...] = x_tile[...]


@kernel(
    zeros(64, 64, dtype=F32),
    zeros(64, 64, dtype=F32),
    hazard="array-in-transfer",
    says=r"TMA load \(y\) reads the array at y\[0:64, 0:\d+\] while TMA store \(y\).*fix: "
    r".*wait_smem_to_gmem\(0\)",
    gives=ONE,
)
def loaded_before_it_has_been_stored(y, z, *, fixed: numpipe.Static):
    tile, landed = numpipe.scratch((SMEM((64, 64), np.float32), Barrier()))
    tile[...] = numpipe.zeros((64, 64), np.float32) + 1.0
    numpipe.copy_smem_to_gmem(tile, y.at[ds(0, 64), ds(0, 64)])
    if fixed:
        numpipe.wait_smem_to_gmem(0)
    else:
        numpipe.wait_smem_to_gmem(0, wait_read_only=True)
    numpipe.copy_gmem_to_smem(y.at[ds(0, 64), ds(0, 64)], tile, landed)
    numpipe.barrier_wait(landed)
    numpipe.copy_smem_to_gmem(tile, z.at[ds(0, 64), ds(0, 64)])


# ---- ends
READY, PANEL = 60 * 1024, X[:, :64]
SUM = Mma(
    64,
    F16,
    "k",
    "k",
    (
        tuple(
            (descriptor(32 * i, 16, 1024, 128), descriptor(32 * i, 16, 1024, 128)) for i in range(4)
        ),
    ),
)


def load(x):
    mbarrier.init(READY, 1)
    fence.mbarrier_init()
    mbarrier.arrive_expect_tx(READY, x.nbytes)
    cp_async_bulk.load(0, x, (0, 0), READY)


def store(out, wait):
    cp_async_bulk.store(out, (0, 0), 0)
    cp_async_bulk.commit_group()
    if wait:
        cp_async_bulk.wait_group(0)
    else:
        cp_async_bulk.wait_group_read(0)


@machine(
    "exit-in-flight",
    r"the warpgroup ends with 1 TMA store not waited for, the first TMA store \(out\) at "
    r"stores.py:\d+ in store; wait_smem_to_gmem\(0\) after the last group's commit, before it "
    r"ends",
    PANEL,
    gives=PANEL,
)
def ends_with_a_store_that_was_only_read(fixed, x, out):
    one_lane(load, x)
    barrier.sync(0, 128)
    mbarrier.wait(READY, 0, -1)
    one_lane(store, out, fixed)


@machine(
    "exit-in-flight",
    r"TMA load \(x\) on mbarrier at 61440 phase 0 .* was never waited for before the CTA ends",
    PANEL,
    gives=np.array([1]),
)
def ends_with_a_load_that_nobody_waited_for(fixed, x, out):
    one_lane(load, x)
    barrier.sync(0, 128)
    if fixed:
        mbarrier.wait(READY, 0, -1)
    out[0] = 1


@machine(
    "exit-in-flight",
    r"the warpgroup ends with 1 of its 1 wgmma batches not waited for; wgmma_commit and "
    r"wgmma_wait\(0\)",
    PANEL,
    gives=PANEL.astype(F32) @ PANEL.astype(F32).T,
)
def ends_with_a_product_in_flight(fixed, x, out):
    one_lane(load, x)
    barrier.sync(0, 128)
    mbarrier.wait(READY, 0, -1)
    machine_ = current()
    machine_.wgmma_fence()
    acc = machine_.wgmma(np.zeros((64, 64), F32), SUM)
    machine_.wgmma_commit()
    if fixed:
        machine_.wgmma_wait(0)
        out.array[...] = acc.read()


@kernel(
    X,
    zeros(64, 64, dtype=F32),
    hazard="exit-in-flight",
    says=r"TMA load \(x\) on barrier @ stores.py:\d+ phase 0 .* was never waited for before the "
    r"CTA ends",
    gives=ONE,
)
def a_kernel_that_does_not_wait_for_its_copy(x, y, *, fixed: numpipe.Static):
    tile, landed = numpipe.scratch((SMEM((64, 64), np.float16), Barrier()))
    numpipe.copy_gmem_to_smem(x.at[ds(0, 64), ds(0, 64)], tile, landed)
    y[ds(0, 64), ds(0, 64)] = numpipe.zeros((64, 64), np.float32) + 1.0
    if fixed:
        numpipe.barrier_wait(landed)
