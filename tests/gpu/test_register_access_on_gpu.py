"""Stored vectors, reductions into arrays and gathered blocks on the GPU against NumPy, in many
runs."""

from __future__ import annotations

import pytest

from tests.kernels.access_kernels import CASES, differing


@pytest.mark.parametrize("name", CASES)
def test_arrays_hold_what_numpy_makes_of_them(name: str) -> None:
    assert [differing(name, "gpu") for _ in range(20)] == [[]] * 20
