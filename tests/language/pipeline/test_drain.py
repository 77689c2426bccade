"""CompilerParams(drain=True): the memory role ends each pipeline by waiting until its slots are no
longer used."""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from typing import Any

import numpy as np
import pytest

import numpipe
from numpipe import BlockSpec, CompilerParams, ds
from numpipe.language.pipeline import steps
from tests.kernels import single_kernels
from tests.kernels.covering import pairwise

emit = numpipe.emit_pipeline_warp_specialized
TILES = 3
SEEDS = (None, *range(5))
DRAINED, CHAINED = CompilerParams(drain=True), CompilerParams()


# ---- kernels: 3 tiles, each with 2 pipelines one after another, of n and m steps -------------
def loops(a, b, c, n, m):
    """Use two rings in the first pipeline, with a delay.

    One operand changes each step, and one never does.
    """
    for t, _ in numpipe.tiles(3, 1):
        acc = numpipe.zeros((64, 64), np.float32)
        for _, (x, y) in numpipe.pipeline(
            grid=(n,),
            max_concurrent_steps=3,
            delay_release=1,
            in_specs=(BlockSpec((64, 64), lambda k: (0, k)), BlockSpec((64, 64), lambda k: (0, t))),
        )(a, b):
            acc = numpipe.wgmma(acc, x, y.T)
        for _, (x,) in numpipe.pipeline(
            grid=(m,), max_concurrent_steps=2, in_specs=(BlockSpec((64, 64), lambda k: (0, k)),)
        )(b):
            acc = numpipe.wgmma(acc, x, x.T)
        c[ds(t * 64, 64), ds(0, 64)] = acc


def bodies(a, b, c, n, m):
    """Release operands in the body, two steps late."""

    def product(indices, x, y, x_free, y_free, acc):
        acc = numpipe.wgmma_wait(numpipe.wgmma(acc, x, y.T), 2)
        numpipe.barrier_arrive(y_free)
        numpipe.barrier_arrive(x_free)
        return acc

    def square(indices, x, x_free, acc):
        acc = numpipe.wgmma_wait(numpipe.wgmma(acc, x, x.T), 2)
        numpipe.barrier_arrive(x_free)
        return acc

    for t, _ in numpipe.tiles(3, 1):

        def first(pipeline):
            c[ds(t * 64, 64), ds(0, 64)] = pipeline(numpipe.zeros((64, 64), np.float32))

        def second(pipeline):
            c[ds((3 + t) * 64, 64), ds(0, 64)] = pipeline(numpipe.zeros((64, 64), np.float32))

        emit(
            product,
            grid=(n,),
            max_concurrent_steps=3,
            delay_release=2,
            compute_context=first,
            manual_consumed_barriers=True,
            in_specs=(BlockSpec((64, 64), lambda k: (0, k)), BlockSpec((64, 64), lambda k: (0, k))),
        )(a, b)
        emit(
            square,
            grid=(m,),
            max_concurrent_steps=4,
            delay_release=2,
            compute_context=second,
            manual_consumed_barriers=True,
            in_specs=(BlockSpec((64, 64), lambda k: (0, k)),),
        )(b)


def unequal(a, b, c, n, m):
    """Skip steps in some warpgroups, which release them after they arrive."""
    wg = numpipe.axis_index("wg")
    for t, _ in numpipe.tiles(3, 1):
        acc = numpipe.zeros((64, 64), np.float32)
        for _, (x,) in numpipe.pipeline(
            grid=(n,), steps_of=lambda wg: wg * 2, in_specs=(BlockSpec((64, 64), lambda k: (0, k)),)
        )(a):
            acc = numpipe.wgmma(acc, x, x.T)
        for _, (x,) in numpipe.pipeline(
            grid=(m,), steps_of=lambda wg: 1 - wg, in_specs=(BlockSpec((64, 64), lambda k: (0, k)),)
        )(b):
            acc = numpipe.wgmma(acc, x, x.T)
        c[ds((t * 2 + wg) * 64, 64), ds(0, 64)] = acc


KERNELS = {"loops": (loops, 1), "bodies": (bodies, 1), "unequal": (unequal, 2)}


def made(name: str, params: CompilerParams) -> Any:
    function, warpgroups = KERNELS[name]
    return numpipe.kernel(
        function, num_compute_wgs=warpgroups, grid=numpipe.persistent(1), compiler_params=params
    )


def inputs() -> list[np.ndarray]:
    rng = np.random.default_rng(2)
    return [
        *(rng.integers(-2, 3, (64, 320)).astype(np.float16) for _ in "ab"),
        np.full((2 * TILES * 64, 64), 7, np.float32),
    ]


def sequence(trace: numpipe.Trace) -> dict[tuple[int, int], dict[str, list[int]]]:
    """Return, for each loop that ran, (tile, line of its pipeline): when its slots were filled and
    released."""
    notes = [
        (place, e.details["event"], e.details["ring"], e.details["step"])
        for place, e in enumerate(trace.events)
        if e.kind == "note" and e.details["event"] in ("fill", "release")
    ]
    blocks = {
        ring: (max(step for _, _, other, step in notes if other == ring) + 1) // TILES
        for _, _, ring, _ in notes
    }
    found: dict[tuple[int, int], dict[str, list[int]]] = defaultdict(
        lambda: {"fill": [], "release": []}
    )
    for place, event, ring, step in notes:
        found[step // blocks[ring], int(ring.rpartition(":")[2])][event].append(place)
    return dict(sorted(found.items()))


def empty_between(trace: numpipe.Trace) -> bool:
    """Return whether each loop's loads begin after all releases of the previous loop."""
    order = list(sequence(trace).values())
    assert len(order) > 1
    return all(
        max(before["release"]) < min(after["fill"]) for before, after in itertools.pairwise(order)
    )


def run(
    name: str, params: CompilerParams, n: int, m: int, seed: int | None = None
) -> tuple[np.ndarray, numpipe.Trace]:
    arrays, trace = inputs(), numpipe.Trace()
    made(name, params).simulate(*arrays, n, m, seed=seed, trace=trace)
    return arrays[-1], trace


# ---- behavior -------------------------------------------------------------------------------
@pytest.mark.variants(4)
@pairwise(name=tuple(KERNELS), seed=SEEDS, counts=((5, 4), (1, 2), (2, 1)))
def test_loads_begin_when_all_slots_of_the_pipeline_before_are_released(
    name: str, seed: int | None, counts: tuple[int, int]
) -> None:
    result, trace = run(name, DRAINED, *counts, seed)
    assert empty_between(trace)
    np.testing.assert_array_equal(result, run(name, CHAINED, *counts, seed)[0])


@pytest.mark.parametrize("name", KERNELS)
def test_without_it_they_begin_before(name: str) -> None:
    assert not empty_between(run(name, CHAINED, 5, 4)[1])


@pytest.mark.parametrize("name", KERNELS)
def test_a_wait_that_is_left_out_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps.await_released, "function", lambda ring: None)
    assert not empty_between(run(name, DRAINED, 5, 4)[1])


@pytest.mark.variants(4)
@pairwise(name=tuple(KERNELS), seed=SEEDS, counts=((0, 0), (0, 4), (5, 0)))
def test_pipelines_of_no_steps_have_nothing_to_wait_for(
    name: str, seed: int | None, counts: tuple[int, int]
) -> None:
    np.testing.assert_array_equal(
        run(name, DRAINED, *counts, seed)[0], run(name, CHAINED, *counts, seed)[0]
    )


def stepped(a, b, c):
    """Surround an inner pipeline, followed by a product: the outer slots are released last."""
    acc = numpipe.zeros((64, 64), np.float32)
    for _, (x,) in numpipe.pipeline(grid=(3,), in_specs=(BlockSpec((64, 64), lambda k: (0, k)),))(
        a
    ):
        for _, (y,) in numpipe.pipeline(
            grid=(2,), in_specs=(BlockSpec((64, 64), lambda k: (0, k)),)
        )(b):
            acc = numpipe.wgmma(acc, x, y.T)
        acc = numpipe.wgmma(acc, x, x.T)
    for _, (x,) in numpipe.pipeline(grid=(2,), in_specs=(BlockSpec((64, 64), lambda k: (0, k)),))(
        b
    ):
        acc = numpipe.wgmma(acc, x, x.T)
    c[ds(0, 64), ds(0, 64)] = acc


@pytest.mark.parametrize("seed", SEEDS)
def test_a_pipeline_around_another_ends_empty_too(seed: int | None) -> None:
    results = []
    for params in (DRAINED, CHAINED):
        kernel, (a, b, c), trace = (
            numpipe.kernel(stepped, compiler_params=params),
            inputs(),
            numpipe.Trace(),
        )
        kernel.simulate(a, b, c, seed=seed, trace=trace)
        notes = [
            (e.details["event"], e.details["ring"], e.details["step"])
            for e in trace.of("note")
            if "ring" in e.details
        ]
        outer, inner, last = sorted(
            {ring for _, ring, _ in notes}, key=lambda ring: int(ring.rpartition(":")[2])
        )
        if params is DRAINED:
            assert notes.index(("release", outer, 2)) < notes.index(("fill", last, 0))
            assert notes.index(("release", inner, 1)) < notes.index(("fill", outer, 1))
        elif seed is None:
            assert notes.index(("release", outer, 2)) > notes.index(("fill", last, 0))
        results.append(c)
    np.testing.assert_array_equal(*results)


# ---- compiled code ---------------------------------------------------------------------------
@pytest.mark.variants(0, thorough=1)
@pytest.mark.parametrize("name", ["bodies", "unequal"])
def test_the_code_has_more_waits_and_passes_the_gate(name: str) -> None:
    arrays = inputs()
    drained, chained = (made(name, params) for params in (DRAINED, CHAINED))
    waits = [
        len(re.findall(r"mbarrier\.try_wait\S* ", kernel.inspect("ptx", *arrays, 5, 4)))
        for kernel in (drained, chained)
    ]
    assert waits[0] > waits[1]
    assert drained.inspect("gate", *arrays, 5, 4) == ()


@pytest.mark.variants(0, thorough=1)
@pytest.mark.parametrize("roles", [True, False])
def test_drain_does_not_change_single_stream_pipelines(roles: bool) -> None:
    """A warpgroup always ends one before it begins another."""
    a, b = single_kernels.operands(128, 192)
    made = single_kernels.gemm("body", roles, 3, 1, 2)
    seen = []
    for params in (DRAINED, CHAINED):
        kernel = numpipe.kernel(
            made.function,
            warp_specialized=roles,
            num_compute_wgs=2,
            compiler_params=params,
            grid=numpipe.persistent(ctas=1),
            out_type=made.options.out_type,
        )
        trace = numpipe.Trace()
        kernel.simulate(a, b, trace=trace)
        seen.append(
            (
                kernel.inspect("ptx", a, b).count("\n"),
                [(e.kind, e.start, e.details) for e in trace.events],
            )
        )
    assert seen[0] == seen[1]
