"""Running sums: every schedule against float64, special values, strides, errors."""

from __future__ import annotations

import importlib
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import numpipe
from numpipe.compile.build import toolchain
from numpipe.kernels.noted_calls import imagined
from numpipe.launch.arrays import describe
from numpipe.ops import cumsum
from numpipe.plan.specs import ArrayType
from tests.kernels.rows_of_kernels import schedule_for

OP = importlib.import_module("numpipe.ops.cumsum")
ROUNDING = {"float16": 1e-3, "bfloat16": 8e-3, "float32": 3e-7}
X = np.ones((3, 40), np.float32)


@pytest.mark.parametrize(
    "shape, dtype",
    [
        ((3, 2, 1), np.float32),
        ((9, 50), np.float16),
        ((2, 5, 201), np.float32),
        ((2, 4097), ml_dtypes.bfloat16),
        ((2, 8300), np.float32),
        ((20001,), np.float32),
        ((70001,), np.float32),
    ],
)
@pytest.mark.parametrize("clusters", [True, False])
def test_results_match_float64(
    shape: tuple[int, ...], dtype: Any, clusters: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not clusters:
        monkeypatch.setattr(OP, "HELD", 4096)
    x = np.random.default_rng(0).standard_normal(shape).astype(dtype)
    y = cumsum(x, target="sim")
    right = np.cumsum(x.astype(np.float64), axis=-1)
    assert y.dtype == dtype
    error = np.linalg.norm(y.astype(np.float64) - right) / np.linalg.norm(right)
    assert error < ROUNDING[np.dtype(dtype).name]


@pytest.mark.parametrize("columns", [20003, 16512])  # rows begin within parts, or with parts
@pytest.mark.parametrize("held", [2048, 16384])
def test_integers_are_exact_in_every_part(
    columns: int, held: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OP, "HELD", held)
    x = np.random.default_rng(0).integers(-9, 9, (2, columns)).astype(np.float32)
    assert (cumsum(x, target="sim") == np.cumsum(x, axis=1)).all()


@pytest.mark.parametrize("columns, at", [(100, 40), (5000, 4500), (17000, 9000)])
@pytest.mark.parametrize("held", [2048, 16384])
def test_infinity_and_nan_begin_where_they_begin_in_numpy(
    columns: int, at: int, held: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OP, "HELD", held)
    x = np.ones((1, columns), np.float32)
    x[0, at], x[0, at + 30] = np.inf, -np.inf
    y = cumsum(x, target="sim")
    with np.errstate(invalid="ignore"):
        assert np.array_equal(y, np.cumsum(x, axis=1), equal_nan=True)


@pytest.mark.parametrize("rows, columns", [(2, 4097), (1, 9001)])
def test_rows_of_arrays_on_a_gpu_are_loaded_whole(
    rows: int, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OP, "whole_lines", lambda x, y: True)
    monkeypatch.setattr(OP, "long_rows", None)
    x = np.random.default_rng(0).integers(-1, 2, (rows, columns)).astype(np.float32)
    assert (cumsum(x, target="sim") == np.cumsum(x, axis=1)).all()


def test_rows_are_not_loaded_with_elements_that_are_overwritten() -> None:
    x = describe(X, "x")._replace(kind="cuda", ptr=4096)
    assert OP.whole_lines(x, x._replace(ptr=8192)) and not OP.whole_lines(x, x)


@pytest.mark.parametrize("columns", [70, 2100])
def test_arrays_may_have_any_strides(columns: int) -> None:
    x = np.random.default_rng(0).integers(-9, 9, (columns, 4)).astype(np.float32)
    out = np.zeros_like(x)
    assert cumsum(x.T, out=out.T, target="sim").base is out
    assert (out == np.cumsum(x, axis=0)).all()
    rows = np.ascontiguousarray(x.T)
    cumsum(rows, out=rows, target="sim")
    assert (rows == out.T).all()
    assert cumsum(x[:0], target="sim").shape == (0, 4)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("columns", [8, 104, 520])
def test_lanes_have_16_adjacent_bytes_of_aligned_rows(dtype: Any, columns: int) -> None:
    x = np.random.default_rng(0).integers(-2, 3, (37, columns)).astype(dtype)
    aligned = OP.aligned_rows(columns, 16 // x.dtype.itemsize)
    y = np.full_like(x, np.nan)
    aligned(x, y, target="sim")
    assert (y == np.cumsum(x, axis=1)).all()


def test_lanes_add_up_adjacent_elements_in_pairs() -> None:
    x = np.random.default_rng(0).standard_normal((1000, 64)).astype(np.float32)
    right = np.cumsum(x.astype(np.float64), axis=1)
    error = np.linalg.norm(cumsum(x, target="sim") - right) / np.linalg.norm(right)
    assert error < 6.5e-8  # 6.63e-8 if they are added up one by one


@pytest.mark.parametrize("columns, aligned", [(104, True), (103, False)])
def test_rows_of_whole_runs_are_loaded_in_runs(
    columns: int, aligned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []
    monkeypatch.setattr(OP, "aligned_rows", lambda n, run: made.append(n) or OP.cumsum_short)
    cumsum(np.zeros((9, columns), np.float16), target="sim")
    assert bool(made) == aligned


@pytest.mark.parametrize(
    "arguments, words",
    [
        ({"x": X.astype(np.int32)}, "'x' is int32, expected float16"),
        ({"x": X, "out": X[:2]}, r"'out' must be float32 \(3, 40\)"),
        ({"x": X[0, 0]}, "x"),
    ],
)
def test_invalid_arguments_are_refused(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(numpipe.SpecError, match=words):
        cumsum(**arguments, target="sim")


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("cluster, each", [(1, 1), (1, 2), (2, 1)])
def test_contiguous_rows_may_begin_anywhere(dtype: Any, cluster: int, each: int) -> None:
    x = np.random.default_rng(0).integers(-1, 2, (5, 1011)).astype(dtype)
    run = 16 // x.dtype.itemsize
    y = np.full_like(x, np.nan)
    OP.rows_of_parts(1, 1, cluster, 4 // cluster, run, each)(x, y, target="sim")
    assert (y == np.cumsum(x, axis=1)).all()


@pytest.mark.parametrize(
    "rows, columns, cluster, each",
    [
        (300, 2001, 1, 2),
        (3500, 2001, 1, 3),
        (30000, 2001, 1, 4),
        (30000, 4947, 1, 1),
        (300, 12035, 2, 1),
        (300, 30429, 4, 1),
    ],
)
def test_a_cta_has_10_to_32_kb_of_rows(
    rows: int, columns: int, cluster: int, each: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[tuple] = []
    monkeypatch.setattr(
        OP, "rows_of_parts", lambda *given: made.append(given) or (lambda *arrays: None)
    )
    OP.over_rows({name: imagined((rows, columns), np.float32) for name in "xy"}, {})
    assert (made[0][2], made[0][5]) == (cluster, each)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_eight_lanes_have_different_banks(dtype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    monkeypatch.setattr(
        OP, "rows_of_parts", lambda *given: made.append(given[3]) or (lambda *arrays: None)
    )
    for columns in range(1537, 49000, 98):
        OP.over_rows({name: imagined((300, columns), dtype) for name in "xy"}, {})
    words = np.array(sorted(set(made))) * np.dtype(dtype).itemsize // 4
    banks = np.sort(np.arange(8) * words[:, None] % 32)
    assert len(words) > 9 and (np.diff(banks) > 0).all()


@pytest.mark.parametrize(
    "rows, columns, tile", [(1, 15140864, (2, 16)), (653, 85568, (4, 16)), (1, 4392448, (3, 8))]
)
def test_tiles_fit_the_length_of_an_array(
    rows: int, columns: int, tile: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[tuple] = []
    monkeypatch.setattr(OP, "long_rows", lambda *b: made.append(b) or (lambda *_, **named: None))
    x = describe(np.empty((rows, columns), np.float16), "x")
    OP.over_rows({"x": x, "y": x}, {})
    assert made == [(tile[0], 512, rows == 1, tile[1])]


def test_an_sm_has_three_ctas_of_short_rows_if_four_do_not_fit() -> None:
    needs, dtype = OP.cumsum_short.needs, np.dtype(np.float16)
    assert schedule_for(1261, needs, dtype, False, True, 7231).ctas == 3


@pytest.mark.parametrize("columns", [13, 47, 94, 301, 1021])
def test_lanes_have_adjacent_columns_of_short_rows(columns: int) -> None:
    x = np.random.default_rng(0).integers(-1, 2, (300, columns)).astype(np.float16)
    row = schedule_for(columns, OP.cumsum_short.needs, x.dtype, False, True)
    y = np.full_like(x, np.nan)
    OP.cumsum_short.scheduled(row)(x, y, target="sim")
    assert (y == np.cumsum(x, axis=1)).all()


@pytest.mark.parametrize("long", [False, pytest.param(True, marks=pytest.mark.thorough)])
def test_no_order_of_warps_changes_a_sum(long: bool) -> None:
    x, rest = np.ones((1, 72 if long else 16, 64), np.float32), np.ones((1, 8), np.float32)
    if long:
        arrays = x, rest, np.zeros_like(x), np.zeros_like(rest)
        assert numpipe.verify(OP.long_rows(2, 64, False), *arrays, 700, schedules=2).ok
    else:
        x = np.ones((3, 1011), np.float32)
        for kernel in (OP.rows_of_parts(2, 2, 1, 2, 4, 1), OP.rows_of_parts(1, 2, 1, 4, 4, 2)):
            assert numpipe.verify(kernel, x, np.zeros_like(x), schedules=3).ok


@pytest.mark.thorough
@pytest.mark.skipif(toolchain() is not None, reason=f"no compiler: {toolchain()}")
@pytest.mark.parametrize(
    "kernel, dtype",
    [
        (OP.rows_of_parts(1, 6, 1, 26, 4, 1), np.float32),
        (OP.long_rows(4, 512, False), ml_dtypes.bfloat16),
        (OP.long_rows(4, 256, True), np.float32),
        (OP.long_rows(3, 256, False, 8), np.float32),
    ],
)
def test_a_tile_stays_in_registers(kernel: Any, dtype: Any) -> None:
    length = 1024 // np.dtype(dtype).itemsize
    x, rest = ArrayType((1, 48, length), dtype), ArrayType((1, length - 1), dtype)
    arguments: tuple[Any, ...] = x, rest, x, rest, 9000
    if "long" not in str(kernel):
        arguments = (ArrayType((400, 6143), dtype),) * 2
    assert kernel.inspect("gate", *arguments) == ()
    assert kernel.inspect("resources", *arguments).spill_bytes == 0
