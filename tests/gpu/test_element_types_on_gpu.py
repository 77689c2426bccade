"""Products and conversions of 8-bit types and tf32 on the GPU against NumPy, at random shapes with
partial tiles."""

from __future__ import annotations

import numpy as np
import pytest

from numpipe.arch.dtypes import BFLOAT16
from tests.kernels.element_kernels import (
    E4M3,
    E5M2,
    F16,
    NARROW,
    PAIRS,
    S8,
    U8,
    conversion_arrays,
    conversions,
    conversions_wrong,
    same,
    shapes,
    wrong,
)


@pytest.mark.parametrize("pair", PAIRS)
def test_products_are_numpys_at_300_random_shapes(pair: str) -> None:
    rng = np.random.default_rng(11)
    assert [
        said for shape in shapes(300, 11) if (said := wrong(pair, shape, rng, target="gpu"))
    ] == []


@pytest.mark.parametrize(
    "pair, to",
    [
        *((f"{E4M3} x {E4M3}", to) for to in (F16, BFLOAT16, E4M3, E5M2)),
        (f"{S8} x {S8}", S8),
        (f"{S8} x {U8}", U8),
    ],
    ids=str,
)
def test_sums_are_stored_in_other_types(pair: str, to: np.dtype) -> None:
    rng = np.random.default_rng(12)
    assert [
        said for shape in shapes(20, 12) if (said := wrong(pair, shape, rng, to=to, target="gpu"))
    ] == []


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_conversions_have_the_simulators_bits(dtype: np.dtype) -> None:
    assert conversions_wrong(dtype, target="gpu") == []
    gpu, sim = conversion_arrays(dtype), conversion_arrays(dtype)
    conversions(*gpu.values(), target="gpu")
    conversions(*sim.values(), target="sim")
    assert [name for name in gpu if not same(gpu[name], sim[name])] == []
