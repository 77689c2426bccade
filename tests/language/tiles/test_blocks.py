"""Blocks of arrays of any rank, simulated and compiled: results against NumPy, edges, schedules,
PTX."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import numpipe
from numpipe import BlockSpec, Element, SimulationError, SpecError, launch
from tests.kernels.block_kernels import (
    COPIES,
    TILED,
    WITHOUT_ELEMENTS,
    Config,
    Taps,
    all_scores,
    batched_gemm,
    batched_sum,
    check_arrays_without_elements,
    columns_first,
    convolution,
    convolved,
    copy3,
    first_last,
    halves,
    ones_at,
    ones_by_warpgroup,
    product,
    scores,
    windowed,
    windows,
)
from tests.kernels.covering import examples

SHAPES = [
    (1, 128, 128, 64),
    (3, 200, 136, 200),
    (5, 8, 8, 8),
    (2, 130, 70, 33),
    (2, 64, 64, 0),
    (4, 1, 1, 1),
]


# ---- squeezed dimensions -------------------------------------------------------------------------
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_product_for_each_batch(shape: tuple[int, int, int, int], runs: Any) -> None:
    batch, m, n, k = shape
    a, b = halves((batch, m, k)), halves((batch, n, k), 1)
    for run in runs:
        assert (run(batched_gemm, a, b) == product(a, b)).all()


@pytest.mark.variants(3)
@pytest.mark.parametrize("seed", range(8))
def test_a_product_for_each_batch_in_any_schedule(seed: int) -> None:
    a, b = halves((2, 200, 200)), halves((2, 136, 200), 1)
    assert (
        batched_gemm.simulate(a, b, cfg=Config(slots=1 + seed % 3), seed=seed) == product(a, b)
    ).all()


@pytest.mark.parametrize("seed", [None, 1, 2])
def test_the_body_form_over_a_grid_of_two_dimensions(seed: int | None) -> None:
    a, b = halves((3, 64, 136)), halves((3, 64, 136), 1)
    assert (batched_sum.simulate(a, b, seed=seed) == 2 * product(a, b)).all()


@pytest.mark.parametrize("shape", [(2, 70, 3, 64), (1, 64, 1, 72), (3, 65, 2, 8)], ids=str)
def test_squeezed_dimensions_between_the_tiles_dimensions(shape: tuple[int, int, int, int]) -> None:
    q, k = halves(shape), halves((shape[0], 40, *shape[2:]), 1)
    assert (scores.simulate(q, k) == all_scores(q, k)).all()


@settings(max_examples=examples(25), deadline=None)
@given(st.data())
def test_arrays_of_rank_2_to_5(data: st.DataObject) -> None:
    rank = data.draw(st.integers(2, 5))
    sides = [
        data.draw(st.integers(1, 140) if axis in TILED[rank] else st.integers(1, 3))
        for axis in range(rank)
    ]
    order = data.draw(st.permutations(range(rank)))
    # with its strides in any order
    a = halves(tuple(sides[axis] for axis in order)).transpose(np.argsort(order))
    if launch.major_order(launch.describe(a, "a")) == "col" and 0 not in TILED[rank]:
        a = np.ascontiguousarray(a)  # its contiguous dimension is squeezed: rejected
    c = np.full(a.shape, np.nan, np.float16)
    COPIES[rank].simulate(a, c, seed=data.draw(st.sampled_from([None, 1, 2])))
    assert (c == a).all()


@pytest.mark.thorough
def test_views_of_arrays_and_arrays_of_one_element() -> None:
    whole = halves((6, 200, 90))
    for a in (
        whole[::2, 3:130, 8:72],
        whole[::-1, ::-1],
        whole[:1, :1, :1],
        whole.swapaxes(0, 1),
        whole.transpose(2, 0, 1),
    ):
        if a.strides[0] == 2:
            a = np.ascontiguousarray(a)
        c = np.full(a.shape, np.nan, np.float32)
        copy3.simulate(a, c)
        assert (c == a).all()


@pytest.mark.thorough
def test_a_column_major_array_has_its_first_dimension_contiguous() -> None:
    a = np.asfortranarray(halves((72, 130, 3)))
    for order in "CF":
        c = np.full(a.shape, np.nan, np.float32, order=order)
        columns_first.simulate(a, c)
        assert (c == a).all()
    assert ".tensor.3d" in columns_first.inspect("ptx", a, c)


# ---- element dimensions --------------------------------------------------------------------------
@pytest.mark.variants(4)
@pytest.mark.parametrize("taps", [1, 3, 4, 7])
@pytest.mark.parametrize("shape", [(2, 64, 64), (1, 150, 72), (3, 5, 8)], ids=str)
def test_a_convolution_is_a_sum_of_shifted_blocks(shape: tuple[int, int, int], taps: int) -> None:
    x, w = halves(shape), halves((taps, 40, shape[2]), 1)
    # with an even number there is one row less after than before
    last = np.zeros_like(w[: 1 - taps % 2])
    expected = convolved(x, np.concatenate([w, last]))
    for seed in (None, 1, 2):
        assert (convolution.simulate(x, w, cfg=Taps(taps), seed=seed) == expected).all()


@pytest.mark.parametrize("first", [0, 8, -40, 64])
def test_overlapping_windows_along_the_contiguous_dimension(first: int, target: str) -> None:
    a, b = halves((64, 136)), halves((64, 136), 1)
    c = np.full((64, 64), np.nan, np.float32)
    for steps in (0, 1, 6, 12):  # the last ones extend past the end
        windows(a, b, c, steps, first, target=target)
        assert (c == windowed(a, b, steps, first)).all()


def test_a_run_time_start_that_TMA_cannot_have_is_refused_simulated() -> None:
    a = halves((64, 136))
    with pytest.raises(
        SpecError, match=r"in_specs\[0\] for 'a': index_map returned element 4 for dimension 1"
    ):
        windows.simulate(a, a, np.zeros((64, 64), np.float32), 2, 4)


# ---- blocks out of bounds --------------------------------------------------------------------
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_what_lies_outside_reads_as_nan_where_that_is_asked_for(dtype: Any, runs: Any) -> None:
    x, w = halves((2, 150, 64)).astype(dtype), halves((3, 64, 64), 1).astype(dtype)
    for run in runs:
        y = run(convolution, x, w, cfg=Taps(fill="nan"))
        np.testing.assert_array_equal(y, convolved(x, w, np.nan))
        assert np.isnan(y[:, [0, -1]]).all() and not np.isnan(y[:, 1:-1]).any()


def test_one_array_may_be_read_with_zeros_and_with_nan_around_it() -> None:
    @numpipe.kernel
    def both(a, b, c, d):
        for _, (x, y, z) in numpipe.pipeline(
            grid=(1,),
            in_specs=(
                BlockSpec((64, 64), lambda k: (0, k), oob_fill="nan"),
                BlockSpec((64, 64), lambda k: (0, k)),
                BlockSpec((64, 64), lambda k: (0, k), oob_fill="zeros"),
            ),
        )(a, a, b):
            c[numpipe.ds(0, 64), numpipe.ds(0, 64)] = numpipe.wgmma_wait(
                numpipe.wgmma(numpipe.zeros((64, 64), np.float32), x, z.T), 0
            )
            d[numpipe.ds(0, 64), numpipe.ds(0, 64)] = numpipe.wgmma_wait(
                numpipe.wgmma(numpipe.zeros((64, 64), np.float32), y, z.T), 0
            )

    a, b = halves((40, 64)), halves((64, 64), 1)
    c, d = np.zeros((64, 64), np.float32), np.zeros((64, 64), np.float32)
    both.simulate(a, b, c, d)
    assert np.isnan(c[40:]).all() and (c[:40] == product(a, b)).all()
    assert (d[40:] == 0).all() and (d[:40] == product(a, b)).all()
    assert sorted(m.fill for m in both.compiled(a, b, c, d).image.maps if m.arg == 0) == [
        "nan",
        "zeros",
    ]


@pytest.mark.parametrize("fill", ["zeros", "nan"])
@pytest.mark.parametrize("shape", WITHOUT_ELEMENTS, ids=str)
def test_arrays_without_elements_are_out_of_bounds(
    shape: tuple[int, ...], fill: str, target: str, again: range
) -> None:
    for _ in again:
        check_arrays_without_elements(shape, fill, target=target)


# ---- stores --------------------------------------------------------------------------------------
@pytest.mark.parametrize("order", ["C", "F"])  # by TMA, by lanes
def test_a_store_is_clipped_and_touches_nothing_else(order: Any) -> None:
    for i, row, column in (
        (0, 0, 0),
        (2, 60, 8),
        (1, 99, 64),
        (1, 100, 0),
        (0, 0, 72),
        (2, 1000, 1000),
    ):
        c = np.zeros((3, 100, 72), np.float32, order=order)
        ones_at.simulate(c, i, row, column)
        expected = np.zeros_like(c)
        expected[i, row : row + 128, column : column + 64] = 1
        assert (c == expected).all()


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("i", [-1, 3, 1 << 30])
def test_an_index_outside_its_dimension_is_refused_simulated(order: Any, i: int) -> None:
    with pytest.raises(
        SimulationError,
        match=rf"'c\[…\] = tile': index {i} along dimension 0 is outside the array's 3; ",
    ):
        ones_at.simulate(np.zeros((3, 128, 64), np.float32, order=order), i, 0, 0)
    with pytest.raises(SimulationError, match="negative start"):
        ones_at.simulate(np.zeros((3, 128, 64), np.float32, order=order), 0, -64, 0)


def test_columns_that_are_not_contiguous_are_stored_by_the_lanes() -> None:
    a = halves((3, 70, 130))
    c = np.full((70, 130, 3), np.nan, np.float16)
    first_last.simulate(a, c)
    assert (c == a.transpose(1, 2, 0)).all()
    ptx = first_last.inspect("ptx", a, c)
    assert "st.global.b16" in ptx and "global.shared::cta.bulk_group" not in ptx


def test_a_refused_type_and_a_scattered_store_have_fixes_that_work() -> None:
    """The misuse table has the texts: arrays of a tile's type, and the start of a block."""

    @numpipe.kernel
    def stored(sums, plane):  # type: ignore[no-untyped-def]
        numpipe.atomic_add(sums.at[numpipe.ds(0, 64)], numpipe.iota(64))
        plane[numpipe.ds(0, 64), numpipe.ds(0, 32)] = numpipe.full((64, 32), 2.0, np.float32)

    for kind, fix in ((np.float64, "pass an array of int32 as 'sums'"), (np.int32, None)):
        sums, plane = np.zeros(64, kind), np.zeros((64, 32), np.float32)
        if fix:
            with pytest.raises(SpecError, match=fix):
                stored.simulate(sums, plane)
            continue
        stored.simulate(sums, plane)
        assert (sums == np.arange(64)).all() and (plane == 2).all()


def test_the_warpgroup_may_be_an_index_of_a_store(target: str) -> None:
    """The memory role has no such value, and stores nothing."""
    c = np.zeros((2, 64, 64), np.float32)
    ones_by_warpgroup(c, target=target)
    assert (c[0] == 1).all() and (c[1] == 2).all()
    ones_by_warpgroup.compiled(c)


# ---- compiled code ---------------------------------------------------------------------------
THREE, FOUR, FIVE = halves((2, 128, 64)), halves((64, 2, 2, 64)), halves((1, 2, 64, 2, 64))


@pytest.mark.variants(1, thorough=1)
@pytest.mark.parametrize(
    ("kernel", "args", "rank"),
    [
        (scores, (FOUR, FOUR), 4),
        (copy3, (THREE, np.zeros((2, 128, 64), np.float32)), 3),
        (convolution, (THREE, THREE), 3),
        (COPIES[5], (FIVE, FIVE), 5),
    ],
    ids=["scores", "copy3", "convolution", "copy5"],
)
def test_the_build_gate_and_the_rank_of_the_copies(
    kernel: Any, args: tuple[Any, ...], rank: int
) -> None:
    assert kernel.inspect("gate", *args) == ()
    assert kernel.inspect("resources", *args).spill_bytes == 0
    ptx = kernel.inspect("ptx", *args)
    assert f"cp.async.bulk.tensor.{rank}d.shared::cluster" in ptx
    assert f"cp.async.bulk.tensor.{rank}d.global.shared::cta" in ptx


def test_boxes_have_one_element_along_squeezed_dimensions() -> None:
    five = halves((1, 2, 64, 2, 64))
    maps = COPIES[5].compiled(five, five).image.maps
    assert {(m.arg, m.box, m.written) for m in maps} == {
        (0, (1, 1, 64, 1, 64), False),
        (1, (1, 1, 64, 1, 64), True),
    }


@pytest.mark.thorough
def test_windows_compile_from_constants_of_every_kind() -> None:
    """A module's Element, one of a Static's tuple, and one made in the kernel."""
    a = halves((64, 136))
    assert windows.inspect("gate", a, a, np.zeros((64, 64), np.float32), 3, 0) == ()
    x, w = halves((2, 64, 64)), halves((3, 64, 64))
    assert {m.fill for m in convolution.compiled(x, w, cfg=Taps(fill="nan")).image.maps} == {
        "nan",
        "zeros",
    }


@pytest.mark.thorough
@pytest.mark.parametrize(
    "block", [(None, Element(64), Element(64)), (None, Element(64), 64)], ids=["two", "one"]
)
def test_a_window_of_a_static_s_tuple_is_its_box(block: tuple[Any, ...]) -> None:
    x, w = halves((2, 64, 64)), halves((3, 64, 64))
    assert convolution.compiled(x, w, cfg=Taps(block=block)).image.maps[0].box == (1, 64, 64)


def test_elements_and_specs_are_values() -> None:
    assert Element(64) == Element(64) != Element(8)
    assert hash(Element(64)) == hash(Element(64))
    spec = BlockSpec((None, Element(8), 64), lambda k: (0, 0, k), oob_fill="nan")
    assert (spec.block_shape, spec.oob_fill, spec.delay_release) == (
        (None, Element(8), 64),
        "nan",
        None,
    )


def test_a_start_is_constant_only_where_the_lambda_says_so() -> None:
    """Its parameter shadows the kernel's constant of the same name; a kernel's constant counts."""

    @numpipe.kernel
    def hides(a, c):
        k = 3
        first = 8 * k
        acc = numpipe.zeros((64, 64), np.float32)
        for _, (x, y) in numpipe.pipeline(
            grid=(1,),
            in_specs=(
                BlockSpec((64, Element(64)), lambda k: (0, k)),
                BlockSpec((64, Element(64)), lambda _: (0, first)),
            ),
        )(a, a):
            acc = numpipe.wgmma(acc, x, y.T)
        c[numpipe.ds(0, 64), numpipe.ds(0, 64)] = acc

    a, c = halves((64, 88)), np.zeros((64, 64), np.float32)
    hides.simulate(a, c)
    assert (c == product(a[:, :64], a[:, 24:])).all()
    hides.compiled(a, c)
