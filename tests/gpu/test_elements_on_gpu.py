"""Scalars stored to single elements and reduced into them, on the GPU."""

from __future__ import annotations

import numpy as np
import pytest

from tests.kernels.scalar_kernels import STORED, counted_wrong, statistics_wrong
from tests.language.tiles.test_elements import (  # noqa: F401
    test_a_number_takes_the_arrays_type,
    test_numbers_are_stored_next_to_a_memory_role,
)


@pytest.mark.parametrize("dtype", [dtype for dtype in STORED if dtype.kind not in "iu"], ids=str)
def test_reductions_of_tiles_are_stored_and_added_as_numbers(dtype: np.dtype) -> None:
    assert statistics_wrong(dtype, "gpu") == []


@pytest.mark.parametrize(
    "dtype", [np.int32, np.uint32, np.float32, np.float16], ids=lambda dtype: dtype.__name__
)
def test_a_literal_is_added_in_the_arrays_type(dtype: type) -> None:
    assert not counted_wrong(dtype, "gpu")
