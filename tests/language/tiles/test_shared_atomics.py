"""Atomics on shared memory, of tiles of indices, of tiles and of lanes; unordered accesses are
races."""

from __future__ import annotations

import numpy as np
import pytest

from numpipe.errors import PipelineRace, SimulationError
from tests.kernels.shared_atomic_kernels import (
    all_kinds,
    by_lanes,
    by_rows,
    counted_and_read,
    expected,
    expected_by_rows,
    shared_by_two,
)

RNG = np.random.default_rng(0)


def test_all_kinds_of_atomics_count_equal_indices_too() -> None:
    x = RNG.integers(-100, 100, (64, 8)).astype(np.int32)
    at = RNG.integers(0, 64, (64, 8)).astype(np.int32)
    y, z = np.zeros(6 * 64, np.int32), np.zeros((64, 64), np.float32)
    all_kinds(x, at, y, z, target="sim")
    found, sums = expected(x, at)
    assert (y == found).all() and (z == sums).all()


def test_an_index_outside_is_a_hazard() -> None:
    x, at = np.zeros((64, 8), np.int32), np.full((64, 8), 64 * 6, np.int32)
    with pytest.raises(
        SimulationError, match=r"atomic_add: index 384 is outside the tile \(384,\)"
    ) as caught:
        all_kinds(x, at, np.zeros(6 * 64, np.int32), np.zeros((64, 64), np.float32), target="sim")
    assert caught.value.report.hazard == "out-of-bounds"


def test_lanes_count_too() -> None:
    x, y = RNG.integers(0, 64, (64, 16)).astype(np.int32), np.zeros(64, np.int32)
    by_lanes(x, y, target="sim")
    assert (y == np.bincount(x.reshape(-1), minlength=64)).all()


def test_warpgroups_that_share_a_tile_meet_before_it_is_read() -> None:
    x, y = RNG.integers(0, 64, (128, 8)).astype(np.int32), np.zeros(64, np.int32)
    shared_by_two(x, y, target="sim")
    assert (y == np.bincount(x.reshape(-1), minlength=64)).all()
    with pytest.raises(PipelineRace, match="atomic") as caught:
        shared_by_two(x, y, meet=False, target="sim")
    assert caught.value.report.hazard == "unordered-accesses"


def test_a_lane_that_reads_what_another_counts_is_a_race() -> None:
    x, y = np.zeros((64, 16), np.int32), np.zeros(64, np.int32)
    with pytest.raises(PipelineRace, match="that lane 0 has loaded, and nothing orders them"):
        counted_and_read(x, y, target="sim")


def test_tiles_by_rows_too(target: str) -> None:
    x = RNG.integers(0, 64, (64, 64)).astype(np.int32)
    found = np.zeros(64, np.int32), np.zeros(64, np.int32), np.zeros((64, 64), np.int32)
    by_rows(x, *found, target=target)
    for one, right in zip(found, expected_by_rows(x), strict=True):
        assert (one == right).all()
