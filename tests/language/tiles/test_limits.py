"""Loads and stores that end at a run-time row or column, ``ds(start, size, stop=n)``."""

from __future__ import annotations

import numpy as np
import pytest

from tests.kernels.limit_kernels import LIMITS, grouped, limited, scattered


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int8])
@pytest.mark.variants(2)
def test_a_run_time_row_or_column_ends_loads_and_stores(dtype: type, target: str) -> None:
    x = (np.random.default_rng(0).random((200, 80)) * 50 + 1).astype(dtype)
    for m in (64, 8, 128):
        for n, k in LIMITS:
            y, z, right = np.zeros_like(x), np.full_like(x, 9), np.zeros_like(x)
            limited(x, y, z, n, k, m=m, target=target)
            rows, columns = max(0, min(n, m)), max(0, min(k, 64))
            right[:rows, :columns] = x[:rows, :columns]
            assert (y == right).all() and (z[:m, :64] == right[:m, :64]).all(), (m, n, k)


def test_a_group_of_rows_ends_in_the_midst_of_a_tile(target: str) -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-3, 4, (rows, 128)).astype(np.float16) for rows in (456, 64))
    c = np.full((456, 64), 7, np.float32)
    for first, end in ((0, 130), (130, 200), (256, 256)):
        grouped(a, b, c, first, end, target=target)
    assert (c[:200] == a[:200].astype(np.float32) @ b.T.astype(np.float32)).all() and (
        c[200:] == 7
    ).all()


def test_rows_are_scattered_up_to_a_column(target: str) -> None:
    x, y = np.random.default_rng(0).random((64, 64), np.float32), np.zeros((64, 64), np.float32)
    scattered(x, y, 13, target=target)
    assert (y[:, :13] == x[::-1, :13]).all() and (y[:, 13:] == 0).all()
