"""Exhaustive enumeration of the orders of a simulated run, as a reference for exploration, which
skips equivalent orders."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from numpipe.sim import simulate
from numpipe.sim.chosen_schedules import Agent, Guide
from numpipe.sim.exploration import Exploration, Explored, _Node


class EveryOrder(Exploration):
    """A scheduler that runs every runnable warpgroup at each step, one order after another."""

    def _choose(self, number: int, enabled: tuple[Agent, ...], usual: int) -> int:
        path = self._path
        if number == len(path):
            path.append(_Node(enabled, {}, enabled[usual], list(enabled)))
        return enabled.index(path[number].chosen)

    def _reverse(self, first: int, later: int) -> None:
        """Return nothing to reverse: all orders are tried anyway."""


def class_of(explored: Explored) -> frozenset[Any]:
    """Return each step with the steps that precede it in all schedules of the class, leaving out
    pure waits."""
    numbers = Counter[Agent]()
    names = []
    for step in explored.steps:
        numbers[step.agent] += 1
        names.append((step.agent, numbers[step.agent]))
    return frozenset(
        (name, frozenset(other for n, other in enumerate(names) if before >> n & 1))
        for name, step, before in zip(names, explored.steps, explored.before, strict=True)
        if not step.waited
    )


def outcome(explored: Explored) -> Any:
    """Return the result of a schedule, or the hazard and operation that it reports."""
    if explored.error is None:
        return explored.result
    report = explored.error.report
    assert report is not None
    if report.now is None:
        return report.hazard, tuple((party.warpgroup, party.did) for party in report.waiting)
    return report.hazard, report.now.did.partition(":")[0][:40], report.now.warpgroup


def explored(
    make: Callable[[], tuple[Callable[[Any], None], Any]],
    kind: type[Exploration] = Exploration,
    most: int = 10**9,
    **options: Any,
) -> list[Explored] | None:
    """Explore ``body, result = make()``, created again for each run; None for more than `most`
    classes."""

    def run(guide: Guide) -> Any:
        body, result = make()
        simulate(body, seed=guide, **options)
        return result() if callable(result) else result

    found = []
    for one in kind(run):
        if one is not None:
            found.append(one)
        if len(found) > most:
            return None
    return found
