"""Covering arrays of `Plan`s, and how a plan is run: beside NumPy, simulated and on a GPU."""

from __future__ import annotations

import functools
from typing import Any

from tests.fuzz.case import copied, module_of, wrong
from tests.fuzz.pipeline_plans import FACTORS, GRIDS, RULES, Plan
from tests.fuzz.pipeline_sources import case, source
from tests.kernels.covering import covering_array

ARRAYS = 7
"""covering arrays, different ones: each pair meets in at least so many kernels"""


@functools.cache
def array(number: int) -> list[Plan]:
    """Plans in which all pairs of values meet that any plan has; grids that are constants have 0 to
    6 steps in turn."""
    rows = covering_array(FACTORS, RULES, seed=number)
    return [
        Plan(**row, extent=(*GRIDS[(5 * n + number) % 7][row["rank"] - 1], 1, 1)[:3])
        for n, row in enumerate(rows)
    ]


def load(plan: Plan) -> Any:
    """The kernel of a plan."""
    return module_of(source(plan), "pipeline").kernel


def inputs(plan: Plan, grid: tuple[int, ...], seed: int = 0) -> list[Any]:
    """The kernel's arguments, outputs poisoned."""
    return list(case(plan, grid).given(seed).values())


def check(plan: Plan, grid: tuple[int, ...], schedule: int | None = None) -> None:
    """Simulate a plan, and compare all elements of all arrays."""
    assert differs(plan, plan, grid, schedule) == ""


def differs(plan: Plan, other: Plan, grid: tuple[int, ...], schedule: int | None = None) -> str:
    """What the kernel of another plan, that has the same arrays, makes of a plan's arguments
    otherwise than NumPy of the plan."""
    made = case(plan, grid)
    given = made.given(schedule or 0)
    after = copied(given)
    load(other).simulate(*after, seed=schedule)
    return wrong(made.right(given), dict(zip(given, after, strict=True)))


def check_on_gpu(plan: Plan, grid: tuple[int, ...], repeats: int = 10) -> None:
    """The same on the GPU, several times."""
    made = case(plan, grid)
    given = made.given()
    exact = made.right(given)
    for _ in range(repeats):
        after = copied(given)
        load(plan)(*after, target="gpu")
        assert wrong(exact, dict(zip(given, after, strict=True))) == "", f"grid {grid}"


def told(plan: Plan) -> str:
    """A plan as a failure shows it: what is not ordinary about it, and its source."""
    ordinary = Plan()
    said = ", ".join(
        f"{name}={value!r}"
        for name, value in vars(plan).items()
        if value != getattr(ordinary, name)
    )
    return f"Plan({said})\n{source(plan)}"
