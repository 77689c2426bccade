"""Multiply float8 matrices whose blocks have scales."""

from __future__ import annotations

import ml_dtypes
import numpy as np

import numpipe
from numpipe import ArrayType, BlockSpec, cdiv, ds

TM, TN, TK = 192, 128, 128


@numpipe.kernel(
    out_type=lambda a, a_scales, b, b_scales: ArrayType(
        (a.shape[0], b.shape[0]), ml_dtypes.bfloat16
    ),
    grid=numpipe.persistent(),
    num_compute_wgs=3,
    memory_registers=32,
)
def block_scaled(a, a_scales, b, b_scales, c):
    """c = a @ b.T, where a[m, k] stands for a[m, k] * a_scales[k // 128, m], and b[n, k] for
    b[n, k] * b_scales[n // 128, k // 128]."""
    wg = numpipe.axis_index("wg")
    for m, n in numpipe.tiles(cdiv(a.shape[0], TM), cdiv(b.shape[0], TN), order="grouped", group=8):
        total = numpipe.zeros((64, TN), np.float32)
        pipe = numpipe.pipeline(
            grid=(cdiv(a.shape[1], TK),),
            max_concurrent_steps=4,
            in_specs=(
                BlockSpec((TM, TK), lambda k: (m, k)),
                BlockSpec((None, TM), lambda k: (k, m)),
                BlockSpec((TN, TK), lambda k: (n, k)),
            ),
        )
        for (k,), (a_tile, scale_tile, b_tile) in pipe(a, a_scales, b):
            # None: there is nothing to add to. The product runs until wgmma_wait
            product = numpipe.wgmma(None, a_tile.at[ds(wg * 64, 64), :], b_tile.T)
            # the scales are loaded while the tensor core multiplies
            scales = scale_tile[ds(wg * 64, 64)] * b_scales[n, k]
            total += scales[:, None] * numpipe.wgmma_wait(product)
        c[ds(m * TM + wg * 64, 64), ds(n * TN, TN)] = total.astype(c.dtype)


def quantized(x, rows):
    """Return x in float8, and the scale of each block of `rows` x 128."""
    blocks = x.reshape(len(x) // rows, rows, -1, 128)
    scales = abs(blocks).max(axis=(1, 3)) / 448
    x = (blocks / scales[:, None, :, None]).reshape(x.shape)
    return x.astype(ml_dtypes.float8_e4m3fn), scales


RNG = np.random.default_rng(0)
A, A_SCALES = quantized(RNG.standard_normal((192, 768), np.float32), 1)
B, B_SCALES = quantized(RNG.standard_normal((256, 768), np.float32), 128)
ARRAYS = (A, np.ascontiguousarray(A_SCALES.T), B, B_SCALES)
A_EXACT = A.astype(float) * A_SCALES.repeat(128, axis=1)
B_EXACT = B.astype(float) * B_SCALES.repeat(128, axis=0).repeat(128, axis=1)
EXACT = A_EXACT @ B_EXACT.T
ERROR = 3e-3

if __name__ == "__main__":
    error = np.linalg.norm(block_scaled(*ARRAYS) - EXACT) / np.linalg.norm(EXACT)
    assert error < ERROR
