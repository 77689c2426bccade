"""Outputs of pipelines on the hardware: the results that the simulator checks, many times over, and at sizes that fill the GPU."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.examples.test_example_copy import copy_pipeline
from tests.kernels.kernels_for_tests import BF16, F16, F32
from tests.kernels.output_kernels import (
    CHECKS,
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

REPEATS = 10


def on_gpu(kernel: Any, *args: Any, **statics: Any) -> None:
    kernel(*args, target="gpu", **statics)


@pytest.mark.parametrize("name", CHECKS)
def test_what_the_blocks_hold_is_stored(name: str) -> None:
    for _ in range(REPEATS):
        CHECKS[name](on_gpu)


@pytest.mark.parametrize("outs", [1, 2, 3, 4])
@pytest.mark.parametrize("dtype", [F16, BF16, F32], ids=str)
def test_many_blocks_through_few_slots(dtype: Any, outs: int) -> None:
    for shape in ((2048, 2056), (64, 8), (1000, 72)):
        for _ in range(REPEATS):
            check_copy(on_gpu, copy(), dtype, shape, cfg=Config(outs=outs, slots=2))


@pytest.mark.parametrize("slots", [1, 2, 3])
def test_revisited_blocks(slots: int) -> None:
    for shape in ((1024, 1024), (130, 66), (128, 64)):
        for _ in range(REPEATS):
            check_sums(on_gpu, shape, slots)


@pytest.mark.parametrize("slots", [1, 2, 4])
def test_counters_run_on_over_tiles(slots: int) -> None:
    for shape in ((2048, 192), (1200, 576), (100, 64)):
        for _ in range(REPEATS):
            check_in_tiles(on_gpu, shape, slots)


def test_nested_and_batched() -> None:
    for _ in range(REPEATS):
        check_nested(on_gpu, 640, 520)
        check_batches(on_gpu, (9, 200, 328))
        check_one_by_one(on_gpu, 40)


def test_an_output_that_the_call_allocates() -> None:
    a = integers((3000, 1000))
    np.testing.assert_array_equal(doubled(a, target="gpu"), 2 * a)


@pytest.mark.parametrize("shape", [(1, 8), (130, 2100), (4096, 8192), (5000, 3001)], ids=str)
@pytest.mark.parametrize("dtype", [F16, np.dtype(ml_dtypes.bfloat16), F32], ids=str)
def test_the_example_copies(shape: tuple[int, int], dtype: Any) -> None:
    a = np.random.default_rng(0).standard_normal(shape, np.float32).astype(dtype)
    for _ in range(3):
        assert (copy_pipeline.copy(a, target="gpu") == a).all()
