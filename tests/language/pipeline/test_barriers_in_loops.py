"""The loop form with explicit barriers: with steps_of, turns, nested loops, tickets and clusters,
and without waiting twice."""

from __future__ import annotations

import functools
import inspect
import textwrap
from typing import Any

import numpy as np
import pytest

import numpipe
from numpipe import BlockSpec, SimulationError, ds
from numpipe.arch.targets import HOPPER
from numpipe.compile.check.gate import Sass
from numpipe.compile.lift.loops import Loops
from tests.kernels.barrier_loop_kernels import cases, in_parts, rotated
from tests.kernels.barrier_plans import Plan, inputs, load, source

SEEDS = (None, 0, 1)


@pytest.mark.variants(4)
@pytest.mark.parametrize("name", cases())
def test_in_every_construct_that_contains_a_pipeline(name: str, runs: Any) -> None:
    case = cases()[name]
    for run in runs:
        case.check(functools.partial(run, case.kernel))


@pytest.mark.soak
@pytest.mark.parametrize("name", cases())
def test_in_all_of_them_in_many_schedules(name: str) -> None:
    case = cases()[name]
    for seed in range(40):
        case.check(
            lambda *args, seed=seed, **options: case.kernel.simulate(*args, seed=seed, **options)
        )


def test_the_next_k_is_loaded_while_v_is_in_use() -> None:
    """With two slots, K of step j + 2 is in flight before V of step j has been released."""
    case, trace = cases()["rotated"], numpipe.Trace()
    rotated.simulate(*case.inputs, np.empty((128, 64), np.float32), trace=trace)
    loaded = [event.start for event in trace.of("issue") if event.details["tensor"] == "k"]
    released = min(
        event.start
        for event in trace.of("note")
        if event.details["event"] == "release" and event.details.get("operand") == 1
    )
    assert loaded[2] < released


def test_loops_on_the_same_slots_go_on_with_one_ring() -> None:
    """Loads of a later loop, and of the next tile, begin while the previous one still computes:
    they share a ring and its counter."""
    case, trace = cases()["in parts"], numpipe.Trace()
    case.check(lambda *args: in_parts.simulate(*args, trace=trace))
    fills = [
        event.details["step"]
        for event in trace.of("note")
        if event.details["event"] == "fill"
        and event.details.get("operand") == 0
        and "k, v @" in event.details["ring"]
    ]
    assert fills == list(range(2 * 4))
    assert (
        len(
            [
                line
                for line in str(
                    in_parts.inspect("resources", *case.inputs, np.empty((256, 64), np.float32))
                ).splitlines()
                # of k and of v
                if "2 slots x 8192 B" in line and "'array[…] = tile'" not in line
            ]
        )
        == 2
    )


def test_a_loop_inside_another_one_may_have_the_slots_of_a_third() -> None:
    @numpipe.kernel(grid=1)
    def nested(a, c):
        total = numpipe.zeros((64, 64), np.float32)
        spec = BlockSpec((64, 64), lambda k: (0, k), buffer_count=2)
        first = numpipe.pipeline(grid=(2,), in_specs=(spec,))
        second = numpipe.pipeline(grid=(2,), in_specs=(spec,))
        one, two = first.get_allocations(a), second.get_allocations(a)
        outer = numpipe.pipeline(grid=(2,), in_specs=(spec,))
        inner = numpipe.pipeline(grid=(2,), in_specs=(spec,))
        for _, (x,) in outer(a, allocations=one):
            for _, (y,) in inner(a, allocations=two):
                total = total + x[...].astype(np.float32) * y[...].astype(np.float32)
        c[ds(0, 64), ds(0, 64)] = total

    a = np.random.default_rng(0).integers(-3, 4, (64, 128)).astype(np.float16)
    c = np.empty((64, 64), np.float32)
    nested.simulate(a, c)
    np.testing.assert_array_equal(c, (a[:, :64].astype(np.float32) + a[:, 64:]) ** 2)


# ---- no second wait for an operand
def waits(text: str, plan: Plan) -> list[int]:
    """Return how often a warpgroup waits for each operand of a step."""
    trace = numpipe.Trace()
    load(text).simulate(*inputs(plan, 1, 3), trace=trace)
    notes = [
        event.details["operand"] for event in trace.of("note") if event.details["event"] == "wait"
    ]
    return [notes.count(operand) // 3 for operand in range(2)]


WAIT = "numpipe.barrier_wait(b_ready)"


@pytest.mark.parametrize("consumed", [False, True])
def test_a_release_waits_only_where_the_source_does_not_show_a_wait(consumed: bool) -> None:
    plan = Plan(consumed=consumed, loop=True)
    text = source(plan)
    assert waits(text, plan) == [1, 1]
    assert waits(text.replace(WAIT, f"if k >= 0:\n                {WAIT}"), plan) == [1, 2]
    both = f"if k > 0:\n                {WAIT}\n            else:\n                {WAIT}"
    assert waits(text.replace(WAIT, both), plan) == [1, 1]
    assert waits(
        text.replace(WAIT, f"if k > 9:\n                continue\n            {WAIT}"), plan
    ) == [1, 2]


@pytest.mark.parametrize("delay", [0, 1])
def test_a_delayed_release_relies_on_the_wait_of_the_previous_step(delay: int) -> None:
    """Even if the release comes before the wait in the source."""
    plan = Plan(consumed=True, loop=True, slots=3, delay=delay)
    text, release = source(plan), "numpipe.barrier_arrive(b_consumed)"
    early = text.replace(release, "").replace(WAIT, f"{release}\n            {WAIT}")
    assert text.count(release) == 1 and waits(early, plan) == [1, 1 if delay else 2]


@numpipe.kernel
def released_first(a, b, c):
    """Release b, unused, before waiting for it: the release waits then."""
    acc = numpipe.zeros((64, 64), np.float32)
    pipe = numpipe.pipeline(
        grid=(4,),
        manual_produced_barriers=True,
        manual_consumed_barriers=True,
        in_specs=(BlockSpec((64, 16), lambda k: (0, k)), BlockSpec((64, 16), lambda k: (0, k))),
    )
    for _, (x, y), (x_ready, y_ready), (x_consumed, y_consumed) in pipe(a, b):
        numpipe.barrier_arrive(y_consumed)
        numpipe.barrier_wait(y_ready)
        numpipe.barrier_wait(x_ready)
        acc = numpipe.wgmma_wait(numpipe.wgmma(acc, x, x.T), 0)
        numpipe.barrier_arrive(x_consumed)
    c[ds(0, 64), ds(0, 64)] = acc


@numpipe.kernel
def skipped(a, b, c):
    """Neither use b nor wait for it in some steps."""
    acc = numpipe.zeros((64, 64), np.float32)
    pipe = numpipe.pipeline(
        grid=(4,),
        manual_produced_barriers=True,
        manual_consumed_barriers=True,
        in_specs=(BlockSpec((64, 16), lambda k: (0, k)), BlockSpec((64, 16), lambda k: (0, k))),
    )
    for (k,), (x, y), (x_ready, y_ready), (x_consumed, y_consumed) in pipe(a, b):
        numpipe.barrier_wait(x_ready)
        acc = numpipe.wgmma_wait(numpipe.wgmma(acc, x, x.T), 0)
        numpipe.barrier_arrive(x_consumed)
        if k % 2 == 0:
            numpipe.barrier_arrive(y_consumed)
            continue
        numpipe.barrier_wait(y_ready)
        numpipe.barrier_arrive(y_consumed)
    c[ds(0, 64), ds(0, 64)] = acc


@pytest.mark.parametrize("kernel", [released_first, skipped], ids=lambda kernel: kernel.name)
def test_a_wait_that_comes_late_or_not_always_is_not_counted_on(
    kernel: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = np.random.default_rng(0).integers(-2, 3, (64, 64)).astype(np.float16)
    c = np.zeros((64, 64), np.float32)
    for seed in SEEDS:
        kernel.simulate(a, a, c, seed=seed)
        np.testing.assert_array_equal(c, a.astype(np.float32) @ a.astype(np.float32).T)
    counted = inspect.getsource(Loops._waited)
    text = textwrap.dedent(counted)
    for rule in ("sure.difference_update(", "ends.append("):
        assert text.count(rule) == 1
        text = text.replace(rule, "set().union(")
    scope: dict[str, Any] = {}
    exec(text, vars(inspect.getmodule(Loops)), scope)
    monkeypatch.setattr(Loops, "_waited", scope["_waited"])
    careless = numpipe.kernel(kernel.function)
    with pytest.raises(SimulationError, match=r"(ready|consumed)\[\d\] for in_specs\[1\] 'b'"):
        careless.simulate(a, a, c, seed=1)


# ---- compiled
APART = "SHFL.IDX", "R2UR", "WARPSYNC", "BRA.DIV", "BSSY"
"""what ptxas adds to a loop whose counters, as far as it knows, may differ between lanes"""


@pytest.mark.thorough
def test_costs_its_barriers_and_nothing_else() -> None:
    """Each step has one wait per operand and one arrival per warp and operand.

    Products and their waits are the same as without explicit barriers.
    """
    case = cases()["rotated"]
    out = np.empty((128, 64), np.float32)
    assert rotated.inspect("gate", *case.inputs, out) == ()
    sass = Sass(rotated.inspect("sass", *case.inputs, out), HOPPER)
    first = sass.find("HGMMA")[0]
    loop = [instruction.opcode for instruction in sass.innermost(first)]
    counted = {
        name: sum(opcode.startswith(name) for opcode in loop)
        for name in ("HGMMA", "WARPGROUP.DEPBAR", "SYNCS.PHASECHK", "SYNCS.ARRIVE", "BAR", *APART)
    }
    asked = {"HGMMA": 8, "WARPGROUP.DEPBAR": 2, "SYNCS.PHASECHK": 2, "SYNCS.ARRIVE": 2, "BAR": 0}
    assert counted == asked | dict.fromkeys(APART, 0)
