"""Bodies that wait for their operands and release them explicitly: right in any schedule, with
mistakes reported in every one."""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

import numpipe
from numpipe import BlockSpec, PipelineDeadlock, PipelineRace, SimulationError, cdiv, ds
from numpipe.language.pipeline import ring
from numpipe.plan.plans import ArrayArg, BarrierPlace, RingPlan
from numpipe.plan.protocol import BARRIERS, SlotBarrier
from numpipe.plan.roles import COMPUTE
from numpipe.plan.unit import Unit
from tests.kernels.barrier_plans import MANUAL, RINGS, TK, Plan, check, inputs, load, source
from tests.kernels.covering import examples, pairwise
from tests.language.pipeline.test_injected import Bug

emit = numpipe.emit_pipeline_warp_specialized
SCHEDULES = (None, *range(9))


def named(manual: tuple[bool, bool]) -> str:
    return " and ".join(
        kind for kind, asked in zip(("ready", "consumed"), manual, strict=True) if asked
    )


# ---- correct bodies -------------------------------------------------------------------------
def right(
    manual: tuple[bool, bool], slots_and_delay: tuple[int, int], wgs: int, steps: int
) -> None:
    slots, delay = slots_and_delay
    plan = Plan(*manual, slots, delay, wgs, bool((steps + slots) % 2), operands=2 + slots % 2)
    check(replace(plan, loop=bool(steps % 3)), 3, steps)
    other = (
        replace(plan, skip=True, loop=not steps % 3)
        if (steps + wgs) % 2
        else replace(plan, backwards=True)
    )
    check(other, 2, steps, seed=10 * steps + slots)


@pytest.mark.variants(6, thorough=28)
@pairwise(manual=MANUAL, slots_and_delay=RINGS, wgs=(1, 2), steps=range(7))
def test_every_ring_in_any_schedule(
    manual: tuple[bool, bool], slots_and_delay: tuple[int, int], wgs: int, steps: int
) -> None:
    """Chain tiles on one ring, with numbers of steps below and above the slots and the delay."""
    right(manual, slots_and_delay, wgs, steps)


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    slots = draw(st.integers(1, 4))
    ready, consumed = draw(st.sampled_from(MANUAL))
    return Plan(
        ready,
        consumed,
        slots,
        draw(st.integers(0, min(2, slots - 1))),
        draw(st.integers(1, 3)),
        draw(st.booleans()),
        draw(st.integers(2, 3)),
        draw(st.booleans()),
        draw(st.booleans()),
        draw(st.booleans()),
    )


@given(
    plan=plans(),
    tiles=st.integers(1, 4),
    steps=st.integers(0, 9),
    seed=st.none() | st.integers(0, 2**16),
)
@settings(max_examples=examples(30), derandomize=True, deadline=None, database=None)
def test_any_plan_computes_what_numpy_does(
    plan: Plan, tiles: int, steps: int, seed: int | None
) -> None:
    note(source(plan))
    check(plan, tiles, steps, seed=seed)


def test_a_body_may_leave_out_the_wait_for_a_tile_that_it_does_not_use() -> None:
    """The ring waits before it releases; otherwise it would fill a slot whose last copy is still in
    flight."""
    for consumed in (False, True):
        plan = Plan(ready=True, consumed=consumed)
        kernel = load(without(plan, WAIT, PRODUCT))
        for seed in SCHEDULES:
            kernel.simulate(*inputs(plan, 2, 5), seed=seed)


def test_a_release_that_does_not_wait_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The counterpart of the previous test."""
    line = 'each(ring, "unwaited", part, await_ready, step)'
    Bug(ring.release, line, "pass", SimulationError, "").inject(monkeypatch)
    plan = Plan(ready=True, consumed=False)
    kernel = load(without(plan, WAIT, PRODUCT))
    for seed in SCHEDULES:
        with pytest.raises(SimulationError, match=r"ready\[\d\] for in_specs\[1\] 'b' of a, b @"):
            kernel.simulate(*inputs(plan, 2, 5), seed=seed)


@pytest.mark.thorough
def test_a_pipeline_in_a_body_with_barriers() -> None:
    """The memory role runs the outer body for the inner loads, where its barriers do nothing."""

    @numpipe.kernel
    def sums(a, b, c):
        def outer(indices, b_tile, b_ready, b_consumed):
            (i,) = indices

            def inner(indices, a_tile, a_ready, a_consumed, acc):
                numpipe.barrier_wait(a_ready)
                acc = numpipe.wgmma_wait(numpipe.wgmma(acc, a_tile, b_tile.T), 0)
                numpipe.barrier_arrive(a_consumed)
                return acc

            def compute(pipeline):
                c[ds(i * 64, 64), ds(0, 64)] = pipeline(numpipe.zeros((64, 64), np.float32))

            numpipe.barrier_wait(b_ready)
            emit(
                inner,
                grid=(3,),
                compute_context=compute,
                manual_produced_barriers=True,
                manual_consumed_barriers=True,
                in_specs=(BlockSpec((64, 64), lambda k: (i, k)),),
            )(a)
            numpipe.barrier_arrive(b_consumed)

        emit(
            outer,
            grid=(cdiv(a.shape[0], 64),),
            manual_ready_barriers=True,  # its name in Pallas before JAX 0.12
            manual_consumed_barriers=True,
            in_specs=(BlockSpec((64, 64), lambda i: (i, 0)),),
        )(b)

    rng = np.random.default_rng(5)
    a, b = (rng.integers(-2, 3, shape).astype(np.float16) for shape in ((256, 192), (256, 64)))
    c = np.empty((256, 64), np.float32)
    blocks = a.astype(np.float32).reshape(4, 64, 3, 64).sum(2)
    exact = np.concatenate(
        [x @ y.T for x, y in zip(blocks, b.astype(np.float32).reshape(4, 64, 64), strict=True)]
    )
    for seed in SCHEDULES:
        sums.simulate(a, b, c, seed=seed)
        np.testing.assert_array_equal(c, exact)
    assert sums.inspect("gate", a, b, c) == ()


@dataclass(frozen=True)
class Options:
    manual: bool = True


@numpipe.function
def release(first, second):
    """Release operands; barriers are values that can be passed on."""
    numpipe.barrier_arrive(first)
    numpipe.barrier_arrive(second)


@pytest.mark.thorough
def test_barriers_may_be_passed_on_captured_and_asked_for_by_a_static() -> None:
    @numpipe.kernel
    def product(a, b, c, *, cfg: numpipe.Static = Options()):
        def body(indices, x, y, x_ready, y_ready, x_consumed, y_consumed, acc):
            def arrived():
                numpipe.barrier_wait(x_ready)
                numpipe.barrier_wait(y_ready)

            arrived()
            acc = numpipe.wgmma_wait(numpipe.wgmma(acc, x, y.T), 0)
            release(x_consumed, y_consumed)
            return acc

        def compute(pipeline):
            c[ds(0, 64), ds(0, 64)] = pipeline(numpipe.zeros((64, 64), np.float32))

        emit(
            body,
            grid=(cdiv(a.shape[1], 64),),
            compute_context=compute,
            manual_produced_barriers=cfg.manual,
            manual_consumed_barriers=cfg.manual,
            in_specs=(BlockSpec((64, 64), lambda k: (0, k)), BlockSpec((64, 64), lambda k: (0, k))),
        )(a, b)

    a = np.ones((64, 320), np.float16)
    c = np.empty((64, 64), np.float32)
    product.simulate(a, a, c, seed=1)
    assert (c == 320).all()
    assert product.inspect("gate", a, a, c) == ()


def test_a_trace_says_which_operand_is_waited_for_and_released(tmp_path: Path) -> None:
    plan = Plan(wgs=1)
    trace = numpipe.Trace()
    load(source(plan)).simulate(*inputs(plan, 1, 3), trace=trace)
    notes = [
        (e.details["event"], e.details["operand"], e.details["step"])
        for e in trace.of("note")
        if "operand" in e.details
    ]
    for step in range(3):
        for operand in range(2):
            assert [e for e, o, s in notes if (o, s) == (operand, step)].count("release") == 1
    trace.save(tmp_path / "trace.json")
    spans = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    released = {(s["args"]["slot"], s["args"]["operand"]) for s in spans if s["name"] == "release"}
    assert released == {(0, 0), (0, 1), (1, 0), (1, 1)}


@pytest.mark.variants(0, thorough=1)
@pytest.mark.parametrize("manual", [True, False])
def test_an_operand_released_first_is_loaded_again_before_the_others_are_released(
    manual: bool,
) -> None:
    """With one slot, the next step's b is in flight while the product with d runs."""

    @numpipe.kernel
    def two(a, b, d, c):
        def body(indices, x, y, z, x_free, y_free, z_free, acc):
            acc = numpipe.wgmma(acc, y, x.T)
            acc = numpipe.wgmma(acc, y, z.T)
            acc = numpipe.wgmma_wait(acc, 1)
            numpipe.barrier_arrive(x_free)
            acc = numpipe.wgmma_wait(acc, 0)
            numpipe.barrier_arrive(y_free)
            numpipe.barrier_arrive(z_free)
            return acc

        def together(indices, x, y, z, acc):
            return numpipe.wgmma(numpipe.wgmma(acc, y, x.T), y, z.T)

        def compute(pipeline):
            c[ds(0, 64), ds(0, 64)] = pipeline(numpipe.zeros((64, 64), np.float32))

        specs = (
            BlockSpec((64, 64), lambda k: (0, k)),
            BlockSpec((64, 64), lambda k: (0, k)),
            BlockSpec((64, 64), lambda k: (0, k)),
        )
        if manual:
            emit(
                body,
                grid=(2,),
                max_concurrent_steps=1,
                compute_context=compute,
                manual_consumed_barriers=True,
                in_specs=specs,
            )(b, a, d)
        else:
            emit(
                together, grid=(2,), max_concurrent_steps=1, compute_context=compute, in_specs=specs
            )(b, a, d)

    a, b, d = (np.full((64, 128), value, np.float16) for value in (1, 2, 3))
    c = np.empty((64, 64), np.float32)
    trace = numpipe.Trace()
    two.simulate(a, b, d, c, trace=trace)
    assert (c == 128 * 5).all()
    loaded = [e.start for e in trace.of("issue") if e.details["tensor"] == "b"]
    released = [
        e.start
        for e in trace.of("note")
        if e.details["event"] == "release" and e.details.get("operand", 2) == 2
    ]
    assert (loaded[1] < released[0]) is manual
    assert two.inspect("gate", a, b, d, c) == ()


def test_bytes_that_parts_share_are_announced_after_the_last_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Before the first part, nothing would order a release of the other parts after the previous
    phase."""
    plan = Plan(ready=False, consumed=True, slots=1)
    check(plan, 2, 3)
    monkeypatch.setattr(RingPlan, "announces", lambda self, part, loaded: part == 0 and not loaded)
    for seed in SCHEDULES:
        with pytest.raises(
            PipelineRace,
            match=r"arrives on consumed\[0\] for in_specs\[1\] 'b' .*nothing orders this "
            r"after|waited for phase -1 of consumed\[0\] for in_specs\[1\] .*, but .* "
            r"completes phase 0 before this wait",
        ):
            load(source(plan)).simulate(*inputs(plan, 2, 3), seed=seed)


# ---- mistakes -------------------------------------------------------------------------------
def without(plan: Plan, *lines: str) -> str:
    """Return the plan's source without some lines."""
    return instead(plan, *((line, "pass") for line in lines))


def instead(plan: Plan, *edits: tuple[str, str]) -> str:
    text = source(plan)
    for old, new in edits:
        assert text.count(old) == 1, f"{old!r} is not once in\n{text}"
        text = text.replace(old, new)
    return text


def swapped(plan: Plan, first: str, second: str) -> str:
    """Return the plan's source with two lines swapped."""
    return instead(plan, (first, "\0"), (second, first)).replace("\0", second)


BOTH = Plan(ready=True, consumed=True, slots=2, wgs=2)
LATE = replace(BOTH, slots=3, delay=1)
READY, CONSUMED = replace(BOTH, consumed=False), replace(BOTH, ready=False)
PRODUCT = "acc = numpipe.wgmma(acc, a_tile.at[ds(wg * 64, 64), :], b_tile.T)"
WAIT, ARRIVE = "numpipe.barrier_wait(b_ready)", "numpipe.barrier_arrive(b_consumed)"
DRAIN, DRAIN_LATE = "acc = numpipe.wgmma_wait(acc, 0)", "acc = numpipe.wgmma_wait(acc, 1)"
NOT_DRAINED = (
    r"TMA load \([ab]\) fills .* while wgmma .* of warpgroup \d \(compute\).*did not signal that "
    r"their wgmma had finished"
)
READ_EARLY = (
    r"wgmma .* reads SMEM.*(not been written|warpgroup \d \(compute\) does not wait until this "
    r"copy has landed)"
    # or it reads the slot's previous contents, and the copy it did not wait for arrives meanwhile
    f"|{NOT_DRAINED}"
)
OPERAND = r" on consumed\[{slot}\] for in_specs\[1\] 'b' of a, b @ \S+:\d+ for step {step}: "
NEVER = f"did not arrive{OPERAND}the memory role would wait forever"
TWICE = f"arrives twice{OPERAND}the tile would be"


def bugs(loop: bool) -> dict[str, tuple[Plan, str, type[SimulationError], str]]:
    """Return mistakes by name: what is broken, its source, and its reports, in the loop or body
    form."""
    both, late, ready, consumed = (
        replace(plan, loop=loop) for plan in (BOTH, LATE, READY, CONSUMED)
    )
    return {
        "no wait for b": (both, without(both, WAIT), PipelineRace, READ_EARLY),
        "no wait for b, released by the ring": (
            ready,
            without(ready, WAIT),
            PipelineRace,
            READ_EARLY,
        ),
        "no wait for a": (
            both,
            without(both, "numpipe.barrier_wait(a_ready)"),
            PipelineRace,
            READ_EARLY,
        ),
        "waits for b after its use": (both, swapped(both, WAIT, PRODUCT), PipelineRace, READ_EARLY),
        "waits for a twice and never for b": (
            both,
            instead(both, (WAIT, "numpipe.barrier_wait(a_ready)")),
            PipelineRace,
            READ_EARLY,
        ),
        "one warpgroup does not wait": (
            both,
            instead(both, (WAIT, f"if wg == 0:\n                {WAIT}")),
            PipelineRace,
            READ_EARLY,
        ),
        "no wait in one step": (
            both,
            instead(both, (WAIT, f"if k != 3:\n                {WAIT}")),
            PipelineRace,
            READ_EARLY,
        ),
        "releases before the product has drained": (
            both,
            without(both, DRAIN),
            PipelineRace,
            NOT_DRAINED,
        ),
        "releases before the product has drained, waited for by the ring": (
            consumed,
            without(consumed, DRAIN),
            PipelineRace,
            NOT_DRAINED,
        ),
        "releases b before the wait": (
            both,
            swapped(both, DRAIN, ARRIVE),
            PipelineRace,
            NOT_DRAINED,
        ),
        "leaves a product in flight": (
            both,
            instead(both, (DRAIN, DRAIN_LATE)),
            PipelineRace,
            NOT_DRAINED,
        ),
        "leaves a product too many in flight, delayed": (
            late,
            instead(late, (DRAIN_LATE, "acc = numpipe.wgmma_wait(acc, 2)")),
            PipelineRace,
            NOT_DRAINED,
        ),
        "never releases b": (
            both,
            without(both, ARRIVE),
            PipelineDeadlock,
            NEVER.format(slot=0, step=0),
        ),
        "never releases b, delayed": (
            late,
            without(late, ARRIVE),
            PipelineDeadlock,
            NEVER.format(slot=0, step=0) + ".* of a step, 1 later for delay_release=1",
        ),
        "does not release b in step 3": (
            both,
            instead(both, (ARRIVE, f"if k != 3:\n                {ARRIVE}")),
            PipelineDeadlock,
            NEVER.format(slot=1, step=3),
        ),
        "does not release b in the last step of one warpgroup": (
            both,
            instead(both, (ARRIVE, f"if k != 4 or wg == 0:\n                {ARRIVE}")),
            PipelineDeadlock,
            r"warpgroup 1 \(compute\) of CTA \(0, 0, 0\) " + NEVER.format(slot=0, step=4),
        ),
        "releases b twice": (
            both,
            instead(both, (ARRIVE, f"{ARRIVE}; {ARRIVE}")),
            PipelineRace,
            TWICE.format(slot=0, step=0),
        ),
        "releases b twice, delayed": (
            late,
            instead(late, (ARRIVE, f"{ARRIVE}; {ARRIVE}")),
            PipelineRace,
            TWICE.format(slot=0, step=0),
        ),
        "releases b for a": (
            both,
            instead(both, ("numpipe.barrier_arrive(a_consumed)", ARRIVE + "  # for a")),
            PipelineRace,
            TWICE.format(slot=0, step=0),
        ),
    }


BUGS = {(name, loop): bug for loop in (False, True) for name, bug in bugs(loop).items()}


@pytest.mark.variants(7)
@pytest.mark.schedules
@pytest.mark.parametrize("name, loop", BUGS)
def test_every_schedule_finds(name: str, loop: bool) -> None:
    plan, text, error, message = BUGS[name, loop]
    kernel = load(text)
    for seed in SCHEDULES[loop::2]:
        with pytest.raises(error) as caught:
            kernel.simulate(*inputs(plan, 2, 5), seed=seed)
        told = str(caught.value)
        assert re.search(message, told, re.DOTALL), f"seed {seed}: {told}"
        assert re.match(r"\S*barriers_\w+\.py:\d+: ", told), told


@pytest.mark.parametrize("plan", {id(plan): plan for plan, *_ in BUGS.values()}.values(), ids=str)
def test_the_fixed_twins_are_silent_and_right(plan: Plan) -> None:
    for seed in SCHEDULES[plan.loop :: 2]:
        check(plan, 2, 5, seed=seed)


@pytest.mark.parametrize(
    "name, message",
    [
        (
            "never releases b",
            r"warpgroup 2 \(memory\): blocked on consumed\[0\] for in_specs\[1\] 'b' of a, b @ "
            r"\S+ phase 0 step 2.*hint: consumed\[\d\] for in_specs\[1\] 'b' of .* is still "
            r"missing 8 of 8 arrivals in phase 0",
        ),
        (
            "releases b twice",
            r"(ready|consumed)\[\d\] for in_specs\[1\] 'b' of a, b @ .*(nothing orders this after "
            r"the end of phase|only \d of 8 pending|handed over twice|already reached)|while TMA "
            r"load \(b\)|TMA load \(b\) fills",
        ),
    ],
)
def test_the_machine_finds_it_too(name: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the ring's record of releases, as on a GPU, the barriers' own state gives the
    report."""
    monkeypatch.setattr(ring.note_released, "function", lambda *_: None)
    monkeypatch.setattr(ring.check_released, "function", lambda *_: None)
    plan, text, _, _ = BUGS[name, False]
    for seed in SCHEDULES:
        with pytest.raises(SimulationError) as caught:
            load(text).simulate(*inputs(plan, 2, 5), seed=seed)
        assert re.search(message, str(caught.value), re.DOTALL), f"seed {seed}: {caught.value}"


# ---- compiled ------------------------------------------------------------------------------------
@pytest.mark.variants(0, thorough=2)
@pytest.mark.parametrize(
    "manual, barriers, delay, carry",
    [((True, False), 4, 0, True), ((False, True), 4, 1, True), ((True, True), 6, 2, False)],
    ids=str,
)
def test_an_operand_has_a_barrier_of_its_own_in_each_slot_and_the_gate_passes(
    manual: tuple[bool, bool], barriers: int, delay: int, carry: bool
) -> None:
    plan = Plan(*manual, slots=3, delay=delay, wgs=2, carry=carry, operands=3)
    kernel, arrays = load(source(plan)), inputs(plan, 2, 4)
    assert kernel.inspect("gate", *arrays) == ()
    resources = kernel.inspect("resources", *arrays)
    assert (resources.spill_bytes, resources.stack_bytes, resources.notes) == (0, 0, ())
    (ring,) = kernel.compiled(*arrays).unit.rings.values()
    assert ring.header.total == 8 * 3 * barriers
    # of 64 rows: the first operand has one for each warpgroup
    blocks = (2, 1) if manual[0] else (4,)
    assert {ring.expected(part) for part in ring.parts_of("ready")} == {
        64 * TK * 2 * count for count in blocks
    }
    assert kernel.inspect("ptx", *arrays).count("mbarrier.init") == 3 * barriers


@pytest.mark.parametrize(
    "manual", [(False, False), *MANUAL], ids=lambda manual: named(manual) or "neither"
)
def test_barriers_of_rings_do_not_overlap(manual: tuple[bool, bool]) -> None:
    arrays = tuple(ArrayArg(name, np.dtype(np.float16), 2) for name in "ab")
    unit = Unit("k", arrays, (), "wg", 2, 40)
    blocks = tuple((n, *BlockSpec((64, 64), lambda k: (0, k)).block) for n in range(2))
    planned = [
        unit.plan_ring(
            f"f:{line}",
            blocks,
            2,
            0,
            tuple(itertools.compress(BARRIERS, manual)) if line == 2 else (),
        )
        for line in (1, 2, 3)
    ]
    found = [(address, count) for plan in planned for address, count, _ in unit.barriers(plan)]
    assert [address for address, _ in found] == list(range(0, 8 * len(found), 8))
    assert [count for _, count in found[4:]][:2] == [1, 1]
    assert len({name for plan in planned for _, _, name in unit.barriers(plan)}) == len(found)


def test_a_row_more_gives_each_slot_a_barrier_with_a_place_arrivals_and_a_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    row = SlotBarrier("seen", COMPUTE, 4, -1, "slot", "", "", "tell of {slot} once a step")
    monkeypatch.setattr(RingPlan, "kinds", (*RingPlan.kinds, row))
    unit = Unit("k", (ArrayArg("a", np.dtype(np.float16), 2),), (), "wg", 2, 40)
    rings = [
        unit.plan_ring(f"f:{line}", ((0, *BlockSpec((64, 64), lambda k: (0, k)).block),), 3, 0)
        for line in (1, 2)
    ]
    found = [barrier for plan in rings for barrier in unit.barriers(plan)]
    assert [address for address, _, _ in found] == list(range(0, 8 * 3 * 3 * 2, 8))
    assert [(count, name) for _, count, name in found[6:9]] == [
        (8, f"seen[{slot}] of a @ f:1") for slot in range(3)
    ]
    assert [unit.barrier_at(address) for address, _, _ in found[6:9]] == [
        BarrierPlace("seen", rings[0], slot) for slot in range(3)
    ]
