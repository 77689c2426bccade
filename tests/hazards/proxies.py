"""Hazards of ordinary stores: read by TMA or wgmma without a fence, and unordered accesses of
different warps."""

from __future__ import annotations

from typing import Any

import numpy as np

import numpipe
from numpipe import SMEM, Barrier, BlockSpec, ds
from numpipe.core.lanes import each_warp, one_lane
from numpipe.core.machine import current
from numpipe.intrinsics import barrier, cp_async_bulk, fence, mbarrier, memory, wgmma
from tests.kernels.sim_pipelines import panel_chunks

from .catalogue import BARE, F16, F32, integers, kernel, machine, zeros

X = integers(64, 64)
ONE = np.ones((64, 64), F16)
SQUARE = X.astype(F32) @ X.astype(F32)
FIX = "commit_smem \\(fence.proxy.async by every warp that wrote, then a barrier\\)"


# ---- stores that the async proxy does not see
@kernel(
    zeros(64, 64),
    hazard="unfenced-writes",
    says=r"TMA store \(y\) reads SMEM.* while write \(tile\[…\] = value\).*did not fence.*fix: "
    rf"+{FIX} before the copy",
    gives=ONE,
    compiler_params=BARE,
)
def stored_without_commit_smem(y, *, fixed: numpipe.Static):
    tile = numpipe.scratch(SMEM((64, 64), np.float16))
    tile[...] = (numpipe.zeros((64, 64), np.float32) + 1.0).astype(np.float16)
    if fixed:
        numpipe.commit_smem()
    numpipe.copy_smem_to_gmem(tile, y.at[ds(0, 64), ds(0, 64)])


@kernel(
    X,
    zeros(64, 64, dtype=F32),
    hazard="unfenced-writes",
    says=rf"wgmma \(batch 1\) reads SMEM.* while write \(tile\[…\] = value\).*fix: +{FIX} before "
    r"the wgmma",
    gives=SQUARE,
    num_compute_wgs=2,
    warp_specialized=False,
)
def multiplied_after_another_warpgroup_wrote(x, y, *, fixed: numpipe.Static):
    tile, landed, copy, written = numpipe.scratch(
        (SMEM((64, 64), np.float16), Barrier(), SMEM((64, 64), np.float16), Barrier())
    )
    wg = numpipe.axis_index("wg")
    if wg == 1:
        numpipe.copy_gmem_to_smem(x.at[ds(0, 64), ds(0, 64)], tile, landed)
        numpipe.barrier_wait(landed)
        copy[...] = tile[...]
        if fixed:
            numpipe.commit_smem()
        numpipe.barrier_arrive(written)
    else:
        numpipe.barrier_wait(written)
        y[ds(0, 64), ds(0, 64)] = numpipe.wgmma_wait(
            numpipe.wgmma(numpipe.zeros((64, 64), np.float32), copy, copy), 0
        )


def put(value):
    """Write a 64 x 64 panel at 0 from all warps, each its own rows."""
    values = np.full((64, 64), value, F16).view(np.uint8).reshape(4, 128, 16)
    current().smem_write(panel_chunks(0), values, "stmatrix")


def send(out):
    cp_async_bulk.store(out, (0, 0), 0)
    cp_async_bulk.commit_group()
    cp_async_bulk.wait_group(0)


@machine(
    "unfenced-writes",
    rf"TMA store \(out\) reads SMEM.* while write \(stmatrix\).*did not fence.*fix: +{FIX}",
    gives=ONE,
)
def fenced_by_the_storing_lane_alone(fixed, out):
    put(1)
    if fixed:
        fence.proxy_async()
    barrier.sync(0, 128)
    one_lane(fence.proxy_async)
    one_lane(send, out)


@machine(
    "unfenced-writes",
    rf"TMA store \(out\) reads SMEM.* while write \(stmatrix\).*did not fence.*fix: +{FIX}",
    gives=ONE,
)
def fenced_behind_the_barrier(fixed, out):
    put(1)
    if fixed:
        fence.proxy_async()
        barrier.sync(0, 128)
    else:
        barrier.sync(0, 128)
        fence.proxy_async()
    one_lane(send, out)


# ---- other warps
@machine(
    "unordered-accesses",
    r"TMA store \(out\) reads SMEM.* while write \(stmatrix\).*no barrier orders warp 1 .*fix: "
    r"+add a barrier between the two",
    gives=ONE,
)
def fenced_and_no_barrier_before_the_store(fixed, out):
    put(1)
    fence.proxy_async()
    if fixed:
        barrier.sync(0, 128)
    one_lane(send, out)


@machine(
    "unordered-accesses",
    r"wgmma \(batch 1\) reads SMEM.* while write \(stmatrix\).*no barrier orders warp \d.*fix: "
    r"+add a barrier between the two: commit_smem",
    gives=np.full((64, 64), 64, F32),
)
def fenced_and_no_barrier_before_the_product(fixed, out):
    put(1)
    fence.proxy_async()
    if fixed:
        barrier.sync(0, 128)
    a = wgmma.descriptor(0, 16, 1024, 128)
    acc = wgmma.fence_accumulators(wgmma.accumulators(64))
    for k in range(4):
        acc = wgmma.mma_async(acc, a + 2 * k, a + 2 * k, "f16", "k", "k")
    wgmma.commit_group()
    out.array[...] = wgmma.wait(acc, 0)


@kernel(
    X,
    zeros(64, 64),
    hazard="unordered-accesses",
    says=r"read \(tile\[…\]\) reads SMEM.* while write \(tile\[…\] = value\).*no barrier orders "
    r"warp.*fix: +add a barrier between the two: commit_smem",
    gives=X.T,
    compiler_params=BARE,
    warp_specialized=False,
)
def turned_without_a_barrier(x, y, *, fixed: numpipe.Static):
    tile = numpipe.scratch(SMEM((64, 64), np.float16))
    for _, (x_tile,) in numpipe.pipeline(
        grid=(1,), in_specs=(BlockSpec((64, 64), lambda k: (0, 0)),)
    )(x):
        tile[...] = x_tile[...]
        if fixed:
            numpipe.commit_smem()
        y[ds(0, 64), ds(0, 64)] = tile.T[...]


@kernel(
    X,
    zeros(64, 64),
    hazard="unordered-accesses",
    says=r"write \(tile\[…\] = value\) writes SMEM.* while read \(tile\[…\]\).*no barrier "
    r"orders.*fix: +add a barrier",
    gives=X.T,
    compiler_params=BARE,
    warp_specialized=False,
)
def turned_in_place_without_a_barrier(x, y, *, fixed: numpipe.Static):
    tile, landed = numpipe.scratch((SMEM((64, 64), np.float16), Barrier()))
    numpipe.copy_gmem_to_smem(x.at[ds(0, 64), ds(0, 64)], tile, landed)
    numpipe.barrier_wait(landed)
    value = tile.T[...]
    if fixed:
        numpipe.commit_smem()
    tile[...] = value
    y[ds(0, 64), ds(0, 64)] = tile[...]


@kernel(
    zeros(128, 64),
    hazard="unordered-accesses",
    says=r"write \(tile\[…\] = value\) writes SMEM.* while write \(tile\[…\] = value\) of "
    r"warpgroup [01].*fix: +add a barrier between the two",
    gives=np.ones((128, 64), F16),
    num_compute_wgs=2,
)
def both_warpgroups_write_one_half(y, *, fixed: numpipe.Static):
    wg = numpipe.axis_index("wg")
    part = wg * 64 if fixed else wg * 0
    for _, (tile,) in numpipe.pipeline(
        grid=(1,), out_specs=(BlockSpec((128, 64), lambda k: (0, 0)),)
    )(y):
        tile[ds(part, 64), :] = (numpipe.zeros((64, 64), np.float32) + 1.0).astype(np.float16)


@kernel(
    zeros(64, 64),
    hazard="unordered-accesses",
    says=r"(read \(tile\[…\]\) reads SMEM.* while write|write \(tile\[…\] = value\) writes SMEM.* "
    r"while read).*fix: .*barrier_arrive after the store and barrier_wait before the read",
    gives=2 * ONE,
    num_compute_wgs=2,
    warp_specialized=False,
)
def read_while_another_warpgroup_writes(y, *, fixed: numpipe.Static):
    wg = numpipe.axis_index("wg")
    tile, first, second = numpipe.scratch((SMEM((64, 64), np.float16), Barrier(), Barrier()))
    if wg == 0:
        tile[...] = (numpipe.zeros((64, 64), np.float32) + 1.0).astype(np.float16)
        numpipe.barrier_arrive(first)
        numpipe.barrier_wait(second)
        tile[...] = (numpipe.zeros((64, 64), np.float32) + 2.0).astype(np.float16)
        if fixed:
            numpipe.barrier_arrive(first)
    else:
        numpipe.barrier_wait(first)
        numpipe.barrier_arrive(second)
        if fixed:
            numpipe.barrier_wait(first)
        y[ds(0, 64), ds(0, 64)] = tile[...]


@machine(
    "unordered-accesses",
    r"(read \(load_word\) reads SMEM\[0:4\) while write \(store_word\)|write \(store_word\) "
    r"writes SMEM\[0:4\) while read \(load_word\)).*no barrier orders warp 0 .*fix: +(add )?a "
    r"barrier between the two",
    gives=np.array([7]),
    warpgroups=2,
)
def a_counter_handed_over_by_another_barrier(fixed, out):
    if current().warpgroup == 0:
        one_lane(memory.store_word, 0, 0)
    barrier.sync(4, 256)
    if current().warpgroup == 0:
        one_lane(memory.store_word, 0, 7)
        barrier.arrive(1, 256)
        barrier.arrive(2, 256)
    else:
        barrier.sync(1 if fixed else 3, 256 if fixed else 128)
        out[0] = memory.load_word(0)
        barrier.sync(2, 256)


# ---- another role stores -------------------------------------------------------------------------
FILLED, FREE = 61440, 61448


def declared() -> None:
    current().mbar_init_at_entry(FILLED, 4, "filled")
    current().mbar_init_at_entry(FREE, 1, "free")


def issued_by_the_other(out: Any, at: int, phase: int) -> None:
    """Wait for the tile, and begin to store it to the rows from `at` on."""
    mbarrier.wait(FILLED, phase, -1)
    cp_async_bulk.store(out, (at, 0), 0)
    cp_async_bulk.commit_group()


def stored_by_the_other(out: Any, at: int, phase: int) -> None:
    """Store the tile, and free it when it has been read."""
    issued_by_the_other(out, at, phase)
    cp_async_bulk.wait_group_read(0)
    mbarrier.arrive(FREE)


TWICE = np.concatenate([ONE, 2 * ONE])


@machine(
    "unfenced-writes",
    rf"TMA store \(out\) reads SMEM.* while write \(stmatrix\).*did not fence.*fix: +{FIX}",
    gives=ONE,
    warpgroups=2,
)
def handed_to_another_role_without_a_fence(fixed, out):
    declared()
    if current().warpgroup == 0:
        put(1)
        if fixed:
            fence.proxy_async()
        each_warp(mbarrier.arrive, FILLED)
    else:
        one_lane(stored_by_the_other, out, 0, 0)
        one_lane(cp_async_bulk.wait_group, 0)


@machine(
    "store-source-reused",
    r"write \(stmatrix\) writes SMEM.* while TMA store \(out\)",
    gives=TWICE,
    warpgroups=2,
)
def a_slot_that_another_role_still_stores(fixed, out):
    """The two know that the first tile has been stored, not that it has been read."""
    declared()
    if current().warpgroup == 0:
        put(1)
        fence.proxy_async()
        each_warp(mbarrier.arrive, FILLED)
        mbarrier.wait(FREE, 0, -1)
        put(2)
        fence.proxy_async()
        each_warp(mbarrier.arrive, FILLED)
    else:
        one_lane(issued_by_the_other, out, 0, 0)
        if fixed:
            one_lane(cp_async_bulk.wait_group_read, 0)
        one_lane(mbarrier.arrive, FREE)
        one_lane(stored_by_the_other, out, 64, 1)
        one_lane(cp_async_bulk.wait_group, 0)
