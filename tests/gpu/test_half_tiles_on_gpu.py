"""Arithmetic of 16-bit register tiles on the hardware: NumPy's bits."""

from __future__ import annotations

import pytest

from tests.kernels.half_kernels import DTYPES, wrong


@pytest.mark.parametrize("name", DTYPES)
def test_every_operation_gives_numpys_bits(name: str) -> None:
    assert wrong(name, "gpu") == []
