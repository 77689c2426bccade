"""Pipelines that cover all pairs of choices of the API, with 0 to 6 steps.

`pipeline_plans.array(n)` is a covering array: plans in which all pairs of choices occur that the
rules allow. There are several arrays, so that each pair occurs with different other choices. A
failure shows the plan and its source.
"""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import replace
from typing import Any

import pytest

from numpipe import SimulationError
from numpipe.compile.check import gate
from tests.fuzz.pipeline_plans import FACTORS, RULES, Plan, allowed
from tests.fuzz.pipeline_sources import source
from tests.kernels.compilers import compiles as needs_compiler
from tests.kernels.covering import Rule, all_pairs, covering_array, examples, pairs, possible
from tests.kernels.pipeline_arrays import ARRAYS, array, check, differs, inputs, load, told

ALWAYS = 1
"""the number of arrays that always run

The others run with ``-m soak`` and combine pairs with other choices.
"""


# ---- the generator -------------------------------------------------------------------------------
SMALL = {"x": (0, 1, 2), "y": (0, 1), "z": (0, 1, 2), "w": ("p", "q")}
SMRULES = (
    Rule(lambda x, y: x + y < 3),
    Rule(lambda z, w: w == "p" or z == 0),
    Rule(lambda y, z: y != 1 or z != 2),
)


@pytest.mark.parametrize("seed", range(5))
def test_an_array_has_every_pair_that_any_row_has(seed: int) -> None:
    """Compared with all possible rows."""
    rows = [dict(zip(SMALL, values, strict=True)) for values in itertools.product(*SMALL.values())]
    legal = [
        row
        for row in rows
        if row["x"] + row["y"] < 3
        and (row["w"] == "p" or row["z"] == 0)
        and (row["y"], row["z"]) != (1, 2)
    ]
    found = covering_array(SMALL, SMRULES, seed=seed)
    assert all(row in legal for row in found)
    assert {p for row in found for p in pairs(row, SMALL)} == {
        p for row in legal for p in pairs(row, SMALL)
    }
    assert len(found) <= 10 < len(legal)


def test_a_rule_may_be_judged_early() -> None:
    rule = Rule(lambda x, y, z: x + y + z < 3, {"x": 0, "y": 0, "z": 0})
    found = covering_array({"x": (0, 3), "y": (0, 2), "z": (0, 2)}, (rule,))
    assert sorted(tuple(row.values()) for row in found) == [(0, 0, 0), (0, 0, 2), (0, 2, 0)]


def test_every_pair_of_choices_meets_in_every_array() -> None:
    found = [
        {
            p
            for plan in array(number)
            for p in pairs({name: getattr(plan, name) for name in FACTORS}, FACTORS)
        }
        for number in range(2)
    ]
    # so a pair that occurs is allowed
    assert all(allowed(plan) for number in range(2) for plan in array(number))
    assert all(met == found[0] for met in found)
    assert not any(possible(pair, FACTORS, RULES) for pair in set(all_pairs(FACTORS)) - found[0])


@pytest.mark.thorough
def test_there_are_enough_plans_and_not_too_many() -> None:
    plans = [plan for number in range(ARRAYS) for plan in array(number)]
    assert len({source(plan) for plan in plans}) > 0.9 * len(plans)
    assert len(plans) <= 300
    constants = {math.prod(grid) for plan in plans if plan.static for grid in plan.grids()}
    assert constants == set(range(7))


# ---- the plans -----------------------------------------------------------------------------------
@pytest.mark.thorough
@pytest.mark.schedules
@pytest.mark.parametrize(
    "number", [n if n < ALWAYS else pytest.param(n, marks=pytest.mark.soak) for n in range(ARRAYS)]
)
def test_plans_compute_what_numpy_does_in_any_schedule(number: int) -> None:
    """Each plan with every third number of steps, from different starts, unless all schedules are
    requested."""
    apart = 1 if examples(100) == 100 else 3
    for n, plan in enumerate(array(number)):
        for steps, grid in list(enumerate(plan.grids()))[n % apart :: apart]:
            schedule = None if (n + steps) % 4 == 0 else 100 * number + 7 * n + steps
            try:
                check(plan, grid, schedule)
            except Exception as error:
                raise AssertionError(
                    f"plan {n} of array({number}), grid {grid}, schedule {schedule}: {told(plan)}"
                ) from error


# ---- compiled ------------------------------------------------------------------------------------
def choices(plan: Plan) -> set[tuple[str, Any]]:
    return {(name, getattr(plan, name)) for name in FACTORS}


def compiles(plan: Plan) -> None:
    grid = plan.grids()[-1]
    try:
        found = gate.findings(load(plan).compiled(*inputs(plan, grid)))
        if plan.static and not math.prod(grid):  # of a loop that never runs little is left
            found = tuple(line for line in found if not line.startswith("no "))
        assert found == ()
    except Exception as error:
        raise AssertionError(told(plan)) from error


@functools.cache
def few() -> tuple[Plan, ...]:
    """Return a small set of plans that has every choice, the plan with the most choices first."""
    plans = [plan for number in range(ARRAYS) for plan in array(number)]
    # the first value is the default
    missing = {(name, value) for name, values in FACTORS.items() for value in values[1:]}
    found = []
    while missing:
        found.append(max(plans, key=lambda plan: len(missing & choices(plan))))
        missing -= choices(found[-1])
    return tuple(found)


FEW = 5


@pytest.mark.thorough
def test_so_few_plans_have_every_choice() -> None:
    assert len(few()) == FEW


@needs_compiler
@pytest.mark.thorough
@pytest.mark.parametrize("number", range(FEW))
def test_every_choice_passes_the_build_gate_once(number: int) -> None:
    """The GPU run and ``-m soak`` compile all plans."""
    compiles(few()[number])


@needs_compiler
@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("number", range(ARRAYS))
def test_all_plans_pass_the_build_gate(number: int) -> None:
    for plan in array(number):
        compiles(plan)


# ---- sensitivity of the tests --------------------------------------------------------------
def differ(plan: Plan, other: Plan, grid: tuple[int, ...]) -> bool:
    """Return whether a plan's kernel differs from the reference of another plan with the same
    arrays."""
    try:
        return differs(plan, other, grid, 1) != ""
    except SimulationError:
        return True


SEEN = Plan(
    form="body", slots=3, delay=1, carry="tuple", rank=2, inputs=3, wgs=2, chain=2, edges="nan"
)


@pytest.mark.parametrize(
    "wrong",
    [
        {"edges": "none"},
        {"tk": 32},
        {"tn": 32},
        {"rank": 2, "static": True, "extent": (1, 3, 1)},
        {"carry": "tile"},
        {"chain": 1},
    ],
    ids=str,
)
def test_a_kernel_that_computes_something_else_is_distinguished(wrong: dict[str, Any]) -> None:
    other = replace(SEEN, **wrong)
    assert not differ(SEEN, SEEN, (2, 2))
    if other.static:
        assert differ(replace(SEEN, static=True, extent=(2, 2, 1)), other, (2, 2))
    else:
        assert differ(SEEN, other, (2, 2))
