"""Slices of shared tiles from any start, on the GPU."""

from __future__ import annotations

import numpy as np
import pytest

from tests.kernels.slice_kernels import STARTS, anywhere, stored_anywhere
from tests.language.tiles.test_slices import (  # noqa: F401
    test_two_warps_store_a_tile_that_four_have_twice,
)

REPEATS = 10


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int8])
def test_parts_start_anywhere(dtype: type) -> None:
    x = (np.random.default_rng(0).random((128, 128)) * 100).astype(dtype)
    for row, column in STARTS:
        y = np.zeros((128, 64), dtype)
        anywhere(x, y, row, column, target="gpu")
        assert (y[:64] == x[row : row + 64, column : column + 64]).all()
        assert (y[64:] == x.T[column : column + 64, row : row + 64]).all()
        if dtype == np.float32:
            z = np.zeros((128, 128), np.float32)
            stored_anywhere(x, z, row, column, target="gpu")
            assert (z[row : row + 64, column : column + 64] == x[:64, :64]).all()
