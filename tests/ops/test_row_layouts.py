"""Kernels over rows keep each value in the lanes that have it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import numpipe
from numpipe import ops
from numpipe.kernels import row_kernels
from numpipe.language.tiles import conversions
from numpipe.ops.norms import norm_backward, norm_rows
from numpipe.ops.softmax import softmax_backward
from numpipe.plan.specs import ArrayType

LENGTHS = 20, 50, 113, 900, 2100
"""a row belongs to 4, 8, 16, 32 or 128 lanes, whose columns are more than it has"""


@pytest.fixture
def moves(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the list of values that a simulated kernel moves between layouts."""
    found: list[str] = []
    monkeypatch.setenv("NUMPIPE_COMPILE_CHECK", "0")
    exchange = conversions.exchange

    def recorded(machine: Any, store: Any, load: Any, what: str, **options: Any) -> None:
        found.append(what)
        exchange(machine, store, load, what, **options)

    monkeypatch.setattr(conversions, "exchange", recorded)
    return found


def norm_gradient(x: np.ndarray, weight: np.ndarray) -> Any:
    _, statistics = norm_rows(x, weight, centered=True)
    return norm_backward(x, x, statistics, weight, bias=True)


def labels(x: np.ndarray) -> np.ndarray:
    return np.arange(len(x), dtype=np.int32) % np.int32(x.shape[1])


CALLS: dict[str, Callable[[np.ndarray], Any]] = {
    "softmax": ops.softmax,
    "softmax_backward": lambda x: softmax_backward(x, x),
    "layer_norm": lambda x: ops.layer_norm(x, x[0], x[1]),
    "rms_norm": lambda x: ops.rms_norm(x, x[0], x, dropout=0.1),
    "quantized": lambda x: ops.rms_norm(x, x[0], out_scales="1x128"),
    "norm_gradient": lambda x: norm_gradient(x, x[0]),
    "cross_entropy": lambda x: ops.cross_entropy(x, labels(x), with_gradient=True),
    "quantize": lambda x: ops.quantize(x, block="row"),
    "swiglu": lambda x: ops.swiglu(x, x, out_scales="row"),
}


@pytest.mark.variants(3)
@pytest.mark.parametrize("name", CALLS)
def test_no_value_is_moved_between_layouts(
    name: str, moves: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUMPIPE_TARGET", "sim")
    for columns in LENGTHS:
        x = np.random.default_rng(0).standard_normal((3, columns)).astype(np.float32)
        CALLS[name](x)
        assert moves == [], columns


@pytest.mark.variants(3)
@pytest.mark.parametrize("name", CALLS)
def test_no_value_of_a_flat_array_is_moved(
    name: str, moves: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUMPIPE_TARGET", "sim")
    monkeypatch.setattr(row_kernels, "MANY", 0)
    monkeypatch.setattr(row_kernels, "loadable", lambda *given: (False, True))
    for columns in (17, 57):
        CALLS[name](np.random.default_rng(0).standard_normal((300, columns)).astype(np.float16))
        assert moves == [], columns


@pytest.mark.parametrize("block", ["row", "1x128"])
@pytest.mark.parametrize("shape", [(9, 771), (20, 187)])
def test_quantized_rows_of_a_flat_array_may_begin_anywhere(
    shape: tuple[int, int], block: str, moves: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A block of 8 rows ends inside 16 bytes, one of 16 rows does not."""
    monkeypatch.setattr(row_kernels, "MANY", 0)
    monkeypatch.setattr(row_kernels, "loadable", lambda *given: (False, True))
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float16)
    values, scales = ops.quantize(x, block=block, target="sim")
    width = shape[1] if block == "row" else 128
    wanted = np.maximum.reduceat(np.abs(x), range(0, shape[1], width), axis=1) / 448
    scales = scales.reshape(wanted.shape)
    np.testing.assert_allclose(scales, wanted, rtol=1e-3)
    scales = np.repeat(scales, width, axis=1)[:, : shape[1]]
    np.testing.assert_allclose(values.astype(np.float32) * scales, x, rtol=0.07, atol=5e-3)
    assert moves == []


def test_a_mask_of_part_of_the_columns_is_moved(moves: list[str]) -> None:
    @numpipe.rows(out_type=lambda x: ArrayType(x.shape, x.dtype))
    def masked(x, y, *, row: numpipe.Static):  # type: ignore[no-untyped-def]
        for k in row.blocks(x):
            value, block = row.load(k, x)
            # 8 lanes share a row of the matrix, 16 lanes one of 32 columns
            rows = numpipe.iota((row.height, 1), 0)
            inside = (numpipe.iota((1, 32), 1) + 48 < 72) & (rows >= 0)
            tile = value(row.columns())
            row.store(
                block,
                y,
                lambda j: np.concatenate(
                    (tile[:, :48], np.where(inside, tile[:, 48:], 0.0)), axis=1
                ),
            )

    masked(np.zeros((3, 72), np.float32), target="sim")
    assert moves


def test_any_value_may_be_stored_to_blocks_of_a_flat_array(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @numpipe.rows(out_type=lambda x: ArrayType(x.shape, x.dtype))
    def ones(x, y, *, row: numpipe.Static):  # type: ignore[no-untyped-def]
        for k in row.blocks(x):
            value, block = row.load(k, x)
            row.sum(value)
            one = numpipe.full((row.height, row.width), 1.0, np.float32)
            row.store(block, y, lambda j: one)

    monkeypatch.setattr(row_kernels, "MANY", 0)
    monkeypatch.setattr(row_kernels, "loadable", lambda *given: (False, True))
    x = np.random.default_rng(0).standard_normal((130, 33)).astype(np.float32)
    assert (ones(x, target="sim") == 1).all()
