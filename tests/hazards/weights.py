"""Hazards of products with packed or scaled weights, in groups, by mma.sync, and over slots that a
static loop unrolls."""

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

from .catalogue import BARE, F32, integers, kernel, zeros

X = integers(64, 256)
TWO = {"num_compute_wgs": 2, "warp_specialized": False}
WARPS = {"compiler_params": CompilerParams(product="mma.sync")}
NIBBLES = np.random.default_rng(0).integers(0, 256, (64, 96)).astype(np.uint8)


def unpacked(packed: np.ndarray) -> np.ndarray:
    """Return the int4 elements of bytes."""
    parts = np.stack([packed & 15, packed >> 4], axis=-1).astype(np.int8).reshape(len(packed), -1)
    return (parts ^ 8) - np.int8(8)


W4 = unpacked(NIBBLES).astype(F32)
TOKENS = integers(16, 192)


# ---- 4-bit weights
@kernel(
    NIBBLES,
    TOKENS,
    zeros(64, 16, dtype=F32),
    hazard="read-after-release",
    says=r"read \(numpipe.unpack\(.*fix: +read the tile of step 0 before barrier_arrive",
    gives=W4 @ TOKENS.T.astype(F32),
)
def weights_unpacked_behind_their_release(w, x, y, *, fixed: numpipe.Static):
    acc = numpipe.zeros((64, 16), np.float32)
    pipe = numpipe.pipeline(
        grid=(3,),
        max_concurrent_steps=2,
        manual_consumed_barriers=True,
        in_specs=(
            BlockSpec((64, 32), lambda k: (0, k)),
            BlockSpec((16, 64), lambda k: (0, k)),
        ),
    )
    for _, (w_tile, x_tile), (w_free, x_free) in pipe(w, x):
        if not fixed:
            numpipe.barrier_arrive(w_free)
        a = numpipe.unpack(w_tile, "int4", np.float16)
        if fixed:
            numpipe.barrier_arrive(w_free)
        acc = numpipe.wgmma_wait(numpipe.wgmma(acc, a, x_tile.T), 0)
        numpipe.barrier_arrive(x_free)
    y[ds(0, 64), ds(0, 16)] = acc


@kernel(
    NIBBLES,
    TOKENS,
    zeros(64, 16, dtype=F32),
    hazard="refilled-while-read",
    says=r"fix: +wgmma_wait\(1\) and commit_smem before the bytes are written: "
    r"wgmma_wait\(2\) leaves 2 "
    r"groups",
    gives=(W4 @ TOKENS.T.astype(F32)),
)
def unpacked_weights_stored_over_an_operand_in_flight(w, x, y, *, fixed: numpipe.Static):
    acc = numpipe.zeros((64, 16), np.float32)
    wide = numpipe.scratch(SMEM((2, 64, 64), np.float16))
    pipe = numpipe.pipeline(
        grid=(3,),
        max_concurrent_steps=4,
        delay_release=2,
        in_specs=(
            BlockSpec((64, 32), lambda k: (0, k)),
            BlockSpec((16, 64), lambda k: (0, k)),
        ),
    )
    for (k,), (w_tile, x_tile) in pipe(w, x):
        slot = wide.at[k % 2]
        slot[...] = numpipe.unpack(w_tile, "int4", np.float16)
        numpipe.commit_smem()
        acc = numpipe.wgmma(acc, slot, x_tile.T)
        acc = numpipe.wgmma_wait(acc, 1 if fixed else 2)
    y[ds(0, 64), ds(0, 16)] = numpipe.wgmma_wait(acc, 0)


# ---- scales
@kernel(
    X,
    X[:, :128],
    zeros(64, 64, dtype=F32),
    hazard="read-before-ready",
    says=r"wait for ready\[1\] for in_specs\[1\] 'scales' .*, phase 0 \(barrier_wait in the body\)",
    gives=sum(
        X[:, 64 * k : 64 * k + 64].astype(F32)
        * X[:, 64 * (k // 2) : 64 * (k // 2) + 64].astype(F32)
        for k in range(4)
    ),
)
def scales_waited_for_in_the_first_step_only(x, scales, y, *, fixed: numpipe.Static):
    acc = numpipe.zeros((64, 64), np.float32)
    pipe = numpipe.pipeline(
        grid=(4,),
        max_concurrent_steps=2,
        manual_produced_barriers=True,
        in_specs=(
            BlockSpec((64, 64), lambda k: (0, k)),
            BlockSpec((64, 64), lambda k: (0, k // 2)),
        ),
    )
    for (k,), (tile, scale), (tile_ready, scale_ready) in pipe(x, scales):
        numpipe.barrier_wait(tile_ready)
        if fixed or k == 0:
            numpipe.barrier_wait(scale_ready)
        acc = acc + tile[...].astype(np.float32) * scale[...].astype(np.float32)
    y[ds(0, 64), ds(0, 64)] = acc


@kernel(
    X,
    X[:, :64],
    zeros(128, 64, dtype=F32),
    hazard="unordered-accesses",
    says=r"fix: +barrier_arrive by warpgroup 1 \(compute\) after its read, and barrier_wait by "
    r"warpgroup 0 \(compute\) before the store",
    gives=np.tile(
        sum(X[:, 64 * k : 64 * k + 64].astype(F32) * X[:, k].astype(F32)[:, None] for k in (0, 1)),
        (2, 1),
    ),
    **TWO,
)
def a_vector_of_scales_stored_again_by_one_warpgroup(x, scales, y, *, fixed: numpipe.Static):
    wg = numpipe.axis_index("wg")
    scale, full, read = numpipe.scratch(
        (SMEM((64,), np.float32), Barrier(num_arrivals=2), Barrier(num_arrivals=2))
    )
    acc = numpipe.zeros((64, 64), np.float32)
    for k in range(2):
        if wg == 0:
            scale[...] = scales[ds(0, 64), k].astype(np.float32)
        numpipe.barrier_arrive(full)
        numpipe.barrier_wait(full)
        acc = acc + x[ds(0, 64), ds(64 * k, 64)].astype(np.float32) * scale[...][:, None]
        if fixed:
            numpipe.barrier_arrive(read)
            numpipe.barrier_wait(read)
    y[ds(64 * wg, 64), ds(0, 64)] = acc


# ---- groups
@kernel(
    X,
    np.array([0, 40, 128], np.int32),
    zeros(128, 64, dtype=F32),
    hazard="cta-conflict",
    says=r"fix: +ds\(start, size, stop=end\) where a block reaches into the next one",
    gives=np.concatenate([np.full((40, 64), 1), np.full((88, 64), 2)]).astype(F32),
    grid=2,
)
def rows_of_two_groups_in_one_tile(x, starts, y, *, fixed: numpipe.Static):
    group = numpipe.program_id(0)
    for row in range(starts[group], starts[group + 1], 64):
        value = numpipe.full((64, 64), 1.0, np.float32) * (group + 1)
        if fixed:
            y[ds(row, 64, stop=starts[group + 1]), ds(0, 64)] = value
        else:
            y[ds(row, 64), ds(0, 64)] = value


# ---- products of warps
@kernel(
    X,
    zeros(64, 64, dtype=F32),
    hazard="unordered-accesses",
    says=r"read \(mma, b\) .*fix: +add a barrier between the two: commit_smem within a warpgroup",
    gives=X[:, :64].astype(F32) @ X[:, 64:128].astype(F32),
    compiler_params=CompilerParams(product="mma.sync", unsafe_no_auto_barriers=True),
)
def multiplied_by_warps_that_have_not_met(x, y, *, fixed: numpipe.Static):
    b = numpipe.scratch(SMEM((64, 64), np.float16))
    b[...] = x[ds(0, 64), ds(64, 64)]
    if fixed:
        numpipe.commit_smem()
    y[ds(0, 64), ds(0, 64)] = numpipe.mma(
        numpipe.zeros((64, 64), np.float32), x[ds(0, 64), ds(0, 64)], b
    )


@kernel(
    X,
    zeros(64, 64, dtype=F32),
    hazard="read-after-release",
    says=r"(read \(mma, b\) of|by warpgroup 0).*fix: +read the tile of step \d before "
    r"barrier_arrive",
    gives=sum(X[:, k : k + 64].astype(F32) @ X[:, k : k + 64].astype(F32) for k in (0, 64, 128)),
    **WARPS,
)
def released_before_a_product_of_warps(x, y, *, fixed: numpipe.Static):
    acc = numpipe.zeros((64, 64), np.float32)
    pipe = numpipe.pipeline(
        grid=(3,),
        max_concurrent_steps=1,
        manual_consumed_barriers=True,
        in_specs=(BlockSpec((64, 64), lambda k: (0, k)),),
    )
    for _, (tile,), (free,) in pipe(x):
        if fixed:
            acc = numpipe.mma(acc, tile, tile)
        numpipe.barrier_arrive(free)
        if not fixed:
            acc = numpipe.mma(acc, tile, tile)
    y[ds(0, 64), ds(0, 64)] = acc


# ---- static loops
@kernel(
    X,
    zeros(64, 64, dtype=F32),
    hazard="too-few-arrivals",
    says=r"or wait for another barrier: in a ring, barriers.at\[i\] for slot i",
    gives=X[:, :64].astype(F32) + X[:, 64:128],
    error=PipelineDeadlock,
)
def the_first_slot_waited_for_in_every_round(x, y, *, fixed: numpipe.Static):
    slots, landed = numpipe.scratch((SMEM((2, 64, 64), np.float16), Barrier(num_barriers=2)))
    for c in numpipe.static_range(2):
        numpipe.copy_gmem_to_smem(x.at[ds(0, 64), ds(64 * c, 64)], slots.at[c], landed.at[c])
    acc = numpipe.zeros((64, 64), np.float32)
    for c in numpipe.static_range(2):
        numpipe.barrier_wait(landed.at[c if fixed else 0])
        acc = acc + slots.at[c][...].astype(np.float32)
    y[ds(0, 64), ds(0, 64)] = acc


@kernel(
    X,
    zeros(64, 64, dtype=F32),
    hazard="out-of-bounds",
    says=r"index 2 along dimension 0 is outside 0…1",
    gives=X[:, :192].reshape(64, 3, 64).astype(F32).sum(axis=1),
    error=SimulationError,
)
def a_barrier_for_a_slot_too_many(x, y, *, fixed: numpipe.Static):
    slots, landed = numpipe.scratch((SMEM((3, 64, 64), np.float16), Barrier(num_barriers=2)))
    acc = numpipe.zeros((64, 64), np.float32)
    for k in range(3):
        slot = k % (2 if fixed else 3)
        numpipe.copy_gmem_to_smem(x.at[ds(0, 64), ds(64 * k, 64)], slots.at[slot], landed.at[slot])
        numpipe.barrier_wait(landed.at[slot])
        acc = acc + slots.at[slot][...].astype(np.float32)
    y[ds(0, 64), ds(0, 64)] = acc


@kernel(
    X,
    zeros(64, 64, dtype=F32),
    hazard="refilled-while-read",
    says=r"fix: +wgmma_wait\(0\), then commit_smem, before the copy",
    gives=sum(
        X[:, k : k + 64].astype(F32) @ X[:, k : k + 64].astype(F32) for k in range(0, 256, 64)
    ),
    compiler_params=BARE,
)
def a_static_ring_that_loads_ahead_by_a_slot_too_many(x, y, *, fixed: numpipe.Static):
    slots, landed = numpipe.scratch((SMEM((3, 64, 64), np.float16), Barrier(num_barriers=3)))
    acc = numpipe.zeros((64, 64), np.float32)
    for c in numpipe.static_range(2):
        numpipe.copy_gmem_to_smem(x.at[ds(0, 64), ds(64 * c, 64)], slots.at[c], landed.at[c])
    for c in numpipe.static_range(4):
        numpipe.barrier_wait(landed.at[c % 3])
        acc = numpipe.wgmma(acc, slots.at[c % 3], slots.at[c % 3])
        if fixed:
            acc = numpipe.wgmma_wait(acc, 1)
            numpipe.commit_smem()
        if c + 2 < 4:
            nxt = (c + 2) % 3
            numpipe.copy_gmem_to_smem(
                x.at[ds(0, 64), ds(64 * (c + 2), 64)], slots.at[nxt], landed.at[nxt]
            )
    y[ds(0, 64), ds(0, 64)] = numpipe.wgmma_wait(acc, 0)
