"""Automatic barriers on the GPU: warps read what other warps have written, with the same result
each time."""

from __future__ import annotations

import numpy as np
import pytest

from tests.kernels.ordered_kernels import BARE, SAFE, operand, result

REPEATS = 20


@pytest.mark.parametrize("name", SAFE)
def test_warps_read_what_other_warps_have_written(name: str) -> None:
    x = operand((640, 512))
    for _ in range(REPEATS):
        y = np.zeros_like(x)
        SAFE[name](x, y, target="gpu")
        np.testing.assert_array_equal(y, result(name, x))


def test_a_warp_that_reads_only_its_own_rows_needs_none() -> None:
    x = operand((640, 512))
    for _ in range(REPEATS):
        y = np.zeros_like(x)
        BARE["in_place"](x, y, target="gpu")
        np.testing.assert_array_equal(y, result("in_place", x))
