"""Products of matrices and vectors: every schedule against float64, strides, errors."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import numpipe
from numpipe.compile.build import toolchain
from numpipe.kernels.noted_calls import imagined, noting
from numpipe.ops import matvec, reduce_axis
from numpipe.plan.specs import ArrayType

ROUNDING = {"float16": 1e-3, "bfloat16": 8e-3, "float32": 2e-6}
A, X = np.ones((3, 40), np.float32), np.ones(40, np.float32)


def error(a: np.ndarray, x: np.ndarray) -> float:
    y = matvec(a, x, target="sim")
    right = (a.astype(np.float64) @ x.astype(np.float64)[..., None])[..., 0]
    assert y.shape == right.shape and y.dtype == a.dtype
    return float(np.linalg.norm(y.astype(np.float64) - right) / np.linalg.norm(right))


@pytest.mark.parametrize(
    "enough, dtype", [(2048, np.float16), (1, ml_dtypes.bfloat16), (14, np.float32)]
)
def test_results_match_float64(enough: int, dtype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reduce_axis, "ENOUGH", enough)
    monkeypatch.setattr(reduce_axis, "LARGE", 0)
    rng = np.random.default_rng(0)
    a = rng.standard_normal((2, 26, 301)).astype(dtype)
    x = rng.standard_normal((2, 301)).astype(dtype)
    assert error(a, x) < ROUNDING[np.dtype(dtype).name]
    across = np.ascontiguousarray(a.swapaxes(1, 2)).swapaxes(1, 2)
    assert error(across, x) < ROUNDING[np.dtype(dtype).name]
    assert error(a[:, ::2, ::3], x[:, ::3]) < ROUNDING[np.dtype(dtype).name]


def test_parts_of_long_rows_are_added(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reduce_axis, "LONG", 0)
    rng = np.random.default_rng(0)
    a = rng.standard_normal((2, 18000)).astype(np.float32)
    x = rng.standard_normal(18000).astype(np.float32)
    assert reduce_axis.schedule((1, 2, 18000), False, 4, kind="dot")[-1] == 4
    assert error(a, x) < 1e-6
    across = rng.standard_normal((300, 20)).astype(np.float32).T
    assert reduce_axis.schedule((1, 300, 20), True, 4, kind="dot")[-1] == 1
    assert error(across, x[:300]) < 2e-6
    out = np.zeros(4, np.float32)[::2]
    assert matvec(a, x, out=out, target="sim") is out
    assert (out == matvec(a, x, target="sim")).all()


def test_short_odd_rows_of_16_bits_are_loaded_like_those_of_sums() -> None:
    rng = np.random.default_rng(0)
    a, x = rng.standard_normal((70, 1184)), rng.standard_normal(1184)
    for columns, held in ((1183, 0), (1182, 1)):
        half = imagined((5749, columns), np.float16), imagined((columns,), np.float16)
        with noting() as notes:
            matvec(*half)
        (call,) = notes.calls
        assert call.kernel.function.__kwdefaults__["row"].needs.held == held
        own = a[:, :columns].astype(np.float16), x[:columns].astype(np.float16)
        assert error(*own) < ROUNDING["float16"]


def test_an_empty_sum_is_zero_and_nan_stays_in_its_row() -> None:
    for a in (A[:, :0], np.ones((9, 0), np.float32)):  # NumPy's strides of the second are 0
        assert (matvec(a, X[:0], target="sim") == 0).all()
    a = A.copy()
    a[1, 3] = np.nan
    assert np.isnan(matvec(a, X, target="sim")).tolist() == [False, True, False]
    x = X.copy()
    x[0] = np.inf
    assert np.isinf(matvec(A, x, target="sim")).all()


@pytest.mark.parametrize(
    "arguments, words",
    [
        ({"a": A, "x": X[1:]}, r"k = 40 in 'a' \(3, 40\), 39 in 'x'"),
        ({"a": A, "x": X.astype(np.float16)}, "'x' is float16"),
        ({"a": A, "x": X, "out": np.zeros(4, np.float32)}, r"'out' must be float32 \(3,\)"),
    ],
)
def test_invalid_arguments_are_refused(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(numpipe.SpecError, match=words):
        matvec(**arguments, target="sim")


def test_lanes_load_pairs_of_weights() -> None:
    with noting() as notes:
        matvec(imagined((40, 1 << 20), np.float16), imagined((1 << 20,), np.float16))
    call = notes.calls[0]
    arrays = {name: call.named[name] for name in ("weights", "y", "parts", "scale")}
    assert "ld.global.u16" not in call.kernel.inspect("ptx", *call.args, **arrays)


@pytest.mark.skipif(toolchain() is not None, reason=f"no compiler: {toolchain()}")
def test_few_long_rows_spill_no_registers() -> None:
    with noting() as notes:
        matvec(imagined((57, 59456), np.float32), imagined((59456,), np.float32))
    (call,) = notes.calls
    arrays = {name: call.named[name] for name in ("weights", "y", "scale")}
    assert call.kernel.inspect("resources", *call.args, **arrays).spill_bytes == 0


@pytest.mark.thorough
@pytest.mark.skipif(toolchain() is not None, reason=f"no compiler: {toolchain()}")
def test_the_kernels_keep_their_sums_in_registers() -> None:
    for down, shape in ((False, (1, 40000, 512)), (True, (1, 512, 512))):
        tile = reduce_axis.schedule(shape, down, 4)[:3]
        kernel = reduce_axis.reducer(
            "dot", down, *tile, 1, False, False, 0, 1, 0, 0, False, None, "weights"
        )
        x, weights, y = (
            ArrayType(size, np.float32) for size in (shape, (1, 512), (1, 1, shape[1 + down]))
        )
        arrays = {"weights": weights, "y": y, "parts": 1, "scale": 1.0}
        assert kernel.inspect("gate", x, **arrays) == ()
        assert kernel.inspect("resources", x, **arrays).spill_bytes == 0
