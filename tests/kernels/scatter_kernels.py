"""Tiles whose rows or columns are scattered, with NumPy's results."""

from __future__ import annotations

import ml_dtypes
import numpy as np

import numpipe
from numpipe import ds

TYPES = [np.dtype(t) for t in (np.float32, np.float16, ml_dtypes.bfloat16, np.int32, np.uint8)]


@numpipe.kernel(grid=lambda x: (x.shape[0] // 64,))
def permuted(x, rows, columns, y, z, norms, places):
    """Scatter rows of x to rows of y, columns of x to columns of z, and row sums to elements of a
    vector."""
    i = numpipe.program_id(0)
    t, at = x[ds(i * 64, 64), ds(0, 40)], rows[ds(i * 64, 64)]
    y[at, :] = t
    z[ds(i * 64, 64), columns[ds(0, 40)]] = t + t
    norms[at] = t.astype(np.float32).sum(axis=1)
    norms[places[ds(i * 64, 64)]] = rows[ds(i * 64, 64)].astype(np.float32)


def arrays_of_permuted(dtype: np.dtype) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(5)
    return {
        "x": rng.integers(0, 30, (256, 40)).astype(dtype),
        "rows": rng.permutation(300)[:256].astype(np.int32),
        "columns": rng.permutation(50)[:40].astype(np.int32),
        "y": np.zeros((300, 40), dtype),
        "z": np.zeros((256, 50), dtype),
        "norms": np.zeros(600, np.float32),
        "places": (300 + rng.permutation(300)[:256]).astype(np.int32),
    }


def permuted_wrong(dtype: np.dtype, target: str) -> list[str]:
    arrays = arrays_of_permuted(dtype)
    x, rows, columns, places = (arrays[name] for name in ("x", "rows", "columns", "places"))
    y, z, norms = np.zeros((300, 40), dtype), np.zeros((256, 50), dtype), np.zeros(600, np.float32)
    y[rows], z[:, columns] = x, x + x
    norms[rows], norms[places] = x.astype(np.float32).sum(axis=1), rows
    permuted(*arrays.values(), target=target)
    return [
        name
        for name, right in (("y", y), ("z", z), ("norms", norms))
        if not (arrays[name] == right).all()
    ]


@numpipe.kernel
def expert_rows(x, order, y):
    """Scatter to a 3-D block with one element of the first dimension, and a one-column tile to
    other rows for each column."""
    t = x[ds(0, 128), ds(0, 64)]
    y[1, order[ds(0, 128)], ds(0, 64)] = t
    y[0, order[ds(0, 128)], ds(3, 1)] = t.max(axis=1, keepdims=True)
    y[2, ds(5, 1), order[ds(0, 64)]] = t.max(axis=0, keepdims=True)


def expert_rows_wrong(target: str) -> bool:
    rng = np.random.default_rng(6)
    x = rng.standard_normal((128, 64)).astype(np.float32)
    order = rng.permutation(128).astype(np.int32)
    order[:64], order[64:] = rng.permutation(64), 64 + rng.permutation(64)
    y, wanted = np.zeros((3, 128, 64), np.float32), np.zeros((3, 128, 64), np.float32)
    wanted[1, order], wanted[0, order, 3], wanted[2, 5, order[:64]] = (
        x,
        x.max(axis=1),
        x.max(axis=0),
    )
    expert_rows(x, order, y, target=target)
    return not (y == wanted).all()


@numpipe.kernel
def scattered(x, rows, y):
    y[rows[ds(0, 64)], ds(0, 64)] = x[ds(0, 64), ds(0, 64)]
