"""schedule="pingpong" on the GPU: every form with reproducible bits, and the tuned products."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import gemm_tuned
import numpipe
from numpipe import CompilerParams, Trace
from tests.kernels.kernels_for_tests import operands, product
from tests.kernels.turn_kernels import cases
from tests.traces.legal import check_legal

REPEATS = 10
SHAPES = (
    (1024, 1024, 512),
    (1000, 777, 200),
    (64, 64, 64),
    (1, 8, 8),
    (3000, 3000, 704),
    (257, 4097, 0),
    (17, 2000, 1000),
)
F16, BF16 = np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)


@pytest.mark.parametrize("name", cases())
def test_every_form_computes_the_same_again_and_again(name: str) -> None:
    case = cases()[name]
    for _ in range(REPEATS):
        case.check(case.kernel, target="gpu")


@pytest.mark.parametrize("dtype", [F16, BF16], ids=["f16", "bf16"])
@pytest.mark.parametrize("name", gemm_tuned.CONFIGS)
def test_tuned_products_are_exact_at_every_edge(name: str, dtype: np.dtype) -> None:
    for m, n, k in SHAPES:
        a, b = operands(m, n, k, dtype)
        np.testing.assert_array_equal(
            gemm_tuned.matmul(a, b, cfg=gemm_tuned.CONFIGS[name], target="gpu").astype(np.float64),
            product(a, b).astype(np.float64),
        )


@pytest.mark.parametrize("name", gemm_tuned.CONFIGS)
def test_a_large_product_has_the_same_bits_every_time(name: str) -> None:
    """Numbers are normally distributed, with some hundred tiles per warpgroup of an SM.

    The order of sums is fixed by the kernel, whichever warpgroup is faster.
    """
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((rows, 1024), np.float32).astype(BF16) for rows in (8192, 8064))
    first = gemm_tuned.matmul(a, b, cfg=gemm_tuned.CONFIGS[name], target="gpu")
    assert gemm_tuned.relative_error(a, b, first) < 2.5e-3
    for _ in range(REPEATS - 1):
        again = gemm_tuned.matmul(a, b, cfg=gemm_tuned.CONFIGS[name], target="gpu")
        np.testing.assert_array_equal(again.view(np.uint16), first.view(np.uint16))


@pytest.mark.parametrize(
    "name", ["gemm", "gemm, 3 warpgroups", "trip counts", "nested", "body form"]
)
def test_the_turns_of_a_profile_are_legal_and_match_the_simulators(
    name: str, tmp_path: Path
) -> None:
    """On an SM's own clock, each step has one reader, and no slot is refilled before that reader
    releases it."""
    case = cases()[name]
    params = CompilerParams(profile_space=2000, profile_dir=str(tmp_path))
    kernel = numpipe.Kernel(
        case.kernel.function, dataclasses.replace(case.kernel.options, compiler_params=params)
    )
    kernel(*case.inputs, case.output(), cfg=case.cfg, target="gpu")
    trace, simulated = numpipe.last_profile(), Trace()
    assert trace is not None and trace.lost == 0
    case.kernel.simulate(*case.inputs, case.output(), cfg=case.cfg, trace=simulated)
    check_legal(trace, simulated)


def test_a_kernel_that_gives_up_on_late_waits_computes_the_same() -> None:
    case = cases()["gemm"]
    params = CompilerParams(debug=True, jitter=1)
    kernel = numpipe.Kernel(
        case.kernel.function, dataclasses.replace(case.kernel.options, compiler_params=params)
    )
    for _ in range(REPEATS):
        case.check(kernel, target="gpu")
