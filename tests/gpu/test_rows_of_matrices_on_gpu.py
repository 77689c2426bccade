"""Kernels over rows on the GPU against float64."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.kernels.rows_of_kernels import KERNELS, wrong

SHAPES = [
    (50, 1),
    (1000, 7),
    (130, 1024),
    (33, 1001),
    (33, 3001),
    (7, 9001),
    (5, 16384),
    (3, 50257),
]


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16], ids=str)
@pytest.mark.parametrize("name", KERNELS)
def test_every_schedule_agrees_with_numpy(name: str, dtype: Any) -> None:
    rng = np.random.default_rng(0)
    for shape in SHAPES:
        x = rng.standard_normal(shape).astype(dtype)
        assert wrong(name, x, "gpu") == [], shape
