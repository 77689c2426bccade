"""Kernels without a memory role and single-stream pipelines, on the GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.kernels import single_kernels as kernels
from tests.language.pipeline.test_warp_specialized_false import (  # noqa: F401
    test_every_warpgroup_runs_the_kernel_and_has_a_number,
)

PROCESSES = 4
REPEATS = 10


def call(kernel: Any, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    first: np.ndarray = kernel(a, b, target="gpu")
    for _ in range(REPEATS - 1):
        assert (kernel(a, b, target="gpu") == first).all()
    return first


@pytest.mark.parametrize("warpgroups", [1, 2, 3])
@pytest.mark.parametrize("slots, delay", [(1, 0), (2, 0), (2, 1), (3, 0), (4, 2)])
@pytest.mark.parametrize("form, roles", [("body", True), ("body", False), ("loop", False)])
def test_every_number_of_steps_slots_and_delays(
    form: str, roles: bool, slots: int, delay: int, warpgroups: int
) -> None:
    if warpgroups * slots * 16384 < 200_000:
        kernel = kernels.gemm(form, roles, slots, delay, warpgroups)
        kernels.check_gemm(kernel, call)
        kernels.check_gemm(kernel, call, rows=20_000, depths=(2048,))


@pytest.mark.parametrize("roles", [True, False])
def test_warpgroups_may_take_different_numbers_of_steps(roles: bool) -> None:
    kernel = kernels.unequal(roles)
    for _ in range(REPEATS):
        kernels.check_unequal(kernel, target="gpu")


@pytest.mark.parametrize(
    "check",
    [
        kernels.check_in_a_role_loop,
        kernels.check_around_a_role_loop,
        kernels.check_in_a_single_loop,
    ],
    ids=lambda check: check.__name__,
)
def test_nested_pipelines(check: Any) -> None:
    for _ in range(REPEATS):
        check(target="gpu")


@pytest.mark.parametrize("shape", [(4096, 4096, 4096), (1000, 904, 520), (130, 70, 8192)], ids=str)
def test_the_example(shape: tuple[int, int, int]) -> None:
    import sys
    from pathlib import Path

    sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
    import gemm_single

    import gemm

    a, b = gemm.inputs(shape, np.dtype(np.float16))
    expected = gemm.matmul(a, b, target="gpu")
    for _ in range(3):
        assert (gemm_single.matmul(a, b, target="gpu") == expected).all()
