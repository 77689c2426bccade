"""Kernels with `numpipe.map_columns`, for the simulator and the GPU."""

from __future__ import annotations

from typing import Any

import numpy as np

import numpipe
from numpipe import BlockSpec, ds


@numpipe.kernel(
    out_type=lambda a, b, dtype: numpipe.ArrayType((a.shape[0], b.shape[0]), np.dtype(dtype))
)
def numbered(
    a,
    b,
    c,
    *,
    factor,
    rows: numpipe.Static = 64,
    columns: numpipe.Static = 64,
    width: numpipe.Static = 16,
    dtype: numpipe.Static = "float32",
):
    """Compute (a b^T + the column number of each element) * factor, strip by strip."""

    def finish(x, first):
        return ((x + numpipe.iota((rows, width), 1).astype(np.float32) + first) * factor).astype(
            dtype
        )

    acc = numpipe.zeros((rows, columns), np.float32)
    for _, (x, y) in numpipe.pipeline(
        grid=(1,),
        in_specs=(
            BlockSpec((rows, 16), lambda k: (0, k)),
            BlockSpec((columns, 16), lambda k: (0, k)),
        ),
    )(a, b):
        acc = numpipe.wgmma(acc, x, y.T)
    c[ds(0, rows), ds(0, columns)] = numpipe.map_columns(finish, acc, width)


SHAPES = ((64, 64, 16), (64, 64, 64), (128, 192, 64), (192, 40, 8), (64, 256, 32))
"""rows, columns, width"""


def expected(a: np.ndarray, b: np.ndarray, factor: float, dtype: Any) -> np.ndarray:
    product = a.astype(np.float32) @ b.astype(np.float32).T
    found: np.ndarray = ((product + np.arange(len(b), dtype=np.float32)) * factor).astype(dtype)
    return found
