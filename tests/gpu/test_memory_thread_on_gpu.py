"""The memory role in each of the CTA's warpgroups, on the GPU."""

from __future__ import annotations

import pytest

from tests.kernels.memory_thread_kernels import results


@pytest.mark.parametrize("index", [0, 1, 2])
def test_the_results_are_the_same_wherever_it_is(index: int) -> None:
    expected = results(None, target="gpu")
    for _ in range(10):
        assert all(
            (got == want).all()
            for got, want in zip(results(index, target="gpu"), expected, strict=True)
        )
