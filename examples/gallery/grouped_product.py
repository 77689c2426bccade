"""Multiply each token by its expert's matrix: a mixture of experts."""

from __future__ import annotations

import ml_dtypes
import numpy as np

import numpipe
from numpipe import ArrayType, BlockSpec, Element, cdiv, ds

TM, TN, TK = 128, 256, 64


@numpipe.kernel(
    out_type=lambda tokens, weights, ends: ArrayType(
        (tokens.shape[0], weights.shape[1]), tokens.dtype
    ),
    grid=numpipe.persistent(),
    num_compute_wgs=2,
    memory_registers=40,  # of a lane that loads; lanes that compute get the rest
)
def grouped_product(tokens, weights, ends, y):
    """y[i] = weights[e] @ tokens[i] for each row i of expert e. Tokens are sorted by expert:
    the tokens of expert e end before row ends[e]."""
    wg = numpipe.axis_index("wg")
    n_tiles = cdiv(weights.shape[1], TN)
    # The tiles of all experts are numbered one after the other, and a CTA computes the tiles
    # program_id, program_id + num_programs, … `tile` counts from the first tile of `expert`.
    tile, begin = numpipe.program_id(0), 0
    for expert in range(ends.shape[0]):
        end = ends[expert]
        m_tiles = cdiv(end - begin, TM)
        while tile < m_tiles * n_tiles:
            row, n = begin + tile % m_tiles * TM, tile // m_tiles
            acc = numpipe.zeros((64, TN), np.float32)
            pipe = numpipe.pipeline(
                grid=(cdiv(tokens.shape[1], TK),),
                max_concurrent_steps=3,
                in_specs=(
                    # an expert's rows begin anywhere, so this block is placed by element
                    BlockSpec((Element(TM), TK), lambda k: (row, k)),
                    # None: one expert, a dimension that the tile does not have
                    BlockSpec((None, TN, TK), lambda k: (expert, n, k)),
                ),
            )
            for _, (token_tile, weight_tile) in pipe(tokens, weights):
                acc = numpipe.wgmma(acc, token_tile.at[ds(wg * 64, 64), :], weight_tile.T)
            # the last tile of an expert contains rows of the next one: they are not stored
            y[ds(row + wg * 64, 64, stop=end), ds(n * TN, TN)] = acc.astype(y.dtype)
            tile += numpipe.num_programs(0)
        tile -= m_tiles * n_tiles
        begin = end


RNG = np.random.default_rng(0)
COUNTS = np.array([150, 0, 40, 110])
TOKENS = RNG.standard_normal((COUNTS.sum(), 192), np.float32).astype(ml_dtypes.bfloat16)
WEIGHTS = RNG.standard_normal((len(COUNTS), 256, 192), np.float32).astype(ml_dtypes.bfloat16)
ARRAYS = (TOKENS, WEIGHTS, COUNTS.cumsum().astype(np.int32))
EXACT = np.einsum("tk,tnk->tn", TOKENS.astype(float), WEIGHTS.astype(float).repeat(COUNTS, axis=0))
ERROR = 3e-3

if __name__ == "__main__":
    error = np.linalg.norm(grouped_product(*ARRAYS) - EXACT) / np.linalg.norm(EXACT)
    assert error < ERROR
