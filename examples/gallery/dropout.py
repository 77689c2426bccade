"""Dropout, the residual and RMSNorm in one pass over memory; the mask follows from a seed."""

from __future__ import annotations

import numpy as np

import numpipe
from numpipe import ArrayType


def two_like(x):
    return ArrayType(x.shape, x.dtype), ArrayType(x.shape, x.dtype)


# held=2: lanes also keep the sum and the random numbers in registers
@numpipe.rows(operands=2, held=2, out_type=two_like)
def dropout(x, residual, weight, y, total, *, p=0.1, seed=0, eps=1e-6, row: numpipe.Static):
    """total = dropout(x) + residual, y = total / sqrt(mean(total**2) + eps) * weight"""
    scale = 1.0 / (1.0 - p)
    for k in row.blocks(x):
        value, shortcut, block = row.load(k, x, residual)

        def added(j):
            dropped = row.random(k, j, seed) < p
            return np.where(dropped, 0.0, value(j) * scale) + shortcut(j)

        inverse = numpipe.rsqrt(row.mean(lambda j: added(j) * added(j)) + eps)

        def normed(j):
            return added(j) * inverse * weight[j].astype(np.float32)

        row.store(block, y, normed, total, added)


def random(seed, rows, columns):
    """Return the numbers of `row.random`: Philox 2x32 with 7 rounds, for each pair of columns."""
    pair, row = np.meshgrid(np.arange(columns // 2), np.arange(rows))
    first, second, key = pair.astype(np.uint64), row.astype(np.uint64), seed
    for _ in range(7):
        product = first * np.uint64(0xD256D193)
        first, second = (product >> 32) ^ key ^ second, product & 0xFFFFFFFF
        key = (key + 0x9E3779B9) & 0xFFFFFFFF
    return (np.stack((first, second), -1).reshape(rows, columns) >> 8) * 2.0**-24


RANDOM = np.random.default_rng(0)
X, RESIDUAL = RANDOM.standard_normal((2, 64, 512), np.float32)
WEIGHT = RANDOM.standard_normal(512, np.float32)
ARRAYS = (X, RESIDUAL, WEIGHT)
TOTAL = np.where(random(0, *X.shape) < np.float32(0.1), 0, X / 0.9) + RESIDUAL
EXACT = (TOTAL / np.sqrt((TOTAL**2).mean(1, keepdims=True) + 1e-6) * WEIGHT, TOTAL)
ERROR = 1e-6

if __name__ == "__main__":
    for found, exact in zip(dropout(*ARRAYS), EXACT, strict=True):
        np.testing.assert_allclose(found, exact, atol=1e-5)
