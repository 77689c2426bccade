"""Barriers of pipelines with nested specs: they have the same nesting."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

import numpipe
from numpipe import BlockSpec, PipelineRace, SpecError, ds
from numpipe.language.pipeline import pipelines

SEEDS = (None, 0, 1, 2)


class Scaled(NamedTuple):
    w: Any
    scales: Any


@numpipe.kernel(grid=1)
def in_a_loop(a, w, scales, y, *, waits: numpipe.Static = True):
    acc = numpipe.zeros((64, 64), np.float32)
    pipe = numpipe.pipeline(
        grid=(a.shape[1] // 64,),
        max_concurrent_steps=2,
        manual_produced_barriers=True,
        in_specs=(
            BlockSpec((64, 64), lambda k: (0, k)),
            Scaled(
                w=BlockSpec((64, 64), lambda k: (0, k)),
                scales=BlockSpec((64, 64), lambda k: (0, k)),
            ),
        ),
        manual_consumed_barriers=True,
    )
    for _, (x, of), (x_ready, ready), (x_free, free) in pipe(a, Scaled(w, scales)):
        numpipe.barrier_wait(x_ready)
        numpipe.barrier_wait(ready.w)
        if waits:
            numpipe.barrier_wait(ready.scales)
        acc = (
            acc
            + x[...].astype(np.float32) * of.w[...].astype(np.float32)
            + of.scales[...].astype(np.float32)
        )
        numpipe.barrier_arrive(free.scales)
        numpipe.barrier_arrive(x_free)
        numpipe.barrier_arrive(free[0])
    y[ds(0, 64), ds(0, 64)] = acc


@numpipe.kernel(grid=1)
def in_a_body(a, w, scales, y):
    """Pass the scales as a whole array, which has no barrier: the tuple of barriers has one part
    less."""

    def step(indices, of, x, ready, x_ready, free, x_free, acc):
        numpipe.barrier_wait(ready[0])
        numpipe.barrier_wait(x_ready)
        (k,) = indices
        acc = acc + x[...].astype(np.float32) * of.w[...].astype(np.float32)
        acc = acc + of.scales[ds(0, 64), ds(k * 64, 64)].astype(np.float32)
        numpipe.barrier_arrive(x_free)
        numpipe.barrier_arrive(free[0])
        return acc

    def compute(pipeline):
        y[ds(0, 64), ds(0, 64)] = pipeline(numpipe.zeros((64, 64), np.float32))

    numpipe.emit_pipeline_warp_specialized(
        step,
        grid=(a.shape[1] // 64,),
        max_concurrent_steps=3,
        compute_context=compute,
        manual_produced_barriers=True,
        in_specs=(
            Scaled(
                w=BlockSpec((64, 64), lambda k: (0, k)), scales=BlockSpec(memory_space=numpipe.GMEM)
            ),
            BlockSpec((64, 64), lambda k: (0, k)),
        ),
        manual_consumed_barriers=True,
    )(Scaled(w, scales), a)


def operands(steps: int) -> tuple[np.ndarray, ...]:
    random = np.random.default_rng(steps)
    return tuple(random.integers(-3, 4, (64, 64 * steps)).astype(np.float16) for _ in range(3))


def expected(a: np.ndarray, w: np.ndarray, scales: np.ndarray) -> np.ndarray:
    return (a.astype(np.float32) * w + scales).reshape(64, -1, 64).sum(axis=1)


@pytest.mark.parametrize("kernel", [in_a_loop, in_a_body], ids=lambda kernel: kernel.name)
def test_each_operand_has_a_barrier_at_its_place(kernel: numpipe.Kernel) -> None:
    for seed in SEEDS:
        given, y = operands(5), np.zeros((64, 64), np.float32)
        kernel.simulate(*given, y, seed=seed)
        np.testing.assert_array_equal(y, expected(*given))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_tile_that_is_not_waited_for_is_a_race(seed: int | None) -> None:
    """The report names the operand whose barrier the body did not wait for."""
    with pytest.raises(PipelineRace, match="TMA load .scales.*may still be writing it") as caught:
        in_a_loop.simulate(*operands(5), np.zeros((64, 64), np.float32), seed=seed, waits=False)
    assert caught.value.report is not None and caught.value.report.hazard == "read-before-ready"


@numpipe.kernel(grid=1)
def unused(a, w, scales, y):
    """Do not use the second leaf, which the ring waits for itself before it is loaded again.

    The wait for the second name does not cover it.
    """
    acc = numpipe.zeros((64, 64), np.float32)
    pipe = numpipe.pipeline(
        grid=(a.shape[1] // 64,),
        max_concurrent_steps=2,
        manual_produced_barriers=True,
        in_specs=(
            Scaled(
                w=BlockSpec((64, 64), lambda k: (0, k)),
                scales=BlockSpec((64, 64), lambda k: (0, k)),
            ),
            BlockSpec((64, 64), lambda k: (0, k)),
        ),
    )
    for _, (of, x), (ready, x_ready) in pipe(Scaled(w, scales), a):
        numpipe.barrier_wait(x_ready)
        numpipe.barrier_wait(ready.w)
        acc = acc + x[...].astype(np.float32) * of.w[...].astype(np.float32)
    y[ds(0, 64), ds(0, 64)] = acc


def test_an_operand_of_a_tuple_that_is_not_used_is_waited_for_by_the_ring(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (a, w, scales), y = operands(5), np.zeros((64, 64), np.float32)
    for seed in SEEDS:
        unused.simulate(a, w, scales, y, seed=seed)
        np.testing.assert_array_equal(y, expected(a, w, 0 * scales))
    monkeypatch.setattr(pipelines, "waited_parts", lambda pipe, group, waited: (0, 1, 2))
    with pytest.raises(PipelineRace):
        for seed in SEEDS:
            unused.simulate(a, w, scales, y, seed=seed)


@pytest.mark.variants(0, thorough=1)
@pytest.mark.parametrize("kernel", [in_a_loop, in_a_body], ids=lambda kernel: kernel.name)
def test_the_code_passes_the_gate(kernel: numpipe.Kernel) -> None:
    given = [numpipe.ArrayType((64, 320), np.float16)] * 3 + [
        numpipe.ArrayType((64, 64), np.float32)
    ]
    assert kernel.inspect("gate", *given) == ()


@pytest.mark.parametrize("compiled", [False, True])
def test_barriers_that_are_unpacked_flat_are_refused(compiled: bool) -> None:
    @numpipe.kernel(grid=1)
    def flat(a, w, scales):
        pipe = numpipe.pipeline(
            grid=(1,),
            manual_produced_barriers=True,
            in_specs=(
                BlockSpec((64, 64), lambda k: (0, k)),
                (BlockSpec((64, 64), lambda k: (0, k)), BlockSpec((64, 64), lambda k: (0, k))),
            ),
        )
        for _, (x, of), (one, two, three) in pipe(a, (w, scales)):
            numpipe.barrier_wait(one)

    with pytest.raises(
        SpecError,
        match="the loop unpacks 3 ready barriers, but the pipeline has 2: one for each array that "
        "it loads, in the tuples of in_specs",
    ):
        flat.compiled(*operands(1)) if compiled else flat.simulate(*operands(1))
