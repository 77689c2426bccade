"""Functions of register tiles on the GPU: the simulator's bits, and NumPy's results."""

from __future__ import annotations

import numpy as np
import pytest

from tests.kernels.scan_kernels import (
    FUNCTIONS,
    arrays_of_largest,
    arrays_of_scan,
    is_largest,
    is_scan,
    largest,
    of_number,
    scanned,
)
from tests.kernels.scan_kernels import SHAPES as SCANNED
from tests.kernels.tile_function_kernels import (
    RUNNING,
    TYPES,
    Case,
    arrays_of,
    drawn,
    matched,
    reduction,
    running,
    same_bits,
)
from tests.language.tiles.test_scans import (  # noqa: F401
    test_as_many_columns_as_an_array_has_are_stored,
    test_blocks_of_a_pipeline_are_stored_in_their_arrays_type,
    test_builtins_of_tiles_are_element_by_element,
    test_masks_are_reduced_along_an_axis,
    test_quotients_and_remainders_are_numpys,
    test_stores_convert_as_numpys_assignment,
    test_vectors_are_scanned_in_each_layout,
)
from tests.language.tiles.test_tile_functions import (  # noqa: F401
    test_clipping_is_numpys_with_one_bound_and_two,
    test_exact_functions_give_numpys_bits,
    test_means_and_indices_are_numpys,
    test_numbers_are_computed_as_tiles_are,
    test_running_sums_are_numpys,
    test_vectors_have_means_and_indices_in_each_layout,
    test_vectors_have_running_sums_in_each_layout,
)

PROCESSES = 4
REPEATS = 3


@pytest.mark.parametrize("axis", [0, 1, None])
def test_sums_are_the_simulators_to_the_last_bit(axis: int | None) -> None:
    for shape in ((64, 40), (192, 64), (64, 256)):
        case: Case = ("sum", "float32", shape, axis)
        x, y = arrays_of(case)
        matched(reduction(case), x * np.float32(np.pi), y, target="gpu")
        np.testing.assert_allclose(
            y[0],
            np.broadcast_to((x[: shape[0]] * np.pi).sum(axis=axis), y[0].shape),
            rtol=1e-4,
            atol=1e-2,
        )


@pytest.mark.parametrize("case", RUNNING, ids=str)
def test_running_sums_of_infinities_and_nan_match_the_simulators(case: Case) -> None:
    _, dtype, (rows, columns), _ = case
    x = drawn((2 * rows, columns), dtype)
    matched(running(case), x, np.zeros_like(x), target="gpu")


# ---- scans, the largest, quotients, builtins, masks, stores
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("shape", SCANNED)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_scans_are_numpys_and_the_simulators(name: str, shape: tuple[int, int], axis: int) -> None:
    for dtype in ("float32", "int32") if name != "linear" else ("float32",):
        x, y = arrays_of_scan(name, dtype, shape)
        kernel = scanned(name, shape, axis)
        # in the other scans the GPU may fuse a product and a sum, or choose another sign of zero
        if name == "product":
            matched(kernel, x, y, target="gpu")
        for _ in range(5):
            y[...] = 7
            kernel(x, y, target="gpu")
            assert is_scan(name, x, y, axis)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("k", [1, 2, 8, 13, 32])
def test_the_largest_of_rows_are_those_of_a_sort(k: int, dtype: str) -> None:
    for shape in SCANNED:
        if k <= shape[1]:
            x, values, indices = arrays_of_largest(k, dtype, shape)
            matched(largest(k, shape), x, values, indices, target="gpu")
            assert is_largest(k, x, values, indices)


@pytest.mark.parametrize("name", ["sin", "cos", "tan"])
def test_numbers_have_the_sine_of_tiles(name: str) -> None:
    """To the last bit, also for huge numbers, infinities, NaN and zeros."""
    kernel, values = of_number(name), (0.5, -0.0, 1e-40, 65537.25, 3e38, -1.2e30, np.inf, np.nan)
    for value in values:
        y = np.full((2, 64), 7, np.float32)
        kernel(np.full(64, value, np.float32), y, np.float32(value), target="gpu")
        assert same_bits(y[0], y[1])
        with np.errstate(all="ignore"):
            true = getattr(np, name)(np.float64(np.float32(value)))
        np.testing.assert_allclose(y[0], true, rtol=4 * 2.0**-23)
        assert np.isnan(true) or (np.signbit(y) == np.signbit(true)).all()
