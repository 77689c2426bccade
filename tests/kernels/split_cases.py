"""Checks shared by both ways of splitting tiles along K: exact operands, reproducible bits, and the
tuned product."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

import gemm_tuned
from numpipe.launch import DeviceArray
from tests.kernels.kernels_for_tests import operands, product

F16, BF16 = np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)


def integers(m: int, n: int, k: int, dtype: Any = F16) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return operands whose products are integers, and ``a @ b.T`` rounded once."""
    a, b = operands(m, n, k, dtype)
    return a, b, product(a, b)


def check_bits_on_gpu(kernel: Any, repeats: int = 20) -> None:
    """Check that every call of a bfloat16 product gives the same bits, close to the exact sums."""
    rng = np.random.default_rng(0)
    for m, n, k in ((512, 4096, 4096), (640, 3000, 1000)):
        a, b = (rng.standard_normal((rows, k), np.float32).astype(BF16) for rows in (m, n))
        x, y = DeviceArray.from_host(a), DeviceArray.from_host(b)
        first = None
        for _ in range(repeats):
            found = kernel(
                x, y, out=DeviceArray.from_host(np.full((m, n), np.nan, BF16))
            ).copy_to_host()
            first = found if first is None else first
            np.testing.assert_array_equal(found.view(np.uint16), first.view(np.uint16))
        rows = slice(0, m, 16)
        exact = a[rows].astype(np.float64) @ b.astype(np.float64).T
        assert np.linalg.norm(first[rows].astype(np.float64) - exact) < 2.5e-3 * np.linalg.norm(
            exact
        )


def check_tuned_on_gpu(cfg: gemm_tuned.Config) -> None:
    """Check examples/gemm_tuned.py split along K: with an epilogue, in a batch, with a column-major
    b."""
    for m, n, k in ((300, 520, 1032), (40, 1000, 3000)):
        a, b, exact = integers(m, n, k, BF16)
        c, bias = operands(m, n, n, BF16)[0], np.arange(n).astype(BF16)
        found = gemm_tuned.matmul(
            a, b, c, alpha=0.5, beta=2.0, bias=bias, activation="relu", cfg=cfg, target="gpu"
        )
        x, y, z, v = (array.astype(np.float64) for array in (a, b, c, bias))
        np.testing.assert_allclose(
            found.astype(np.float64), np.maximum(0.5 * (x @ y.T) + 2 * z + v, 0), rtol=2**-8
        )
        batch = gemm_tuned.matmul(np.stack([a, a[::-1]]), b, cfg=cfg, target="gpu")
        for plane, rows in zip(batch, (exact, exact[::-1]), strict=True):
            np.testing.assert_array_equal(plane, rows)
        np.testing.assert_array_equal(
            gemm_tuned.matmul(a, np.asfortranarray(b), cfg=cfg, target="gpu"), exact
        )
