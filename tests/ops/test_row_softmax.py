"""Softmax along rows: every element in one piece, results against float64, special values, machine
code."""

from __future__ import annotations

import itertools
import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import numpipe
from numpipe import launch
from numpipe.errors import PipelineRace, SpecError
from numpipe.launch.array_info import ArrayInfo
from numpipe.ops import row_softmax
from numpipe.ops.row_softmax import Config, backward, choose, forward, long, short, windows
from tests.kernels.covering import pairwise

F32, F16, BF16 = (np.dtype(of) for of in (np.float32, np.float16, ml_dtypes.bfloat16))
ROUNDING = {F32: 3e-6, F16: 1e-3, BF16: 8e-3}
"""the largest relative error in the Frobenius norm"""
COLUMNS = (
    *(1, 7, 8, 9, 16, 50, 63, 64, 65, 128, 200, 203, 257, 1000, 1024, 1025, 1500),
    *(2048, 2049, 3001, 3073, 4096, 4097, 5000, 8192, 8193, 8704, 16383, 16384),
)


def parts(array: Any, config: Config) -> list[ArrayInfo]:
    return windows(launch.describe(array, "array", "test"), config)


def exact(x: np.ndarray, log: bool) -> np.ndarray:
    """Return the results of torch.softmax and torch.log_softmax, in float64."""
    with np.errstate(all="ignore"):
        x = x.astype(np.float64)
        x = x - x.max(axis=1, keepdims=True)
        e = np.exp(x)
        total = e.sum(axis=1, keepdims=True)
        return x - np.log(total) if log else e / total


def gradient(g: np.ndarray, y: np.ndarray, log: bool) -> np.ndarray:
    g, y = g.astype(np.float64), y.astype(np.float64)
    if log:
        return g - np.exp(y) * g.sum(axis=1, keepdims=True)
    return y * (g - (g * y).sum(axis=1, keepdims=True))


def softmax(x: np.ndarray, log: bool = False, config: Config | None = None) -> np.ndarray:
    config = config or choose(*x.shape, x.dtype.itemsize)
    y = np.full_like(x, 9)
    forward(config, log)(*parts(x, config), *parts(y, config), target="sim")
    return y


def error(found: np.ndarray, right: np.ndarray) -> float:
    return float(np.linalg.norm(found.astype(np.float64) - right) / np.linalg.norm(right))


@pytest.mark.parametrize("columns", COLUMNS)
@pytest.mark.parametrize("itemsize", [2, 4])
def test_the_parts_have_each_element_once_and_fit_their_tiles(columns: int, itemsize: int) -> None:
    x = np.zeros((3, columns + 5), f"i{itemsize}")[:, :columns]
    for rows, of_gradient in itertools.product((3, 1 << 20), (False, True)):
        config = choose(rows, columns, itemsize, of_gradient)
        x[...] = 0
        found = parts(x, config)
        for part in found:
            part.array[...] += 1
        assert (x == 1).all()
        assert len(found) == 1 + bool(config.rest) + bool(config.last)
        widths = [part.shape[-1] for part in found]
        assert (widths[0] == config.columns) != config.masked and widths[0] <= config.columns
        tiles = [size for size in (config.rest, config.last) if size]
        assert all(width < tile for width, tile in zip(widths[1:], tiles, strict=True))
        assert config.columns % (2 * config.lanes) == 0
        # elements per lane; a gradient's kernel holds two arrays
        assert (config.rows or 8) * config.columns <= (128 if of_gradient else 192) * 128


@pairwise(
    columns=(1, 8, 50, 64, 203, 1000, 1024, 3073, 4096, 5001, 8200),
    dtype=(F32, F16, BF16),
    log=(False, True),
)
def test_results_and_gradients_match_float64(columns: int, dtype: np.dtype, log: bool) -> None:
    rng = np.random.default_rng(columns)
    rows = 67 if columns < 100 else 11 if columns < 3000 else 2
    x = (3 * rng.standard_normal((rows, columns))).astype(dtype)
    y = softmax(x, log)
    right = exact(x, log)
    assert columns == 1 or error(y, right) < ROUNDING[dtype]
    if columns == 1:
        assert (y == right).all()

    g, dx = rng.standard_normal(x.shape).astype(dtype), np.full_like(x, 9)
    config = choose(rows, columns, dtype.itemsize, gradient=True)
    arrays = (part for array in (g, y, dx) for part in parts(array, config))
    backward(config, log)(*arrays, target="sim")
    right = gradient(g, y, log)
    scale = np.linalg.norm(g.astype(np.float64)) if columns == 1 else np.linalg.norm(right)
    assert np.linalg.norm(dx.astype(np.float64) - right) < ROUNDING[dtype] * scale


@pytest.mark.parametrize("config", [short(600, 8, 32), long(1101, 1), long(1101, 2)], ids=str)
def test_infinities_and_the_lowest_numbers_give_what_torch_gives(config: Config) -> None:
    """-inf masks an element, here all elements of some pieces.

    Rows without a number, or with +inf, are NaN; a row of the lowest finite number is uniform.
    """
    columns = 600 if config.rows else 1101
    x = np.random.default_rng(0).standard_normal((7, columns)).astype(F32)
    x[0, :-3] = -np.inf
    x[1, 5:] = -np.inf
    x[2] = -np.inf
    x[3] = np.finfo(F32).min
    x[4, 70] = np.inf
    x[5, 70] = np.nan
    x[6, :] = np.finfo(F32).max
    for log in (False, True):
        np.testing.assert_allclose(softmax(x, log, config), exact(x, log), rtol=1e-5, atol=1e-6)


def test_a_result_may_replace_its_operand_in_rows_that_are_apart() -> None:
    whole = np.random.default_rng(0).standard_normal((9, 1200)).astype(F32)
    x = whole[:, 3:1104]
    right, config = exact(x, False), long(1101, 1)
    around = whole.copy()
    forward(config, False)(*parts(x, config), *parts(x, config), target="sim")
    np.testing.assert_allclose(x, right, rtol=1e-4, atol=1e-7)
    assert (whole[:, :3] == around[:, :3]).all() and (whole[:, 1104:] == around[:, 1104:]).all()


def test_rows_whose_elements_are_apart_are_refused() -> None:
    with pytest.raises(SpecError, match="4 bytes apart, got 8; fix: "):
        parts(np.zeros((4, 64), F32)[:, ::2], choose(4, 32, 4))
    assert parts(np.zeros((4, 64), F32)[:, ::64], choose(4, 1, 4))[0].shape == (1, 4, 1)


@pytest.mark.parametrize("of", [forward, backward])
def test_no_schedule_of_warpgroups_that_share_a_row_is_a_race(of: Any) -> None:
    config = long(1101, 2)
    x = np.random.default_rng(0).standard_normal((2, 1101)).astype(F32)
    arrays = [x, *(np.zeros_like(x) for _ in range(1 if of is forward else 2))]
    operands = [part for array in arrays for part in parts(array, config)]
    result = numpipe.verify(of(config, False), *operands)
    assert result and not result.warnings


@pytest.mark.parametrize("of", [forward, backward])
def test_without_the_barrier_the_exchange_is_a_race(
    of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_softmax, "barrier_arrive", nothing)
    monkeypatch.setattr(row_softmax, "barrier_wait", nothing)
    config = long(1101, 2)
    x = np.zeros((2, 1101), F32)
    arrays = [x, *(np.zeros_like(x) for _ in range(1 if of is forward else 2))]
    operands = [part for array in arrays for part in parts(array, config)]
    with pytest.raises(PipelineRace):
        of.__wrapped__(config, False)(*operands, target="sim")


@numpipe.function
def nothing(barrier):
    """Do nothing, in place of a barrier operation."""


# ---- compiled
def on_gpu(columns: int, dtype: np.dtype, config: Config) -> list[ArrayInfo]:
    """Return the pieces of a matrix on a GPU, for compiles."""
    info = launch.describe(np.zeros((1, columns), dtype), "array", "test")
    strides = (columns * dtype.itemsize, dtype.itemsize)
    return windows(
        info._replace(
            kind="cuda", ptr=1 << 20, shape=(4096, columns), strides=strides, array=None, device=0
        ),
        config,
    )


@pytest.mark.variants(3)
@pytest.mark.parametrize(
    ("of", "columns", "registers"),
    [
        (forward, 1024, 96),
        (forward, 1001, 104),
        (forward, 4096, 64),
        (forward, 16384, 104),
        (forward, 5001, 96),
        (backward, 1024, 168),
        (backward, 4096, 80),
        (backward, 16384, 128),
        (backward, 5001, 112),
    ],
)
def test_registers_leave_room_and_loads_are_pairs_where_rows_are_aligned(
    of: Any, columns: int, registers: int
) -> None:
    """Sizes and strides are checked once, so the code has no paths for other arrays.

    Such paths would load 16-bit elements and take half as many registers again.
    """
    config = choose(4096, columns, 2, gradient=of is backward)
    operands = on_gpu(columns, BF16, config) * (2 if of is forward else 3)
    report = str(of(config, False).inspect("resources", *operands))
    assert int(re.search(r"registers +(\d+)", report)[1]) <= registers, report
    assert re.search(r"stack +0 B, 0 B a lane", report), report
    sass = of(config, False).inspect("sass", *operands)
    assert ("LDG.E.U16" in sass) == ("STG.E.U16" in sass) == bool(columns % 8)
