"""Pipeline outputs on the GPU: the cases that the simulator checks, in many runs, and sizes that
fill the GPU."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.examples.test_example_copy import copy_pipeline
from tests.kernels.kernels_for_tests import BF16, F16, F32
from tests.kernels.output_kernels import (
    Config,
    check_batches,
    check_copy,
    check_in_tiles,
    check_nested,
    check_one_by_one,
    check_sums,
    copy,
    doubled,
    integers,
)
from tests.language.pipeline.test_outputs import test_the_contents_of_blocks_are_stored  # noqa: F401

REPEATS = 10


@pytest.mark.parametrize("outs", [1, 2, 3, 4])
@pytest.mark.parametrize("dtype", [F16, BF16, F32], ids=str)
def test_many_blocks_through_few_slots(dtype: Any, outs: int, runs: Any) -> None:
    for shape in ((2048, 2056), (64, 8), (1000, 72)):
        for run in runs:
            check_copy(run, copy(), dtype, shape, cfg=Config(outs=outs, slots=2))


@pytest.mark.parametrize("slots", [1, 2, 3])
def test_revisited_blocks(slots: int, runs: Any) -> None:
    for shape in ((1024, 1024), (130, 66), (128, 64)):
        for run in runs:
            check_sums(run, shape, slots)


@pytest.mark.parametrize("slots", [1, 2, 4])
def test_counters_run_on_over_tiles(slots: int, runs: Any) -> None:
    for shape in ((2048, 192), (1200, 576), (100, 64)):
        for run in runs:
            check_in_tiles(run, shape, slots)


def test_nested_and_batched(runs: Any) -> None:
    for run in runs:
        check_nested(run, 640, 520)
        check_batches(run, (9, 200, 328))
        check_one_by_one(run, 40)


def test_an_output_that_the_call_allocates() -> None:
    a = integers((3000, 1000))
    np.testing.assert_array_equal(doubled(a, target="gpu"), 2 * a)


@pytest.mark.parametrize("shape", [(1, 8), (130, 2100), (4096, 8192), (5000, 3001)], ids=str)
@pytest.mark.parametrize("dtype", [F16, np.dtype(ml_dtypes.bfloat16), F32], ids=str)
def test_the_example_copies(shape: tuple[int, int], dtype: Any) -> None:
    a = np.random.default_rng(0).standard_normal(shape, np.float32).astype(dtype)
    for _ in range(3):
        assert (copy_pipeline.copy(a, target="gpu") == a).all()
