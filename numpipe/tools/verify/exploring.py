"""`numpipe.verify(…, schedules="all")`: run a kernel under all schedules up to equivalence
(`numpipe.sim.exploration`).

A schedule of a launch consists of a schedule for each cluster of CTAs, and of the order in which
CTAs draw tiles from a counter. Clusters do not wait for each other, and conflicting accesses of two
clusters are detected whatever their order. So the schedules of each cluster are explored
separately, with the other clusters in the virtual-time order, and this is repeated for each
assignment of tiles.
"""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ...arch.dimensions import Dim3
from ...diagnostics.errors import SimulationError
from ...diagnostics.progress_bar import progress_bar
from ...kernels.simulation_checks import Judge
from ...sim.chosen_schedules import Agent, Guide
from ...sim.exploration import Exploration, Explored
from .argument_copies import Arguments, Arrays

if TYPE_CHECKING:
    from ...kernels.kernel import Kernel


@dataclass
class Coverage:
    """What an exploration has covered.

    classes     equivalence classes of schedules; one schedule of each was run
    redundant   schedules that were abandoned because their class had been run already
    steps       number of steps of the longest schedule
    complete    whether these are all classes
    why         if not, the bound that was reached
    """

    classes: int = 0
    redundant: int = 0
    steps: int = 0
    complete: bool = True
    why: str = ""

    def __str__(self) -> str:
        if self.complete:
            return (
                "all schedules, which are of one class,"
                if self.classes == 1
                else f"all {self.classes:,} classes of schedules"
            )
        return (
            f"{self.classes:,} class{'es' * (self.classes != 1)} of schedules, not all "
            f"({self.why}),"
        )


@dataclass(frozen=True)
class Class:
    """One equivalence class: the arrays that its schedule leaves, {} after an error, its judge, and
    what was explored."""

    arrays: Arrays
    judge: Judge
    explored: Explored

    @property
    def shown(self) -> Dim3:
        """Sort key among schedules that show the same failure; the one with the smallest is
        shown."""
        explored = self.explored
        return explored.switches, len(explored.name.turns), len(explored.steps)


@dataclass
class All:
    """All equivalence classes of a call of `kernel`, found in at most `limit` seconds. `judge`
    makes the judge of each run. Iterate once."""

    kernel: Kernel
    arguments: Arguments
    judge: Callable[..., Judge]
    limit: float
    coverage: Coverage = field(default_factory=Coverage)

    def __iter__(self) -> Iterator[Class]:
        end = time.perf_counter() + self.limit
        text = f"{self.kernel.name}: explore"
        with progress_bar(text, unit=" classes", delay=2) as bar:
            for exploration, explored in self._explorations():
                coverage = self.coverage
                if explored is None:
                    coverage.redundant += 1
                else:
                    coverage.classes += 1
                    coverage.steps = max(coverage.steps, len(explored.steps))
                    if exploration.partly:
                        coverage.complete, coverage.why = False, exploration.partly
                    arrays, judge = explored.result or ({}, self.judge())
                    bar.update()
                    yield Class(arrays, judge, explored)
                if time.perf_counter() > end:
                    coverage.complete, coverage.why = False, f"bound of {self.limit:g} s reached"
                    return

    def _explorations(self) -> Iterator[tuple[Exploration, Explored | None]]:
        """Explore each cluster, for each assignment of tiles."""
        clusters, drawn = yield from self._clusters(())
        ctas = clusters * self.kernel.options.attributes.size
        # each CTA starts with a tile of its own, and its last draw finds none left
        tiles = drawn - 2 * ctas
        in_turn = tuple(number % ctas for number in range(tiles))
        for deal in itertools.product(range(ctas), repeat=max(0, tiles)):
            if deal != in_turn:
                yield from self._clusters(deal)

    def _clusters(
        self, deal: Sequence[int]
    ) -> Generator[tuple[Exploration, Explored | None], None, tuple[int, int]]:
        """Explore each cluster. Return how many clusters there are, and how many work indices were
        drawn."""
        cluster, clusters, drawn = 0, 1, 0
        while cluster < clusters:
            exploration = Exploration(self._run, cluster, deal)
            for explored in exploration:
                yield exploration, explored
            cluster += 1
            clusters = exploration.clusters
            drawn = max(drawn, exploration.drawn)
        return clusters, drawn

    def _run(self, guide: Guide) -> tuple[Arrays, Judge]:
        judge = self.judge(seed=guide)
        return self.arguments.run(functools.partial(self.kernel.judged, judge)), judge

    def shortest(self, found: Class) -> Class:
        """Return a class that shows the same report in fewer steps, with fewer switches between
        warpgroups.

        It omits the steps that the failure does not need, and each warpgroup runs on while it can.
        """
        failed = found.explored
        if failed.error is None or not failed.steps:
            return found
        order = self._in_order(failed)

        def choose(number: int, enabled: tuple[Agent, ...], usual: int) -> int:
            return (
                enabled.index(order[number])
                if number < len(order) and order[number] in enabled
                else usual
            )

        guide = Guide(failed.name.cluster, choose, failed.name.deal)
        try:
            self._run(guide)
        except SimulationError as error:
            again = Explored(None, error, guide.name, tuple(guide.directed.steps), ())
            shorter = Class({}, found.judge, again)
            if _said(error) == _said(failed.error) and shorter.shown < found.shown:
                return shorter
        return found

    @staticmethod
    def _in_order(explored: Explored) -> list[Agent]:
        """Return an order of the steps that the failing step needs, itself included."""
        steps, before = explored.steps, explored.before
        last = len(steps) - 1
        wanted = before[last] | 1 << last if steps[last].footprint.failed else (2 << last) - 1
        left = [n for n in range(len(steps)) if wanted >> n & 1 and not steps[n].waited]
        order: list[Agent] = []
        while left:
            ready = [
                n for n in left if not any(before[n] >> other & 1 for other in left if other < n)
            ]
            # run operations that no warpgroup performs only when nothing else can: they affect no
            # warpgroup
            step = min(
                ready,
                key=lambda n: (
                    [steps[n].agent] != order[-1:],
                    isinstance(steps[n].agent[0], str),
                    n,
                ),
            )
            left.remove(step)
            order.append(steps[step].agent)
        return order


def _said(error: SimulationError) -> Any:
    return (
        (error.report.hazard, error.report.now and error.report.now.lines)
        if error.report is not None
        else str(error)
    )
