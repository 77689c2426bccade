"""Hazards of tiles that are handed over without a wait, an arrival or a place: the report names the
barrier that is missing, in every schedule."""

from __future__ import annotations

import numpy as np

import numpipe
from numpipe import SMEM, Barrier, BlockSpec, ClusterBarrier, ds

from .catalogue import F32, integers, kernel, zeros

X = integers(64, 192)
SUM = X.reshape(64, 3, 64).astype(F32).sum(axis=1)
PAIR = integers(128, 64, dtype=F32)


@kernel(
    X,
    zeros(64, 64, dtype=F32),
    hazard="read-before-ready",
    says=r"barrier_wait for barrier @ \S+(?: \(0\))?, phase 1",
    gives=SUM,
    num_compute_wgs=2,
    warp_specialized=False,
)
def a_step_that_does_not_wait_for_its_tile(x, y, *, fixed: numpipe.Static):
    wg = numpipe.axis_index("wg")
    tile, landed, free = numpipe.scratch((SMEM((64, 64), np.float16), Barrier(), Barrier()))
    if wg == 0:
        for k in range(3):
            if k > 0:
                numpipe.barrier_wait(free)
            numpipe.copy_gmem_to_smem(x.at[ds(0, 64), ds(k * 64, 64)], tile, landed)
        numpipe.barrier_wait(free)
    else:
        acc = numpipe.zeros((64, 64), np.float32)
        for k in range(3):
            if fixed or k != 1:
                numpipe.barrier_wait(landed)
            acc = acc + tile[...].astype(np.float32)
            numpipe.barrier_arrive(free)
        y[ds(0, 64), ds(0, 64)] = acc


@kernel(
    PAIR,
    zeros(128, 64, dtype=F32),
    hazard="refilled-while-read",
    says=r"fix: +barrier_arrive on a ClusterBarrier by the CTA that has read",
    gives=np.concatenate([PAIR[64:], PAIR[:64]]),
    grid=2,
    cluster=2,
    cluster_names="pair",
)
def a_copy_that_lands_where_a_peer_still_loads(x, y, *, fixed: numpipe.Static):
    tile, landed, there, read = numpipe.scratch(
        (
            SMEM((64, 32), np.float32),
            Barrier(),
            ClusterBarrier("pair", orders_stores=True),
            ClusterBarrier("pair"),
        )
    )
    rank = numpipe.axis_index("pair")
    for k in range(2):
        numpipe.copy_gmem_to_smem(x.at[ds(rank * 64, 64), ds(k * 32, 32)], tile, landed)
        numpipe.barrier_wait(landed)
        numpipe.barrier_arrive(there)
        numpipe.barrier_wait(there)
        y[ds(rank * 64, 64), ds(k * 32, 32)] = numpipe.cluster_ref(
            tile, cluster_idx=1 - rank, cluster_dim="pair"
        )[...]
        if fixed:
            numpipe.barrier_arrive(read)
            numpipe.barrier_wait(read)


@kernel(
    PAIR,
    zeros(64, 64, dtype=F32),
    hazard="unordered-accesses",
    says=r"fix: +give each sender its own part",
    gives=PAIR[:64] + PAIR[64:],
    grid=2,
    cluster=2,
    cluster_names="pair",
)
def two_ctas_that_send_to_one_place(x, y, *, fixed: numpipe.Static):
    both, landed = numpipe.scratch((SMEM((128, 64), np.float32), Barrier(num_arrivals=2)))
    rank = numpipe.axis_index("pair")
    row = 64 * rank if fixed else 0
    numpipe.async_store_smem(
        x[ds(rank * 64, 64), ds(0, 64)],
        both.at[ds(row, 64), :],
        landed,
        cluster_idx=0,
        cluster_dim="pair",
    )
    if rank == 0:
        numpipe.barrier_wait(landed)
        y[ds(0, 64), ds(0, 64)] = both[ds(0, 64), :] + both[ds(64, 64), :]


@kernel(
    X[:, :128],
    X,
    zeros(64, 64, dtype=F32),
    hazard="read-after-release",
    says=r"fix: +read the tile of step \d before barrier_arrive",
    gives=sum(
        X[:, 64 * i : 64 * i + 64].astype(F32) * X[:, 64 * k : 64 * k + 64]
        for i in range(2)
        for k in range(3)
    ),
)
def an_outer_tile_released_before_the_inner_loop(q, x, y, *, fixed: numpipe.Static):
    acc = numpipe.zeros((64, 64), np.float32)
    outer = numpipe.pipeline(
        grid=(2,),
        max_concurrent_steps=1,
        in_specs=(BlockSpec((64, 64), lambda i: (0, i)),),
        manual_consumed_barriers=True,
    )
    for _, (q_tile,), (free,) in outer(q):
        if not fixed:
            numpipe.barrier_arrive(free)
        inner = numpipe.pipeline(
            grid=(3,), max_concurrent_steps=2, in_specs=(BlockSpec((64, 64), lambda k: (0, k)),)
        )
        for _, (x_tile,) in inner(x):
            acc = acc + q_tile[...].astype(np.float32) * x_tile[...].astype(np.float32)
        if fixed:
            numpipe.barrier_arrive(free)
    y[ds(0, 64), ds(0, 64)] = acc


@kernel(
    zeros(64, 64, dtype=F32),
    hazard="unordered-accesses",
    says=r"fix: +.*inside with numpipe.turn\('tile'\)",
    gives=np.full((64, 64), 7, F32),
    num_compute_wgs=2,
    warp_specialized=False,
)
def a_read_outside_its_turn(y, *, fixed: numpipe.Static):
    wg = numpipe.axis_index("wg")
    tile = numpipe.scratch(SMEM((64, 64), np.float32))
    with numpipe.turn("tile"):
        if wg == 0:
            tile[...] = numpipe.zeros((64, 64), np.float32) + 3.0
        else:
            tile[...] = tile[...] * 2.0 + 1.0
    if fixed:
        with numpipe.turn("tile"):
            if wg == 0:
                y[ds(0, 64), ds(0, 64)] = tile[...]
    else:
        if wg == 0:
            y[ds(0, 64), ds(0, 64)] = tile[...]


@kernel(
    X,
    zeros(64, 64, dtype=F32),
    hazard="unordered-accesses",
    says=r"barrier_wait for barrier @ \S+(?: \(0\))?, phase 0",
    gives=X[:, :64].astype(F32),
    num_compute_wgs=2,
    warp_specialized=False,
)
def a_stored_tile_that_is_not_waited_for(x, y, *, fixed: numpipe.Static):
    wg = numpipe.axis_index("wg")
    tile, there = numpipe.scratch((SMEM((64, 64), np.float16), Barrier()))
    if wg == 0:
        tile[...] = x[ds(0, 64), ds(0, 64)]
        numpipe.barrier_arrive(there)
    else:
        if fixed:
            numpipe.barrier_wait(there)
        y[ds(0, 64), ds(0, 64)] = tile[...].astype(np.float32)


@kernel(
    X,
    zeros(64, 64, dtype=F32),
    hazard="read-before-ready",
    says=r"barrier_wait for barrier @ \S+(?: \(0\))?, phase 0",
    gives=X[:, :64].astype(F32),
    num_compute_wgs=2,
    warp_specialized=False,
)
def a_copied_tile_that_is_not_waited_for(x, y, *, fixed: numpipe.Static):
    wg = numpipe.axis_index("wg")
    tile, landed = numpipe.scratch((SMEM((64, 64), np.float16), Barrier()))
    if wg == 0:
        numpipe.copy_gmem_to_smem(x.at[ds(0, 64), ds(0, 64)], tile, landed)
    else:
        if fixed:
            numpipe.barrier_wait(landed)
        y[ds(0, 64), ds(0, 64)] = tile[...].astype(np.float32)


@kernel(
    X,
    zeros(128, 64, dtype=F32),
    hazard="unordered-accesses",
    says=r"barrier_wait for barrier @ \S+(?: \(0\))?, phase 1",
    gives=np.concatenate([0 * SUM, SUM]),
    num_compute_wgs=2,
    warp_specialized=False,
)
def a_step_that_does_not_wait_for_a_stored_tile(x, y, *, fixed: numpipe.Static):
    wg = numpipe.axis_index("wg")
    tile, there, free = numpipe.scratch((SMEM((64, 64), np.float16), Barrier(), Barrier()))
    acc = numpipe.zeros((64, 64), np.float32)
    for k in range(3):
        if wg == 0:
            tile[...] = x[ds(0, 64), ds(k * 64, 64)]
            numpipe.barrier_arrive(there)
            numpipe.barrier_wait(free)
        else:
            if fixed or k != 1:
                numpipe.barrier_wait(there)
            acc = acc + tile[...].astype(np.float32)
            numpipe.barrier_arrive(free)
    y[ds(64 * wg, 64), ds(0, 64)] = acc


@kernel(
    X,
    np.concatenate([np.eye(64, dtype=np.float16)] * 2, axis=1),
    zeros(128, 64, dtype=F32),
    hazard="refilled-while-read",
    says=r"fix: +barrier_arrive by warpgroup [01] \(compute\) after its wgmma_wait, and "
    r"barrier_wait by warpgroup [01] \(compute\) before the store",
    gives=np.concatenate([2 * SUM, 2 * SUM]),
    num_compute_wgs=2,
    warp_specialized=False,
)
def a_shared_operand_that_is_stored_again(x, twice, y, *, fixed: numpipe.Static):
    wg = numpipe.axis_index("wg")
    operand, full, read = numpipe.scratch(
        (SMEM((128, 64), np.float16), Barrier(num_arrivals=2), Barrier(num_arrivals=2))
    )
    acc = numpipe.zeros((64, 64), np.float32)
    two = twice[ds(0, 64), ds(0, 128)]
    for k in range(3):
        operand[ds(64 * wg, 64), :] = x[ds(0, 64), ds(k * 64, 64)]
        numpipe.commit_smem()
        numpipe.barrier_arrive(full)
        numpipe.barrier_wait(full)
        acc = numpipe.wgmma_wait(numpipe.wgmma(acc, two, operand), 0)
        if fixed:
            numpipe.barrier_arrive(read)
            numpipe.barrier_wait(read)
    y[ds(64 * wg, 64), ds(0, 64)] = acc
