"""Running sums of each row, with one pass over memory: a warpgroup holds a row in registers."""

from __future__ import annotations

import numpy as np

import numpipe
from numpipe import ArrayType, CompilerParams, ds

PARTS = 8


@numpipe.kernel(
    grid=lambda x: (x.shape[0],),
    warp_specialized=False,
    static_dims=(-1,),
    compiler_params=CompilerParams(ctas_per_sm=4),
    out_type=lambda x: ArrayType(x.shape, x.dtype),
)
def scan_in_parts(x, y):
    """Running sums of each row of x (row, part, column)"""
    row, parts, columns = numpipe.program_id(0), ds(0, PARTS), ds(0, x.shape[2])
    tile = x[row, parts, columns]
    sums = tile.sum(axis=1)
    before = np.cumsum(sums) - sums
    y[row, parts, columns] = np.cumsum(tile, axis=1) + before[:, None]


def scan(x, out=None):
    """y[i, j] = x[i, 0] + … + x[i, j], for rows of float32 that are a multiple of 1024 long"""
    shape = len(x), PARTS, x.shape[1] // PARTS
    out = None if out is None else out.reshape(shape)
    return scan_in_parts(x.reshape(shape), out=out).reshape(x.shape)


X = np.random.default_rng(0).standard_normal((4, 8192), np.float32)
ARRAYS = (X,)
EXACT = np.cumsum(X.astype(float), axis=1)
ERROR = 1e-6

if __name__ == "__main__":
    np.testing.assert_allclose(scan(*ARRAYS), EXACT, atol=1e-3)
