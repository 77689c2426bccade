"""A matrix product whose loads, products and stores overlap."""

from __future__ import annotations

import numpy as np

import numpipe
from numpipe import ArrayType, BlockSpec, CompilerParams, cdiv, ds

ROWS, COLUMNS, DEPTH = 128, 256, 64  # of a tile of c, and elements of K that a step adds up


@numpipe.kernel(
    grid=numpipe.persistent(),  # one CTA on each SM, which computes many tiles
    num_compute_wgs=2,
    out_type=lambda a, b: ArrayType((a.shape[0], b.shape[1]), a.dtype),
    # two panels to store from; c is not read here, so that it does not replace a and b in L2
    compiler_params=CompilerParams(store_slots=2, store_eviction_policy="evict_first"),
)
def matmul(a, b, c, *, slots: numpipe.Static = 4):
    """c = a @ b"""
    warpgroup = numpipe.axis_index("wg")
    rows = ROWS // numpipe.axis_size("wg")
    # groups of 12 rows of tiles: SMs that run at the same time share blocks of a and b in L2
    row_tiles, column_tiles = cdiv(a.shape[0], ROWS), cdiv(b.shape[1], COLUMNS)
    for i, j in numpipe.tiles(row_tiles, column_tiles, order="grouped", group=12):
        accumulator = numpipe.zeros((rows, COLUMNS), np.float32)
        pipe = numpipe.pipeline(
            grid=(cdiv(a.shape[1], DEPTH),),
            max_concurrent_steps=slots,  # one is in use while the others are loaded
            in_specs=(  # the shape of a block, and which block step k needs
                BlockSpec((ROWS, DEPTH), lambda k: (i, k)),
                BlockSpec((DEPTH, COLUMNS), lambda k: (k, j)),
            ),
        )
        for _, (a_tile, b_tile) in pipe(a, b):
            # at[...] is a view of a tile, ds(start, size) a slice
            own_rows = a_tile.at[ds(warpgroup * rows, rows), :]
            accumulator = numpipe.wgmma(accumulator, own_rows, b_tile)
        # the next tile's loads have begun, and its products begin before this store has ended
        first = i * ROWS + warpgroup * rows
        c[ds(first, rows), ds(j * COLUMNS, COLUMNS)] = accumulator.astype(c.dtype)


RANDOM = np.random.default_rng(0)
A = RANDOM.standard_normal((256, 384)).astype(np.float16)
B = RANDOM.standard_normal((384, 512)).astype(np.float16)
ARRAYS = (A, B)
EXACT = A.astype(float) @ B.astype(float)
ERROR = 1e-3

if __name__ == "__main__":
    np.testing.assert_allclose(matmul(*ARRAYS), EXACT, atol=0.1)
