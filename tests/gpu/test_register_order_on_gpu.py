"""Accumulators in register order on the GPU: the elements that the simulator has."""

from __future__ import annotations

import pytest

from tests.kernels.register_order_kernels import CASES, wrong


@pytest.mark.parametrize("name", CASES)
def test_tiles_go_through_arrays_in_register_order(name: str) -> None:
    assert wrong(name, "gpu") == ""
