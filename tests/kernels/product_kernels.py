"""A kernel of one product, for every type, order of operands and tile."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

import numpipe
from numpipe import BlockSpec, CompilerParams, cdiv, ds

TYPES = {
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
    "float32": np.float32,
    "float64": np.float64,
    "int8": np.int8,
    "uint8": np.uint8,
    "float8_e4m3fn": ml_dtypes.float8_e4m3fn,
}


def _product(a, b, c, *, tm: numpipe.Static, tn: numpipe.Static, tk: numpipe.Static,
             a_by_k: numpipe.Static, b_by_k: numpipe.Static, moved: numpipe.Static = False):  # fmt: skip
    """``c = a b``, tiles of tm x tn; `a` is (K, M) unless `a_by_k`, b (K, N) unless `b_by_k`. With
    `moved`, A is a register tile."""
    wg = numpipe.axis_index("wg")
    rows = tm // numpipe.axis_size("wg")
    depth = a.shape[1] if a_by_k else a.shape[0]
    for m, n in numpipe.tiles(cdiv(c.shape[0], tm), cdiv(c.shape[1], tn)):
        acc = numpipe.zeros((rows, tn), c.dtype)
        pipe = numpipe.pipeline(
            grid=(cdiv(depth, tk),),
            max_concurrent_steps=3,
            in_specs=(
                BlockSpec((tm, tk) if a_by_k else (tk, tm), lambda k: (m, k) if a_by_k else (k, m)),
                BlockSpec((tn, tk) if b_by_k else (tk, tn), lambda k: (n, k) if b_by_k else (k, n)),
            ),
        )
        for (k,), (a_tile, b_tile) in pipe(a, b):
            if a_by_k:
                left = a_tile.at[ds(wg * rows, rows), :]
            else:
                left = a_tile.T.at[ds(wg * rows, rows), :]
            if b_by_k:
                right = b_tile.T
            else:
                right = b_tile
            if moved:
                acc = numpipe.mma(acc, left[...], right)
            else:
                acc = numpipe.mma(acc, left, right)
        c[ds(m * tm + wg * rows, rows), ds(n * tn, tn)] = acc


def kernel_of(product: str, wgs: int = 2) -> Any:
    """Return the kernel compiled for a product by name."""
    return numpipe.kernel(
        grid=numpipe.persistent(),
        num_compute_wgs=wgs,
        wg_axis="wg",
        compiler_params=CompilerParams(product=product),
    )(_product)


by_mma_sync, by_wgmma, preferred = map(kernel_of, ("mma.sync", "wgmma", ""))


def arrays(
    name: str, m: int, n: int, k: int, a_by_k: bool = True, b_by_k: bool = True, seed: int = 0
) -> tuple[list[np.ndarray], np.ndarray]:
    """Return ([a, b, poisoned c], the product in float64, or int64)."""
    rng = np.random.default_rng(seed)
    dtype = np.dtype(TYPES[name])
    if dtype.kind in "iu":
        lowest, highest = np.iinfo(dtype).min, np.iinfo(dtype).max
        a, b = (rng.integers(lowest, highest + 1, shape).astype(dtype) for shape in ((m, k), (n, k)))
        exact = a.astype(np.int64) @ b.astype(np.int64).T
        c = np.full((m, n), -7, np.int32)
    else:
        a, b = (rng.standard_normal(shape).astype(dtype) for shape in ((m, k), (n, k)))
        exact = a.astype(np.float64) @ b.astype(np.float64).T
        c = np.full((m, n), np.nan, np.float64 if dtype == np.float64 else np.float32)
    a, b = a if a_by_k else np.ascontiguousarray(a.T), b if b_by_k else np.ascontiguousarray(b.T)
    return [a, b, c], exact
