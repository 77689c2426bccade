"""A matrix with its rows and columns exchanged, through shared memory."""

from __future__ import annotations

import numpy as np

import numpipe
from numpipe import ArrayType, BlockSpec, cdiv, ds


@numpipe.kernel(
    grid=numpipe.persistent(),
    grid_names="cta",
    num_compute_wgs=2,
    out_type=lambda x: ArrayType((x.shape[1], x.shape[0]), x.dtype),
)
def transpose(x, y, *, slots: numpipe.Static = 3):
    """y = x.T, for rows of 16-bit elements that are multiples of 16 bytes"""
    cta, ctas, wg = numpipe.axis_index("cta"), numpipe.axis_size("cta"), numpipe.axis_index("wg")
    high, wide = cdiv(y.shape[0], 64), cdiv(y.shape[1], 128)

    def block_of_y(step):
        # CTAs that run at the same time write whole rows of y, two blocks high: so they also read
        # x in pieces that are two blocks wide
        return numpipe.planar_snake(step * ctas + cta, (high, wide), 0, 2)

    def block_of_x(step):
        i, j = block_of_y(step)
        return j, i

    pipe = numpipe.pipeline(
        grid=(cdiv(high * wide - cta, ctas),),
        max_concurrent_steps=slots,
        in_specs=(BlockSpec((128, 64), block_of_x),),
        out_specs=(BlockSpec((64, 128), block_of_y, buffer_count=slots),),
    )
    half = ds(wg * 64, 64)  # each warpgroup transposes half of a block
    # .T is a view of a tile, [...] reads it into registers
    for _, (x_tile, y_tile) in pipe(x, y):
        y_tile[:, half] = x_tile.at[half, :].T[...]


X = np.random.default_rng(0).standard_normal((256, 384)).astype(np.float16)
ARRAYS = (X,)
EXACT = X.T.astype(float)
ERROR = 0.0

if __name__ == "__main__":
    np.testing.assert_array_equal(transpose(*ARRAYS), EXACT)
