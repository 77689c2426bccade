"""Kernels as a new user writes them: right in every schedule, and compiled through the build
gate."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import numpipe
from numpipe import ArrayType, Barrier, CompileError, CompilerParams, SpecError, ds
from tests.kernels.compilers import compiles
from tests.kernels.plain_kernels import CASES, shifted_by_seed, wrong

X = np.ones((64, 64), np.float32)
Y = np.zeros((64, 64), np.float32)


@pytest.fixture(autouse=True)
def _each_execution_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMPIPE_COMPILE_CHECK", "0")


@pytest.mark.parametrize("name", CASES)
def test_it_agrees_with_numpy_and_no_schedule_shows_a_hazard(name: str) -> None:
    assert not wrong(name, "sim")
    kernel, given = CASES[name]
    assert numpipe.verify(kernel, schedules=5, **given(np.random.default_rng(0))[0]).ok


@pytest.mark.variants(2)
@compiles
@pytest.mark.parametrize("name", CASES)
def test_it_passes_the_build_gate(name: str) -> None:
    kernel, given = CASES[name]
    assert kernel.inspect("gate", **given(np.random.default_rng(0))[0]) == ()


# ---- loops over constants
def test_a_round_has_constants_of_its_own_and_the_names_of_the_last_round_stay() -> None:
    @numpipe.kernel
    def rounds(y, n):
        before, total = 0, 0
        for c in (1, 2, 3):
            total += before * 100  # of the round before
            if n > c:
                before = c
            total += c
        for c in (10, 20):
            total += c
        y[ds(0, 64), ds(0, 64)] = numpipe.full((64, 64), total + c, np.float32)

    for n, before in ((0, (0, 0)), (2, (1, 1)), (9, (1, 2))):
        y = Y.copy()
        rounds.simulate(y, n)
        assert (y == 100 * sum(before) + 6 + 30 + 20).all()


@compiles
def test_a_loop_over_constants_is_as_many_copies_as_it_has_rounds() -> None:
    @numpipe.kernel
    def unrolled(y):
        for c in numpipe.static_range(0, 64, 16):
            y[ds(0, 64), ds(c, 16)] = numpipe.full((64, 16), c, np.float32)

    source = unrolled.inspect("source", Y)
    assert "for " not in source and source.count("full") == 4


# ---- if wg == 0
@pytest.mark.parametrize("arrivals", [1, 2])
def test_a_barrier_counts_the_warpgroups_that_reach_the_arrival(arrivals: int) -> None:
    @numpipe.kernel(num_compute_wgs=2)
    def arrives(y):
        wg = numpipe.axis_index("wg")
        done = numpipe.scratch(Barrier(arrivals))
        if wg == 0:
            y[ds(0, 64), ds(0, 64)] = numpipe.full((64, 64), 1.0, np.float32)
            numpipe.barrier_arrive(done)
        numpipe.barrier_wait(done)

    result = numpipe.verify(arrives, Y.copy(), schedules=4)
    assert result.ok == (arrivals == 1)
    assert {failure.hazard for failure in result.failures} <= {"too-few-arrivals", "deadlock"}


def test_a_name_that_no_arm_has_bound_yet_stays_unbound() -> None:
    @numpipe.kernel
    def bands(y, n):
        for i in range(4):
            if i % 2:
                for j in range(n):
                    t = numpipe.full((64, 8), i, np.float32)
                    y[ds(0, 64), ds(16 * i + 8 * j, 8)] = t
            else:
                for j in range(n - 1):
                    t = numpipe.full((64, 8), -i, np.float32)
                    y[ds(0, 64), ds(16 * i + 8 * j, 8)] = t

    y = Y.copy()
    bands.simulate(y, 1)
    assert (y[:, 16:24] == 1).all() and (y[:, 48:56] == 3).all() and y.sum() == 64 * 8 * 4


def test_the_storing_role_stores_under_a_condition_that_it_has_and_refuses_any_other() -> None:
    def kernel(by_data: bool) -> Any:
        @numpipe.kernel(num_compute_wgs=2, compiler_params=CompilerParams(store_role=True))
        def stores(x, y):
            t = x[ds(0, 64), ds(0, 64)]
            if t.max() > 0 if by_data else numpipe.axis_index("wg") == 0:
                y[ds(0, 64), ds(0, 64)] = t

        return stores

    y = Y.copy()
    kernel(False).simulate(X, y)
    assert (y == X).all()
    with pytest.raises(CompileError, match=r"decides a store, but the storing role has no such"):
        kernel(True).simulate(X, Y.copy())


# ---- calls
def test_seed_is_the_kernels_and_schedule_seed_the_schedules() -> None:
    x = np.ones((128, 64), np.float32)
    assert (shifted_by_seed(x, seed=2, target="sim") == 3).all()
    assert (shifted_by_seed.simulate(x, seed=2, schedule_seed=7) == 3).all()
    checked = numpipe.testing.check(
        shifted_by_seed, x, seed=4, schedule_seed=8, schedules=3, reference=x + 4, gpu=False
    )
    assert checked.verification.seeds == (None, 8, 9)
    assert "simulate(…, schedule_seed=8)" in checked.verification.replay(8)


def test_an_array_type_has_an_order() -> None:
    y = shifted_by_seed.simulate(np.ones((128, 64), np.float32))
    assert y.flags.f_contiguous and (y == 2).all()
    with pytest.raises(SpecError, match="order must be 'C' or 'F'"):
        ArrayType((64, 64), np.float32, "K")


# ---- messages, and the fixes that they propose
def _first_sum(start: str) -> Any:
    begins_with_a_number = start == "0"

    @numpipe.kernel
    def summed(x, y):
        t = 0 if begins_with_a_number else numpipe.zeros((64, 64), np.float32)
        for _ in range(2):
            t = t + x[ds(0, 64), ds(0, 64)]
        y[ds(0, 64), ds(0, 64)] = t

    return summed


@compiles
def test_a_sum_that_begins_with_a_number_is_told_of_zeros() -> None:
    fixed = "numpipe.zeros((64, 64), np.float32)"
    with pytest.raises(SpecError, match=r"begin with numpipe\.zeros\(\(64, 64\), np\.float32\)"):
        _first_sum("0").compiled(X, Y)
    _first_sum(fixed).compiled(X, Y)


def test_a_column_of_a_tile_is_told_of_reshape() -> None:
    def kernel(fixed: bool) -> Any:
        @numpipe.kernel
        def column(x, y):
            t = x[ds(0, 64), ds(0, 64)]
            m = t.max(axis=1, keepdims=True)
            v = m.reshape(-1) if fixed else m[:, 0]
            y[ds(0, 64), ds(0, 64)] = t - v[:, None]

        return column

    with pytest.raises(SpecError, match=r"fix: \.reshape\(-1\) makes a vector of a tile \(64, 1\)"):
        kernel(False).simulate(X, Y.copy())
    y = Y.copy() + 3
    kernel(True).simulate(X, y)
    assert (y == 0).all()


def test_a_product_by_an_operator_is_told_of_wgmma() -> None:
    def kernel(fixed: bool) -> Any:
        @numpipe.kernel
        def product(a, y):
            spec = numpipe.BlockSpec((64, 64), lambda k: (0, k))
            acc = numpipe.zeros((64, 64), np.float32)
            for _, (x, z) in numpipe.pipeline(grid=(1,), in_specs=(spec, spec))(a, a):
                if fixed:
                    acc = numpipe.wgmma(acc, x, z.T)
                else:
                    acc += x @ z.T
            y[ds(0, 64), ds(0, 64)] = acc

        return product

    half, y = X.astype(np.float16), Y.copy()
    with pytest.raises(CompileError, match=r"fix: acc = numpipe\.wgmma\(acc, x, z\.T\)"):
        kernel(False).simulate(half, y)
    kernel(True).simulate(half, y)
    assert (y == 64).all()
