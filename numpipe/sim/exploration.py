"""Exploration of all schedules of a cluster up to equivalence, by dynamic partial-order reduction.

Two schedules are equivalent if exchanging neighboring independent steps (`footprints`) turns one
into the other: they end in the same state, with the same report. So one schedule of each class is
run. Nothing is known beforehand: a schedule is run to its end, and for each pair of its steps that
are dependent, with nothing in between that orders them, another schedule is added in which the
later step comes first (Flanagan, Godefroid, "Dynamic partial-order reduction for model checking
software", POPL 2005). The tasks to run there instead are a source set, and an explored task sleeps
until something that it depends on is run (Abdulla, Aronsson, Jonsson, Sagonas, "Source Sets: A
Foundation for Optimal Dynamic Partial Order Reduction", J. ACM 64 (4), 2017, algorithm 1). Sleep
sets ensure that no class is run twice; a schedule in which every task sleeps is abandoned.

A state cannot be saved, because it is in the frames of greenlets. So each schedule is rerun from
its beginning.

A report ends a run, so the step that fails keeps all others from running. Every task that could
have continued instead is run there too, and a failing step depends on all steps that touched the
same things. So failures that are reported elsewhere, or differently, are found too.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..arch.dimensions import Ints
from ..diagnostics.errors import SimulationError
from .chosen_schedules import Agent, Guide, Name, Step
from .footprints import Footprint, dependent, enables, wakes

Sleeping = dict[Agent, Footprint]
Run = Callable[[Guide], Any]
"""Simulates the kernel for a guide; returns what it leaves, or raises a SimulationError."""


class Redundant(BaseException):
    """Ends a schedule whose class has been explored."""


@dataclass(frozen=True)
class Explored:
    """One class: the result of its schedule, or its error; the schedule's name; the number of task
    switches; its steps."""

    result: Any
    error: SimulationError | None
    name: Name
    steps: tuple[Step, ...]
    before: Ints

    @property
    def switches(self) -> int:
        """The number of steps that run a different warpgroup than the previous step."""
        agents = [step.agent for step in self.steps if not isinstance(step.agent[0], str)]
        return sum(a != b for a, b in itertools.pairwise(agents))


@dataclass(eq=False)
class _Node:
    """A state on the path to the newest schedule: the tasks that can run there, have run, are due,
    and sleep."""

    enabled: tuple[Agent, ...]
    sleep: Sleeping
    chosen: Agent
    due: list[Agent] = field(default_factory=list)
    step: Step | None = None
    before: int = 0
    """The steps that come before its step in each schedule of the class, as bits."""

    def next_sleep(self) -> Sleeping:
        assert self.step is not None
        now = self.step.footprint
        return {
            agent: its
            for agent, its in self.sleep.items()
            if agent != self.chosen and not wakes(its, now)
        }


class Exploration:
    """The schedules of one cluster of a launch, for one deal of its work indices. Iterate over it
    to get the classes.

    partly      why some classes may not have been found; "" if all have
    clusters    of the launch; `drawn`: the most work indices that were drawn
    """

    def __init__(self, run: Run, cluster: int = 0, deal: Sequence[int] = ()) -> None:
        self._run, self._cluster, self._deal = run, cluster, deal
        self._path: list[_Node] = []
        self.partly = ""
        self._layout: dict[str, int] = {}
        self.clusters = self.drawn = 0

    def __iter__(self) -> Iterator[Explored | None]:
        """Yield each class as it is found, until all have been, and None for each abandoned
        schedule."""
        fresh = 0
        while True:
            yield self._next(fresh)
            while self._path and not self._advance(self._path[-1]):
                self._path.pop()
            if not self._path:
                return
            fresh = len(self._path) - 1

    @staticmethod
    def _advance(node: _Node) -> bool:
        """Run the next due task at a state; return False if there is none."""
        assert node.step is not None
        node.sleep[node.chosen] = node.step.footprint
        chosen = next((agent for agent in node.due if agent not in node.sleep), None)
        if chosen is None:
            return False
        node.chosen = chosen
        return True

    # ---- one schedule
    def _next(self, fresh: int) -> Explored | None:
        """Run a schedule along the path and beyond it; the new part begins at step `fresh`. Return
        None if it was abandoned."""
        guide = Guide(self._cluster, self._choose, self._deal)
        self._guide = guide
        result, error, redundant = None, None, False
        try:
            result = self._run(guide)
        except SimulationError as raised:
            error = raised
        except Redundant:
            redundant = True
        directed = guide.directed
        steps = directed.steps
        for node, step in zip(self._path, steps, strict=True):
            node.step = step
        if error is not None and steps and not directed.over and not directed.cut:
            steps[-1].footprint.failed = True
            last = self._path[-1]
            last.due += [agent for agent in last.enabled if agent not in last.due]
        if directed.cut:
            self.partly = f"some have more than {len(steps):,} steps"
        if any(
            self._layout.setdefault(what, where) != where for what, where in guide.layout.items()
        ):
            self.partly = "the layout of shared memory depends on the schedule"
        self.clusters, self.drawn = max(self.clusters, guide.clusters), max(self.drawn, guide.drawn)
        for first, later in _races(self._path, fresh):
            self._reverse(first, later)
        if redundant:
            return None
        return Explored(
            result, error, guide.name, tuple(steps), tuple(node.before for node in self._path)
        )

    def _choose(self, number: int, enabled: tuple[Agent, ...], usual: int) -> int:
        path, steps = self._path, self._guide.directed.steps
        if number:
            path[number - 1].step = steps[number - 1]
        if number < len(path):
            return enabled.index(path[number].chosen)
        sleep = path[-1].next_sleep() if path else {}
        order = [enabled[usual], *enabled]
        chosen = next((agent for agent in order if agent not in sleep), None)
        if chosen is None:
            raise Redundant
        path.append(_Node(enabled, sleep, chosen, [chosen]))
        return enabled.index(chosen)

    def _reverse(self, first: int, later: int) -> None:
        """Add a schedule in which step `later` comes before step `first`, if there is one."""
        path = self._path
        node = path[first]
        apart = [n for n in range(first + 1, later) if not path[n].before >> first & 1]
        among = sum(1 << n for n in apart) | 1 << later
        begins = [path[n].chosen for n in (*apart, later) if not path[n].before & among]
        if any(agent in node.due or agent in node.sleep for agent in begins):
            return
        agent = next((agent for agent in begins if agent in node.enabled), None)
        if agent is not None:
            node.due.append(agent)


def _races(path: Sequence[_Node], fresh: int) -> list[tuple[int, int]]:
    """Find the steps that come before each step from `fresh` on. Return pairs of dependent steps
    that no step in between orders."""
    found = []
    for later, first in _ordered(path, fresh):
        one, other = path[first].step, path[later].step
        assert one is not None and other is not None
        if not enables(one.footprint, other.footprint):
            found.append((first, later))
    return found


def _ordered(path: Sequence[_Node], fresh: int) -> Iterator[tuple[int, int]]:
    """Set `before` of each step from `fresh` on; yield (step, earlier step) for pairs that depend
    on each other directly."""
    by_thing: defaultdict[Any, list[int]] = defaultdict(list)
    newest: dict[Agent, int] = {}
    for number, node in enumerate(path):
        step = node.step
        assert step is not None
        keys = [*step.footprint.things, *step.footprint.memory]
        if number >= fresh:
            node.before = 0
            for earlier in (newest.get(step.agent, -1), step.maker):
                if earlier >= 0:
                    node.before |= path[earlier].before | 1 << earlier
            for earlier in sorted({n for key in keys for n in by_thing[key]}, reverse=True):
                its = path[earlier].step
                if (
                    not node.before >> earlier & 1
                    and its is not None
                    and dependent(its.footprint, step.footprint)
                ):
                    node.before |= path[earlier].before | 1 << earlier
                    yield number, earlier
        for key in keys:
            by_thing[key].append(number)
        newest[step.agent] = number
