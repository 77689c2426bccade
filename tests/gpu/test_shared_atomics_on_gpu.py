"""Atomics on shared memory on the GPU."""

from __future__ import annotations

import numpy as np

from tests.kernels.shared_atomic_kernels import all_kinds, by_lanes, expected, shared_by_two
from tests.language.tiles.test_shared_atomics import (  # noqa: F401
    test_tiles_by_rows_too,
)

RNG = np.random.default_rng(0)


def test_all_kinds_of_atomics() -> None:
    for _ in range(10):
        x = RNG.integers(-100, 100, (64, 8)).astype(np.int32)
        at = RNG.integers(0, 64, (64, 8)).astype(np.int32)
        y, z = np.zeros(6 * 64, np.int32), np.zeros((64, 64), np.float32)
        all_kinds(x, at, y, z, target="gpu")
        found, sums = expected(x, at)
        assert (y == found).all() and (z == sums).all()


def test_lanes_and_warpgroups_count_together() -> None:
    x, y = RNG.integers(0, 64, (64, 16)).astype(np.int32), np.zeros(64, np.int32)
    by_lanes(x, y, target="gpu")
    assert (y == np.bincount(x.reshape(-1), minlength=64)).all()
    x, y = RNG.integers(0, 64, (128, 8)).astype(np.int32), np.zeros(64, np.int32)
    shared_by_two(x, y, target="gpu")
    assert (y == np.bincount(x.reshape(-1), minlength=64)).all()
