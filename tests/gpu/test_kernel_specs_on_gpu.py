"""Kernels with in_specs and out_specs of their own, on the GPU."""

from __future__ import annotations

import pytest

from tests.kernels import tiled_kernels as kernels

REPEATS = 10


@pytest.mark.parametrize(
    "semantics", kernels.SEMANTICS, ids=lambda words: "".join(word[0] for word in words)
)
@pytest.mark.parametrize("roles, warpgroups", [(True, 2), (True, 1), (False, 1)])
def test_a_product_by_any_division_into_ctas_and_steps(
    roles: bool, warpgroups: int, semantics: tuple[str, ...]
) -> None:
    kernel = kernels.product(roles, semantics, warpgroups)
    for _ in range(REPEATS):
        kernels.check_product(kernel, target="gpu")
    kernels.check_product(kernel, [(512, 256, 1024)], target="gpu")


def test_other_blocks() -> None:
    for _ in range(REPEATS):
        kernels.check_scaled(target="gpu")
        kernels.check_sums(target="gpu")
