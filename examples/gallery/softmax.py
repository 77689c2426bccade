"""Softmax of each row, with one pass over memory."""

from __future__ import annotations

import numpy as np

import numpipe
from numpipe import ArrayType


@numpipe.rows(out_type=lambda x: ArrayType(x.shape, x.dtype))
def softmax(x, y, *, row: numpipe.Static):
    """y = exp(x) / sum(exp(x)) of each row"""
    for k in row.blocks(x):
        # value(j) is a tile: columns j of the rows of this block; p is such a function, too
        value, block = row.load(k, x)
        p, _ = row.softmax(value)
        row.store(block, y, p)


X = np.random.default_rng(0).standard_normal((64, 1000), np.float32)
ARRAYS = (X,)
EXACT = np.exp(X.astype(float)) / np.exp(X.astype(float)).sum(1, keepdims=True)
ERROR = 1e-6

if __name__ == "__main__":
    np.testing.assert_allclose(softmax(*ARRAYS), EXACT, rtol=1e-5)
