"""Kernels on packed 4-bit elements, with what NumPy makes of the same bytes."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

import numpipe
from numpipe import BlockSpec, ds

DTYPES = {"float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
SHAPES = ((64, 16), (128, 32), (64, 48), (128, 64), (64, 96), (192, 128))
"""rows, bytes: rows of one chunk, of three panels of 16 B and of 32 B, and of each swizzle"""


def kernel(rows: int, nbytes: int, element: str, dtype: str) -> Any:
    """Return a kernel that unpacks blocks (rows, nbytes) of w to its output, all elements exact."""

    @numpipe.kernel(
        out_type=lambda w: numpipe.ArrayType((w.shape[0], 2 * w.shape[1]), DTYPES[dtype])
    )
    def unpacked(w, out):
        pipe = numpipe.pipeline(
            grid=(w.shape[0] // rows, w.shape[1] // nbytes),
            in_specs=(BlockSpec((rows, nbytes), lambda i, j: (i, j)),),
        )
        for (i, j), (tile,) in pipe(w):
            out[ds(i * rows, rows), ds(2 * j * nbytes, 2 * nbytes)] = numpipe.unpack(
                tile, element, dtype
            )

    return unpacked


def elements(w: np.ndarray, element: str, dtype: str) -> np.ndarray:
    """Return the packed elements of an array of bytes, by NumPy."""
    nibbles = np.stack([w & 15, w >> 4], axis=-1).reshape(*w.shape[:-1], -1).astype(np.int8)
    values = nibbles - 16 * (nibbles > 7) if element == "int4" else nibbles
    return values.astype(DTYPES[dtype])


def every_byte(rows: int, nbytes: int) -> np.ndarray:
    """Return bytes in which each value occurs, in another order in each row."""
    rng = np.random.default_rng(rows * nbytes)
    return (
        np.concatenate([rng.permutation(256) for _ in range(-(-rows * nbytes // 256))])[
            : rows * nbytes
        ]
        .reshape(rows, nbytes)
        .astype(np.uint8)
    )
