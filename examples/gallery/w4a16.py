"""Multiply 4-bit weights by a few 16-bit activations: a language model that generates text."""

from __future__ import annotations

import numpy as np

import numpipe
from numpipe import ArrayType, BlockSpec, TilingTransform, cdiv, ds

TOKENS, GROUP = 16, 128


@numpipe.kernel(
    out_type=lambda w, scales, x: ArrayType((w.shape[0], x.shape[0]), np.float32),
    grid=numpipe.persistent(),
    num_compute_wgs=2,
    cluster=2,
    cluster_names="k",
)
def w4a16(w, scales, x, y):
    """y = weights @ x.T for up to 16 rows of x. A byte of w (N, K / 2) holds two weights -8 … 7,
    the first one in its low half; 128 neighbors along K share one of the scales (K / 128, N)."""
    rows = numpipe.axis_index("wg") * 64
    # each CTA of a cluster sums over half of K
    for n, part in numpipe.split_tiles(
        cdiv(w.shape[0], 128), steps=cdiv(w.shape[1], GROUP), split="k"
    ):
        acc = numpipe.zeros((64, TOKENS), np.float32)
        pipe = numpipe.pipeline(
            grid=(part.steps,),
            max_concurrent_steps=7,
            in_specs=(
                # 128 bytes of a row are two groups of weights: a panel of 64 for each
                BlockSpec(
                    (128, GROUP),
                    lambda k: (n, part.begin + k),
                    transforms=(TilingTransform((8, 64)),),
                ),
                BlockSpec((None, 128), lambda k: (2 * (part.begin + k), n)),
                BlockSpec((None, 128), lambda k: (2 * (part.begin + k) + 1, n)),
                BlockSpec((TOKENS, 2 * GROUP), lambda k: (0, part.begin + k)),
            ),
        )
        for _, (w_tile, scale_0, scale_1, x_tile) in pipe(w, scales, scales, x):
            a = numpipe.unpack(w_tile.at[ds(rows, 64), ds(0, 64)], "int4", x.dtype)
            first = numpipe.wgmma(None, a, x_tile.at[:, ds(0, GROUP)].T)
            # while the tensor core multiplies the first group, unpack the second
            a = numpipe.unpack(w_tile.at[ds(rows, 64), ds(64, 64)], "int4", x.dtype)
            second = numpipe.wgmma(None, a, x_tile.at[:, ds(GROUP, GROUP)].T)
            scale = scale_0[ds(rows, 64)].astype(np.float32)
            acc += scale[:, None] * numpipe.wgmma_wait(first)
            scale = scale_1[ds(rows, 64)].astype(np.float32)
            acc += scale[:, None] * numpipe.wgmma_wait(second)
        # the CTAs exchange their sums; each gets the total of half of the columns
        columns = ds(numpipe.axis_index("k") * TOKENS // 2, TOKENS // 2)
        y[ds(n * 128 + rows, 64), columns] = numpipe.combine(acc, part, axis="k")


RNG = np.random.default_rng(0)
WEIGHTS = RNG.integers(-8, 8, (128, 2048))
SCALES = RNG.random((16, 128)).astype(np.float16)
X = RNG.standard_normal((16, 2048)).astype(np.float16)
ARRAYS = ((WEIGHTS[:, ::2] & 15 | WEIGHTS[:, 1::2] << 4).astype(np.uint8), SCALES, X)
EXACT = (WEIGHTS * SCALES.T.astype(float).repeat(GROUP, 1)) @ X.T.astype(float)
ERROR = 1e-6

if __name__ == "__main__":
    error = np.linalg.norm(w4a16(*ARRAYS) - EXACT) / np.linalg.norm(EXACT)
    assert error < ERROR
