"""Half of each element plus an eighth of each of its four neighbors (a five-point stencil)."""

from __future__ import annotations

import numpy as np

import numpipe
from numpipe import ArrayType, BlockSpec, Element, cdiv, ds


@numpipe.kernel(
    grid=numpipe.persistent(),
    grid_names="cta",
    num_compute_wgs=2,
    memory_registers=40,
    out_type=lambda x: ArrayType(x.shape, x.dtype),
)
def stencil(x, y):
    """y[i, j] = x[i, j] / 2 + (x[i - 1, j] + x[i + 1, j] + x[i, j - 1] + x[i, j + 1]) / 8, where x
    is float32, and 0 outside of the array. Rows must be multiples of 16 bytes"""
    cta, ctas, wg = numpipe.axis_index("cta"), numpipe.axis_size("cta"), numpipe.axis_index("wg")
    wide = cdiv(x.shape[1], 256)

    def first(step):
        block = step * ctas + cta
        return block // wide * 64, block % wide * 256

    def with_neighbors(step):
        # a block begins at a multiple of 16 bytes, so that it has 4 columns more, not 1
        row, column = first(step)
        return row - 1, column - 4

    pipe = numpipe.pipeline(
        grid=(cdiv(cdiv(x.shape[0], 64) * wide - cta, ctas),),
        max_concurrent_steps=2,
        # 66 x 264, rounded up to multiples of 8 rows and 128 bytes; Element: placed by element
        in_specs=(BlockSpec((Element(72), Element(288)), with_neighbors),),
    )
    for (step,), (tile,) in pipe(x):
        row, column = first(step)
        top = wg * 32
        center = tile[ds(top + 1, 32), ds(4, 256)]
        near = tile[ds(top, 32), ds(4, 256)] + tile[ds(top + 2, 32), ds(4, 256)]
        near = near + tile[ds(top + 1, 32), ds(3, 256)] + tile[ds(top + 1, 32), ds(5, 256)]
        y[ds(row + top, 32), ds(column, 256)] = 0.5 * center + 0.125 * near


X = np.random.default_rng(0).standard_normal((128, 512), np.float32)
ARRAYS = (X,)
P = np.pad(X.astype(float), 1)
EXACT = P[1:-1, 1:-1] / 2 + (P[:-2, 1:-1] + P[2:, 1:-1] + P[1:-1, :-2] + P[1:-1, 2:]) / 8
ERROR = 1e-6

if __name__ == "__main__":
    np.testing.assert_allclose(stencil(*ARRAYS), EXACT, atol=1e-5)
