"""Hazards of element accesses to shared memory: slices of tiles, and atomics."""

from __future__ import annotations

import numpy as np

import numpipe
from numpipe import SMEM, BlockSpec, SimulationError, ds

from .catalogue import BARE, kernel

I32 = np.dtype(np.int32)
ONES = np.ones(64, I32)


@kernel(
    np.zeros(64, I32),
    hazard="out-of-bounds",
    says=r"tile\[…\]: elements 1 … 64 are not in a tile \(64,\) in shared memory; the GPU "
    "accesses whatever",
    gives=np.zeros(64, I32),
    error=SimulationError,
)
def a_part_past_a_shared_vector(y, *, fixed: numpipe.Static):
    bins = numpipe.scratch(SMEM((64,), np.int32))
    bins[...] = numpipe.full(64, 0, np.int32)
    y[ds(0, 64)] = bins[ds(0 if fixed else y.shape[0] // 64, 64)]


@kernel(
    np.ones((64, 64), np.float16),
    np.zeros((64, 64), np.float32),
    hazard="out-of-bounds",
    says=r"tile\.at\[…\]: elements 8 … 71 along axis 0 are not in a tile \(64, 64\) in shared "
    r"memory; the GPU",
    gives=np.full((64, 64), 64, np.float32),
    error=SimulationError,
)
def a_view_past_a_shared_tile(x, y, *, fixed: numpipe.Static):
    for _, (tile,) in numpipe.pipeline(grid=(1,), in_specs=(BlockSpec((64, 64)),))(x):
        part = tile.at[ds(0 if fixed else x.shape[0] // 8, 64), :]
        y[ds(0, 64), ds(0, 64)] = numpipe.wgmma_wait(numpipe.wgmma(None, part, tile.T), 0)


@kernel(
    np.zeros(64, I32),
    hazard="out-of-bounds",
    says="….at\\[…\\]: index 2 along dimension 0 is outside 0…1; the GPU accesses whatever is "
    "there",
    gives=ONES,
    error=SimulationError,
)
def a_slot_that_there_is_not(y, *, fixed: numpipe.Static):
    slots = numpipe.scratch(SMEM((2, 8, 64), np.int32))
    tile = slots.at[y.shape[0] // (64 if fixed else 32)]
    tile[...] = numpipe.full((8, 64), 1, np.int32)
    y[ds(0, 64)] = tile[...].max(axis=0)


@kernel(
    np.zeros(64, I32),
    hazard="out-of-bounds",
    says="atomic_add: index 64 is outside the tile \\(64,\\); the GPU skips it",
    gives=ONES,
    error=SimulationError,
)
def an_atomic_past_a_shared_vector(y, *, fixed: numpipe.Static):
    bins = numpipe.scratch(SMEM((64,), np.int32))
    bins[...] = numpipe.full(64, 0, np.int32)
    numpipe.atomic_add(bins.at[numpipe.iota(64) + (0 if fixed else 1)], 1)
    y[ds(0, 64)] = bins[...]


@kernel(
    np.zeros(64, I32),
    hazard="unordered-accesses",
    says=r"(atomic|read) \(.*\) (updates|reads) .* while (atomic|read) \(.* it",
    gives=2 * ONES,
    num_compute_wgs=2,
    warp_specialized=False,
    wg_axis="wg",
)
def counts_read_before_the_other_warpgroup_has_counted(y, *, fixed: numpipe.Static):
    bins = numpipe.scratch(SMEM((64,), np.int32))
    told = numpipe.scratch(numpipe.Barrier(num_arrivals=2, num_barriers=2))
    if numpipe.axis_index("wg") == 0:
        bins[...] = numpipe.full(64, 0, np.int32)
    numpipe.barrier_arrive(told.at[0])
    numpipe.barrier_wait(told.at[0])
    numpipe.atomic_add(bins.at[numpipe.iota(64)], 1)
    if fixed:
        numpipe.barrier_arrive(told.at[1])
        numpipe.barrier_wait(told.at[1])
    if numpipe.axis_index("wg") == 0:
        y[ds(0, 64)] = bins[...]


@kernel(
    np.zeros(64, I32),
    hazard="unordered-accesses",
    says=r"atomic \(atomic_add\) updates SMEM\[\d+:\d+\) while write \(tile\[…\] = value\) of .* "
    r"may",
    gives=ONES,
    fix={"compiler_params": numpipe.CompilerParams()},
    compiler_params=BARE,
)
def an_atomic_on_what_another_warp_has_stored(y, *, fixed: numpipe.Static):
    bins = numpipe.scratch(SMEM((64,), np.int32))
    bins[...] = numpipe.full(64, 0, np.int32)
    numpipe.atomic_add(bins.at[numpipe.iota(64)], 1)
    y[ds(0, 64)] = bins[...]


@kernel(
    np.zeros(64, I32),
    hazard="uninitialised-read",
    says=r"atomic \(atomic_add\) reads SMEM\[\d+:\d+\), but these bytes have not been written",
    gives=ONES,
)
def an_atomic_on_what_nobody_has_stored(y, *, fixed: numpipe.Static):
    bins = numpipe.scratch(SMEM((64,), np.int32))
    if fixed:
        bins[...] = numpipe.full(64, 0, np.int32)
    numpipe.atomic_add(bins.at[numpipe.iota(64)], 1)
    y[ds(0, 64)] = bins[...]
