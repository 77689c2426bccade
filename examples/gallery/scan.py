"""Running sums of each row, with one pass over memory: a warpgroup holds a row in registers."""

from __future__ import annotations

import numpy as np

import numpipe
from numpipe import ArrayType, CompilerParams, ds


@numpipe.kernel(
    grid=lambda x: (x.shape[0],),
    warp_specialized=False,
    # the number of parts and their length are constants of the compiled kernel
    static_dims=(-2, -1),
    compiler_params=CompilerParams(ctas_per_sm=4),
    out_type=lambda x: ArrayType(x.shape, x.dtype),
)
def scan_in_parts(x, y):
    """Running sums of each row of x, (row, part, column)"""
    row, parts, columns = numpipe.program_id(0), ds(0, x.shape[1]), ds(0, x.shape[2])
    with numpipe.region("load"):
        tile = x[row, parts, columns]
    with numpipe.region("sums"):
        sums = tile.sum(axis=1)
        before = np.cumsum(sums) - sums
    with numpipe.region("scan and store"):
        y[row, parts, columns] = np.cumsum(tile, axis=1) + before[:, None]


def scan(x, parts=8, out=None):
    """y[i, j] = x[i, 0] + … + x[i, j], for float32 rows of up to 8192 elements, in equal parts"""
    shape = len(x), parts, x.shape[1] // parts
    out = None if out is None else out.reshape(shape)
    return scan_in_parts(x.reshape(shape), out=out).reshape(x.shape)


X = np.random.default_rng(0).standard_normal((4, 8192), np.float32)
ARRAYS = (X,)
EXACT = np.cumsum(X.astype(float), axis=1)
ERROR = 1e-6

if __name__ == "__main__":
    np.testing.assert_allclose(scan(*ARRAYS), EXACT, atol=1e-3)
