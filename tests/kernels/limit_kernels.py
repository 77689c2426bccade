"""Kernels whose loads and stores end at a run-time row or column, for the simulator and the GPU."""

from __future__ import annotations

import numpy as np

import numpipe
from numpipe import BlockSpec, Element, ds

LIMITS = (64, 64), (5, 64), (64, 9), (0, 3), (-4, 64), (200, 200), (7, 31)


@numpipe.kernel
def limited(x, y, z, n, k, *, m: numpipe.Static = 64):
    """Store a block to y up to row n and column k, and store to z what a load reads before them."""
    tile = x[ds(0, m), ds(0, 64)]
    y[ds(0, m, stop=n), ds(0, 64, k)] = tile
    z[ds(0, m), ds(0, 64)] = x[ds(0, m, n), ds(0, 64, stop=k)]


@numpipe.kernel(num_compute_wgs=2, wg_axis="wg")
def grouped(a, b, c, first, end):
    """Multiply groups of rows of a by b.

    The last tile of a group ends where its rows end, and leaves the rows of the next group
    unchanged.
    """
    wg = numpipe.axis_index("wg")
    for m in range((end - first + 127) // 128):
        acc = numpipe.zeros((64, 64), np.float32)
        pipe = numpipe.pipeline(
            grid=(a.shape[1] // 64,),
            in_specs=(
                BlockSpec((Element(128), 64), lambda k: (first + m * 128, k)),
                BlockSpec((64, 64), lambda k: (0, k)),
            ),
        )
        for _, (x, y) in pipe(a, b):
            acc = numpipe.wgmma(acc, x.at[ds(wg * 64, 64), :], y.T)
        c[ds(first + m * 128 + wg * 64, 64, stop=end), ds(0, 64)] = acc


@numpipe.kernel
def scattered(x, y, n):
    """Scatter rows to another order, columns before n only."""
    y[63 - numpipe.iota(64), ds(0, 64, stop=n)] = x[ds(0, 64), ds(0, 64)]
