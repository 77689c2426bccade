"""Kernels that arrays steer through copies of them in shared memory (`numpipe.prefetched`).

Each takes (a, table, counts, c), made and answered as those of `steered_kernels`: what a kernel there computes the kernel of that
name computes here. `size`: elements of the table that are copied; those behind are read from the array.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import numpipe
from numpipe import BlockSpec, ds


@numpipe.kernel(num_compute_wgs=2, grid=3)
def tiles_of_a_table(a, table, counts, c, *, size: numpipe.Static):
    own = numpipe.axis_index("wg") * 64
    steps = numpipe.prefetched(counts)
    for t, in numpipe.tiles(counts.shape[0]):
        rows = numpipe.prefetched(table, size=size)  # copied with the first tile, there with the others
        first = rows[t, 0]
        acc = numpipe.zeros((64, 64), np.float32)
        pipe = numpipe.pipeline(grid=(steps[t],), max_concurrent_steps=2, in_specs=(
            BlockSpec((64, 64), lambda k: ((first + k * rows[t, 1]) % 6, 0)), BlockSpec((64, 64), lambda k: (rows[k, 0], 1))))
        for _, (x, y) in pipe(a, a):
            acc = numpipe.wgmma(acc, x, y.T)
        c[ds(t * 128 + own, 64), ds(0, 64)] = acc


@numpipe.kernel(num_compute_wgs=2, schedule="pingpong", grid=2)
def tiles_in_turns(a, table, counts, c, *, size: numpipe.Static):
    rows = numpipe.prefetched(table, size=size)
    for s, in numpipe.tiles(counts.shape[0]):
        t = (counts.shape[0] - 1 - s + rows[0, 0]) % counts.shape[0]
        acc = numpipe.zeros((64, 64), np.float32)
        pipe = numpipe.pipeline(grid=(counts[t],), max_concurrent_steps=2, in_specs=(
            BlockSpec((64, 64), lambda k: ((rows[t, 0] + k * rows[t, 1]) % 6, 0)), BlockSpec((64, 64), lambda k: (rows[k, 0], 1))))
        for _, (x, y) in pipe(a, a):
            acc = numpipe.wgmma(acc, x, y.T)
        c[ds(t * 128, 64), ds(0, 64)] = acc
        c[ds(t * 128 + 64, 64), ds(0, 64)] = acc


@numpipe.kernel(num_compute_wgs=2, grid=2, warp_specialized=False)
def tiles_of_each_warpgroup(a, table, counts, c, *, size: numpipe.Static):
    """Without a memory role: each warpgroup has a copy, and comes to it as often as its own tiles have it."""
    for turn in range(counts.shape[0] // 4):
        t = turn * 4 + numpipe.program_id(0) * 2 + numpipe.axis_index("wg")
        acc = numpipe.zeros((64, 64), np.float32)
        if counts[t] > 0:
            rows = numpipe.prefetched(table, size=size)
            for _, (x, y) in numpipe.pipeline(grid=(counts[t],), max_concurrent_steps=2, in_specs=(
                    BlockSpec((64, 64), lambda k: ((rows[t, 0] + k * rows[t, 1]) % 6, 0)),
                    BlockSpec((64, 64), lambda k: (rows[k, 0], 1))))(a, a):
                acc = numpipe.wgmma(acc, x, y.T)
        c[ds(t * 128, 64), ds(0, 64)] = acc
        c[ds(t * 128 + 64, 64), ds(0, 64)] = acc


@numpipe.kernel(num_compute_wgs=1, grid=1)
def walks(a, table, counts, c, *, size: numpipe.Static):
    table_, counts_ = numpipe.prefetched(table, size=size), numpipe.prefetched(counts, size=size)
    acc = numpipe.zeros((64, 64), np.float32)
    pipe = numpipe.pipeline(grid=(2,), max_concurrent_steps=2, in_specs=(BlockSpec((64, 64), lambda k: (table_[k, 0], 0)),))
    for i in range(table_[0, 0], table_[0, 0] + counts_[0]):
        if counts_[i % 8] > 2:
            for _, (x,) in pipe(a):
                acc = numpipe.wgmma(acc, x, x.T)
    more = numpipe.zeros((64, 64), np.float32)
    left = counts_[1]
    while left > 0 and table_[left, 1] != 1:
        for _, (x,) in pipe(a):
            more = numpipe.wgmma(more, x, x.T)
        left = left - 1
    moved = numpipe.pipeline(grid=(min(counts_[2], 4) if table_[1, 0] > 0 else 1,), max_concurrent_steps=2,
                             in_specs=(BlockSpec((64, 64), lambda i: (table_[i, 0], 1)),),
                             out_specs=(BlockSpec((64, 64), lambda i: (1 + i, 0)),))
    for _, (x, y) in moved(a, c):
        y[...] = x[...].astype(np.float32)
    c[ds(0, 64), ds(0, 64)] = acc + more


@numpipe.kernel(num_compute_wgs=2, grid=1)
def numbers(table, y):
    """Each warpgroup stores half of a table, read through the copy of its first 12 elements."""
    t = numpipe.prefetched(table, size=12)
    for i in range(table.shape[0] // 2):
        row = i + numpipe.axis_index("wg") * (table.shape[0] // 2)
        for j in range(table.shape[1]):
            y[row, j] = t[row, j]


KERNELS: dict[str, Any] = {kernel.name: kernel for kernel in (tiles_of_a_table, tiles_in_turns, tiles_of_each_warpgroup, walks)}
TABLES = {
    "int64": np.arange(24).reshape(8, 3), "int32": np.arange(24, dtype=np.int32).reshape(8, 3),
    "columns": np.arange(24).reshape(3, 8).T, "odd beginning": np.arange(25)[1:].reshape(8, 3),
    "parts of rows": np.arange(64).reshape(8, 8)[:, 2:5], "short": np.arange(2).reshape(2, 1)}
"""arrays for `numbers`"""
