"""Hazards of kernels over rows: softmax in clusters, norms and their gradients, dropout, top-k,
scans and stencils."""

from __future__ import annotations

import numpy as np

import numpipe
from numpipe import SMEM, Barrier, BlockSpec, ClusterBarrier, Element, SimulationError, ds

from .catalogue import F32, integers, kernel, zeros

X = integers(128, 64, dtype=F32)
UPPER, LOWER = X[:64], X[64:]
WINDOWS = integers(256, 64, dtype=F32)
LABELS = np.where(np.arange(64) == 9, -1, np.arange(64)).astype(np.int32)
I32 = np.dtype(np.int32)
PAIR = {"grid": 2, "cluster": 2, "cluster_names": "pair"}
TWO = {"num_compute_wgs": 2, "warp_specialized": False}
BOTH = {**TWO, "wg_axis": "wg"}


# ---- softmax and RMSNorm of rows that CTAs share
@kernel(
    X,
    zeros(128, 64, dtype=F32),
    hazard="refilled-while-read",
    says=r"does not wait until CTA \([01], 0, 0\) has read the previous data.*fix: +each warp "
    r"that reads the data arrives on a barrier of the sending CTA after its last read",
    gives=X
    - np.tile(np.maximum(UPPER.max(axis=1), LOWER.max(axis=1)), 2)[:, None]
    + np.tile(UPPER.sum(axis=1) + LOWER.sum(axis=1), 2)[:, None],
    **PAIR,
)
def row_sums_sent_over_row_maxima(x, y, *, fixed: numpipe.Static):
    rank = numpipe.axis_index("pair")
    parts, landed, read = numpipe.scratch(
        (SMEM((128,), np.float32), Barrier(num_arrivals=2), ClusterBarrier("pair"))
    )
    tile = x[ds(64 * rank, 64), ds(0, 64)]
    for to in range(2):
        numpipe.async_store_smem(
            tile.max(axis=1),
            parts.at[ds(64 * rank, 64)],
            landed,
            cluster_idx=to,
            cluster_dim="pair",
        )
    numpipe.barrier_wait(landed)
    if not fixed:
        numpipe.barrier_arrive(read)
    m = np.maximum(parts[ds(0, 64)], parts[ds(64, 64)])
    if fixed:
        numpipe.barrier_arrive(read)
    numpipe.barrier_wait(read)
    for to in range(2):
        numpipe.async_store_smem(
            tile.sum(axis=1),
            parts.at[ds(64 * rank, 64)],
            landed,
            cluster_idx=to,
            cluster_dim="pair",
        )
    numpipe.barrier_wait(landed)
    total = parts[ds(0, 64)] + parts[ds(64, 64)]
    y[ds(64 * rank, 64), ds(0, 64)] = tile - m[:, None] + total[:, None]


@kernel(
    X,
    zeros(128, 64, dtype=F32),
    hazard="unordered-accesses",
    says=r"fix: +barrier_arrive after the store, on a ClusterBarrier.*and barrier_wait for "
    r"it before "
    r"the load",
    gives=X * np.concatenate([LOWER.sum(axis=1), UPPER.sum(axis=1)])[:, None],
    **PAIR,
)
def a_row_sum_of_the_peer_that_is_not_waited_for(x, y, *, fixed: numpipe.Static):
    rank = numpipe.axis_index("pair")
    sums, there = numpipe.scratch(
        (SMEM((64,), np.float32), ClusterBarrier("pair", orders_stores=True))
    )
    tile = x[ds(64 * rank, 64), ds(0, 64)]
    sums[...] = tile.sum(axis=1)
    numpipe.barrier_arrive(there)
    if fixed:
        numpipe.barrier_wait(there)
    other = numpipe.cluster_ref(sums, cluster_idx=1 - rank, cluster_dim="pair")[...]
    if not fixed:
        numpipe.barrier_wait(there)
    y[ds(64 * rank, 64), ds(0, 64)] = tile * other[:, None]


@kernel(
    X,
    zeros(128, 64, dtype=F32),
    hazard="too-many-arrivals",
    says=r"the CTA that waits for barrier @ norms.py:\d+ \(0\), the leader, arrives on another "
    r"ClusterBarrier after its wait, and the others wait for that one before they arrive again",
    gives=2 * X,
    error=SimulationError,
    **PAIR,
)
def a_leader_that_does_not_answer(x, y, *, fixed: numpipe.Static):
    rank = numpipe.axis_index("pair")
    ready, go = numpipe.scratch(
        (ClusterBarrier("pair", leader_tracked=True), ClusterBarrier("pair"))
    )
    tile = numpipe.zeros((64, 64), np.float32)
    for _ in range(2):
        tile = tile + x[ds(64 * rank, 64), ds(0, 64)]
        numpipe.barrier_arrive(ready)
        if rank == 0:
            numpipe.barrier_wait(ready)
        if fixed:
            numpipe.barrier_arrive(go)
            numpipe.barrier_wait(go)
    y[ds(64 * rank, 64), ds(0, 64)] = tile


# ---- gradients of a norm's weights
@kernel(
    X,
    zeros(64, dtype=F32),
    hazard="unordered-accesses",
    says=r"fix: +numpipe.atomic_add\(tile.at\[…\], value\), if both add to it",
    gives=X.sum(axis=0),
    **BOTH,
)
def partial_sums_that_two_warpgroups_add_to(x, y, *, fixed: numpipe.Static):
    wg = numpipe.axis_index("wg")
    part, begun, done = numpipe.scratch(
        (SMEM((64,), np.float32), Barrier(num_arrivals=2), Barrier(num_arrivals=2))
    )
    if wg == 0:
        part[...] = numpipe.zeros((64,), np.float32)
    numpipe.barrier_arrive(begun)
    numpipe.barrier_wait(begun)
    mine = x[ds(64 * wg, 64), ds(0, 64)].sum(axis=0)
    if fixed:
        numpipe.atomic_add(part.at[numpipe.iota(64)], mine)
    else:
        part[...] = part[...] + mine
    numpipe.barrier_arrive(done)
    numpipe.barrier_wait(done)
    if wg == 0:
        y[ds(0, 64)] = part[...]


@kernel(
    X,
    zeros(64, dtype=F32),
    hazard="cta-conflict",
    says=r"fix: +numpipe.atomic_add\(array.at\[…\], tile\), if each adds to it",
    gives=X.sum(axis=0),
    grid=2,
)
def sums_of_ctas_that_load_and_store_a_total(x, y, *, fixed: numpipe.Static):
    part = x[ds(64 * numpipe.program_id(0), 64), ds(0, 64)].sum(axis=0)
    if fixed:
        numpipe.atomic_add(y.at[ds(0, 64)], part)
    else:
        y[ds(0, 64)] = y[ds(0, 64)] + part


@kernel(
    X,
    zeros(64, 64, dtype=F32),
    hazard="unordered-accesses",
    says=r"fix: +barrier_arrive on barrier @ norms.py:\d+ by warpgroup 0 \(compute\) after "
    r"the store, "
    r"not before it",
    gives=UPPER - UPPER.sum(axis=1)[:, None],
    **BOTH,
)
def row_sums_announced_before_they_are_stored(x, y, *, fixed: numpipe.Static):
    sums, there = numpipe.scratch((SMEM((64,), np.float32), Barrier()))
    if numpipe.axis_index("wg") == 0:
        total = x[ds(0, 64), ds(0, 64)].sum(axis=1)
        if not fixed:
            numpipe.barrier_arrive(there)
        sums[...] = total
        if fixed:
            numpipe.barrier_arrive(there)
    else:
        numpipe.barrier_wait(there)
        y[ds(0, 64), ds(0, 64)] = x[ds(0, 64), ds(0, 64)] - sums[...][:, None]


# ---- dropout
@kernel(
    X,
    zeros(128, 64, dtype=F32),
    hazard="uninitialised-read",
    says=r"have not been written: store to these bytes, .*before the read.*step 0",
    gives=X,
)
def a_mask_that_the_first_step_does_not_draw(x, y, *, fixed: numpipe.Static):
    mask = numpipe.scratch(SMEM((64, 64), np.float32))
    pipe = numpipe.pipeline(grid=(2,), in_specs=(BlockSpec((64, 64), lambda k: (k, 0)),))
    for (k,), (tile,) in pipe(x):
        if k % 2 == (0 if fixed else 1):
            numbers = numpipe.random(7, numpipe.iota((64, 64), 0) * 64 + numpipe.iota((64, 64), 1))
            mask[...] = np.where(numbers < 2.0, 1.0, 0.0)
        y[ds(64 * k, 64), ds(0, 64)] = tile[...] * mask[...]


# ---- top-k by counting digits
@kernel(
    np.tile(np.arange(64, dtype=I32), 4),
    np.zeros(128, I32),
    hazard="unordered-accesses",
    says=r"fix: +barrier_arrive by warpgroup 1 \(compute\) after its read, and barrier_wait by "
    r"warpgroup 0 \(compute\) before the store",
    gives=np.repeat(np.array([2, 4], I32), 64),
    **BOTH,
)
def bins_cleared_while_another_warpgroup_reads_them(x, y, *, fixed: numpipe.Static):
    wg = numpipe.axis_index("wg")
    bins, met = numpipe.scratch((SMEM((64,), np.int32), Barrier(num_arrivals=2)))
    seen = numpipe.full((64,), 0, np.int32)
    for digit in range(2):
        if wg == 0:
            bins[...] = numpipe.full((64,), 0, np.int32)
        numpipe.barrier_arrive(met)
        numpipe.barrier_wait(met)
        numpipe.atomic_add(bins.at[x[ds(64 * (2 * digit + wg), 64)]], 1)
        numpipe.barrier_arrive(met)
        numpipe.barrier_wait(met)
        seen = seen + bins[...]
        if fixed:
            numpipe.barrier_arrive(met)
            numpipe.barrier_wait(met)
        if wg == digit:
            y[ds(64 * wg, 64)] = seen


# ---- scans and stencils
@kernel(
    np.ones(128, F32),
    np.zeros((1, 128), F32),
    hazard="cta-conflict",
    says=r"signals a semaphore of this GPU, .* after its access",
    gives=np.arange(1, 129, dtype=F32)[None, None] + np.zeros((1, 1, 128), F32),
    gpus=1,
    grid=numpipe.persistent(2),
)
def a_prefix_stored_behind_its_signal(x, y, ready, *, fixed: numpipe.Static):
    cta = numpipe.program_id(0)
    total = np.cumsum(x[ds(64 * cta, 64)].reshape(1, -1), axis=1)
    if cta == 0:
        if not fixed:
            numpipe.signal(ready.at[0], 0)
        y[ds(0, 1), ds(0, 64)] = total
        if fixed:
            numpipe.signal(ready.at[0], 0)
    else:
        numpipe.wait(ready.at[0], 1)
        y[ds(0, 1), ds(64, 64)] = total + y[0, 63]


@kernel(
    X,
    zeros(128, 64, dtype=F32),
    hazard="unordered-accesses",
    says=r"barrier_arrive by warpgroup [01] \(compute\) after its read, and barrier_wait by "
    r"warpgroup [01] \(compute\) before the store",
    gives=np.roll(X, -128, axis=0),
    **BOTH,
)
def rows_stepped_in_place_while_a_neighbor_reads(x, y, *, fixed: numpipe.Static):
    wg = numpipe.axis_index("wg")
    rows, met = numpipe.scratch((SMEM((2, 128, 64), np.float32), Barrier(num_arrivals=2)))
    rows.at[0, ds(64 * wg, 64), :][...] = x[ds(64 * wg, 64), ds(0, 64)]
    for step in range(2):
        numpipe.barrier_arrive(met)
        numpipe.barrier_wait(met)
        old = rows.at[step % 2 if fixed else 0]
        new = rows.at[(step + 1) % 2 if fixed else 0]
        new[ds(64 * wg, 64), :] = old[ds(64 - 64 * wg, 64), :]
    last = rows.at[0]
    y[ds(64 * wg, 64), ds(0, 64)] = last[ds(64 * wg, 64), :]


@kernel(
    WINDOWS,
    WINDOWS,
    hazard="array-in-transfer",
    says=r"TMA (load|store) \([xy]\) (reads|writes) the array.*fix: +a pipeline's "
    r"stores complete when the kernel ends",
    gives=np.concatenate([WINDOWS[:192] + np.r_[0 * WINDOWS[:8], WINDOWS[:184]], WINDOWS[192:]]),
    alias=0,
)
def windows_averaged_in_place(x, y, *, fixed: numpipe.Static):
    pipe = numpipe.pipeline(
        grid=(3,),
        in_specs=(BlockSpec((Element(72), 64), lambda k: (64 * k - 8, 0)),),
        out_specs=(BlockSpec((64, 64), lambda k: (k, 0)),),
    )
    for _, (window, out) in pipe(x, y):
        out[...] = window[ds(0, 64), :] + window[ds(8, 64), :]


@kernel(
    X,
    LABELS,
    zeros(64, 64, dtype=F32),
    hazard="out-of-bounds",
    says=r"index -1 along dimension 1 is outside the array's 64; the GPU reads 0 there: indices in "
    r"0…63",
    gives=np.where(LABELS >= 0, UPPER[:, LABELS], 0),
    error=SimulationError,
)
def a_label_that_is_ignored_by_its_number(x, labels, y, *, fixed: numpipe.Static):
    label = labels[ds(0, 64)]
    picked = x[ds(0, 64), np.maximum(label, 0) if fixed else label]
    y[ds(0, 64), ds(0, 64)] = np.where(label >= 0, picked, 0.0)
