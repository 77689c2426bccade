"""Arithmetic of 16-bit register tiles: NumPy's result types, and its bits."""

from __future__ import annotations

import re

import numpy as np
import pytest

import numpipe
from numpipe import ds
from tests.kernels.compilers import compiles
from tests.kernels.half_kernels import BF16, DTYPES, F16, neighbours, wrong


@pytest.mark.parametrize("name", DTYPES)
def test_every_operation_gives_numpys_bits(name: str, target: str) -> None:
    assert wrong(name, target) == []


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=list(DTYPES))
def test_a_rounding_to_the_other_neighbour_is_borne_in_a_few_elements(dtype: np.dtype) -> None:
    wanted = np.exp(np.linspace(-8, 8, 100)).astype(dtype)
    wanted[7] = np.nan

    def changed(elements: list[int], by: int) -> np.ndarray:
        got = wanted.copy()
        got.view(np.int16)[elements] += by
        return got

    assert all(neighbours(wanted, got) for got in (wanted.copy(), changed([3, 50], 1), changed([3, 50], -1)))
    assert not any(neighbours(wanted, got) for got in (changed([3], 2), changed([3, 50, 90], 1)))
    for element, value in ((7, 1.0), (3, np.nan)):  # a number for NaN, NaN for a number
        got = wanted.copy()
        got[element] = value
        assert not neighbours(wanted, got)


@pytest.mark.variants(1)
@compiles
@pytest.mark.parametrize("dtype, kind", [(F16, "f16x2"), (BF16, "bf16x2")], ids=["float16", "bfloat16"])
def test_two_elements_are_one_instruction_and_nothing_is_widened(dtype: np.dtype, kind: str) -> None:
    @numpipe.kernel(num_compute_wgs=1)
    def computed(x, y):
        a = x[ds(0, 64), ds(0, 64)]
        y[ds(0, 64), ds(0, 64)] = np.maximum(np.where(a == a, a * a - 1.0, 2.0), -abs(a))

    x, y = (np.ones((64, 64), dtype) for _ in "xy")
    ptx = computed.inspect("ptx", x, y)
    assert ptx.count(f"mul.rn.{kind}") == ptx.count(f"sub.rn.{kind}") == ptx.count(f"max.NaN.{kind}") == 16  # of 32 elements a lane
    assert len(re.findall(rf"cvt\.rn\.{kind}\.f32", ptx)) <= 2  # the constants
    assert not re.search(r"fma\.rn\.b?f16", ptx)
