"""Blocks of arrays of any rank on the GPU: exact results, reproducible bits, and nothing written
around outputs."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.gpu.frames import Framed
from tests.kernels.block_kernels import (
    COPIES,
    Config,
    Taps,
    all_scores,
    batched_gemm,
    batched_sum,
    columns_first,
    convolution,
    convolved,
    copy3,
    first_last,
    halves,
    ones_at,
    product,
    scores,
)
from tests.language.tiles.test_blocks import (  # noqa: F401
    test_a_product_for_each_batch,
    test_arrays_without_elements_are_out_of_bounds,
    test_overlapping_windows_along_the_contiguous_dimension,
    test_the_warpgroup_may_be_an_index_of_a_store,
    test_what_lies_outside_reads_as_nan_where_that_is_asked_for,
)

REPEATS = 20


# ---- host arrays ---------------------------------------------------------------------------------
@pytest.mark.parametrize("shape", [(7, 600, 520, 1000), (132, 256, 256, 256)], ids=str)
def test_a_large_product_for_each_batch(shape: tuple[int, int, int, int], runs: Any) -> None:
    test_a_product_for_each_batch(shape, runs)


@pytest.mark.parametrize("slots", [1, 2, 4])
def test_a_product_for_each_batch_against_float64(slots: int) -> None:
    rng = np.random.default_rng(3)
    a, b = (rng.standard_normal((6, rows, 520)).astype(ml_dtypes.bfloat16) for rows in (300, 264))
    first = batched_gemm(a, b, cfg=Config(slots=slots), target="gpu")
    exact = product(a, b)
    assert np.linalg.norm(first - exact) < 1e-5 * np.linalg.norm(exact)
    for _ in range(REPEATS):
        assert (batched_gemm(a, b, cfg=Config(slots=slots), target="gpu") == first).all()


def test_the_body_form_and_squeezed_dimensions_between_the_tiles_dimensions() -> None:
    a, b = halves((9, 64, 136)), halves((9, 64, 136), 1)
    q, k = halves((3, 130, 5, 72)), halves((3, 70, 5, 72), 1)
    for _ in range(REPEATS):
        assert (batched_sum(a, b, target="gpu") == 2 * product(a, b)).all()
        assert (scores(q, k, target="gpu") == all_scores(q, k)).all()


@pytest.mark.parametrize(
    "shape",
    [(70, 130), (3, 70, 130), (130, 3, 2, 70), (2, 3, 70, 2, 130), (1, 1, 1), (2, 1, 1, 1, 9)],
    ids=str,
)
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_arrays_of_rank_2_to_5(shape: tuple[int, ...], dtype: Any) -> None:
    a = halves(shape)
    for _ in range(REPEATS):
        c = np.full(shape, np.nan, dtype)
        COPIES[len(shape)](a, c, target="gpu")
        assert (c == a).all()


def test_views_of_host_arrays() -> None:
    whole = halves((6, 200, 90))
    for a in (
        whole[::2, 3:130, 8:72],
        whole[::-1, ::-1],
        whole[:1, :1, :1],
        whole.swapaxes(0, 1),
        whole.swapaxes(1, 2),
    ):
        c = np.full(a.shape, np.nan, np.float32)
        copy3(a, c, target="gpu")
        assert (c == a).all()


@pytest.mark.parametrize("taps", [1, 3, 7])
@pytest.mark.parametrize("shape", [(2, 64, 64), (5, 150, 72), (3, 5, 8), (4, 1000, 256)], ids=str)
def test_a_convolution_is_a_sum_of_shifted_blocks(shape: tuple[int, int, int], taps: int) -> None:
    x, w = halves(shape), halves((taps, 136, shape[2]), 1)
    for _ in range(REPEATS):
        assert (convolution(x, w, cfg=Taps(taps), target="gpu") == convolved(x, w)).all()


# ---- device arrays -------------------------------------------------------------------------------
@pytest.mark.parametrize("odd", [False, True])  # stored by TMA, by lanes
@pytest.mark.parametrize("shape", [(3, 200, 136, 200), (5, 8, 8, 8), (2, 130, 70, 40)], ids=str)
def test_a_product_inside_larger_arrays(shape: tuple[int, int, int, int], odd: bool) -> None:
    batch, m, n, k = shape
    a, b = halves((batch, m, k)), halves((batch, n, k), 1)
    for _ in range(REPEATS):
        c = Framed.poisoned((batch, m, n), np.float32, odd)
        batched_gemm(Framed(a), Framed(b), out=c)
        assert (c.values() == product(a, b)).all()


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize(
    "shape", [(70, 136), (3, 70, 136), (136, 3, 2, 72), (2, 3, 70, 2, 136)], ids=str
)
def test_copies_inside_larger_arrays(shape: tuple[int, ...], order: str) -> None:
    a = halves(shape)
    for _ in range(REPEATS):
        c = Framed.poisoned(shape, np.float16, order=order)
        COPIES[len(shape)](Framed(a), c)
        assert (c.values() == a).all()


def test_column_major_arrays_and_columns_that_are_not_contiguous() -> None:
    a = halves((72, 130, 3))
    for _ in range(REPEATS):
        c = Framed.poisoned(a.shape, np.float32)
        columns_first(Framed(a, order="F"), c)
        assert (c.values() == a).all()
        d = Framed.poisoned((72, 136, 3), np.float16)
        first_last(Framed(np.ascontiguousarray(halves((72, 136, 3)).transpose(2, 0, 1))), d)
        assert (d.values() == halves((72, 136, 3))).all()


@pytest.mark.parametrize(
    "how", [{}, {"odd": True}, {"order": "F"}], ids=["TMA", "lanes", "column-major"]
)
def test_a_store_is_clipped_and_outside_nothing_is_written(how: dict[str, Any]) -> None:
    for i, row, column in (
        (0, 0, 0),
        (2, 60, 8),
        (1, 99, 64),
        (1, 100, 0),
        (2, 1000, 1000),
        (-1, 0, 0),
        (3, 0, 0),
        (1 << 30, 0, 0),
        (-(1 << 30), 0, 0),
        (0, -64, 0),
        (1, 0, -8),
    ):
        if not how and min(i, row, column) < 0:
            continue  # TMA: an illegal instruction, which ends this process's CUDA context
        c = Framed.poisoned((3, 100, 72), np.float32, **how)
        ones_at(c, i, row, column)
        expected = np.full((3, 100, 72), np.nan, np.float32)
        if 0 <= i < 3:
            expected[i, max(row, 0) : max(row + 128, 0), max(column, 0) : max(column + 64, 0)] = 1
        np.testing.assert_array_equal(c.values(), expected)
