"""Covering arrays of `Plan`s, and functions that run a plan with NumPy, simulated and on a GPU."""

from __future__ import annotations

import functools
from typing import Any

from tests.fuzz.case import copied, module_of, wrong
from tests.fuzz.pipeline_plans import FACTORS, GRIDS, RULES, Plan
from tests.fuzz.pipeline_sources import case, source
from tests.kernels.covering import covering_array

ARRAYS = 7
"""number of different covering arrays; each pair of values occurs in at least this many kernels"""


@functools.cache
def array(number: int) -> list[Plan]:
    """Return plans that cover all pairs of values that any plan can have.

    Constant grids have 0 to 6 steps in turn.
    """
    rows = covering_array(FACTORS, RULES, seed=number)
    return [
        Plan(**row, extent=(*GRIDS[(5 * n + number) % 7][row["rank"] - 1], 1, 1)[:3])
        for n, row in enumerate(rows)
    ]


def load(plan: Plan) -> Any:
    """Return the kernel of a plan."""
    return module_of(source(plan), "pipeline").kernel


def inputs(plan: Plan, grid: tuple[int, ...], seed: int = 0) -> list[Any]:
    """Return the kernel's arguments, with poisoned outputs."""
    return list(case(plan, grid).given(seed).values())


def check(plan: Plan, grid: tuple[int, ...], schedule: int | None = None) -> None:
    """Simulate a plan and compare all elements of all arrays."""
    assert differs(plan, plan, grid, schedule) == ""


def differs(plan: Plan, other: Plan, grid: tuple[int, ...], schedule: int | None = None) -> str:
    """Run the kernel of another plan with the same arrays, and return how it differs from NumPy."""
    made = case(plan, grid)
    given = made.given(schedule or 0)
    after = copied(given)
    load(other).simulate(*after, seed=schedule)
    return wrong(made.right(given), dict(zip(given, after, strict=True)))


def check_on_gpu(plan: Plan, grid: tuple[int, ...], repeats: int = 10) -> None:
    """Run a plan several times on the GPU and compare all elements."""
    made = case(plan, grid)
    given = made.given()
    exact = made.right(given)
    for _ in range(repeats):
        after = copied(given)
        load(plan)(*after, target="gpu")
        assert wrong(exact, dict(zip(given, after, strict=True))) == "", f"grid {grid}"


def told(plan: Plan) -> str:
    """Describe a plan for a failure: its unusual properties and its source."""
    ordinary = Plan()
    said = ", ".join(
        f"{name}={value!r}"
        for name, value in vars(plan).items()
        if value != getattr(ordinary, name)
    )
    return f"Plan({said})\n{source(plan)}"
