"""Blocks and shared arrays of one dimension on the hardware."""

from __future__ import annotations

import numpy as np
import pytest

from tests.kernels.vector_kernels import DTYPES, SIZES, array, by_hand, copied, expected, shifted, through_lanes


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_pipeline_of_vectors(dtype: np.dtype) -> None:
    for size in (*SIZES, 100_000):
        x, y, z = array(size, dtype), np.zeros(size, dtype), np.zeros(size, dtype)
        copied(x, y, z, target="gpu")
        assert y.tobytes() == z.tobytes() == x.tobytes(), size


@pytest.mark.parametrize("by", [0, 1, 3, 64, 191])
def test_parts_of_a_vector(by: int) -> None:
    x, y = array(1000, np.dtype(np.int8)), np.zeros(1000, np.int8)
    shifted(x, y, by, target="gpu")
    assert (y == expected(x, by)).all()


def test_vectors_of_other_forms() -> None:
    x, y = array(1024, np.dtype(np.float32)), np.zeros(1024, np.float32)
    by_hand(x, y, target="gpu")
    assert (y[100:164] == 5).all() and (np.delete(y, range(100, 164)) == np.delete(x, range(100, 164))).all()
    x, y = array(256, np.dtype(np.float32)), np.zeros(256, np.float32)
    through_lanes(x, y, target="gpu")
    assert (y == x[::-1]).all()
