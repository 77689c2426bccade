"""Pipelines written by hand, on the GPU: the same kernels, in many runs."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from numpipe import SwizzleTransform
from numpipe.arch.dtypes import REDUCTIONS
from tests.kernels.primitive_kernels import (
    moved,
    product,
    reduced,
    roles_by_hand,
    shared_tiles,
    single_stream,
)
from tests.language.memory import test_primitives_heeded as heeded
from tests.language.memory.test_primitives import (  # noqa: F401
    COMBINED,
    DTYPES,
    matrices,
    test_a_column_major_source,
    test_a_test_of_a_barrier_steers_a_loop,
    test_members_of_a_union_are_the_same_bytes,
    test_nd_loop_walks_a_grid_of_any_rank_once_and_the_snake_a_plane,
    test_register_tiles_go_out_through_slots,
    test_tall_tiles_views_of_slots_and_arrays_of_three_dimensions,
    test_tiles_are_copied_through_slots_of_each_warpgroup,
)
from tests.language.memory.test_primitives_heeded import (  # noqa: F401
    test_a_predicate_chooses_which_copies_are_made_and_a_load_arrives_all_the_same,
    test_a_predicate_of_an_arrival_or_a_prefetch_is_a_branch_around_it,
)
from tests.plan.test_scratch import by_a_function, chosen, other_layouts, with_a_pipeline

PROCESSES = 4
REPEATS = 20


@pytest.mark.parametrize("slots", [1, 2, 3, 4])
@pytest.mark.parametrize(
    "kernel", [single_stream, shared_tiles, roles_by_hand], ids=lambda kernel: kernel.name
)
def test_a_product_by_hand(kernel: Any, slots: int) -> None:
    for m, n, k in ((128, 64, 64), (256, 128, 320), (100, 72, 200), (1000, 904, 2056)):
        a, b = matrices(m, n, k)
        first = kernel(a, b, slots=slots, target="gpu")
        np.testing.assert_allclose(first, product(a, b), rtol=1e-3, atol=1e-2)
        for _ in range(REPEATS):
            assert (kernel(a, b, slots=slots, target="gpu") == first).all()


def test_stored_blocks_are_loaded_again() -> None:
    for _ in range(REPEATS):
        y, z = np.zeros((2, 64, 64), np.float32)
        heeded.there_and_back(False)(y, z, target="gpu")
        assert (z == 1).all()


@pytest.mark.parametrize("seed", range(12))
def test_tiles_of_any_size_move_an_array(seed: int) -> None:
    random = np.random.default_rng(seed)
    dtype = DTYPES[seed % len(DTYPES)]
    chunk = 16 // dtype.itemsize
    rows, columns = 8 * int(random.integers(1, 40)), chunk * int(random.integers(1, 12))
    spans = [span for span in (32, 64, 128) if columns * dtype.itemsize % span == 0]
    transforms = (SwizzleTransform(int(random.choice(spans))),) if spans and seed % 2 else ()
    values = random.integers(
        0, 100, (int(random.integers(1, 5000)), chunk * int(random.integers(1, 60)))
    ).astype(dtype)
    for slots in range(1, min(3, 110_000 // (rows * columns * dtype.itemsize + 1024)) + 1):
        for _ in range(5):
            result = np.zeros_like(values)
            moved(
                values,
                result,
                rows=rows,
                columns=columns,
                slots=slots,
                transforms=transforms,
                target="gpu",
            )
            assert (result == values).all()


@pytest.mark.parametrize("name", REDUCTIONS)
def test_copies_that_reduce(name: str) -> None:
    random, combine, kernel = np.random.default_rng(2), COMBINED[name], reduced(name)
    for text in REDUCTIONS[name]:
        dtype = ml_dtypes.bfloat16 if text == "bfloat16" else np.dtype(text)
        x, y = (random.integers(0, 7, (1030, 32)).astype(dtype) for _ in range(2))
        expected = combine(combine(y, x), x).astype(x.dtype)
        for _ in range(REPEATS):
            result = y.copy()
            kernel(x, result, target="gpu")
            np.testing.assert_array_equal(result, expected, err_msg=text)


def test_functions_pipelines_and_layouts_with_scratch() -> None:
    random = np.random.default_rng(8)
    for _ in range(REPEATS):
        x, y = random.standard_normal((256, 64)).astype(np.float16), np.zeros((256, 64), np.float16)
        by_a_function(x, y, target="gpu")
        np.testing.assert_array_equal(y, x)
        x, y = random.standard_normal((512, 64)).astype(np.float32), np.zeros((128, 64), np.float32)
        with_a_pipeline(x, y, target="gpu")
        np.testing.assert_allclose(y, 2 * x.reshape(4, 128, 64).sum(axis=0), rtol=1e-5, atol=1e-5)
        a, b = (random.standard_normal((64, 64)).astype(np.float16) for _ in range(2))
        c = np.zeros((64, 64), np.float32)
        other_layouts(a, b, c, target="gpu")
        np.testing.assert_allclose(c, product(a, b), rtol=1e-4, atol=1e-4)
        y, z = np.zeros((64, 64), np.float16), np.zeros((64, 64), np.float16)
        chosen(a, y, z, target="gpu")
        np.testing.assert_array_equal(y, a)
        np.testing.assert_array_equal(z, a)
