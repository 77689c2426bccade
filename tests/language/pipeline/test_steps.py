"""Pipelines with several rings: what is loaded when, unequal steps, bodies with explicit barriers,
and injected bugs."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

import numpipe
from numpipe.errors import PipelineDeadlock, PipelineRace, SimulationError
from numpipe.language.pipeline import steps
from tests.kernels.barrier_plans import MANUAL, load
from tests.kernels.covering import pairwise
from tests.kernels.step_plans import EACH, GRIDS, Operand, Plan, check, inputs, source
from tests.language.pipeline.test_injected import Bug

FORMS = ["loop", "body"]
PLANS = {
    "slow and fast": Plan((Operand("i"), Operand("ijk"))),
    "invariant and fast": Plan((Operand(""), Operand("ijk")), slots=3),
    "invariant only": Plan((Operand(""),)),
    "no two alike": Plan((Operand("j"), Operand("ik"), Operand("k"))),
    "every dependence": Plan(tuple(EACH), slots=3, delay=1),
    "every dependence, in flight": Plan(tuple(EACH), slots=3, delay=2, carry=True),
    "slots and delays of their own": Plan(
        (Operand("i", 1), Operand("ij", None, 1), Operand("ijk", 4, 2)), slots=3, carry=True
    ),
    "two slots for an invariant one": Plan((Operand("", 2), Operand("j"))),
    "one slot": Plan((Operand("i"), Operand("ij"), Operand("ijk")), slots=1),
    "two warpgroups": Plan((Operand("i"), Operand("ijk")), wgs=2, slots=3, delay=1, carry=True),
}
UNEQUAL = {
    "one behind": Plan((Operand("i"), Operand("ijk")), wgs=2, steps_of="2 + wg * 3"),
    "none and more than all": Plan((Operand("i"), Operand("")), wgs=2, steps_of="wg * 40", slots=1),
    "fewer than none": Plan((Operand("j"), Operand("ijk")), wgs=2, steps_of="wg * 5 - 2"),
    "all differ, in flight": Plan(
        tuple(EACH), wgs=3, steps_of="3 - wg", slots=3, delay=1, carry=True
    ),
}
SEEDS = (None, 0, 1)


def loads(plan: Plan, grid: tuple[int, int, int]) -> Counter[str]:
    """Return the number of TMA loads of each array, in a run whose output is right."""
    trace = numpipe.Trace()
    check(plan, grid, trace=trace)
    return Counter(event.details["tensor"] for event in trace.of("load"))


# ---- loads
@pytest.mark.variants(3, thorough=8)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", PLANS)
def test_an_operand_is_loaded_when_its_block_changes_and_only_then(name: str, form: str) -> None:
    plan = replace(PLANS[name], form=form)
    for grid in GRIDS:
        found = loads(plan, grid)
        assert found == {
            f"x{n}": o.loads(grid) * plan.tiles
            for n, o in enumerate(plan.operands)
            if o.loads(grid)
        }, grid


@pytest.mark.variants(4, thorough=8)
@pytest.mark.parametrize("seed", SEEDS[1:])
@pytest.mark.parametrize("name", PLANS)
def test_in_any_schedule(name: str, seed: int) -> None:
    for grid in GRIDS:
        check(PLANS[name], grid, seed=seed)


@pytest.mark.variants(6)
@pairwise(name=tuple(UNEQUAL), form=FORMS, grid=GRIDS, seed=SEEDS)
def test_warpgroups_may_run_different_numbers_of_steps(
    name: str, form: str, grid: tuple[int, int, int], seed: int | None
) -> None:
    check(replace(UNEQUAL[name], form=form), grid, seed=seed)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", UNEQUAL)
def test_all_is_loaded_whoever_runs_fewer_steps(name: str, form: str) -> None:
    plan, grid = replace(UNEQUAL[name], form=form), GRIDS[0]
    # everything
    assert loads(plan, grid) == {
        f"x{n}": o.loads(grid) * plan.tiles for n, o in enumerate(plan.operands)
    }


BODIES = [(Operand("i"), Operand("ijk")), (Operand(""), Operand("j")), tuple(EACH)]


@pytest.mark.variants(4)
@pairwise(
    operands=BODIES,
    manual=MANUAL,
    ring=((1, 0), (2, 0), (3, 1), (3, 2)),
    grid=GRIDS[:3] + GRIDS[5:6],
    carry=(False, True),
    seeded=(False, True),
)
def test_bodies_with_barriers(
    operands: tuple[Operand, ...],
    manual: tuple[bool, bool],
    ring: tuple[int, int],
    grid: tuple[int, int, int],
    carry: bool,
    seeded: bool,
) -> None:
    slots, delay = ring
    check(
        Plan(operands, slots, delay, 1 + slots % 2, carry, "body", *manual),
        grid,
        seed=slots if seeded else None,
    )


@pytest.mark.variants(1)
@pytest.mark.parametrize("operands", BODIES, ids=["slow", "invariant", "each"])
def test_releases_of_a_tile_that_is_used_again_may_be_left_out(
    operands: tuple[Operand, ...],
) -> None:
    for manual in MANUAL[1:]:
        for grid in GRIDS:
            check(Plan(operands, form="body", ready=manual[0], consumed=True, skip=True), grid)


def test_a_body_with_barriers_may_leave_out_steps_that_others_run() -> None:
    for grid in GRIDS:
        check(
            Plan(
                (Operand("i"), Operand("ijk")),
                wgs=2,
                form="body",
                ready=True,
                consumed=True,
                steps_of="1 + 3 * wg",
            ),
            grid,
        )


# ---- bugs
SLOW = Plan((Operand("i"), Operand("ijk")), slots=1, carry=True)
LEFT = UNEQUAL["none and more than all"]
BUGS: dict[str, tuple[Plan, Bug]] = {
    "released at every step": (
        SLOW,
        Bug(
            where=steps.release_due,
            old="release_used(ring, k, ring.delay)",
            new="each(ring, 'consumed', 0, release, step_of(ring, k, 1)) if k > 0 else None",
            error=PipelineRace,
            message="x0",
        ),
    ),
    "released a step early": (
        replace(SLOW, slots=3, delay=1),
        Bug(steps.release_due, "ring.delay)", "0)", PipelineRace, "wgmma"),
    ),
    "drained to the slowest delay": (
        replace(SLOW, operands=(Operand("i", 1, 0), Operand("ijk", 3, 2))),
        Bug(steps.pending_groups, "min(delays)", "max(delays)", PipelineRace, "wgmma"),
    ),
    "never released before the end": (
        SLOW,
        Bug(
            where=steps.release_due,
            old="release_used(ring, k, ring.delay)",
            new="None",
            error=PipelineDeadlock,
            message="consumed",
        ),
    ),
    "filled at every step": (
        SLOW,
        Bug(steps.fill_begun, "begins(ring, k)", "True", SimulationError, "x0|consumed"),
    ),
    "not filled": (
        SLOW,
        Bug(steps.fill_begun, "begins(ring, k)", "k == 0", PipelineDeadlock, "ready"),
    ),
    "not waited for": (
        SLOW,
        Bug(
            where=steps.await_begun,
            old="begins(ring, k)",
            new="k == 0",
            error=PipelineRace,
            message="wgmma|arrives on consumed",
        ),
    ),
    "waited for before others are released": (
        SLOW,
        Bug(
            where=steps.advance,
            old="await_products)\n",
            new="await_products)\n        over(loop.rings, await_begun, k)\n",
            error=PipelineDeadlock,
            message="ready",
        ),
    ),
    "unused tiles not released": (
        LEFT,
        Bug(steps.pass_rest, "over(loop.rings, pass_by, k)", "None", PipelineDeadlock, "consumed"),
    ),
    "unused tiles released before they land": (
        LEFT,
        Bug(
            where=steps.pass_by,
            old='each(ring, "ready", 0, await_ready, step_of(ring, k, 0))',
            new="None",
            error=SimulationError,
            message="x0|x1",
        ),
    ),
}


@pytest.mark.parametrize("name", BUGS)
def test_a_bug_is_found_in_every_schedule(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, bug = BUGS[name]
    bug.inject(monkeypatch)
    kernel, grid = load(source(plan)), (3, 2, 2)
    for seed in (None, *range(6)):
        with pytest.raises(bug.error, match=f"(?s){bug.message}"):
            kernel.simulate(*inputs(plan, grid), *grid, seed=seed)


# ---- the GPU's code
@pytest.mark.variants(0, thorough=2)
@pytest.mark.parametrize("name", ["slow and fast", "no two alike", "one behind"])
def test_passes_the_build_gate(name: str) -> None:
    plan = (PLANS | UNEQUAL)[name]
    kernel, arguments = load(source(plan)), [*inputs(plan, (2, 2, 2)), 2, 2, 2]
    assert kernel.inspect("gate", *arguments) == ()
    resources = kernel.inspect("resources", *arguments)
    assert (resources.spill_bytes, resources.notes) == (0, ())


@pytest.mark.thorough
def test_a_ring_for_each_dependence_and_number_of_slots() -> None:
    plan = Plan(
        (Operand("i"), Operand("ik"), Operand("i"), Operand("ijk"), Operand("", 2)), slots=3
    )
    arrays = inputs(plan, (1, 1, 1))
    rings = list(load(source(plan)).compiled(*arrays, 1, 1, 1).unit.rings.values())
    assert [(ring.labels, ring.dims, ring.slots) for ring in rings] == [
        (("in_specs[0]", "in_specs[2]"), 1, 3),
        (("in_specs[1]", "in_specs[3]"), None, 3),
        (("in_specs[4]",), 0, 2),
    ]
    assert rings[-1].memory.end - 1024 == (2 * 3 + 2 * 3 + 2) * 64 * 16 * 2
    assert np.unique([ring.index for ring in rings]).size == 3
