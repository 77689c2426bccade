"""Scatter stores on the GPU: NumPy's results, and nothing written for an index out of bounds."""

from __future__ import annotations

import numpy as np

from tests.kernels.scatter_kernels import scattered
from tests.language.tiles.test_scatter import (  # noqa: F401
    test_blocks_of_three_dimensions_and_tiles_of_one_row_or_column_are_scattered,
    test_rows_columns_and_vectors_go_where_indices_say,
)


def test_nothing_is_written_for_an_index_outside() -> None:
    x = np.ones((64, 64), np.float32)
    y = np.zeros((64, 64), np.float32)
    rows = np.arange(64, dtype=np.int32)
    rows[[3, 9]] = -1, 64
    scattered(x, rows, y, target="gpu")
    assert (np.flatnonzero(y.sum(axis=1) == 0) == [3, 9]).all()
