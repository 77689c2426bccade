"""Bodies with `*args`, and pipelines returned by functions."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import numpipe
from numpipe import BlockSpec, CompileError, CompilerParams, LoweringSemantics, SpecError, ds

SEEDS = None, 1
A = np.random.default_rng(0).integers(-3, 4, (64, 192)).astype(np.float16)
B = np.random.default_rng(1).integers(-3, 4, (64, 192)).astype(np.float16)
SUM = A.astype(np.float32) + B.astype(np.float32)


def out(columns: int = 192) -> np.ndarray:
    return np.zeros((64, columns), np.float32)


@pytest.fixture(autouse=True)
def simulated_only(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip compiling what is simulated, except in tests whose name mentions compiling; saves a
    second each."""
    if "compile" not in request.node.name:
        monkeypatch.setenv("NUMPIPE_COMPILE_CHECK", "0")


# ---- *args
@pytest.mark.variants(1)
@pytest.mark.parametrize("seed", [None, 1])
def test_a_body_takes_its_tiles_as_a_tuple(seed: int | None) -> None:
    @numpipe.kernel
    def adds(a, b, c):
        def body(indices, *tiles):
            total = numpipe.zeros((64, 64), np.float32)
            for tile in tiles:
                total = total + tile[...].astype(np.float32)
            c[ds(0, 64), ds(indices[0] * 64, 64)] = total

        numpipe.emit_pipeline_warp_specialized(
            body,
            grid=(a.shape[1] // 64,),
            in_specs=(BlockSpec((64, 64), lambda k: (0, k)), BlockSpec((64, 64), lambda k: (0, k))),
        )(a, b)

    c = out()
    adds.simulate(A, B, c, seed=seed)
    np.testing.assert_array_equal(c, SUM)


@pytest.mark.variants(1)
@pytest.mark.parametrize("slots", [1, 2])
def test_compiled_too_tiles_barriers_and_the_carry_stand_in_the_tuple(slots: int) -> None:
    @numpipe.kernel
    def products(a, b, c):
        def compute(pipeline):
            c[ds(0, 64), ds(0, 64)] = pipeline(numpipe.zeros((64, 64), np.float32))

        def body(indices, a_tile, *rest):
            b_tile, ready, other, acc = rest
            numpipe.barrier_wait(ready)
            numpipe.barrier_wait(other)
            return numpipe.wgmma(acc, a_tile, b_tile.T)

        numpipe.emit_pipeline_warp_specialized(
            body,
            grid=(3,),
            manual_produced_barriers=True,
            max_concurrent_steps=slots,
            compute_context=compute,
            in_specs=(BlockSpec((64, 64), lambda k: (0, k)), BlockSpec((64, 64), lambda k: (0, k))),
        )(a, b)

    c = out(64)
    products.simulate(A, B, c)
    np.testing.assert_array_equal(c, A.astype(np.float32) @ B.astype(np.float32).T)


@pytest.mark.thorough
def test_a_body_of_code_for_lanes_may_have_it_too() -> None:
    @numpipe.kernel(compiler_params=CompilerParams(lowering_semantics=LoweringSemantics.Lane))
    def doubled(a, c):
        def body(indices, *tiles):
            x, y = tiles
            row, first = numpipe.lane_index() % 64, numpipe.lane_index() // 64 * 32
            for column in range(32):
                y[row, first + column] = x[row, first + column]

        numpipe.emit_pipeline_warp_specialized(
            body,
            grid=(1,),
            in_specs=(BlockSpec((64, 64), lambda k: (0, k)),),
            out_specs=(BlockSpec((64, 64), lambda k: (0, k)),),
        )(a, c)

    c = np.zeros((64, 64), np.float16)
    doubled.simulate(A, c)
    np.testing.assert_array_equal(c, A[:, :64])


def test_a_function_that_is_called_by_its_name_may_have_it() -> None:
    @numpipe.kernel
    def calls(c):
        def scaled(x, *by):
            return x * by[0] * by[1]

        def first(x, *unused):
            return x

        one = first(numpipe.full((64, 64), 1.0, np.float32))
        c[ds(0, 64), ds(0, 64)] = one + scaled(one, 2.0, 3)

    c = out(64)
    calls.simulate(c)
    assert (c == 7).all()


def test_too_few_arguments_and_other_uses_are_refused() -> None:
    @numpipe.kernel
    def few(a, c):
        def body(indices, x, y, *rest):
            pass

        numpipe.emit_pipeline_warp_specialized(
            body, grid=(1,), in_specs=(BlockSpec((64, 64), lambda k: (0, k)),)
        )(a)

    @numpipe.kernel
    def context(a, c):
        def body(indices, x, acc):
            return acc

        def compute(*pipeline):
            c[ds(0, 64), ds(0, 64)] = pipeline[0](numpipe.zeros((64, 64), np.float32))

        numpipe.emit_pipeline_warp_specialized(
            body,
            grid=(1,),
            compute_context=compute,
            in_specs=(BlockSpec((64, 64), lambda k: (0, k)),),
        )(a)

    @numpipe.kernel
    def called(a, c):
        def scaled(x, y, *by):
            return x

        c[ds(0, 64), ds(0, 64)] = scaled(numpipe.zeros((64, 64), np.float32))

    for kernel, kind, text in (
        (
            few,
            SpecError,
            r"body 'body' takes 3 arguments at least, but is called with 2: \(indices, 1 tile\)",
        ),
        (
            context,
            CompileError,
            r"nested function 'compute' has '\*', so it must be called by its own name or be the "
            "body of a pipeline; fix: write its parameters out",
        ),
        (
            called,
            CompileError,
            r"scaled\(x, y, \*by\): is called by position, with 2 arguments at least",
        ),
    ):
        for run in (kernel.simulate, kernel.compiled):
            with pytest.raises(kind, match=r"test_rest_and_returned.py:\d+") as caught:
                run(A, out())
            assert re.search(text, str(caught.value))


# ---- returned pipelines
@numpipe.function
def columns_of(steps, slots):
    pipe = numpipe.pipeline(
        grid=(steps,), max_concurrent_steps=slots, in_specs=(BlockSpec((64, 64), lambda k: (0, k)),)
    )
    return pipe


@numpipe.kernel
def through_two(a, b, c):
    def rows(steps):
        return columns_of(steps, 2)

    first = columns_of(a.shape[1] // 64, 2)
    second = rows(3)
    for (k,), (tile,) in first(a):
        c[ds(0, 64), ds(k * 64, 64)] = tile[...].astype(np.float32)
    acc = numpipe.zeros((64, 64), np.float32)
    for _, (tile,) in second(b):
        acc = acc + tile[...].astype(np.float32)
    c[ds(0, 64), ds(192, 64)] = acc


def test_a_function_returns_a_pipeline_to_loop_over(runs: Any) -> None:
    for run in runs:
        c = out(256)
        run(through_two, A, B, c)
        np.testing.assert_array_equal(c[:, :192], A)
        np.testing.assert_array_equal(c[:, 192:], B.astype(np.float32).reshape(64, 3, 64).sum(1))


def test_a_returned_pipeline_is_compiled_and_runs_on_from_tile_to_tile() -> None:
    """Its ring belongs to its place in the source, as with any pipeline: loads of the next tile
    begin early."""

    @numpipe.kernel
    def tiled(a, c):
        pipe = columns_of(a.shape[1] // 64, 2)
        for (row,) in numpipe.nd_loop((2,)):
            for (k,), (tile,) in pipe(a):
                c[ds(row * 64, 64), ds(k * 64, 64)] = tile[...].astype(np.float32)

    c, trace = np.zeros((128, 192), np.float32), numpipe.Trace()
    tiled.simulate(A, c, trace=trace)
    np.testing.assert_array_equal(c, np.concatenate([A, A]))
    assert len(trace.of("load")) == 6


def test_a_pipeline_that_may_be_another_one_or_is_called_in_place_is_refused_with_the_fix() -> None:
    @numpipe.kernel
    def in_place(a, c):
        for (k,), (tile,) in columns_of(3, 2)(a):
            c[ds(0, 64), ds(k * 64, 64)] = tile[...].astype(np.float32)

    @numpipe.kernel
    def passed(a, c):
        def runs(pipe):
            for (k,), (tile,) in pipe(a):
                c[ds(0, 64), ds(k * 64, 64)] = tile[...].astype(np.float32)

        runs(columns_of(3, 2))

    for kernel in (in_place, passed):
        for run in (kernel.simulate, kernel.compiled):
            with pytest.raises(
                CompileError,
                match=r"test_rest_and_returned.py:\d+: kernel .* or of a function that binds it "
                r"to a name, pipe = function\(…\), where function returns a pipeline in "
                "every return",
            ):
                run(A, out())
