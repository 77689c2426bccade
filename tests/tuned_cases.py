"""Products of examples/gemm_tuned.py in every layout, for both executions."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

LAYOUTS = tuple(map("".join, itertools.product("CF", repeat=3)))
"""of a, b and the output: row- or column-major matrices"""
RANKS = ((0, 0), (3, 3), (3, 0), (0, 3))
"""batches of a and b, 0 for a matrix"""


def laid(array: np.ndarray, order: str) -> np.ndarray:
    """A copy whose matrices are row-major ("C") or column-major ("F")."""
    if order == "C":
        return np.ascontiguousarray(array)
    return np.ascontiguousarray(array.swapaxes(-1, -2)).swapaxes(-1, -2)


def matrices(rows: int, k: int, batches: int, dtype: Any, seed: int) -> np.ndarray:
    """Small integers: sums of their products are exact."""
    shape = (batches, rows, k) if batches else (rows, k)
    return np.random.default_rng(seed).integers(-3, 4, shape).astype(dtype)


def product(a: np.ndarray, b: np.ndarray, dtype: Any) -> np.ndarray:
    """Exact, then rounded once."""
    exact: np.ndarray = a.astype(np.float64) @ b.astype(np.float64).swapaxes(-1, -2)
    return exact.astype(dtype)


def layouts(m: int, n: int, k: int, dtype: Any, ranks: tuple[int, int]) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray,
                                                                                          np.ndarray]]:
    """(a, b, an output full of NaN, what belongs into it) of every layout."""
    a, b = matrices(m, k, ranks[0], dtype, 1), matrices(n, k, ranks[1], dtype, 2)
    expected = product(a, b, dtype)
    for orders in LAYOUTS:
        yield laid(a, orders[0]), laid(b, orders[1]), laid(np.full_like(expected, np.nan), orders[2]), expected
