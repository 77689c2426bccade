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


def _product(
    a,
    b,
    c,
    *,
    tm: numpipe.Static,
    tn: numpipe.Static,
    tk: numpipe.Static,
    a_by_k: numpipe.Static,
    b_by_k: numpipe.Static,
    moved: numpipe.Static = False,
):
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
            right = b_tile.T if b_by_k else b_tile
            if moved:
                left = left[...]
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
        a, b = (
            rng.integers(lowest, highest + 1, shape).astype(dtype) for shape in ((m, k), (n, k))
        )
        exact = a.astype(np.int64) @ b.astype(np.int64).T
        c = np.full((m, n), -7, np.int32)
    else:
        a, b = (rng.standard_normal(shape).astype(dtype) for shape in ((m, k), (n, k)))
        exact = a.astype(np.float64) @ b.astype(np.float64).T
        c = np.full((m, n), np.nan, np.float64 if dtype == np.float64 else np.float32)
    a, b = a if a_by_k else np.ascontiguousarray(a.T), b if b_by_k else np.ascontiguousarray(b.T)
    return [a, b, c], exact


def bound(name: str, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the largest error of each element of ``a @ b.T``, of K-major float64 arrays: each of K
    additions rounds, or truncates, a sum that is at most that of the magnitudes."""
    last = 2.0 ** (-52 if name == "float64" else -22)
    of_sums: np.ndarray = a.shape[1] * last * (np.abs(a) @ np.abs(b).T)
    return of_sums


def is_right(
    name: str,
    shape: tuple[int, int, int],
    a_by_k: bool = True,
    b_by_k: bool = True,
    kernel: Any = by_mma_sync,
    **how: Any,
) -> bool:
    """Whether a product of random elements is NumPy's in float64, within `bound`; exactly for
    integers. Operands of tf32 are truncated first, as the tensor cores do."""
    given, exact = arrays(name, *shape, a_by_k, b_by_k, seed=hash(shape) & 0xFFFF)
    tiles = {"tm": 128, "tn": 64, "tk": 128 // np.dtype(TYPES[name]).itemsize}
    kernel(*given, **tiles, a_by_k=a_by_k, b_by_k=b_by_k, **how)
    if exact.dtype.kind == "i":
        return bool((given[2] == exact).all())
    a, b = given[0] if a_by_k else given[0].T, given[1] if b_by_k else given[1].T
    if name == "float32":
        a, b = ((x.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32) for x in (a, b))
    a, b = a.astype(np.float64), b.astype(np.float64)
    return bool((np.abs(given[2] - a @ b.T) <= bound(name, a, b)).all())


ORDERS = ((True, True), (True, False), (False, True), (False, False))
CASES = [
    *(("float16", *order, False) for order in ORDERS),
    ("float16", True, True, True),
    ("bfloat16", False, True, False),
    ("bfloat16", True, False, True),
    *((name, True, True, False) for name in ("float32", "float64", "int8", "uint8")),
    ("float8_e4m3fn", True, True, False),
]
"""(type, whether A and B are K-major, whether A is a register tile)"""
