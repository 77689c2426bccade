"""Functions of register tiles on the hardware: the simulated SM's bits, and NumPy's results."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.kernels.scan_kernels import (
    FUNCTIONS,
    STORED,
    arrays_of_divided,
    arrays_of_largest,
    arrays_of_scan,
    arrays_of_stored,
    arrays_of_vectors,
    arrays_of_voted,
    divided,
    is_largest,
    is_scan,
    largest,
    of_builtins,
    of_number,
    scanned,
    scans_of_vectors,
    stored,
    stored_to_blocks,
    voted_along,
    wanted_of_builtins,
    wanted_of_divided,
    wanted_of_stored,
    wanted_of_vectors,
    wanted_of_voted,
)
from tests.kernels.scan_kernels import SHAPES as SCANNED
from tests.kernels.tile_function_kernels import (
    EXACT,
    REDUCTIONS,
    RUNNING,
    TYPES,
    Case,
    arrays_of,
    arrays_of_exact,
    drawn,
    exactly,
    is_numpys,
    of_vectors,
    reduction,
    running,
    running_of_vectors,
    same_bits,
    same_values,
    wanted_of_exact,
)
from tests.language.tiles.test_tile_functions import (  # noqa: F401
    test_clipping_is_numpys_with_one_bound_and_two,
    test_numbers_are_computed_as_tiles_are,
)

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


# ---- scans, the largest, quotients, builtins, masks, stores
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("shape", SCANNED)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_scans_are_numpys_and_the_simulators(name: str, shape: tuple[int, int], axis: int) -> None:
    for dtype in ("float32", "int32") if name != "linear" else ("float32",):
        x, y = arrays_of_scan(name, dtype, shape)
        kernel = scanned(name, shape, axis)
        if name == "product":  # of the others the GPU may fuse a product and a sum, or choose another sign of zero
            both(kernel, x, y)
        for _ in range(5):
            y[...] = 7
            kernel(x, y, target="gpu")
            assert is_scan(name, x, y, axis)


def test_vectors_are_scanned_in_each_layout() -> None:
    x, y = arrays_of_vectors()
    y, = both(scans_of_vectors, x, y)
    for found, wanted in zip(y, wanted_of_vectors(x), strict=True):
        np.testing.assert_allclose(found[:len(wanted)], wanted, rtol=1e-4)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("k", [1, 2, 8, 13, 32])
def test_the_largest_of_rows_are_those_of_a_sort(k: int, dtype: str) -> None:
    for shape in SCANNED:
        if k <= shape[1]:
            x, values, indices = arrays_of_largest(k, dtype, shape)
            both(largest(k, shape), x, values, indices, outputs=2)
            largest(k, shape)(x, values, indices, target="gpu")
            assert is_largest(k, x, values, indices)


def test_as_many_columns_as_an_array_has_are_stored() -> None:
    x, values, indices = arrays_of_largest(2, "float32", (64, 40), 2)
    largest(2, (64, 40))(x, values, indices, target="gpu")
    assert is_largest(2, x, values, indices)


@pytest.mark.parametrize("dtype", TYPES)
def test_quotients_and_remainders_are_numpys(dtype: str) -> None:
    x, z, y = arrays_of_divided(dtype)
    divided(x, z, y, target="gpu")
    assert same_bits(y, wanted_of_divided(x, z))


@pytest.mark.parametrize("dtype", TYPES)
def test_builtins_of_tiles_are_element_by_element(dtype: str) -> None:
    x, z, y = drawn((64, 64), dtype), drawn((64, 64), dtype, seed=3), np.zeros((256, 64), TYPES[dtype])
    of_builtins(x, z, y, target="gpu")
    assert same_values(y, wanted_of_builtins(x, z))


def test_masks_are_reduced_along_an_axis() -> None:
    x, y = arrays_of_voted()
    y, = both(voted_along, x, y)
    assert (y == wanted_of_voted(x)).all()


@pytest.mark.parametrize("have, want", STORED)
def test_stores_convert_as_numpys_assignment(have: str, want: str) -> None:
    arrays = arrays_of_stored(have, want)
    stored(*arrays, target="gpu")
    for found, wanted in zip(arrays[1:], wanted_of_stored(arrays), strict=True):
        assert same_values(found, wanted)


@pytest.mark.parametrize("have, want", STORED[:4])
def test_blocks_of_a_pipeline_are_stored_in_their_arrays_type(have: str, want: str) -> None:
    x, y = (np.arange(64 * 128).reshape(64, 128) % 251).astype(TYPES[have]), np.zeros((64, 128), TYPES[want])
    stored_to_blocks(x, y, target="gpu")
    assert (y.astype(np.float32) == 2 * x.astype(np.float32)).all()


@pytest.mark.parametrize("name", ["sin", "cos", "tan"])
def test_numbers_have_the_sine_of_tiles(name: str) -> None:
    """To the last bit, of huge numbers, infinities, NaN and zeros too."""
    kernel, values = of_number(name), (0.5, -0.0, 1e-40, 65537.25, 3e38, -1.2e30, np.inf, np.nan)
    for value in values:
        y = np.full((2, 64), 7, np.float32)
        kernel(np.full(64, value, np.float32), y, np.float32(value), target="gpu")
        assert same_bits(y[0], y[1])
        with np.errstate(all="ignore"):
            true = getattr(np, name)(np.float64(np.float32(value)))
        np.testing.assert_allclose(y[0], true, rtol=4 * 2.0**-23)
        assert np.isnan(true) or (np.signbit(y) == np.signbit(true)).all()
