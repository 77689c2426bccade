"""The k largest of rows: every schedule against NumPy's sort, special values, strides,
errors."""

from __future__ import annotations

import importlib
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import numpipe
from numpipe.compile.build import toolchain
from numpipe.ops import topk
from numpipe.plan.specs import ArrayType

OP = importlib.import_module("numpipe.ops.topk")
X = np.ones((3, 40), np.float32)


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare few elements in registers, so that small rows have groups of columns, too."""
    monkeypatch.setattr(OP, "MOST", 512)
    monkeypatch.setattr(OP, "SHORT", 64)
    monkeypatch.setenv("NUMPIPE_COMPILE_CHECK", "0")


def check(x: np.ndarray, k: int) -> None:
    values, indices = topk(x, k, target="sim")
    assert values.dtype == x.dtype and indices.dtype == np.int32
    wide = x.astype(np.float32)
    # NumPy sorts NaN last, that is, as the largest
    assert np.array_equal(values, np.sort(wide)[..., ::-1][..., :k], equal_nan=True)
    assert np.array_equal(np.take_along_axis(wide, indices, -1), values, equal_nan=True)
    assert all(len(set(row)) == k for row in indices.reshape(-1, k))


@pytest.mark.parametrize(
    "shape, k, dtype",
    [
        ((3, 2, 7), 7, np.float16),
        ((9, 64), 3, np.float32),
        ((2, 65), 9, np.float32),
        ((2, 500), 100, ml_dtypes.bfloat16),
        ((2, 2, 1001), 8, np.float32),
        ((2, 3300), 100, np.float16),
        ((1, 40001), 5, np.float32),
    ],
)
def test_results_match_a_sort(few: None, shape: tuple[int, ...], k: int, dtype: Any) -> None:
    rng = np.random.default_rng(0)
    check(rng.standard_normal(shape).astype(dtype), k)
    # with many equal elements
    check(rng.integers(-2, 3, shape).astype(dtype), k)


@pytest.mark.parametrize("columns, k", [(50, 20), (500, 40), (1500, 40)])
def test_nan_and_infinity_have_their_places(few: None, columns: int, k: int) -> None:
    x = np.full((5, columns), -np.inf, np.float32)
    x[1, -3:] = np.inf, np.nan, 0
    x[2] = np.nan
    x[3, ::2], x[3, 1::2] = -1.5, np.inf
    x[4] = np.arange(columns)
    x[4, 7] = -np.nan
    check(x, k)


def test_the_last_columns_of_a_row_belong_to_no_group(few: None) -> None:
    # 917 columns are 16 groups of 51 members, and 101 columns more
    x = -np.arange(917, dtype=np.float32)
    x[-8:] = 1, 4, 2, 3, 8, 7, 6, 5
    check(x, 8)


def test_the_bound_of_64_maxima_is_not_used_for_more_elements(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NUMPIPE_COMPILE_CHECK", "0")
    # the least maximum of 64 groups of 8 elements has 7 elements below it
    x = np.random.default_rng(0).permutation(512).astype(np.float32)[None]
    check(x, 512)
    monkeypatch.setattr(OP, "MAXIMA", 512)
    OP.selector.cache_clear()
    with pytest.raises((AssertionError, numpipe.NumpipeError)):
        check(x, 512)
    OP.selector.cache_clear()


def test_arrays_may_have_any_strides() -> None:
    x = np.random.default_rng(0).permutation(280).reshape(70, 4).astype(np.float32)
    out = np.zeros((40, 4), np.float32), np.zeros((40, 4), np.int32)
    topk(x.T, 40, out=tuple(each.T for each in out), target="sim")
    assert (out[0] == np.sort(x, axis=0)[::-1][:40]).all()
    assert (np.take_along_axis(x, out[1], 0) == out[0]).all()
    assert [each.shape for each in topk(x[:0], 2, target="sim")] == [(0, 2), (0, 2)]


@pytest.mark.parametrize(
    "arguments, words",
    [
        ({"x": X.astype(np.int32), "k": 2}, "'x' is int32, expected float16"),
        ({"x": X, "k": 41}, "k=41, but rows of x have 40 elements; fix: pass k of 1…40"),
        ({"x": X, "k": 0}, "k=0, but rows of x have 40 elements; fix: pass k of 1…40"),
        ({"x": X, "k": 2.0}, "k must be an int"),
        ({"x": X, "k": 2, "out": (X[:, :2], X[:, :2])}, "out"),
        ({"x": X[0, 0], "k": 1}, "x"),
    ],
)
def test_invalid_arguments_are_refused(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(numpipe.SpecError, match=words):
        topk(**arguments, target="sim")


def test_no_order_of_warps_changes_a_result() -> None:
    x = np.random.default_rng(0).standard_normal((1, 512)).astype(np.float32)
    chosen, indices = np.zeros((1, 2, 10), np.int32), np.zeros((1, 9), np.int32)
    select = OP.selector(512, 16, 0, True)
    arrays = {"chosen": chosen, "values": np.zeros((1, 9), np.float32), "indices": indices}
    assert numpipe.verify(select, x, **arrays, k=9, schedules=3).ok


@pytest.mark.thorough
@pytest.mark.skipif(toolchain() is not None, reason=f"no compiler: {toolchain()}")
@pytest.mark.parametrize("size, members", [(2048, 31), (4608, 0)])
def test_the_compared_elements_stay_in_registers(size: int, members: int) -> None:
    x, chosen = ArrayType((8, 131072), np.float32), ArrayType((8, 2, 65), np.int32)
    arrays = {"chosen": chosen} | ({"groups": chosen} if members else {})
    select = OP.selector(size, 64, members, False)
    assert select.inspect("gate", x, **arrays, k=64) == ()
    assert select.inspect("resources", x, **arrays, k=64).spill_bytes == 0
