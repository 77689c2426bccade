"""Per-lane kernel bodies on the GPU: the same values in each run."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.kernels.lane_kernels import (
    alone,
    check_looked_up,
    check_shifted,
    check_slotted,
    integers,
)
from tests.language.memory.test_lane_bodies import (  # noqa: F401
    test_captured_tiles_and_functions_are_a_lanes_in_every_warpgroup,
    test_elements_are_read_and_written_through_the_swizzle,
    test_every_lane_carries_a_number_of_its_own,
    test_lanes_write_elements_of_arrays_and_read_what_they_have_written,
    test_shuffles_move_numbers_within_a_warp,
)

REPEATS = 10
DTYPES = [np.float16, ml_dtypes.bfloat16, np.float32]


def test_a_single_stream_pipeline_has_such_bodies_too() -> None:
    for _ in range(REPEATS):
        x, y = integers((192, 64)), np.zeros((64, 64), np.float32)
        alone(x, y, target="gpu")
        np.testing.assert_array_equal(y[0], x.astype(np.float32).sum(0))


@pytest.mark.parametrize("dtype", [np.int32, np.float32])
def test_tiles_that_lanes_write_are_stored_by_the_pipeline(dtype: Any) -> None:
    for _ in range(REPEATS):
        check_shifted(dtype, target="gpu")


def test_slots_of_a_scratch_tile_are_a_lanes_too() -> None:
    for _ in range(REPEATS):
        check_slotted(target="gpu")
        check_looked_up(target="gpu")
