"""Decoding from a page table: each sequence has one query, and its keys and values lie in pages."""

from __future__ import annotations

import math

import numpy as np

import numpipe
from numpipe import ArrayType, BlockSpec, CompilerParams, cdiv, ds

PAGE, DEPTH = 64, 128
SCALE = math.log2(math.e) / math.sqrt(DEPTH)  # exponentials are computed as powers of two


@numpipe.kernel(
    out_type=lambda q: ArrayType(q.shape, q.dtype),
    grid=lambda q: (q.shape[1], q.shape[0]),
    warp_specialized=False,
    # two CTAs share an SM: while one computes, the other one waits for its copies
    compiler_params=CompilerParams(approx_math=True, ctas_per_sm=2, store_slots=1),
)
def paged_decode(q, keys, values, pages, lengths, o):
    """q is (sequences, heads of keys, heads of queries for each, 128), keys and values are (pages,
    64, heads of keys, 128)."""
    h, s = numpipe.program_id(0), numpipe.program_id(1)
    # a product has 64 rows; the array has as many as heads share keys, the others are zeros
    q_block = BlockSpec((None, None, 64, DEPTH), lambda _: (s, h, 0, 0))
    page = BlockSpec((None, PAGE, None, DEPTH), lambda i: (pages[s, i], 0, h, 0))
    steps = numpipe.pipeline(
        grid=(cdiv(lengths[s], PAGE),), max_concurrent_steps=2, in_specs=(page, page)
    )
    maxima, sums = numpipe.full((64, 1), -np.inf, np.float32), numpipe.zeros((64, 1), np.float32)
    acc = numpipe.zeros((64, DEPTH), np.float32)
    for _, (q_tile,) in numpipe.pipeline(grid=(1,), in_specs=(q_block,))(q):
        for (i,), (k_tile, v_tile) in steps(keys, values):
            scores = numpipe.wgmma_wait(numpipe.wgmma(None, q_tile, k_tile.T))
            scores = np.where(numpipe.iota(PAGE) < lengths[s] - i * PAGE, scores, -np.inf)
            new = np.maximum(maxima, scores.max(axis=1, keepdims=True))
            p, change = np.exp2(scores * SCALE - new * SCALE), np.exp2((maxima - new) * SCALE)
            maxima, sums = new, sums * change + p.sum(axis=1, keepdims=True)
            acc = numpipe.wgmma_wait(numpipe.wgmma(acc * change, p.astype(q.dtype), v_tile))
    o[s, h, ds(0, 64), ds(0, DEPTH)] = (acc / sums).astype(o.dtype)


RNG = np.random.default_rng(0)
Q = RNG.standard_normal((2, 2, 4, DEPTH)).astype(np.float16)
K, V = RNG.standard_normal((2, 12, PAGE, 2, DEPTH)).astype(np.float16)
PAGES = np.array([[3, 7, 1, 0, 8], [2, 4, 5, 0, 0]], np.int32)
LENGTHS = np.array([300, 170], np.int32)
ARRAYS = Q, K, V, PAGES, LENGTHS
EXACT = np.empty(Q.shape)
for s, length in enumerate(LENGTHS):
    k, v = (x[PAGES[s]].reshape(-1, 2, DEPTH)[:length].swapaxes(0, 1).astype(float) for x in (K, V))
    p = np.exp(Q[s] @ k.swapaxes(1, 2) / math.sqrt(DEPTH))
    EXACT[s] = p @ v / p.sum(axis=2, keepdims=True)
ERROR = 1e-3

if __name__ == "__main__":
    np.testing.assert_allclose(paged_decode(*ARRAYS), EXACT, atol=1e-3)
