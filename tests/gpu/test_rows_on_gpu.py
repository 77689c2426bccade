"""Tiles by rows on the hardware: loads, stores, reductions and casts give what they give simulated.

A kernel takes a second to compile. What lies where depends on a type's width: each shape meets each width, in one of its two types,
and every type half of the shapes.
"""

from __future__ import annotations

import by_rows
import numpy as np
import pytest

from tests.kernels.row_kernels import (
    ALTERNATELY,
    BF16,
    SHAPES,
    array,
    cast,
    expected,
    names,
    normalised,
    reduced,
    softmax,
    through_registers,
    through_shared,
)

PROCESSES = 4
F32, I32 = np.dtype(np.float32), np.dtype(np.int32)
TURNS = list(enumerate(SHAPES))


@pytest.mark.parametrize("turn, shape", TURNS, ids=str)
def test_blocks_go_through_registers_and_shared_memory(turn: int, shape: tuple[int, int]) -> None:
    m, n = shape
    for dtype in ALTERNATELY[turn % 2]:
        for size in ((m + 3, n + 2), (m + 5, n + 9), (m - 1, n - 3)):
            x = array(size, dtype)
            y, right = np.zeros_like(x), np.zeros_like(x)
            through_registers(x, y, m=m, n=n, target="gpu")
            right[3:3 + m, 2:2 + n] = (x + x)[3:3 + m, 2:2 + n]
            assert (y == right).all(), (dtype, size)
        if n * dtype.itemsize % 16 == 0:
            x = array((2 * m, n + 16), dtype)
            y = np.zeros_like(x)
            through_shared(x, y, m=m, n=n, target="gpu")
            assert (x == y).all(), dtype


@pytest.mark.parametrize("turn, shape", TURNS, ids=str)
def test_reductions(turn: int, shape: tuple[int, int]) -> None:
    """Of float32, whose kernels the next test runs too, and of int32 for half of the shapes."""
    m, n = shape
    for dtype in (F32, I32)[:1 + turn % 2]:
        x, results = array(shape, dtype), (np.zeros((m, 4), dtype), np.zeros((3, n), dtype), np.zeros(4, dtype))
        for _ in range(5):
            reduced(x, *results, m=m, n=n, target="gpu")
            for found, right in zip(results, expected(x), strict=True):
                assert (found == right).all(), dtype


def test_sums_have_the_simulators_bits() -> None:
    for m, n in SHAPES:
        x = np.random.default_rng(0).standard_normal((m, n)).astype(F32)
        found = [[np.zeros((m, 4), F32), np.zeros((3, n), F32), np.zeros(4, F32)] for _ in range(2)]
        for results, target in zip(found, ("gpu", "sim"), strict=True):
            reduced(x, *results, m=m, n=n, target=target)
        for one, other, column in zip(*found, (0, 0, 0), strict=True):
            assert one[..., column].tobytes() == other[..., column].tobytes(), (m, n)


@pytest.mark.parametrize("shape, lanes, word", [
    ((64, 128), 32, F32), ((24, 16), 4, I32), ((192, 64), 8, F32), ((120, 128), 16, I32), ((128, 256), 32, F32)], ids=str)
def test_casts(shape: tuple[int, int], lanes: int, word: np.dtype) -> None:
    for dtype in (word, BF16):
        x, v = array(shape, dtype), array((max(shape),), dtype, 1)
        y = np.zeros_like(x)
        cast(x, y, v, m=shape[0], n=shape[1], to=names(lanes, shape), target="gpu")
        assert (y == x * v[:shape[1]] + v[:shape[0], None]).all()


def test_a_softmax_and_the_examples() -> None:
    x = np.random.default_rng(0).standard_normal((1000, 1024)).astype(BF16)
    for kernel in (softmax, by_rows.softmax, by_rows.softmax_ring):
        np.testing.assert_allclose(kernel(x, target="gpu").astype(F32), by_rows.softmax_of(x), rtol=0.02, atol=1e-6)
    field = np.random.default_rng(0).random((1000, 1300), np.float32)
    np.testing.assert_allclose(by_rows.stencil(field, target="gpu"), by_rows.stencil_of(field), rtol=1e-5)
    data, counts = np.random.default_rng(0).integers(0, 256, (192 * 300, 256)).astype(np.uint8), np.zeros(256, np.int32)
    by_rows.histogram(data, counts, target="gpu")
    assert (counts == np.bincount(data.reshape(-1), minlength=256)).all()


def test_vectors_parts_masks_and_atomics() -> None:
    rng = np.random.default_rng(0)
    x, gamma = rng.standard_normal((64, 512)).astype(F32), rng.standard_normal(64).astype(F32)
    y, sums = np.zeros((72, 64), F32), np.zeros((9, 9), F32)
    normalised(x, gamma, y, sums, target="gpu")
    tile = x[:, :64]
    right = np.abs(tile / np.sqrt((tile * tile).mean(axis=1, keepdims=True)) * gamma)
    np.testing.assert_allclose(y[:64], right, rtol=1e-5)
    np.testing.assert_allclose(y[64:], x[:8, 448:] + np.arange(64, dtype=F32), rtol=1e-6)
    assert (sums[:8, :8] == 1).all() and (sums[8, :8] == 16).all() and (sums[:8, 8] == 24).all()
