"""The k largest elements of each row and their columns, for rows of 256 elements."""

from __future__ import annotations

import numpy as np

import numpipe
from numpipe import ArrayType, CompilerParams, cdiv, ds

K = 8
ROWS = 8


@numpipe.kernel(
    grid=lambda x: (cdiv(x.shape[0], ROWS),),
    warp_specialized=False,
    compiler_params=CompilerParams(ctas_per_sm=8),
    out_type=lambda x: (
        ArrayType((x.shape[0], K), np.float32),
        ArrayType((x.shape[0], K), np.int32),
    ),
)
def top_k(x, values, columns):
    """values[i], columns[i] = the K largest elements of x[i], largest first"""
    rows, found = ds(numpipe.program_id(0) * ROWS, ROWS), ds(0, K)
    with numpipe.region("load"):
        tile = x[rows, ds(0, 256)]
    with numpipe.region("compare and store"):
        values[rows, found], columns[rows, found] = numpipe.top_k(tile, K)


X = np.random.default_rng(0).standard_normal((100, 256), np.float32)
ARRAYS = (X,)
PLACES = np.argsort(-X, axis=1)[:, :K]
EXACT = np.take_along_axis(X, PLACES, axis=1).astype(float), PLACES.astype(float)
ERROR = 0.0

if __name__ == "__main__":
    for found, exact in zip(top_k(*ARRAYS), EXACT, strict=True):
        np.testing.assert_array_equal(found, exact)
