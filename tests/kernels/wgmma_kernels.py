"""Products of every wgmma shape: m64nNk16 for every N, M = 64 x blocks, A from shared memory and
registers, B plain and transposed."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

import numpipe
from numpipe import BlockSpec, ds

COLUMNS = range(8, 257, 8)
"""every N of the instruction for 16-bit types"""
K = 32


@numpipe.kernel
def every_form(a, b, turned, c, *, m: numpipe.Static, n: numpipe.Static, together: numpipe.Static):
    """Compute ``c = [a b + a turned.T, 2 a b + a turned.T]``.

    The products of the first tile are in flight together with those of the second, or not.
    """
    left = a[ds(0, m), ds(0, K)]
    pipe = numpipe.pipeline(
        grid=(1,),
        in_specs=(
            BlockSpec((m, K), lambda _: (0, 0)),
            BlockSpec((K, n), lambda _: (0, 0)),
            BlockSpec((n, K), lambda _: (0, 0)),
        ),
    )
    for (_,), (a_tile, b_tile, t_tile) in pipe(a, b, turned):
        first = numpipe.wgmma(None, a_tile, b_tile)
        first = numpipe.wgmma(first, left, t_tile.T)
        if not together:
            c[ds(0, m), ds(0, n)] = numpipe.wgmma_wait(first)
        second = numpipe.wgmma(None, left, b_tile)
        second = numpipe.wgmma(second, a_tile, t_tile.T)
        second = numpipe.wgmma(second, left, b_tile)
        if together:
            c[ds(0, m), ds(0, n)] = numpipe.wgmma_wait(first)
        c[ds(m, m), ds(0, n)] = numpipe.wgmma_wait(second)


def arguments(n: int) -> tuple[list[np.ndarray], dict[str, Any]]:
    """Return (arrays, Statics); M and the type cycle with N.

    Both tiles are in flight where a lane has enough registers.
    """
    m = 64 * (1 + n // 8 % 3) if n <= 64 else 64
    dtype: Any = ml_dtypes.bfloat16 if n // 8 % 2 else np.float16
    rng = np.random.default_rng(n)
    arrays = [rng.integers(-4, 5, shape).astype(dtype) for shape in ((m, K), (K, n), (n, K))]
    return [*arrays, np.full((2 * m, n), np.nan, np.float32)], {
        "m": m,
        "n": n,
        "together": m * n // 64 <= 200,
    }


def is_right(n: int, **how: Any) -> bool:
    """Return whether a run gives NumPy's products, which are exact for small integers."""
    arrays, statics = arguments(n)
    every_form(*arrays, **statics, **how)
    a, b, turned = (array.astype(np.float32) for array in arrays[:3])
    return bool(
        (arrays[3] == np.concatenate([a @ b + a @ turned.T, 2 * (a @ b) + a @ turned.T])).all()
    )
