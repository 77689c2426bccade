"""Transforms and approximate division on the GPU."""

from __future__ import annotations

import numpy as np
import pytest

from tests.kernels.division_kernels import divide_by_exact, divide_by_fast
from tests.plan.test_transforms import (  # noqa: F401
    test_a_narrower_panel_may_be_cut_where_a_wide_one_cannot,
    test_a_product_is_right_for_panels_of_every_width_and_both_major_orders,
    test_an_output_tile_that_is_transposed_is_stored_as_its_array_lies,
    test_outputs_are_stored_from_panels_of_every_width,
)

REPEATS = 10


def ulps(found: np.ndarray, true: np.ndarray) -> float:
    """Return the largest distance of a float32 result from the true quotient, in ulp."""
    return float(
        (
            np.abs(found.astype(np.float64) - true) / np.spacing(np.abs(true).astype(np.float32))
        ).max()
    )


DIVISORS = [np.float32(x) for x in (3, -7, 0.1, 1e-3, 49999, 1.9999999, np.pi, 2.0**-126, 2.0**100)]


@pytest.mark.parametrize("x", DIVISORS)
def test_quotients_are_rounded_correctly_or_within_2_ulp(x: np.float32) -> None:
    a = np.random.default_rng(1).integers(-99, 100, (64, 64)).astype(np.float16)
    a[a == 0] = 1
    if abs(x) < 1e-30:
        a = (a * np.float16(2.0**-10)).astype(np.float16)  # keeps quotients below infinity
    acc = a.astype(np.float32) @ a.astype(np.float32).T
    exact, fast = np.zeros((64, 64), np.float32), np.zeros((64, 64), np.float32)
    divide_by_exact(a, exact, x, target="gpu")
    divide_by_fast(a, fast, x, target="gpu")
    np.testing.assert_array_equal(exact, acc / x)
    true = acc.astype(np.float64) / np.float64(x)
    assert ulps(fast, true) <= 2


def test_the_approximation_of_a_quotient_by_more_than_2_to_126_is_0() -> None:
    a, c = np.ones((64, 64), np.float16), np.ones((64, 64), np.float32)
    divide_by_fast(a, c, np.float32(2.0**127), target="gpu")
    assert not c.any()
