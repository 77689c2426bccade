"""Functions of register tiles on the hardware: the simulated SM's bits, and NumPy's results."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.kernels.tile_function_kernels import (
    EXACT,
    LIMITS,
    REDUCTIONS,
    RUNNING,
    TYPES,
    Case,
    arrays_of,
    arrays_of_exact,
    drawn,
    exactly,
    is_numpys,
    of_numbers,
    of_vectors,
    reduction,
    running,
    running_of_vectors,
    same_bits,
    wanted_of_exact,
)

pytestmark = pytest.mark.gpu
pytest.importorskip("cuda.bindings", reason="the CUDA wheels are not installed")
PROCESSES = 4


def both(kernel: Any, *arrays: np.ndarray, outputs: int = 1) -> list[np.ndarray]:
    """What a kernel writes to its last arrays on the GPU, which are the simulated SM's bits."""
    simulated = [array.copy() for array in arrays]
    kernel.simulate(*simulated)
    for _ in range(5):
        found = [array.copy() for array in arrays]
        kernel(*found, target="gpu")
        for one, other in zip(found[-outputs:], simulated[-outputs:], strict=True):
            assert same_bits(one, other)
    return found[-outputs:]


@pytest.mark.parametrize("case", REDUCTIONS, ids=str)
def test_means_and_indices_are_numpys_and_the_simulators_to_the_last_bit(case: Case) -> None:
    for seed in (0, 1, 2):
        x, y = arrays_of(case, seed)
        y, = both(reduction(case), x, y)
        assert is_numpys(case, x, y)


@pytest.mark.parametrize("axis", [0, 1, None])
def test_sums_are_the_simulators_to_the_last_bit(axis: int | None) -> None:
    for shape in ((64, 40), (192, 64), (64, 256)):
        case: Case = ("sum", "float32", shape, axis)
        x, y = arrays_of(case)
        y, = both(reduction(case), x * np.float32(np.pi), y)
        np.testing.assert_allclose(y[0], np.broadcast_to((x[:shape[0]] * np.pi).sum(axis=axis), y[0].shape), rtol=1e-4, atol=1e-2)


def test_vectors_have_means_and_indices_in_each_layout() -> None:
    x = drawn((64, 64), "float32", special=False)
    floats, ints = both(of_vectors, x, np.zeros((4, 64), np.float32), np.zeros((4, 64), np.int32), outputs=2)
    for number, vector in enumerate((x.sum(axis=0), x.sum(axis=1), x[0])):
        np.testing.assert_allclose(floats[number], vector.astype(np.float64).mean(), atol=1e-5)
        assert (ints[number] == vector.argmax() + 100 * vector.argmin()).all()


@pytest.mark.parametrize("case", RUNNING, ids=str)
def test_running_sums_are_numpys_and_the_simulators_to_the_last_bit(case: Case) -> None:
    _, dtype, (rows, columns), axis = case
    for special in (False, True):
        x = drawn((2 * rows, columns), dtype, special=special)
        y, = both(running(case), x, np.zeros_like(x))
        if not special:
            wanted = np.concatenate([np.cumsum(half, axis=axis, dtype=np.float64) for half in (x[:rows], x[rows:])])
            np.testing.assert_allclose(y, wanted, rtol=0, atol=0 if dtype == "int32" else 2e-6 * np.abs(x).sum(axis=axis).max())


def test_vectors_have_running_sums_in_each_layout() -> None:
    both(running_of_vectors, drawn((192, 64), "float32", special=False), np.zeros((4, 192), np.float32))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("name", EXACT)
def test_exact_functions_give_numpys_bits(name: str, dtype: str) -> None:
    x, y = arrays_of_exact(name, dtype)
    exactly(name, dtype)(x, y, target="gpu")
    assert same_bits(y, wanted_of_exact(name, x))


@pytest.mark.parametrize("dtype", TYPES)
def test_clipping_is_numpys_with_one_bound_and_two(dtype: str) -> None:
    for limits in LIMITS["int32" if dtype == "int32" else "float"]:
        x, y = arrays_of_exact("clip", dtype)
        exactly("clip", dtype, limits)(x, y, target="gpu")
        np.testing.assert_array_equal(y.astype(np.float32), wanted_of_exact("clip", x, limits).astype(np.float32))


def test_numbers_are_computed_as_tiles_are() -> None:
    x, y = drawn((64, 64), "float32", special=False), np.zeros((64, 64), np.float32)
    of_numbers(x, y, np.float32(-1.5), np.int32(3), target="gpu")
    assert (y == -2 - 10 - 100 + 2250 - 0.25 + 20 + 100 + 3000 + min(np.floor(x.max()), 2)).all()
    of_numbers(x, y, np.float32(0), np.int32(-3), target="gpu")
    assert (y == -30 - 100 - 3000 + 1 + min(np.floor(x.max()), 2)).all()
