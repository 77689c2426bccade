"""Register tiles on the hardware: NumPy's bits, functions within the errors that the page gives, blocks of arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from register_kernels import (
    APPROXIMATE,
    ERRORS,
    arrays_of_epilogue,
    conversions,
    epilogue,
    errors_of,
    exact,
    function_kernel,
    ranges,
    wanted_of_epilogue,
)
from tile_expressions import arguments, expressions, fits, wrong

pytestmark = pytest.mark.gpu
pytest.importorskip("cuda.bindings", reason="the CUDA wheels are not installed")
PROCESSES = 4
ARGUMENTS = arguments()
programs = st.tuples(*[expressions(kind, 3).filter(lambda text: fits(text, ARGUMENTS)) for kind in "ffffffffiiiiii"])


@given(programs)
@settings(max_examples=12, derandomize=True, deadline=None, database=None, phases=[Phase.generate],
          suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
def test_expressions_give_numpys_bits(texts: tuple[str, ...]) -> None:
    assert wrong({f"{kind}{n}": text for n, (kind, text) in enumerate(zip("ffffffffiiiiii", texts, strict=True))}, ARGUMENTS,
                 "gpu") == []


@pytest.mark.parametrize("name", ERRORS)
def test_functions_are_within_their_errors_throughout_their_range(name: str) -> None:
    assert errors_of(name, ranges(name, 256), "gpu") <= ERRORS[name]


@pytest.mark.parametrize("name", APPROXIMATE)
def test_approximate_functions_are_within_theirs(name: str) -> None:
    x = np.random.default_rng(3).uniform(-30, 30, (64 * 64, 256)).astype(np.float32)
    x = np.abs(x) + np.float32(1e-3) if name in ("log", "log2", "sqrt", "rsqrt") else x
    if name == "exp":
        x /= 16  # the argument's rounding in base 2 is of its size
    y = np.zeros_like(x)
    function_kernel(name, True)(x, y, target="gpu")
    true = exact(name, x)
    relative, absolute = APPROXIMATE[name]
    assert (np.abs(y - true) <= absolute + relative * np.abs(true) + 1.2e-38).all()
    exactly = np.zeros_like(x)
    function_kernel(name)(x, exactly, target="gpu")
    assert name in ("exp2", "sqrt", "rsqrt") or (y != exactly).any()  # it is another function


def test_conversions_round_as_numpy_does_and_saturate() -> None:
    assert conversions("gpu") == []


@pytest.mark.parametrize("shape", [(128, 128), (200, 328), (70, 136), (1, 8), (1030, 1000)], ids=str)
def test_an_epilogue_reads_bias_residual_and_scale(shape: tuple[int, int]) -> None:
    arrays: dict[str, Any] = arrays_of_epilogue(shape, 192)
    for _ in range(10):
        arrays["c"][...] = 7
        epilogue(*arrays.values(), target="gpu")
        np.testing.assert_allclose(arrays["c"].astype(np.float32), wanted_of_epilogue(arrays), rtol=2e-3, atol=2e-3)
