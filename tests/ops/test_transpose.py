"""Transposition of the last two dimensions: bits, strides and errors."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import numpipe
from numpipe.ops import transpose

X = np.arange(12 * 16).reshape(12, 16).astype(np.float32)


@pytest.mark.parametrize(
    "shape, dtype",
    [
        ((24, 40), np.float16),
        ((2, 8, 12), np.float32),
        ((1, 2, 1, 3, 16), ml_dtypes.bfloat16),
        ((5, 7), np.float16),
        ((2, 1, 3, 2, 3, 2, 4), np.float16),
    ],
)
def test_the_result_is_the_contiguous_transpose(shape: tuple[int, ...], dtype: Any) -> None:
    x = np.random.default_rng(0).standard_normal(shape).astype(dtype)
    x[..., 0, 0] = np.nan
    for source in (x, np.ascontiguousarray(x.swapaxes(-1, -2)).swapaxes(-1, -2), x[..., ::-1, 1:]):
        y = transpose(source, target="sim")
        assert y.flags.c_contiguous
        assert y.tobytes() == np.ascontiguousarray(source.swapaxes(-1, -2)).tobytes()


def test_out_may_have_any_strides() -> None:
    out = np.zeros((12, 16), np.float32).T
    assert transpose(X, out=out, target="sim") is out
    assert (out == X.T).all()
    assert transpose(X[:0], target="sim").shape == (16, 0)


@pytest.mark.parametrize(
    "arguments, words",
    [
        ({"x": X[0]}, r"'x' must have the dimensions ... m n, got shape \(16,\)"),
        ({"x": X.astype(np.float64)}, "'x' is float64, expected float16"),
        ({"x": X, "out": X.T}, "'out'.* overlaps argument 'x'"),
        ({"x": X[:, :12], "out": X[:, :12]}, "'out'.* overlaps argument 'x'"),
        ({"x": X, "out": np.zeros_like(X)}, r"'out' must be float32 \(16, 12\)"),
    ],
)
def test_invalid_arguments_are_refused(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(numpipe.SpecError, match=words):
        transpose(**arguments, target="sim")
