"""Hazards of warpgroups, CTAs and GPUs that share work: branches and predicates, copies for a
cluster, shards of a gather, outputs of a storing role, and memory that only one of them has."""

from __future__ import annotations

import numpy as np

import numpipe
from numpipe import (
    SMEM,
    Barrier,
    BlockSpec,
    CompilerParams,
    PipelineDeadlock,
    SimulationError,
    ds,
)

from .catalogue import F16, F32, integers, kernel, zeros

X = integers(64, 256)
HALVES = X[:, :128].astype(F32)
TWO = {"num_compute_wgs": 2, "warp_specialized": False}
PAIR = {"grid": 2, "cluster": 2, "cluster_names": "pair"}
STORED = CompilerParams(store_role=True)


# ---- branches by warpgroup
@kernel(
    X,
    zeros(128, 64, dtype=F32),
    hazard="too-few-arrivals",
    says=r"fix: +one arrival \(barrier_arrive, or a copy\) more in phase 0 of barrier @ "
    r"teams.py:\d+ by "
    r"warpgroup 1 \(compute\) before the wait for it",
    gives=np.concatenate([HALVES[:, 64:], HALVES[:, :64]]),
    error=PipelineDeadlock,
    **TWO,
)
def an_arm_that_does_not_arrive(x, y, *, fixed: numpipe.Static):
    wg = numpipe.axis_index("wg")
    tiles, met = numpipe.scratch((SMEM((128, 64), np.float16), Barrier(num_arrivals=2)))
    if wg == 0:
        tiles[ds(0, 64), :] = x[ds(0, 64), ds(0, 64)]
        numpipe.barrier_arrive(met)
    else:
        tiles[ds(64, 64), :] = x[ds(0, 64), ds(64, 64)]
        if fixed:
            numpipe.barrier_arrive(met)
    numpipe.barrier_wait(met)
    y[ds(64 * wg, 64), ds(0, 64)] = tiles[ds(64 - 64 * wg, 64), :].astype(np.float32)


@kernel(
    X,
    zeros(64, 64, dtype=F32),
    hazard="too-few-arrivals",
    says=r"fix: +one arrival \(barrier_arrive, or a copy\) in phase 2 of barrier @ "
    r"teams.py:\d+ \(0\) by "
    r"warpgroup 0",
    gives=X[:, :192].reshape(64, 3, 64).astype(F32).sum(axis=1),
    error=PipelineDeadlock,
    **TWO,
)
def an_arm_with_a_round_too_few(x, y, *, fixed: numpipe.Static):
    tile, full, free = numpipe.scratch((SMEM((64, 64), np.float16), Barrier(), Barrier()))
    if numpipe.axis_index("wg") == 0:
        for k in range(3 if fixed else 2):
            numpipe.copy_gmem_to_smem(x.at[ds(0, 64), ds(64 * k, 64)], tile, full)
            numpipe.barrier_wait(full)
            numpipe.barrier_wait(free)
    else:
        acc = numpipe.zeros((64, 64), np.float32)
        for _ in range(3):
            numpipe.barrier_wait(full)
            acc = acc + tile[...].astype(np.float32)
            numpipe.barrier_arrive(free)
        y[ds(0, 64), ds(0, 64)] = acc


@kernel(
    X,
    zeros(128, 64, dtype=F32),
    hazard="too-many-arrivals",
    says=r"or num_arrivals=2",
    gives=np.tile(HALVES[:, :64], (2, 1)),
    error=SimulationError,
    **TWO,
)
def a_copy_left_out_that_arrives_nevertheless(x, y, *, fixed: numpipe.Static):
    wg = numpipe.axis_index("wg")
    tile, landed = numpipe.scratch(
        (SMEM((64, 64), np.float16), Barrier(num_arrivals=2 if fixed else 1))
    )
    numpipe.copy_gmem_to_smem(x.at[ds(0, 64), ds(0, 64)], tile, landed, predicate=wg == 0)
    numpipe.barrier_wait(landed)
    y[ds(64 * wg, 64), ds(0, 64)] = tile[...].astype(np.float32)


@kernel(
    X,
    zeros(64, 64, dtype=F32),
    hazard="uninitialised-read",
    says=r"run_scoped gives each warpgroup bytes of its own, unless collective_axes=",
    gives=HALVES[:, :64],
    **TWO,
)
def scratch_that_each_warpgroup_has_for_itself(x, y, *, fixed: numpipe.Static):
    wg = numpipe.axis_index("wg")
    there = numpipe.scratch(Barrier(num_arrivals=2))

    def body(tile):
        if wg == 0:
            tile[...] = x[ds(0, 64), ds(0, 64)]
        numpipe.barrier_arrive(there)
        numpipe.barrier_wait(there)
        if wg == 1:
            y[ds(0, 64), ds(0, 64)] = tile[...].astype(np.float32)

    if fixed:
        numpipe.run_scoped(body, SMEM((64, 64), np.float16), collective_axes="wg")
    else:
        numpipe.run_scoped(body, SMEM((64, 64), np.float16))


@kernel(
    X,
    zeros(128, 64, dtype=F32),
    hazard="too-few-arrivals",
    says=r"more in phase 1 of barrier @ teams.py:\d+ by warpgroup 0 \(compute\) before the "
    r"wait for it",
    gives=np.concatenate([HALVES[:, :64], HALVES[:, :64] + HALVES[:, 64:]]),
    error=PipelineDeadlock,
    num_compute_wgs=2,
    wg_axis="wg",
)
def a_meeting_in_steps_that_one_warpgroup_lacks(x, y, *, fixed: numpipe.Static):
    wg = numpipe.axis_index("wg")
    met = numpipe.scratch(Barrier(num_arrivals=2))
    acc = numpipe.zeros((64, 64), np.float32)
    pipe = numpipe.pipeline(
        grid=(2,),
        steps_of=lambda wg: wg + 1,
        in_specs=(BlockSpec((64, 64), lambda k: (0, k)),),
    )
    for (k,), (tile,) in pipe(x):
        acc = acc + tile[...].astype(np.float32)
        if not fixed or k == 0:
            numpipe.barrier_arrive(met)
            numpipe.barrier_wait(met)
    y[ds(64 * wg, 64), ds(0, 64)] = acc


# ---- clusters
@kernel(
    X,
    zeros(128, 64, dtype=F32),
    hazard="multicast-mismatch",
    says=r"fix: +copy_gmem_to_smem\(…, collective_axes=…\) by all CTAs along the axes",
    gives=np.tile(HALVES[:, :64], (2, 1)),
    error=PipelineDeadlock,
    **PAIR,
)
def a_shared_copy_that_one_cta_issues(x, y, *, fixed: numpipe.Static):
    rank = numpipe.axis_index("pair")
    tile, landed = numpipe.scratch((SMEM((64, 64), np.float16), Barrier()))
    if fixed or rank == 0:
        numpipe.copy_gmem_to_smem(x.at[ds(0, 64), ds(0, 64)], tile, landed, collective_axes="pair")
    numpipe.barrier_wait(landed)
    y[ds(64 * rank, 64), ds(0, 64)] = tile[...].astype(np.float32)


# ---- two GPUs
BOTH = np.stack([X[:, :64], X[:, :64] + 1]).astype(F16)


@kernel(
    X[:, :64],
    zeros(64, 64),
    zeros(64, 64),
    hazard="gpu-conflict",
    says=r"of GPU (0 signals a semaphore of GPU 1|1 signals a semaphore of GPU 0) after "
    r"its access",
    gives=BOTH[::-1],
    gpus=2,
)
def a_shard_signalled_to_oneself(x, y, z, ready, *, fixed: numpipe.Static):
    me = numpipe.axis_index("gpu")
    other = 1 - me
    numpipe.peer(y, other)[ds(0, 64), ds(0, 64)] = x[ds(0, 64), ds(0, 64)]
    numpipe.signal(ready.at[0], other if fixed else me)
    numpipe.wait(ready.at[0], 1)
    z[ds(0, 64), ds(0, 64)] = y[ds(0, 64), ds(0, 64)]
    if not fixed:
        numpipe.signal(ready.at[1], other)
        numpipe.wait(ready.at[1], 1)


@kernel(
    X[:, :64],
    zeros(64, 64),
    zeros(64, 64),
    hazard="gpu-conflict",
    says=r"fix: +warpgroup 0 .* of GPU \d signals a semaphore of GPU \d after its access",
    gives=BOTH[::-1],
    gpus=2,
    **TWO,
)
def a_shard_signalled_by_another_warpgroup_than_stores(x, y, z, ready, *, fixed: numpipe.Static):
    other, wg = 1 - numpipe.axis_index("gpu"), numpipe.axis_index("wg")
    stored = numpipe.scratch(Barrier())
    if wg == 0:
        numpipe.peer(y, other)[ds(0, 64), ds(0, 64)] = x[ds(0, 64), ds(0, 64)]
        if fixed:
            numpipe.signal(ready.at[0], other)
        numpipe.barrier_arrive(stored)
    else:
        numpipe.barrier_wait(stored)
        if not fixed:
            numpipe.signal(ready.at[0], other)
        numpipe.wait(ready.at[0], 1)
        z[ds(0, 64), ds(0, 64)] = y[ds(0, 64), ds(0, 64)]


@kernel(
    X[:, :64],
    zeros(128, 64),
    hazard="gpu-conflict",
    says=r"fix: +give each its own blocks: a ds\(start, size\) that depends on "
    r"numpipe.axis_index",
    gives=np.stack([BOTH.reshape(128, 64)] * 2),
    gpus=2,
)
def both_shards_in_the_place_of_the_receiver(x, y, ready, *, fixed: numpipe.Static):
    me = numpipe.axis_index("gpu")
    for rank in range(2):
        row = 64 * (me if fixed else rank)
        numpipe.peer(y, rank)[ds(row, 64), ds(0, 64)] = x[ds(0, 64), ds(0, 64)]
        numpipe.signal(ready.at[0], rank)
    numpipe.wait(ready.at[0], 2)


# ---- outputs of a pipeline
@kernel(
    X,
    zeros(64, 128),
    hazard="uninitialised-read",
    says=r"have not been written since TMA store \(y\).*write all of an output tile in every block",
    gives=X[:, :128] + X[:, 128:],
)
def a_sum_in_an_output_that_has_left(x, y, *, fixed: numpipe.Static):
    pipe = numpipe.pipeline(
        grid=(2, 2),
        in_specs=(
            BlockSpec(
                (64, 64), (lambda i, k: (0, i + 2 * k)) if fixed else (lambda k, i: (0, i + 2 * k))
            ),
        ),
        out_specs=(BlockSpec((64, 64), (lambda i, k: (0, i)) if fixed else (lambda k, i: (0, i))),),
    )
    for (outer, inner), (tile, total) in pipe(x, y):
        if (inner if fixed else outer) == 0:
            total[...] = tile[...]
        else:
            total[...] += tile[...]


@kernel(
    X[:, :64],
    zeros(64, 64),
    zeros(64, 64),
    hazard="array-in-transfer",
    says=r"or use the stored value instead of the load",
    gives=2 * X[:, :64],
    compiler_params=STORED,
)
def a_block_read_that_another_role_stores(x, y, z, *, fixed: numpipe.Static):
    tile = x[ds(0, 64), ds(0, 64)] * 2
    y[ds(0, 64), ds(0, 64)] = tile
    z[ds(0, 64), ds(0, 64)] = tile if fixed else y[ds(0, 64), ds(0, 64)]


@kernel(
    X,
    zeros(64, 192),
    hazard="array-in-transfer",
    says=r"or only one store to each block",
    gives=np.concatenate([X[:, :128], X[:, 128:192]], axis=1),
    compiler_params=STORED,
)
def windows_of_an_output_that_overlap(x, y, *, fixed: numpipe.Static):
    side = 64 if fixed else 32
    pipe = numpipe.pipeline(
        grid=(3,),
        in_specs=(BlockSpec((64, 64), lambda k: (0, k)),),
        out_specs=(BlockSpec((64, numpipe.Element(64)), lambda k: (0, side * k)),),
    )
    for _, (tile, out) in pipe(x, y):
        out[...] = tile[...]
