"""Tiles by rows on the GPU: loads, stores, reductions and casts give the simulator's results.

A kernel takes a second to compile. Layouts depend on the width of a type: each shape is tested with
each width, in one of its two types, and every type with half of the shapes.
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
    expected,
    reduced,
    softmax,
    through_registers,
    through_shared,
)
from tests.language.tiles.test_rows import (  # noqa: F401
    test_casts_move_tiles_and_vectors,
    test_lanes_may_have_runs_of_a_row,
    test_rows_of_any_length_are_loaded_from_a_vector,
    test_vectors_parts_masks_and_atomics_of_tiles_by_rows,
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
            right[3 : 3 + m, 2 : 2 + n] = (x + x)[3 : 3 + m, 2 : 2 + n]
            assert (y == right).all(), (dtype, size)
        if n * dtype.itemsize % 16 == 0:
            x = array((2 * m, n + 16), dtype)
            y = np.zeros_like(x)
            through_shared(x, y, m=m, n=n, target="gpu")
            assert (x == y).all(), dtype


@pytest.mark.parametrize("turn, shape", TURNS, ids=str)
def test_reductions(turn: int, shape: tuple[int, int]) -> None:
    """float32 is left to the next test, which runs its kernels too; int32 has half of the
    shapes."""
    m, n = shape
    for dtype in (F32, I32)[: 1 + turn % 2]:
        x = array(shape, dtype)
        results = (np.zeros((m, 4), dtype), np.zeros((3, n), dtype), np.zeros(4, dtype))
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


def test_a_softmax_and_the_examples() -> None:
    x = np.random.default_rng(0).standard_normal((1000, 1024)).astype(BF16)
    for kernel in (softmax, by_rows.softmax, by_rows.softmax_ring):
        np.testing.assert_allclose(
            kernel(x, target="gpu").astype(F32), by_rows.softmax_of(x), rtol=0.02, atol=1e-6
        )
    field = np.random.default_rng(0).random((1000, 1300), np.float32)
    np.testing.assert_allclose(
        by_rows.stencil(field, target="gpu"), by_rows.stencil_of(field), rtol=1e-5
    )
    data = np.random.default_rng(0).integers(0, 256, (192 * 300, 256)).astype(np.uint8)
    counts = np.zeros(256, np.int32)
    by_rows.histogram(data, counts, target="gpu")
    assert (counts == np.bincount(data.reshape(-1), minlength=256)).all()
