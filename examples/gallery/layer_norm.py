"""LayerNorm of each row, with weight and bias, which reads the row once."""

from __future__ import annotations

import numpy as np

import numpipe
from numpipe import ArrayType


@numpipe.rows(out_type=lambda x: ArrayType(x.shape, x.dtype))
def layer_norm(x, weight, bias, y, *, eps=1e-5, row: numpipe.Static):
    """y = (x - mean) / sqrt(variance + eps) * weight + bias of each row"""
    for k in row.blocks(x):
        # value(j) is a tile: columns j of the rows of this block
        value, block = row.load(k, x)
        mean, variance = row.moments(value)
        inverse = numpipe.rsqrt(variance + eps)

        def result(j):
            normed = (value(j) - mean) * inverse
            return normed * weight[j].astype(np.float32) + bias[j].astype(np.float32)

        row.store(block, y, result)


RANDOM = np.random.default_rng(0)
X = RANDOM.standard_normal((16, 4096), np.float32)
WEIGHT, BIAS = RANDOM.standard_normal((2, 4096), np.float32)
ARRAYS = (X, WEIGHT, BIAS)
CENTERED = X - X.mean(1, dtype=float, keepdims=True)
EXACT = CENTERED / np.sqrt((CENTERED**2).mean(1, keepdims=True) + 1e-5) * WEIGHT + BIAS
ERROR = 1e-6

if __name__ == "__main__":
    np.testing.assert_allclose(layer_norm(*ARRAYS), EXACT, atol=1e-5)
