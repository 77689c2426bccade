"""Kernels whose vectors start in either layout, and get a fixed one where control flow merges
them."""

from __future__ import annotations

from typing import Any

import numpy as np

import numpipe
from numpipe import BlockSpec, cdiv, ds

grid = numpipe.kernel(grid=lambda x: (cdiv(x.shape[0], 64),))


@grid
def row_sums(x, y, scale):
    """Compute ``y = x.sum(axis=1) * scale``, as a newcomer would write it."""
    m = numpipe.program_id(0)
    pipe = numpipe.pipeline(
        grid=(cdiv(x.shape[1], 64),),
        max_concurrent_steps=2,
        in_specs=(BlockSpec((64, 64), lambda k: (m, k)),),
    )
    total = numpipe.full((64,), 0.0, np.float32)
    for (_,), (tile,) in pipe(x):
        total = total + tile[...].astype(np.float32).sum(axis=1)
    y[ds(m * 64, 64)] = total * scale


@grid
def row_sums_by_a_body(x, y, scale):
    """Compute row sums in the body form, where layouts propagate along the carry.

    The second vector of the carry takes the layout of the first one step later, the third one step
    after that.
    """
    m = numpipe.program_id(0)

    def body(indices, tile, carry):
        total, before, last = carry
        return total + tile[...].astype(np.float32).sum(axis=1), total, before * 1.0 + last * 0.0

    def compute(pipeline):
        zero = numpipe.zeros((64,), np.float32)
        total, before, last = pipeline((zero, zero, zero))
        y[ds(m * 64, 64)] = total * scale + (before - before) + (last - last)

    numpipe.emit_pipeline_warp_specialized(
        body,
        grid=(cdiv(x.shape[1], 64),),
        max_concurrent_steps=2,
        compute_context=compute,
        in_specs=(BlockSpec((64, 64), lambda k: (m, k)),),
    )(x)


ROW_SUMS = [row_sums, row_sums_by_a_body]


def arrays_of_row_sums() -> tuple[np.ndarray, np.ndarray, np.float32]:
    """Return small integers: sums are exact in any order."""
    x = np.random.default_rng(3).integers(-9, 9, (200, 136)).astype(np.float16)
    return x, np.full(200, 7, np.float32), np.float32(0.5)


def wanted_of_row_sums(x: np.ndarray, scale: np.float32) -> Any:
    return x.astype(np.float32).sum(axis=1) * scale


@numpipe.function
def largest(x, n, bias):
    """Return a vector in either layout, or one along the rows."""
    if n > 3:
        return bias
    return x.max(axis=1)


@numpipe.kernel
def joined(x, bias, n, y):
    """Make each row of y from a vector in either layout on one path, and in a fixed layout on
    another."""
    tile, b = x[ds(0, 64), ds(0, 64)], bias[ds(0, 64)]
    column = b
    if n > 3:
        column = tile.sum(axis=1)
    y[0, ds(0, 64)] = column
    row = tile.sum(axis=0)  # the other order
    if n > 3:
        row = numpipe.full(64, 2.0, np.float32)
    y[1, ds(0, 64)] = row
    y[2, ds(0, 64)] = b if n > 3 else tile.max(axis=0)
    y[3, ds(0, 64)] = largest(tile, n, b)
    low, high = b, b
    for _ in range(n):  # a row and a column
        low, high = np.minimum(low, tile.min(axis=0)), np.maximum(high, tile.max(axis=1))
    y[4, ds(0, 64)] = low
    y[5, ds(0, 64)] = high
    pair, count = (b, numpipe.iota(64)), 0
    while count < n:  # the same in a tuple
        pair = pair[0] + tile.sum(axis=1), pair[1] + tile.argmax(axis=0)
        count += 1
    y[6, ds(0, 64)] = pair[0]
    y[7, ds(0, 64)] = pair[1].astype(np.float32)
    half = b.astype(np.float16)
    mask = half > 0.0
    if n > 3:
        half, mask = tile.max(axis=1).astype(np.float16), tile.max(axis=0) > 0.0
    y[8, ds(0, 64)] = half.astype(np.float32)
    y[9, ds(0, 64)] = mask.astype(np.float32)


def arrays_of_joined(n: int) -> tuple[np.ndarray, np.ndarray, np.int32, np.ndarray]:
    rng = np.random.default_rng(5)
    return (
        rng.integers(-9, 9, (64, 64)).astype(np.float32),
        rng.integers(-20, 20, 64).astype(np.float32),
        np.int32(n),
        np.full((10, 64), 7, np.float32),
    )


def wanted_of_joined(x: np.ndarray, bias: np.ndarray, n: int) -> np.ndarray:
    many, some = n > 3, n > 0
    return np.array(
        [
            x.sum(1) if many else bias,
            np.full(64, 2) if many else x.sum(0),
            bias if many else x.max(0),
            bias if many else x.max(1),
            np.minimum(bias, x.min(0)) if some else bias,
            np.maximum(bias, x.max(1)) if some else bias,
            bias + n * x.sum(1),
            np.arange(64) + n * x.argmax(0),
            x.max(1) if many else bias,
            (x.max(0) if many else bias) > 0,
        ]
    )
