"""A convolution of images (image, row, column, channel), as a product on tensor cores."""

from __future__ import annotations

import numpy as np

import numpipe
from numpipe import ArrayType, BlockSpec, Element, cdiv, ds


@numpipe.kernel(
    grid=numpipe.persistent(),
    num_compute_wgs=2,
    memory_registers=40,
    out_type=lambda x, w: ArrayType((*x.shape[:3], w.shape[2]), x.dtype),
)
def convolution(x, w, y):
    """y[i, p, q] = sum over r and s of w[r, s] @ x[i, p + r - 1, q + s - 1], for w of 3 x 3 pixels
    and x that is 0 outside of the image"""
    wg = numpipe.axis_index("wg")
    rows, across = x.shape[1], cdiv(x.shape[2], 128)
    for place, n in numpipe.tiles(x.shape[0] * rows * across, cdiv(w.shape[2], 256)):
        # 128 pixels of one row, 256 output channels
        image, row, column = place // across // rows, place // across % rows, place % across * 128

        def pixels(r, s, c):
            return image, row + r - w.shape[0] // 2, column + s - w.shape[1] // 2, c

        pipe = numpipe.pipeline(
            grid=(w.shape[0], w.shape[1], cdiv(x.shape[3], 64)),
            max_concurrent_steps=3,
            in_specs=(
                # "zero": pixels outside of the image are meant to be read
                BlockSpec((None, None, Element(128), 64), pixels, mode="zero"),
                BlockSpec((None, None, 256, 64), lambda r, s, c: (r, s, n, c)),
            ),
        )
        acc = numpipe.zeros((64, 256), np.float32)
        for _, (x_tile, w_tile) in pipe(x, w):
            acc = numpipe.wgmma(acc, x_tile.at[ds(wg * 64, 64), :], w_tile.T)
        y[image, row, ds(column + wg * 64, 64), ds(n * 256, 256)] = acc


rng = np.random.default_rng(0)
X = rng.standard_normal((1, 2, 128, 64)).astype(np.float16)
W = rng.standard_normal((3, 3, 256, 64)).astype(np.float16)
ARRAYS = X, W
PADDED = np.pad(X.astype(float), ((0, 0), (1, 1), (1, 1), (0, 0)))
EXACT = np.zeros((1, 2, 128, 256))
for r in range(3):
    for s in range(3):
        EXACT += PADDED[:, r : r + 2, s : s + 128] @ W[r, s].astype(float).T
ERROR = 1e-3

if __name__ == "__main__":
    np.testing.assert_allclose(convolution(*ARRAYS), EXACT, atol=0.1)
