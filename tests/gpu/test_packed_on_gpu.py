"""Packed 4-bit elements on the hardware: NumPy's values, and the product of examples/w4a16.py."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import w4a16

from tests.examples.test_example_w4a16 import CONFIGS, inputs
from tests.kernels.packed_kernels import DTYPES, SHAPES, elements, every_byte, kernel


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("element", ["int4", "uint4"])
@pytest.mark.parametrize("shape", SHAPES)
def test_every_element_is_numpys(shape: tuple[int, int], element: str, dtype: str) -> None:
    w = every_byte(2 * shape[0], 2 * shape[1])
    out = np.full((len(w), 2 * w.shape[1]), np.nan, DTYPES[dtype])
    kernel(*shape, element, dtype)(w, out=out, target="gpu")
    np.testing.assert_array_equal(out, elements(w, element, dtype))


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("config", CONFIGS)
def test_products_with_packed_weights_are_right(config: str, dtype: type) -> None:
    """8 random shapes, and one that keeps all SMs busy for several tiles of each."""
    rng, of = np.random.default_rng(len(config)), w4a16.kernel(CONFIGS[config])
    shapes = rng.integers(1, (600, 30), (8, 2)).tolist()
    for n, groups in [*shapes, (20000, 9)]:
        tokens = int(rng.integers(1, CONFIGS[config].tokens + 1))
        given = inputs(n, groups * w4a16.GROUP, tokens, dtype)
        y = np.full((n, tokens), np.nan, np.float32)
        of(*given, out=y, target="gpu")
        assert w4a16.relative_error(*given, y) < 1e-6, (n, groups, tokens)
