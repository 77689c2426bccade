"""1-D blocks, shared arrays and outputs, in every element type, with partial blocks."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from numpipe.errors import PipelineRace, SimulationError, SpecError
from numpipe.launch import describe
from numpipe.launch.array_info import flattened
from tests.kernels.vector_kernels import (
    DTYPES,
    SIZES,
    array,
    begins_early,
    by_hand,
    copied,
    expected,
    part_of_flat,
    shifted,
    through_lanes,
    without_barriers,
)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.variants(4)
def test_a_pipeline_of_vectors_reads_zeros_after_the_array_and_clips_its_stores(
    dtype: np.dtype, target: str
) -> None:
    for size in (*SIZES, *[100_000] * (target == "gpu")):
        x, y, z = array(size, dtype), np.zeros(size, dtype), np.zeros(size, dtype)
        copied(x, y, z, target=target)
        assert y.tobytes() == z.tobytes() == x.tobytes(), size


def test_parts_of_a_vector_start_anywhere(target: str) -> None:
    for by in (0, 1, 3, 64, 191):
        x, y = array(1000, np.dtype(np.int8)), np.zeros(1000, np.int8)
        shifted(x, y, by, target=target)
        assert (y == expected(x, by)).all()


def test_a_shared_vector_is_copied_read_and_written_by_hand(target: str) -> None:
    x, y = array(1024, np.dtype(np.float32)), np.zeros(1024, np.float32)
    by_hand(x, y, target=target)
    assert (y[100:164] == 5).all() and (
        np.delete(y, range(100, 164)) == np.delete(x, range(100, 164))
    ).all()


def test_a_lane_reads_elements_of_a_vector(target: str) -> None:
    x, y = array(256, np.dtype(np.float32)), np.zeros(256, np.float32)
    through_lanes(x, y, target=target)
    assert (y == x[::-1]).all()


def test_a_part_of_a_flat_array_crosses_rows(target: str) -> None:
    x, y = array(640, np.dtype(np.float32)).reshape(8, 80), np.zeros(256, np.float32)
    for first in (0, 100, 480):
        part_of_flat(x, y, first=first, target=target)
        assert (y == np.concatenate([x.reshape(-1), np.zeros(256)])[first : first + 256]).all()
    with pytest.raises(SpecError, match=r"x.flat: strides \(400, 4\); fix: pass a contiguous"):
        part_of_flat(np.zeros((8, 100), np.float32)[:, :80], y, first=0, target="sim")
    with pytest.raises(SpecError, match=r"x.flat needs a contiguous array.*\(400, 4\)"):
        flattened(describe(np.zeros((8, 100), np.float32)[:, :80], "x"), "x")


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float32], ids=str)
def test_a_block_may_begin_before_its_array(dtype: Any, target: str) -> None:
    x, y = array(1001, np.dtype(dtype))[None], np.zeros((1, 1001), dtype)
    begins_early(x, y, target=target)
    assert (y == x).all()


def test_a_part_that_leaves_a_vector_is_a_hazard() -> None:
    x, y = array(256, np.dtype(np.int8)), np.zeros(256, np.int8)
    with pytest.raises(
        SimulationError, match=r"elements 200 … 263 are not in a tile \(256,\)"
    ) as caught:
        shifted(x, y, 200, target="sim")
    assert caught.value.report.hazard == "out-of-bounds"


def test_another_warp_sees_stores_of_warp_0_only_after_a_barrier() -> None:
    x, y = array(1024, np.dtype(np.float32)), np.zeros(1024, np.float32)
    with pytest.raises(PipelineRace) as caught:
        without_barriers(x, y, target="sim")
    assert caught.value.report.hazard == "unordered-accesses"
