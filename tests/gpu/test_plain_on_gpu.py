"""Kernels as a new user writes them, on the GPU, several times each."""

from __future__ import annotations

import numpy as np
import pytest

from tests.kernels.plain_kernels import CASES, shifted_by_seed, wrong


@pytest.mark.parametrize("name", CASES)
def test_it_agrees_with_numpy(name: str) -> None:
    assert [found for seed in range(5) for found in wrong(name, "gpu", seed)] == []


def test_an_output_that_the_call_allocates_is_column_major() -> None:
    x = np.arange(128 * 64, dtype=np.float32).reshape(128, 64)
    y = shifted_by_seed(x, seed=3, target="gpu")
    assert y.flags.f_contiguous and (y == x + 3).all()
