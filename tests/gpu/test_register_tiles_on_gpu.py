"""Register tiles on the GPU: the same bits as NumPy, functions within the documented errors, and
blocks of arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.kernels.register_kernels import (
    APPROXIMATE,
    ERRORS,
    arrays_of_attention,
    arrays_of_epilogue,
    attention,
    epilogue,
    errors_of,
    exact,
    function_kernel,
    ranges,
    wanted_of_attention,
    wanted_of_epilogue,
)
from tests.kernels.wgmma_kernels import COLUMNS, is_right
from tests.language.tiles.test_joined_layouts import (  # noqa: F401
    test_sums_of_rows_begin_with_a_vector_of_zeros,
    test_vectors_are_joined_wherever_control_flow_is,
)
from tests.language.tiles.test_register_tiles import (  # noqa: F401
    test_a_product_of_registers_of_each_shape,
    test_a_vote_decides_for_the_warpgroup_and_not_for_the_memory_role,
    test_conversions_round_as_numpy_does_and_saturate_as_the_gpu_does,
    test_operands_that_each_step_loads_into_registers_give_numpys_product,
    test_reductions_are_numpys_along_each_axis,
    test_whole_numbers_go_through_shared_memory_and_to_arrays,
)

PROCESSES = 4
REPEATS = 20


@pytest.mark.parametrize("name", ERRORS)
def test_functions_are_within_their_errors_throughout_their_range(name: str) -> None:
    assert errors_of(name, ranges(name, 256), "gpu") <= ERRORS[name]


@pytest.mark.parametrize("name", APPROXIMATE)
def test_approximate_functions_are_within_theirs(name: str) -> None:
    x = np.random.default_rng(3).uniform(-30, 30, (64 * 64, 256)).astype(np.float32)
    x = np.abs(x) + np.float32(1e-3) if name in ("log", "log2", "sqrt", "rsqrt") else x
    if name == "exp":
        x /= 16  # the argument's rounding in base 2 grows with its size
    x *= {"sin": np.float32(0.1), "cos": np.float32(0.1), "tan": np.float32(1 / 30)}.get(
        name, np.float32(1)
    )
    y = np.zeros_like(x)
    function_kernel(name, True)(x, y, target="gpu")
    true = exact(name, x)
    relative, absolute = APPROXIMATE[name]
    assert (np.abs(y - true) <= absolute + relative * np.abs(true) + 1.2e-38).all()
    exactly = np.zeros_like(x)
    function_kernel(name)(x, exactly, target="gpu")
    # the approximate function differs
    assert name in ("exp2", "sqrt", "rsqrt") or (y != exactly).any()


@pytest.mark.parametrize(
    "shape", [(128, 128), (200, 328), (70, 136), (1, 8), (1030, 1000)], ids=str
)
def test_an_epilogue_reads_bias_residual_and_scale(shape: tuple[int, int]) -> None:
    arrays: dict[str, Any] = arrays_of_epilogue(shape, 192)
    for _ in range(10):
        arrays["c"][...] = 7
        epilogue(*arrays.values(), target="gpu")
        np.testing.assert_allclose(
            arrays["c"].astype(np.float32), wanted_of_epilogue(arrays), rtol=2e-3, atol=2e-3
        )


@pytest.mark.parametrize(
    "n", [n if n % 24 == 8 else pytest.param(n, marks=pytest.mark.soak) for n in COLUMNS]
)
def test_every_form_of_wgmma_with_so_many_columns(n: int) -> None:
    assert all(is_right(n, target="gpu") for _ in range(10))


@pytest.mark.parametrize("keys", [64, 200, 4096])
@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_attention_of_one_head(dtype: str, lazy: bool, keys: int) -> None:
    arrays = arrays_of_attention(keys, dtype, 1024)
    first = None
    for _ in range(10):
        arrays["o"][...] = np.nan
        attention(dtype, lazy)(*arrays.values(), target="gpu")
        assert np.abs(arrays["o"] - wanted_of_attention(arrays)).max() < (
            2e-3 if dtype == "float16" else 2e-2
        )
        first = arrays["o"].copy() if first is None else first
        assert (first == arrays["o"]).all()
