"""memory_thread_idx: which of the CTA's warpgroups is the memory role."""

from __future__ import annotations

import re

import numpy as np
import pytest

import numpipe
from numpipe import ArrayType, SpecError
from tests.kernels import memory_thread_kernels as kernels

ARGS = (*[ArrayType((8, 8), np.float16)] * 2, *[ArrayType((8, 8), np.float32)] * 2)


def test_the_results_are_the_same_wherever_it_is() -> None:
    expected = kernels.results(None, target="sim")
    for index in range(3):
        assert all(
            (got == want).all()
            for got, want in zip(kernels.results(index, target="sim"), expected, strict=True)
        )


@pytest.mark.variants(0, thorough=1)
@pytest.mark.parametrize("index", [0, 1])
def test_the_code_asks_for_that_warpgroup_and_passes_the_gate(index: int) -> None:
    kernel = kernels.kernel(index)
    assert kernel.inspect("gate", *ARGS) == ()
    unit = kernel.compiled(*ARGS).unit
    assert (unit.memory_warpgroup, unit.first_compute) == (index, 1 - index)
    assert [unit.number(warpgroup) for warpgroup in range(3) if warpgroup != index] == [0, 1]


@pytest.mark.thorough
def test_the_last_one_says_nothing_new() -> None:
    one, other = (
        re.sub(r"_ZN\w+|pipeline at \S+", "", kernels.kernel(index).inspect("ptx", *ARGS))
        for index in (None, 2)
    )
    assert one == other


def test_two_pipelines_with_different_numbers_are_refused() -> None:
    @numpipe.kernel
    def two(a, b, c, d):
        def body(indices, x):
            pass

        specs = (numpipe.BlockSpec((64, 64), lambda k: (0, k)),)
        numpipe.emit_pipeline_warp_specialized(
            body, grid=(1,), memory_thread_idx=0, in_specs=specs
        )(a)
        numpipe.emit_pipeline_warp_specialized(
            body, grid=(1,), memory_thread_idx=1, in_specs=specs
        )(a)

    with pytest.raises(
        SpecError,
        match=r"has memory_thread_idx=1, but the call at line \d+ has 0: a CTA has only one "
        r"split into",
    ):
        two.compiled(*ARGS)
