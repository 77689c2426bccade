"""Kernels steered by arrays through copies in shared memory (`numpipe.prefetched`).

Each takes (a, table, counts, c) like those of `steered_kernels`, with the same results. `size` is
the number of table elements that are copied; the rest is read from the array.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import numpipe
from numpipe import BlockSpec, ds
from tests.kernels.steered_kernels import tiles_in_turns, tiles_of_a_table, walks


@numpipe.kernel(num_compute_wgs=2, grid=2, warp_specialized=False)
def tiles_of_each_warpgroup(a, table, counts, c, *, size: numpipe.Static):
    """Compute tiles without a memory role; each warpgroup has a copy and advances at its own
    tiles."""
    for turn in range(counts.shape[0] // 4):
        t = turn * 4 + numpipe.program_id(0) * 2 + numpipe.axis_index("wg")
        acc = numpipe.zeros((64, 64), np.float32)
        if counts[t] > 0:
            rows = numpipe.prefetched(table, size=size)
            for _, (x, y) in numpipe.pipeline(
                grid=(counts[t],),
                max_concurrent_steps=2,
                in_specs=(
                    BlockSpec((64, 64), lambda k: ((rows[t, 0] + k * rows[t, 1]) % 6, 0)),
                    BlockSpec((64, 64), lambda k: (rows[k, 0], 1)),
                ),
            )(a, a):
                acc = numpipe.wgmma(acc, x, y.T)
        c[ds(t * 128, 64), ds(0, 64)] = acc
        c[ds(t * 128 + 64, 64), ds(0, 64)] = acc


@numpipe.kernel(num_compute_wgs=2, grid=1)
def numbers(table, y):
    """Store half of a table from each warpgroup, read through the copy of its first 12 elements."""
    t = numpipe.prefetched(table, size=12)
    for i in range(table.shape[0] // 2):
        row = i + numpipe.axis_index("wg") * (table.shape[0] // 2)
        for j in range(table.shape[1]):
            y[row, j] = t[row, j]


KERNELS: dict[str, Any] = {
    kernel.name: kernel
    for kernel in (tiles_of_a_table, tiles_in_turns, tiles_of_each_warpgroup, walks)
}
TABLES = {
    "int64": np.arange(24).reshape(8, 3),
    "int32": np.arange(24, dtype=np.int32).reshape(8, 3),
    "columns": np.arange(24).reshape(3, 8).T,
    "odd beginning": np.arange(25)[1:].reshape(8, 3),
    "parts of rows": np.arange(64).reshape(8, 8)[:, 2:5],
    "short": np.arange(2).reshape(2, 1),
}
"""arrays for `numbers`"""
