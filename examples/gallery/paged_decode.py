"""Decoding: attention of one query a sequence, whose keys and values lie in pages."""

from __future__ import annotations

import math

import numpy as np

import numpipe
from numpipe import SMEM, ArrayType, Barrier, BlockSpec, CompilerParams, cdiv, ds

PARTS, PAGE, DEPTH = 2, 64, 128
SCALE = math.log2(math.e) / math.sqrt(DEPTH)  # exponentials are computed as powers of two


@numpipe.kernel(
    out_type=lambda q: ArrayType(q.shape, q.dtype),
    # a cluster of CTAs for each sequence and head of keys
    grid=lambda q: (PARTS, q.shape[1], q.shape[0]),
    cluster=PARTS,
    cluster_names="part",
    # an SM holds two CTAs: while one computes, the other one waits for a copy
    warp_specialized=False,
    compiler_params=CompilerParams(approx_math=True, ctas_per_sm=2, store_slots=1),
)
def paged_decode(q, keys, values, pages, lengths, o):
    """q, o: (sequences, heads of keys, heads of q for each, 128); keys, values: (pages, 64, heads
    of keys, 128); pages: (sequences, most pages of one); lengths: (sequences,)."""
    part, h, s = numpipe.axis_index("part"), numpipe.program_id(1), numpipe.program_id(2)
    # its CTAs take pages in turn: the first of two has pages 0, 2, 4 ...
    block = BlockSpec((None, PAGE, None, DEPTH), lambda i: (pages[s, i * PARTS + part], 0, h, 0))
    own = cdiv(cdiv(lengths[s], PAGE) - part, PARTS)
    steps = numpipe.pipeline(grid=(own,), max_concurrent_steps=2, in_specs=(block, block))
    # products have 64 rows: the heads of q that share keys. Rows outside of the array are zeros
    rows = q[s, h, ds(0, 64), ds(0, DEPTH)]
    # finite: a CTA may have no pages, and -inf - -inf would be NaN
    maxima = numpipe.full((64, 1), -1e30, np.float32)
    sums = numpipe.full((64, 1), 1e-30, np.float32)
    acc = numpipe.zeros((64, DEPTH), np.float32)
    for (i,), (k_tile, v_tile) in steps(keys, values):
        scores = numpipe.wgmma_wait(numpipe.wgmma(None, rows, k_tile.T))
        left = lengths[s] - (i * PARTS + part) * PAGE
        scores = np.where(numpipe.iota(PAGE) < left, scores, -np.inf)
        new = np.maximum(maxima, scores.max(axis=1, keepdims=True))
        p, change = np.exp2(scores * SCALE - new * SCALE), np.exp2((maxima - new) * SCALE)
        maxima, sums = new, sums * change + p.sum(axis=1, keepdims=True)
        acc = numpipe.wgmma_wait(numpipe.wgmma(acc * change, p.astype(q.dtype), v_tile))
    # each CTA sends the logarithms of its sums to all, and weighs its result by its share
    lse = (maxima * SCALE + np.log2(sums)).max(axis=1)
    logs, landed = numpipe.scratch((SMEM((PARTS * 64,), np.float32), Barrier(PARTS)))
    numpipe.async_store_smem(
        lse, logs.at[ds(part * 64, 64)], landed, cluster_idx=None, cluster_dim="part"
    )
    numpipe.barrier_wait(landed)
    total = numpipe.zeros((64, 1), np.float32)
    for n in range(PARTS):
        total = total + np.exp2(logs[ds(n * 64, 64)] - lse)[:, None]
    # add up the results; each CTA gets its part of the columns
    columns = numpipe.combine(acc / (sums * total), None, axis="part")
    o[s, h, ds(0, 64), ds(part * (DEPTH // PARTS), DEPTH // PARTS)] = columns


RNG = np.random.default_rng(0)
Q = RNG.standard_normal((2, 1, 8, DEPTH)).astype(np.float16)
K, V = RNG.standard_normal((2, 16, PAGE, 1, DEPTH)).astype(np.float16)
PAGES, LENGTHS = RNG.permutation(16).reshape(2, 8).astype(np.int32), np.array([500, 70], np.int32)
ARRAYS = Q, K, V, PAGES, LENGTHS
EXACT = np.empty(Q.shape)
for s, length in enumerate(LENGTHS):
    k, v = (x[PAGES[s], :, 0].reshape(-1, DEPTH)[:length].astype(float) for x in (K, V))
    p = np.exp(Q[s, 0] @ k.T / math.sqrt(DEPTH))
    EXACT[s, 0] = p @ v / p.sum(axis=1, keepdims=True)
ERROR = 1e-3

if __name__ == "__main__":
    np.testing.assert_allclose(paged_decode(*ARRAYS), EXACT, atol=1e-3)
