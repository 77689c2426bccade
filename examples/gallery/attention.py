"""Attention: softmax(q k^T / sqrt(depth)) v in one pass, without storing the scores."""

from __future__ import annotations

import math

import numpy as np

import numpipe
from numpipe import ArrayType, BlockSpec, CompilerParams, cdiv, ds

ROWS, DEPTH = 128, 128
SCALE = math.log2(math.e) / math.sqrt(DEPTH)  # exponentials are computed as powers of two


@numpipe.kernel(
    out_type=lambda q: ArrayType(q.shape, q.dtype),
    grid=numpipe.persistent(),
    num_compute_wgs=2,
    compiler_params=CompilerParams(approx_math=True),
)
def attention(q, k, v, o, *, causal: numpipe.Static = False):
    """Arrays are (batches, heads, positions, 128), with a multiple of 128 keys. If `causal`, query
    i sees keys 0 to i."""
    wg = numpipe.axis_index("wg")
    q_blocks = cdiv(q.shape[2], ROWS)
    for b, h, place in numpipe.tiles(q.shape[0], q.shape[1], q_blocks, dynamic=causal):
        i = q_blocks - 1 - place  # the tiles that see the most keys first
        blocks = i + 1 if causal else k.shape[2] // ROWS
        block = (None, None, ROWS, DEPTH)
        q_block = BlockSpec(block, lambda _: (b, h, i, 0), buffer_count=2)
        # step j uses keys j and values j - 1; blocks outside of the arrays are zeros
        k_block = BlockSpec(block, lambda j: (b, h, j, 0), buffer_count=2)
        v_block = BlockSpec(block, lambda j: (b, h, j - 1, 0), buffer_count=2)
        steps = numpipe.pipeline(grid=(blocks + 1,), in_specs=(k_block, v_block))
        maxima = numpipe.full((64, 1), -np.inf, np.float32)
        sums = numpipe.zeros((64, 1), np.float32)
        acc = numpipe.zeros((64, DEPTH), np.float32)
        p = numpipe.zeros((64, ROWS), np.float32).astype(q.dtype)
        for _, (q_tile,) in numpipe.pipeline(grid=(1,), in_specs=(q_block,))(q):
            for (j,), (k_tile, v_tile) in steps(k, v):
                if j < blocks:
                    # one warpgroup multiplies while the other one computes exponentials
                    with numpipe.turn("products"):
                        s = numpipe.wgmma(None, q_tile.at[ds(wg * 64, 64), :], k_tile.T)
                        acc = numpipe.wgmma(acc, p, v_tile)
                    s = numpipe.wgmma_wait(s)  # the product with v is still in flight
                    if causal and j == i:  # other blocks of the tile are visible as a whole
                        query = numpipe.iota(64)[:, None] + (i * ROWS + wg * 64)
                        s = np.where(numpipe.iota(ROWS) + j * ROWS <= query, s, -np.inf)
                    new = np.maximum(maxima, s.max(axis=1, keepdims=True))
                    e = np.exp2(s * SCALE - new * SCALE)
                    change = np.exp2((maxima - new) * SCALE)
                    maxima, sums = new, sums * change + e.sum(axis=1, keepdims=True)
                    acc = numpipe.wgmma_wait(acc)
                    # not earlier: the product with v reads the registers of p
                    p, acc = e.astype(q.dtype), acc * change
                else:
                    acc = numpipe.wgmma_wait(numpipe.wgmma(acc, p, v_tile))
        o[b, h, ds(i * ROWS + wg * 64, 64), ds(0, DEPTH)] = acc / sums


RNG = np.random.default_rng(0)
Q, K, V = (RNG.standard_normal((1, 1, n, DEPTH)).astype(np.float16) for n in (128, 512, 512))
ARRAYS = Q, K, V
P = np.exp(Q.astype(float) @ K.astype(float).swapaxes(2, 3) / math.sqrt(DEPTH))
EXACT = P @ V / P.sum(axis=3, keepdims=True)
ERROR = 1e-3

if __name__ == "__main__":
    np.testing.assert_allclose(attention(*ARRAYS), EXACT, atol=1e-3)
