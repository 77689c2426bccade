"""Scalars stored to single elements and reduced into them, once per warpgroup: results against
NumPy, and code that passes the build gate."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import numpipe
from numpipe import ds
from numpipe.compile.check import gate
from tests.kernels.compilers import compiles
from tests.kernels.scalar_kernels import (
    STORED,
    arrays_of_statistics,
    counted,
    counted_wrong,
    one_number,
    row_sums,
    row_sums_wrong,
    statistics,
    statistics_wrong,
    stored_wrong,
)

FLOATS = [dtype for dtype in STORED if dtype.kind not in "iu"]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_reductions_of_tiles_are_stored_and_added_as_numbers(dtype: np.dtype) -> None:
    assert statistics_wrong(dtype, "sim") == []


def test_numbers_are_stored_next_to_a_memory_role(target: str) -> None:
    assert not row_sums_wrong(target)


@pytest.mark.parametrize("dtype", STORED, ids=str)
def test_a_number_takes_the_arrays_type(dtype: np.dtype, target: str) -> None:
    assert stored_wrong(dtype, target) == []


def test_an_integer_that_the_array_cannot_hold_is_an_error_simulated() -> None:
    with pytest.raises(
        numpipe.SimulationError,
        match="'y\\[…\\] = value': 300 overflows uint8; the GPU wraps silently",
    ):
        one_number.simulate(np.zeros(9, np.uint8), np.int32(0), np.int32(300))


@pytest.mark.parametrize("i", [-1, 9])
def test_an_index_outside_is_an_error_simulated_for_stores_and_atomics(i: int) -> None:
    @numpipe.kernel
    def added(y, i, x):
        numpipe.atomic_add(y.at[i], x)

    for kernel in (one_number, added):
        with pytest.raises(
            numpipe.SimulationError, match=f"index {i} along dimension 0 is outside the array's 9"
        ) as caught:
            kernel.simulate(np.zeros(9, np.float32), np.int32(i), np.float32(1))
        assert caught.value.report.hazard == "out-of-bounds"


def test_two_warpgroups_that_store_to_one_element_are_reported_and_may_add_to_it() -> None:
    @numpipe.kernel(num_compute_wgs=2)
    def both(y, total):
        numpipe.atomic_add(total.at[0], 2.0)
        if y.shape[0] > 1:
            y[0] = 1.0

    total = np.zeros(1, np.float32)
    both.simulate(np.zeros(1, np.float32), total)
    assert total[0] == 4
    with pytest.raises(numpipe.SimulationError, match="y"):
        both.simulate(np.zeros(2, np.float32), total)


@compiles
@pytest.mark.variants(0, thorough=3)
@pytest.mark.parametrize("case", ["statistics", "row sums", *map(str, STORED)])
def test_stores_of_numbers_compile_and_the_gate_finds_nothing(case: str) -> None:
    x = np.zeros((256, 64), np.int32)
    built = (
        statistics.compiled(*arrays_of_statistics().values())
        if case == "statistics"
        else row_sums.compiled(x, np.zeros(5, np.int32))
        if case == "row sums"
        else one_number.compiled(
            np.zeros(9, dict(zip(map(str, STORED), STORED, strict=True))[case]),
            np.int32(0),
            np.int32(1),
        )
    )
    assert gate.findings(built) == ()
    assert case != "statistics" or {
        "st.global.f32",
        "st.global.b64",
        "st.global.b8",
        "red.relaxed.gpu.global.add.f32",
        "red.relaxed.gpu.global.max.s32",
    } <= set(built.ptx.split())


@compiles
@pytest.mark.variants(1)
@pytest.mark.parametrize(
    "dtype", [np.int32, np.uint32, np.float32, np.float16], ids=lambda dtype: dtype.__name__
)
def test_a_literal_is_added_in_the_arrays_type(dtype: Any) -> None:
    """ptxas rejects one of 64 bits."""
    assert gate.findings(counted.compiled(np.zeros(5, dtype))) == ()
    assert not counted_wrong(dtype, "sim")


def test_a_block_is_still_stored_next_to_an_element() -> None:
    @numpipe.kernel
    def both(x, y, n):
        t = x[ds(0, 64), ds(0, 64)]
        y[ds(0, 64), ds(0, 64)] = t / t.sum()
        n[0, 0] = x[3, 4]

    x = np.ones((64, 64), np.float32)
    y = np.zeros((64, 64), np.float32)
    n = np.zeros((1, 1), np.float32)
    both.simulate(x, y, n)
    assert (y == np.float32(1 / 4096)).all() and n[0, 0] == 1
