"""Kernels with atomics on shared memory, for the simulator and the GPU."""

from __future__ import annotations

import numpy as np

import numpipe
from numpipe import SMEM, BlockSpec, CompilerParams, LoweringSemantics, ds


@numpipe.kernel
def all_kinds(x, at, y, z):
    """Apply each atomic to a vector at indices, with a value each, and to a tile with a tile,
    twice."""
    found = numpipe.scratch(SMEM((6 * 64,), np.int32))
    sums = numpipe.scratch(SMEM((64, 64), np.float32))
    found[...] = numpipe.full(6 * 64, 5, np.int32)
    sums[...] = numpipe.full((64, 64), 1.0, np.float32)
    index, value = at[ds(0, 64), ds(0, 8)], x[ds(0, 64), ds(0, 8)]
    numpipe.atomic_add(found.at[index], value)
    numpipe.atomic_min(found.at[index + 64], value)
    numpipe.atomic_max(found.at[index + 128], value)
    numpipe.atomic_and(found.at[index + 192], value)
    numpipe.atomic_or(found.at[index + 256], value)
    numpipe.atomic_xor(found.at[index + 320], value)
    y[ds(0, 6 * 64)] = found[...]
    numpipe.atomic_add(sums, numpipe.iota((64, 64), 1).astype(np.float32))
    numpipe.atomic_add(sums.at[:, ds(32, 32)], numpipe.full((64, 32), 2.0, np.float32))
    z[ds(0, 64), ds(0, 64)] = sums[...]


def expected(x: np.ndarray, at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    found = np.full((6, 64), 5, np.int32)
    for row, function in zip(
        found,
        (np.add, np.minimum, np.maximum, np.bitwise_and, np.bitwise_or, np.bitwise_xor),
        strict=True,
    ):
        function.at(row, at, x)
    sums = np.broadcast_to(1 + np.arange(64, dtype=np.float32), (64, 64)).copy()
    sums[:, 32:] += 2
    return found.reshape(-1), sums


def _by_lanes(x, y):
    bins = numpipe.scratch(SMEM((64,), np.int32))
    bins[...] = numpipe.full(64, 0, np.int32)
    numpipe.commit_smem()

    def body(indices, tile, carry):
        lane = numpipe.lane_index()
        for i in range(8):
            numpipe.atomic_add(bins.at[tile[lane % 64, lane // 64 * 8 + i]], 1)
        return carry

    def compute(pipeline):
        pipeline(0)
        numpipe.commit_smem()
        y[ds(0, 64)] = bins[...]

    numpipe.emit_pipeline_warp_specialized(
        body,
        grid=(1,),
        in_specs=(BlockSpec((64, 16), lambda i: (0, 0)),),
        num_compute_wgs=1,
        memory_registers=40,
        wg_axis="wg",
        compute_context=compute,
    )(x)


by_lanes = numpipe.kernel(
    _by_lanes, compiler_params=CompilerParams(lowering_semantics=LoweringSemantics.Lane)
)


def _counted_and_read(x, y):
    """Read after atomics without ordering the atomics of other lanes: a race."""
    bins = numpipe.scratch(SMEM((64,), np.int32))
    bins[...] = numpipe.full(64, 0, np.int32)
    numpipe.commit_smem()

    def body(indices, tile, out):
        numpipe.atomic_add(bins.at[0], 1)
        out[numpipe.lane_index() % 64, 0] = bins[0]

    numpipe.emit_pipeline(
        body,
        grid=(1,),
        in_specs=(BlockSpec((64, 16), lambda i: (0, 0)),),
        out_specs=(BlockSpec((64, 16), lambda i: (0, 0)),),
    )(x, x)


counted_and_read = numpipe.kernel(
    _counted_and_read, compiler_params=CompilerParams(lowering_semantics=LoweringSemantics.Lane)
)


@numpipe.kernel(num_compute_wgs=2, wg_axis="wg", warp_specialized=False)
def shared_by_two(x, y, *, meet: numpipe.Static = True):
    """Count in one vector from two warpgroups, which synchronize, or not, before reading it."""
    bins = numpipe.scratch(SMEM((64,), np.int32))
    ready = numpipe.scratch(numpipe.Barrier(num_arrivals=2, num_barriers=2))
    wg = numpipe.axis_index("wg")
    if wg == 0:
        bins[...] = numpipe.full(64, 0, np.int32)
    numpipe.barrier_arrive(ready.at[0])
    numpipe.barrier_wait(ready.at[0])
    numpipe.atomic_add(bins.at[x[ds(wg * 64, 64), ds(0, 8)]], 1)
    if meet:
        numpipe.barrier_arrive(ready.at[1])
        numpipe.barrier_wait(ready.at[1])
    if wg == 0:
        y[ds(0, 64)] = bins[...]


@numpipe.kernel
def by_rows(x, y, z, w):
    """Use indices, values and vectors of tiles by rows, some of whose elements several lanes
    hold."""
    bins, sums = numpipe.scratch(SMEM((64,), np.int32)), numpipe.scratch(SMEM((64,), np.int32))
    square = numpipe.scratch(SMEM((64, 64), np.int32))
    bins[...] = numpipe.full(64, 0, np.int32)
    numpipe.atomic_add(bins.at[x[ds(0, 8), ds(0, 8)]], 1)
    numpipe.atomic_add(bins.at[x[ds(8, 16), ds(0, 8)]], x[ds(8, 16), ds(0, 8)])
    numpipe.atomic_add(bins, numpipe.full(64, 1, np.int32))
    y[ds(0, 64)] = bins[...]
    tile = numpipe.load_tile(x.at[ds(0, 64), ds(0, 64)], "rows")
    sums[...] = tile.sum(axis=1)
    z[ds(0, 64)] = sums[...]
    square[...] = tile
    square[ds(3, 24), ds(5, 16)] = numpipe.full((24, 16), 7, np.int32)
    w[ds(0, 64), ds(0, 64)] = square[...]


def expected_by_rows(x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    counts, square = np.bincount(x[:8, :8].reshape(-1), minlength=64) + 1, x.copy()
    np.add.at(counts, x[8:24, :8], x[8:24, :8])
    square[3:27, 5:21] = 7
    return counts, x.sum(axis=1), square
