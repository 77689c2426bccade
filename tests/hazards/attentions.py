"""Hazards of attention kernels: operands that share bytes, slots of gradients, pages of a cache,
turns, and parts of sums."""

from __future__ import annotations

import numpy as np

import numpipe
from numpipe import SMEM, Barrier, BlockSpec, PipelineDeadlock, RefUnion, SimulationError, ds

from .catalogue import F16, F32, integers, kernel, zeros

Q, K = integers(128, 64), integers(64, 192)[:, :64]
X = integers(64, 256)
TWO = {"num_compute_wgs": 2, "warp_specialized": False}
EYE = np.eye(64, dtype=F16)


# ---- bytes that operands and results share
@kernel(
    Q,
    K,
    zeros(128, 64),
    hazard="refilled-while-read",
    says=r"fix: +barrier_arrive by warpgroup [01] \(compute\) after its wgmma_wait, and "
    r"barrier_wait "
    r"by warpgroup [01] \(compute\) before the store",
    gives=(Q.astype(F32) @ K.astype(F32)).astype(F16)[np.r_[64:128, :64]],
    **TWO,
)
def an_output_stored_over_rows_of_q_of_another_warpgroup(q, k, y, *, fixed: numpipe.Static):
    wg = numpipe.axis_index("wg")
    (q_tile, o_tile), k_tile = numpipe.scratch(
        (
            RefUnion(SMEM((128, 64), np.float16), SMEM((128, 64), np.float16)),
            SMEM((64, 64), np.float16),
        )
    )
    landed, done = numpipe.scratch((Barrier(num_arrivals=2), Barrier(num_arrivals=2)))
    if wg == 0:
        numpipe.copy_gmem_to_smem(q.at[ds(0, 128), ds(0, 64)], q_tile, landed)
        numpipe.copy_gmem_to_smem(k.at[ds(0, 64), ds(0, 64)], k_tile, landed)
    numpipe.barrier_wait(landed)
    s = numpipe.wgmma(None, q_tile.at[ds(64 * wg, 64), :], k_tile)
    s = numpipe.wgmma_wait(s, 0)
    if fixed:
        numpipe.barrier_arrive(done)
        numpipe.barrier_wait(done)
    # the other half, so that a transposed grid of heads is contiguous
    o_tile[ds(64 - 64 * wg, 64), :] = s.astype(np.float16)
    numpipe.commit_smem()
    numpipe.copy_smem_to_gmem(
        o_tile.at[ds(64 - 64 * wg, 64), :], y.at[ds(64 - 64 * wg, 64), ds(0, 64)]
    )


@kernel(
    X,
    zeros(64, 64, dtype=F32),
    hazard="refilled-while-read",
    says=r"fix: +wgmma_wait\(0\), then commit_smem, before the copy: batch 1 may still read",
    gives=(X[:, :64].astype(F32) @ X[:, 64:128].astype(F32)).astype(F16).astype(F32)
    @ X[:, 128:192].astype(F32),
    compiler_params=numpipe.CompilerParams(unsafe_no_auto_barriers=True),
)
def v_loaded_over_k_before_the_scores_are_there(x, y, *, fixed: numpipe.Static):
    q_tile, (k_tile, v_tile), landed = numpipe.scratch(
        (
            SMEM((64, 64), np.float16),
            RefUnion(SMEM((64, 64), np.float16), SMEM((64, 64), np.float16)),
            Barrier(num_arrivals=2),
        )
    )
    v_landed = numpipe.scratch(Barrier())
    numpipe.copy_gmem_to_smem(x.at[ds(0, 64), ds(0, 64)], q_tile, landed)
    numpipe.copy_gmem_to_smem(x.at[ds(0, 64), ds(64, 64)], k_tile, landed)
    numpipe.barrier_wait(landed)
    s = numpipe.wgmma(None, q_tile, k_tile)
    if fixed:
        s = numpipe.wgmma_wait(s, 0)
        numpipe.commit_smem()
    numpipe.copy_gmem_to_smem(x.at[ds(0, 64), ds(128, 64)], v_tile, v_landed)
    s = numpipe.wgmma_wait(s, 0)
    numpipe.barrier_wait(v_landed)
    y[ds(0, 64), ds(0, 64)] = numpipe.wgmma_wait(
        numpipe.wgmma(None, s.astype(np.float16), v_tile), 0
    )


@kernel(
    X,
    zeros(64, 128),
    hazard="refilled-while-read",
    says=r"fix: +wait_smem_to_gmem\(0, wait_read_only=True\) after the group's commit",
    gives=2 * X[:, :128],
)
def the_next_q_loaded_over_an_output_that_is_being_stored(x, y, *, fixed: numpipe.Static):
    (q_tile, o_tile), landed = numpipe.scratch(
        (RefUnion(SMEM((64, 64), np.float16), SMEM((64, 64), np.float16)), Barrier())
    )
    for head in range(2):
        if fixed and head > 0:
            numpipe.wait_smem_to_gmem(0, wait_read_only=True)
        numpipe.copy_gmem_to_smem(x.at[ds(0, 64), ds(64 * head, 64)], q_tile, landed)
        numpipe.barrier_wait(landed)
        o = q_tile[...] * 2
        o_tile[...] = o
        numpipe.commit_smem()
        numpipe.copy_smem_to_gmem(o_tile, y.at[ds(0, 64), ds(64 * head, 64)])


# ---- gradients
@kernel(
    X,
    zeros(64, 64, dtype=F32),
    hazard="unordered-accesses",
    says=r"fix: +barrier_arrive by warpgroup 1 \(compute\) after its read, and barrier_wait by "
    r"warpgroup 0 \(compute\) before the store",
    gives=X.reshape(64, 4, 64).astype(F32).sum(axis=1),
    **TWO,
)
def a_slot_of_ds_stored_a_step_too_early(x, y, *, fixed: numpipe.Static):
    wg = numpipe.axis_index("wg")
    slots, full, free = numpipe.scratch(
        (SMEM((2, 64, 64), np.float16), Barrier(num_barriers=2), Barrier(num_barriers=2))
    )
    acc = numpipe.zeros((64, 64), np.float32)
    for k in range(4):
        if wg == 0:
            if fixed and k > 1:
                numpipe.barrier_wait(free.at[k % 2])
            slots.at[k % 2][...] = x[ds(0, 64), ds(64 * k, 64)]
            numpipe.barrier_arrive(full.at[k % 2])
            if not fixed and k > 1:
                numpipe.barrier_wait(free.at[k % 2])
        else:
            numpipe.barrier_wait(full.at[k % 2])
            acc = acc + slots.at[k % 2][...].astype(np.float32)
            if k < 2:
                numpipe.barrier_arrive(free.at[k % 2])
    if wg == 1:
        y[ds(0, 64), ds(0, 64)] = acc


@kernel(
    X,
    zeros(128, 64, dtype=F32),
    hazard="store-source-reused",
    says=r"fix: +barrier_arrive by warpgroup 0 \(compute\) after its wait_smem_to_gmem\(0, "
    r"wait_read_only=True\), and barrier_wait by warpgroup 1 \(compute\) before the store",
    gives=np.tile(X[:, :64].astype(F32) + X[:, 64:128], (2, 1)),
    **TWO,
)
def dq_written_again_after_a_wait_of_the_wrong_warpgroup(x, y, *, fixed: numpipe.Static):
    wg = numpipe.axis_index("wg")
    dq, there, free = numpipe.scratch(
        (SMEM((128, 64), np.float32), Barrier(num_arrivals=2), Barrier())
    )
    for k in range(2):
        dq[ds(64 * wg, 64), :] = x[ds(0, 64), ds(64 * k, 64)].astype(np.float32)
        numpipe.commit_smem()
        numpipe.barrier_arrive(there)
        numpipe.barrier_wait(there)
        if wg == 0:
            numpipe.copy_smem_to_gmem(dq, y.at[ds(0, 128), ds(0, 64)], reduction_op="add")
        numpipe.wait_smem_to_gmem(0, wait_read_only=True)
        if fixed:
            if wg == 0:
                numpipe.barrier_arrive(free)
            numpipe.barrier_wait(free)


@kernel(
    X,
    zeros(64, 64, dtype=F32),
    hazard="too-few-arrivals",
    says=r"did not arrive on consumed\[0\] for in_specs\[0\] 'x' .* for step 2.*every compute "
    r"warpgroup arrives once on each consumed barrier of a step",
    error=PipelineDeadlock,
    gives=X[:, :192].reshape(64, 3, 64).astype(F32).sum(axis=1),
)
def a_slot_released_a_step_later_but_for_the_last(x, y, *, fixed: numpipe.Static):
    acc = numpipe.zeros((64, 64), np.float32)
    pipe = numpipe.pipeline(
        grid=(3,),
        max_concurrent_steps=2,
        manual_consumed_barriers=True,
        in_specs=(BlockSpec((64, 64), lambda k: (0, k)),),
    )
    for (k,), (tile,), (free,) in pipe(x):
        acc = acc + tile[...].astype(np.float32)
        if fixed or k < 2:
            numpipe.barrier_arrive(free)
    y[ds(0, 64), ds(0, 64)] = acc


# ---- pages of a cache
@kernel(
    X,
    np.array([1], np.int32),
    zeros(64, 64, dtype=F32),
    hazard="uninitialised-read",
    says=r"bytes have not been written: store to these bytes, .* before the read",
    gives=X[:, :64].astype(F32),
)
def a_page_that_its_predicate_leaves_out(x, pages, y, *, fixed: numpipe.Static):
    slots, landed = numpipe.scratch((SMEM((2, 64, 64), np.float16), Barrier(num_barriers=2)))
    acc = numpipe.zeros((64, 64), np.float32)
    for k in range(2):
        numpipe.copy_gmem_to_smem(
            x.at[ds(0, 64), ds(64 * k, 64)],
            slots.at[k],
            landed.at[k],
            predicate=k < pages[0],
        )
    for k in range(2):
        numpipe.barrier_wait(landed.at[k])
        if not fixed or k < pages[0]:
            acc = acc + slots.at[k][...].astype(np.float32)
    y[ds(0, 64), ds(0, 64)] = acc


@kernel(
    X,
    zeros(64, 64, dtype=F32),
    hazard="too-few-arrivals",
    says=r"fix: +one arrival \(barrier_arrive, or a copy\) more in phase 0 of barrier @ "
    r"attentions.py:\d+ before the wait for it",
    gives=X[:, :64].astype(F32) @ X[:, 64:128].astype(F32),
    error=PipelineDeadlock,
)
def keys_waited_for_before_the_values_are_copied(x, y, *, fixed: numpipe.Static):
    keys, values, landed = numpipe.scratch(
        (SMEM((64, 64), np.float16), SMEM((64, 64), np.float16), Barrier(num_arrivals=2))
    )
    numpipe.copy_gmem_to_smem(x.at[ds(0, 64), ds(0, 64)], keys, landed)
    if not fixed:
        numpipe.barrier_wait(landed)
    numpipe.copy_gmem_to_smem(x.at[ds(0, 64), ds(64, 64)], values, landed)
    if fixed:
        numpipe.barrier_wait(landed)
    y[ds(0, 64), ds(0, 64)] = numpipe.wgmma_wait(numpipe.wgmma(None, keys, values), 0)


# ---- turns and parts
@kernel(
    X,
    zeros(64, 64, dtype=F32),
    hazard="deadlock",
    says=r"fix: +every compute warpgroup must .*must not wait inside one for work that another "
    r"warpgroup does after its own block",
    gives=X[:, :64].astype(F32),
    error=PipelineDeadlock,
    **TWO,
)
def a_wait_in_a_turn_for_what_the_next_turn_brings(x, y, *, fixed: numpipe.Static):
    wg = numpipe.axis_index("wg")
    tile, there = numpipe.scratch((SMEM((64, 64), np.float16), Barrier()))
    with numpipe.turn("tile"):
        if wg == (0 if fixed else 1):
            tile[...] = x[ds(0, 64), ds(0, 64)]
            numpipe.barrier_arrive(there)
        else:
            numpipe.barrier_wait(there)
            y[ds(0, 64), ds(0, 64)] = tile[...].astype(np.float32)


@kernel(
    X,
    zeros(64, 64, dtype=F32),
    hazard="cta-conflict",
    says=r"fix: +initialize the array before the kernel.*all CTAs use the same reduction_op",
    gives=X.reshape(64, 4, 64)[:, :2].astype(F32).sum(axis=1),
    error=SimulationError,
    grid=2,
)
def a_first_part_that_stores_where_the_second_adds(x, y, *, fixed: numpipe.Static):
    part = numpipe.program_id(0)
    tile = x[ds(0, 64), ds(64 * part, 64)].astype(np.float32)
    if fixed or part == 1:
        numpipe.atomic_add(y.at[ds(0, 64), ds(0, 64)], tile)
    else:
        y[ds(0, 64), ds(0, 64)] = tile
