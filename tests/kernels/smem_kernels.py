"""Kernels that load shared-memory tiles into registers, for the simulator and the GPU."""

from __future__ import annotations

import numpy as np

import numpipe
from numpipe import BlockSpec, cdiv, ds
from tests.kernels.kernels_for_tests import BF16, F16, F32

ARRAYS = [f"{dtype} {order}" for dtype in (F16, BF16, F32) for order in ("rows", "columns")]


def array(name: str, shape: tuple[int, int] = (300, 200)) -> np.ndarray:
    dtype, order = name.split()
    made = (
        np.random.default_rng(0)
        .standard_normal(shape)
        .astype({str(d): d for d in (F16, BF16, F32)}[dtype])
    )
    return made if order == "rows" else np.asfortranarray(made)


@numpipe.kernel(num_compute_wgs=2)
def copied(a, c):
    wg = numpipe.axis_index("wg")
    pipe = numpipe.pipeline(
        grid=(cdiv(a.shape[0], 128), cdiv(a.shape[1], 64)),
        in_specs=(BlockSpec((128, 64), lambda i, k: (i, k)),),
    )
    for (i, k), (x,) in pipe(a):
        c[ds(i * 128 + wg * 64, 64), ds(k * 64, 64)] = x[ds(wg * 64, 64), :]


@numpipe.kernel(num_compute_wgs=2)
def scaled(a, c):
    """Load both halves of a tile in every warpgroup, and store one of them."""
    wg = numpipe.axis_index("wg")
    pipe = numpipe.pipeline(
        grid=(cdiv(a.shape[0], 128), cdiv(a.shape[1], 64)),
        in_specs=(BlockSpec((128, 64), lambda i, k: (i, k)),),
        max_concurrent_steps=3,
    )
    for (i, k), (x,) in pipe(a):
        tile = x.at[ds(wg * 64, 64), :][...].astype(np.float32)
        c[ds(i * 128 + wg * 64, 64), ds(k * 64, 64)] = (tile * 2 + 1.0).astype(c.dtype)


@numpipe.kernel
def sum_of_views(a, c):
    pipe = numpipe.pipeline(grid=(1,), in_specs=(BlockSpec((128, 64), lambda k: (0, k)),))
    for (_,), (x,) in pipe(a):
        low, high = x[0:64, :].astype(np.float32), x[64:128, :].astype(np.float32)
        c[ds(0, 64), ds(0, 64)] = low + high + x.at[0:64, :].T[...].astype(np.float32)
