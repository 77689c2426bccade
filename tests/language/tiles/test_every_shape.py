"""Tiles of any shape in no layout by name: every operation gives NumPy's numbers."""

from __future__ import annotations

import numpy as np
import pytest

import numpipe
from numpipe import ds
from numpipe.errors import SpecError
from numpipe.language.tiles.layouts import Form, deferred, places, ways
from tests.kernels.shape_kernels import (
    BF16,
    F16,
    F32,
    I32,
    best_and_strips,
    carried,
    chosen_experts,
    drawn,
    every_operation,
    expected_of_best,
    expected_of_carried,
    expected_of_every,
    expected_of_meeting,
    expected_of_sums,
    layer_norm,
    layer_norm_of,
    log_sum_exp,
    meeting,
    numbers,
    numbers_of,
    sums_and_scans,
    through_memory,
)

SHAPES = [
    (8, 1024),
    (1, 1000),
    (16, 40),
    (3, 50),
    (64, 64),
    (32, 256),
    (1, 1),
    (128, 128),
    (33, 257),
]
DTYPES = [F32, BF16, I32, F16]
TURNS = [(shape, DTYPES[n % 4]) for n, shape in enumerate(SHAPES)]
WIDE = [(shape, (F32, I32)[n % 2]) for n, shape in enumerate(SHAPES)]
EIGHTS = [((8, 1024), I32), ((1, 64), F32), ((16, 40), F32), ((64, 64), I32), ((64, 512), F32)]


def same(found: tuple[np.ndarray, ...], wanted: tuple[np.ndarray, ...]) -> None:
    for number, (one, other) in enumerate(zip(found, wanted, strict=True)):
        np.testing.assert_array_equal(one, other, f"result {number}")


@pytest.mark.parametrize("shape, dtype", TURNS, ids=str)
@pytest.mark.variants(5)
def test_reductions_and_arithmetic(shape: tuple[int, int], dtype: np.dtype, target: str) -> None:
    (m, n), x, v = shape, drawn(shape, dtype), drawn((max(shape) + 1,), dtype, 1)
    found = [np.zeros(of, dtype) for of in ((m, 6), (3, n), (3, m, n))]
    every_operation(x, v, *found, m=m, n=n, target=target)
    same(tuple(found), expected_of_every(x, v))


@pytest.mark.parametrize("shape, dtype", WIDE, ids=str)
@pytest.mark.variants(4)
def test_sums_and_scans(shape: tuple[int, int], dtype: np.dtype, target: str) -> None:
    (m, n), x = shape, drawn(shape, dtype)
    found = [np.zeros(of, dtype) for of in ((m, 3), (2, n), (6, m, n), 4)]
    sums_and_scans(x, *found, m=m, n=n, target=target)
    same(tuple(found), expected_of_sums(x))


@pytest.mark.parametrize("shape, dtype", EIGHTS, ids=str)
@pytest.mark.variants(3)
def test_top_k_partial_sums_and_strips(
    shape: tuple[int, int], dtype: np.dtype, target: str
) -> None:
    (m, n), x = shape, drawn(shape, dtype)
    values, at, partial = np.zeros((m, 8), dtype), np.zeros((m, 8), I32), np.zeros((2, m, 8), dtype)
    strips = np.zeros(shape, dtype)
    best_and_strips(x, values, at, partial, strips, m=m, n=n, target=target)
    same((values, at, partial, strips), expected_of_best(x))


@pytest.mark.parametrize(
    "shape, dtype", [((8, 1024), BF16), ((16, 40), F32), ((64, 64), F16), ((24, 16), I32)], ids=str
)
@pytest.mark.variants(2)
def test_shared_memory_gathers_and_scatters(
    shape: tuple[int, int], dtype: np.dtype, target: str
) -> None:
    (m, n), x = shape, drawn(shape, dtype)
    at = np.random.default_rng(3).permutation(m).astype(I32)
    y, counts, back = np.zeros((4, m, n), dtype), np.zeros(64, I32), np.zeros_like(x)
    through_memory(x, at, y, counts, m=m, n=n, target=target)
    back[at] = x
    same(
        (y, counts),
        (
            np.stack([x + x.max(0), x * x.max(0), x[at], back]).astype(dtype),
            np.bincount(at, minlength=64).astype(I32),
        ),
    )


@pytest.mark.parametrize("shape", [(8, 64), (1, 300), (64, 64), (5, 24)], ids=str)
@pytest.mark.variants(2)
def test_full_and_zeros_are_carried_over_a_loop(shape: tuple[int, int], target: str) -> None:
    (m, n), y = shape, np.zeros(shape, F32)
    x = drawn((m, 3 * n), F32)
    carried(x, y, m=m, n=n, steps=3, target=target)
    same((y,), (expected_of_carried(x, n),))


@pytest.mark.parametrize("m, n, dtype", [(8, 256, F32), (64, 512, I32), (64, 128, F16)], ids=str)
@pytest.mark.variants(2)
def test_tiles_and_vectors_meet_in_any_layouts(
    m: int, n: int, dtype: np.dtype, target: str
) -> None:
    x, v = drawn((m, n), dtype), drawn((m,), dtype, 1)
    y, z = np.zeros((3, m, 64), dtype), np.zeros(2 * m, dtype)
    meeting(x, v, y, z, m=m, n=n, target=target)
    same((y, z), expected_of_meeting(x, v))


@pytest.mark.parametrize("n, dtype", [(1000, BF16), (768, F32), (77, F16)], ids=str)
@pytest.mark.variants(1)
def test_layer_norm_without_layouts(n: int, dtype: np.dtype, target: str) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((3, n)).astype(dtype)
    gamma, beta = rng.standard_normal((2, n)).astype(F32)
    y = layer_norm(x, gamma, beta, n=n, target=target)
    np.testing.assert_allclose(y.astype(F32), layer_norm_of(x, gamma, beta), rtol=2e-2, atol=2e-2)


def test_top_k_and_softmax_of_rows_without_layouts(target: str) -> None:
    x = np.random.default_rng(0).standard_normal((12, 64)).astype(BF16)
    weights, experts = chosen_experts(x, n=64, target=target)
    order = np.argsort(-x.astype(F32), axis=1, kind="stable")[:, :4]
    e = np.exp(np.take_along_axis(x.astype(F32), order, 1))
    assert (experts[:, :4] == order).all() and (experts[:, 4:] == -1).all()
    np.testing.assert_allclose(weights[:, :4], e / e.sum(1, keepdims=True), rtol=1e-5)
    assert not weights[:, 4:].any()


def test_running_maxima_of_rows_without_layouts(target: str) -> None:
    x = np.random.default_rng(0).standard_normal((16, 1024)).astype(BF16)
    found = log_sum_exp(x, n=1024, target=target)
    np.testing.assert_allclose(found, np.log(np.exp(x.astype(np.float64)).sum(1)), rtol=1e-5)


@pytest.mark.parametrize("dtype", [BF16, F16], ids=str)
def test_elements_of_16_bits_are_numbers(dtype: np.dtype, target: str) -> None:
    x, t, y = (np.arange(32) - 1.5).astype(dtype), drawn((24,), F32), np.zeros(32, F32)
    numbers(x, t, y, target=target)
    same((y,), (numbers_of(x, t),))


@pytest.mark.parametrize("shape", [(1,), (7,), (64,), (1000,), (1, 300), (64, 1), (5, 1), (1, 1)])
def test_a_deferred_tile_has_each_of_its_elements_in_each_layout(shape: tuple[int, ...]) -> None:
    assert deferred(shape) == ("either" if len(ways(shape)) > 1 else ways(shape)[0])
    for layout in ways(shape):
        form = Form(shape, F32, layout)
        axis = form.record.axes[0]
        own, where = form.record.own(np.arange(128))[axis], places(shape, layout)
        assert len(where) % 2 == 0  # registers of 16-bit elements are full
        held = {int(n) + (place[axis] or 0) for n in own for place in where}
        assert held >= set(range(max(shape)))
        outside = any(any(form.outside(place)) for place in where)
        assert outside == (held != set(range(max(shape))))


@pytest.mark.parametrize("size", [1442, 1490, 1590])
def test_a_vector_has_only_columns_that_a_tile_has_registers_for(size: int) -> None:
    """Along the rows of a tile, a lane would have every fourth element, too many for registers."""
    assert all(len(places((size,), layout)) <= 128 for layout in ways((size,)))
    assert len(places((size, 1), ways((size, 1))[-1])) > 128


@numpipe.kernel(num_compute_wgs=1, warp_specialized=False)
def too_many(x, y):
    y[ds(0, 2), ds(0, 20000)] = x[ds(0, 2), ds(0, 20000)]


def test_a_tile_has_at_most_all_registers() -> None:
    x = np.zeros((2, 20000), F32)
    with pytest.raises(SpecError, match=r"1 to 32768 elements.*got \(2, 20000\)"):
        too_many(x, x.copy(), target="sim")


@numpipe.kernel(num_compute_wgs=1, warp_specialized=False)
def strips_of_a_lambda(x, y):
    t = x[ds(0, 8), ds(0, 64)]
    most = numpipe.load_tile(x.at[ds(0, 8), ds(0, 64)], "rows 8").max(axis=1)
    y[ds(0, 8), ds(0, 64)] = numpipe.map_columns(lambda s, _: s + most[:, None], t, 64)


@numpipe.kernel(num_compute_wgs=1, warp_specialized=False)
def strips_of_a_function(x, y):
    t = x[ds(0, 8), ds(0, 64)]
    most = numpipe.load_tile(x.at[ds(0, 8), ds(0, 64)], "rows 8").max(axis=1)

    def raised(s, _):
        return s + most[:, None]

    y[ds(0, 8), ds(0, 64)] = numpipe.map_columns(raised, t, 64)


def test_an_operand_of_a_lambda_is_not_moved() -> None:
    x, y = drawn((8, 64), F32), np.zeros((8, 64), F32)
    with pytest.raises(SpecError, match=r"fix: write a nested function, def f"):
        strips_of_a_lambda.inspect("ptx", x, y)
    strips_of_a_function(x, y, target="sim")
    assert (y == x + x.max(1, keepdims=True)).all()
