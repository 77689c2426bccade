"""Scalars stored to single array elements and added to them atomically, with NumPy's results."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

import numpipe
from numpipe import BlockSpec, ds

STORED = [
    np.dtype(t)
    for t in (
        np.float32,
        np.float16,
        np.float64,
        ml_dtypes.bfloat16,
        np.int32,
        np.int64,
        np.uint8,
        np.int16,
    )
]


@numpipe.kernel(grid=lambda x: (x.shape[0] // 64,))
def statistics(x, found, where, some, total, most):
    """Store a row of numbers for each block of 64 rows, and the sum and maximum of all by
    atomics."""
    i = numpipe.program_id(0)
    t = x[ds(i * 64, 64), ds(0, 64)]
    found[i, 0] = t.sum()
    found[i, 1] = t.max()
    found[i, 2] = t.min()
    found[i, 3] = t.mean()
    found[i, 4] = 0.5
    where[i] = t.argmax()
    some[i] = np.all(t > -2.5)
    numpipe.atomic_add(total.at[0], t.sum())
    numpipe.atomic_max(most.at[0, i % 2], t.astype(np.int32).max())


def arrays_of_statistics(dtype: Any = np.float32) -> dict[str, np.ndarray]:
    """Return small integers: sums are exact in any order."""
    x = np.random.default_rng(3).integers(-3, 4, (256, 64)).astype(np.float32)
    return {
        "x": x,
        "found": np.zeros((4, 5), dtype),
        "where": np.zeros(4, np.int64),
        "some": np.zeros(4, bool),
        "total": np.ones(1, np.float32),
        "most": np.zeros((1, 2), np.int32),
    }


def statistics_wrong(dtype: np.dtype, target: str) -> list[str]:
    arrays = arrays_of_statistics(dtype)
    statistics(*arrays.values(), target=target)
    blocks = arrays["x"].reshape(4, -1)
    rows = np.stack(
        [blocks.sum(1), blocks.max(1), blocks.min(1), blocks.mean(1), np.full(4, 0.5)], axis=1
    )
    wanted = {
        "found": rows.astype(np.float32).astype(dtype),
        "where": blocks.argmax(1),
        "some": (blocks > -2.5).all(1),
        "total": 1 + blocks.sum(),
        "most": np.array([[blocks[::2].max(), blocks[1::2].max()]]),
    }
    return [name for name, right in wanted.items() if not (arrays[name] == right).all()]


@numpipe.kernel
def row_sums(x, y):
    """Store the sum of each block of a pipeline as a scalar, next to a memory role."""
    total = 0
    pipe = numpipe.pipeline(
        grid=(x.shape[0] // 64,), in_specs=(BlockSpec((64, 64), lambda k: (k, 0)),)
    )
    for (k,), (tile,) in pipe(x):
        s = tile[...].sum()
        y[k] = s
        total = total + s
    y[x.shape[0] // 64] = total


def row_sums_wrong(target: str) -> bool:
    x, y = np.arange(256 * 64, dtype=np.int32).reshape(256, 64) % 7, np.zeros(5, np.int32)
    row_sums(x, y, target=target)
    sums = x.reshape(4, -1).sum(1)
    return not (y == [*sums, sums.sum()]).all()


@numpipe.kernel
def one_number(y, i, x):
    y[i] = x


def stored_wrong(dtype: np.dtype, target: str) -> list[Any]:
    """Store a scalar from an int or float parameter in arrays of every type; return which are
    wrong."""
    wrong = []
    for x in (np.int32(7), np.float32(-2.7)) if dtype.kind not in "iu" else (np.int32(7),):
        y = np.zeros(9, dtype)
        one_number(y, np.int32(8), x, target=target)
        if not (y == np.concatenate([np.zeros(8), [x]]).astype(np.float32).astype(dtype)).all():
            wrong.append(x)
    return wrong


@numpipe.kernel
def counted(y):
    numpipe.atomic_add(y.at[numpipe.program_id(0) % 4], 1)
    y[4] = 1


def counted_wrong(dtype: Any, target: str) -> bool:
    """Add and store literals of every type; return which are wrong."""
    y = np.zeros(5, dtype)
    counted(y, target=target)
    return bool(y.tolist() != [1, 0, 0, 0, 1])
