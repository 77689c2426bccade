"""Pipelines with several rings on the GPU: exact results in many runs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.kernels.barrier_plans import MANUAL
from tests.kernels.step_plans import EACH, GRIDS, Operand, Plan, check
from tests.language.pipeline.test_steps import BODIES, FORMS, PLANS, UNEQUAL

PROCESSES = 4
REPEATS = 5


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", PLANS)
def test_every_dependence(name: str, form: str) -> None:
    for grid in GRIDS:
        check(replace(PLANS[name], form=form), grid, target="gpu")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", UNEQUAL)
def test_unequal_steps(name: str, form: str) -> None:
    for grid in GRIDS:
        check(replace(UNEQUAL[name], form=form), grid, target="gpu")


@pytest.mark.parametrize("slots, delay", [(1, 0), (3, 1), (3, 2)])
@pytest.mark.parametrize("manual", MANUAL, ids=str)
@pytest.mark.parametrize("operands", BODIES, ids=["slow", "invariant", "each"])
def test_bodies_with_barriers(
    operands: tuple[Operand, ...], manual: tuple[bool, bool], slots: int, delay: int
) -> None:
    for carry in (True, False):
        for grid in GRIDS:
            check(
                Plan(operands, slots, delay, 1 + slots % 2, carry, "body", *manual),
                grid,
                target="gpu",
            )


def test_long_chains_again_and_again() -> None:
    plan = Plan(tuple(EACH), slots=3, delay=1, wgs=2, carry=True, tiles=16, steps_of="70 + wg")
    for _ in range(REPEATS):
        check(plan, (5, 4, 4), target="gpu")
