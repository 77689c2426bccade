"""Schedules in which every step is chosen: by name, to rerun a schedule, or by an exploration
(`exploration`).

Every task that could run at a step may be chosen. A warpgroup yields wherever it has touched
something that others touch too (`footprints`), and before every operation that may wait; it is not
run while it would only wait. So a schedule is the sequence of the tasks that are run. Its name
lists the differences from the default schedule, in which a task runs until it waits and is followed
by the task that has waited longest: ``"0: 12.1 30.2"`` means that cluster 0 (in index order) runs
its second enabled task at step 12, and its third at step 30. With ``"0 / 0110: 12.1"`` the CTAs 0,
1, 1 and 0 draw the next work indices (`schedule.WorkCounter`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from ..arch.dimensions import Dim3, Ints
from ..diagnostics.errors import SpecError
from .footprints import Footprint
from .regions import bounds, joined
from .schedule import InOrder, Ready, Task

Agent: TypeAlias = tuple
"""The task that runs: (rank, warpgroup), or (kind, rank, warpgroup) and usually a number for an
operation that a warpgroup has issued."""
Choose = Callable[[int, tuple[Agent, ...], int], int]
"""``choose(step, enabled, usual)`` returns an index into `enabled`."""
POLLS = 2
"""Unsuccessful tests of one phase that a warpgroup makes before others run until the answer
changes."""
MOST_STEPS = 20_000
"""The number of recorded steps. A longer run is in an endless loop, or too long to be explored."""


@dataclass(frozen=True)
class Name:
    """A schedule of one cluster: the steps at which a task other than the default one is run, and
    which task.

    deal   the CTAs that draw the first work indices that are not their own
    """

    cluster: int = 0
    turns: tuple[tuple[int, int], ...] = ()
    deal: Ints = ()

    def __str__(self) -> str:
        dealt = f" / {'.'.join(map(str, self.deal))}" if self.deal else ""
        return f"{self.cluster}{dealt}:{''.join(f' {step}.{which}' for step, which in self.turns)}"

    @classmethod
    def of(cls, text: str) -> Name:
        """Parse the name of a schedule. Raises SpecError for an invalid name.

        >>> Name.of("0: 12.1 30.2")
        Name(cluster=0, turns=((12, 1), (30, 2)), deal=())
        """
        match = re.fullmatch(r"(\d+)(?: / (\d+(?:\.\d+)*))?:((?: \d+\.\d+)*)", text)
        if match is None:
            raise SpecError(
                f"seed={text!r}: a string must be the name of a schedule from numpipe.verify(…, "
                "schedules='all'), such as '0: 12.1 30.2'; otherwise a seed is an int, or None for "
                "the virtual-time order"
            )
        turns = (turn.split(".") for turn in match[3].split())
        return cls(
            int(match[1]),
            tuple((int(step), int(which)) for step, which in turns),
            tuple(map(int, match[2].split("."))) if match[2] else (),
        )


class _Task(NamedTuple):
    """A task that can run next. `deferred`: its last test of a barrier failed, and testing again
    now would fail too."""

    time: int
    run: Task
    ready: Ready | None
    maker: int
    deferred: bool


@dataclass(eq=False)
class Step:
    """A task that was run until it yielded.

    enabled   the tasks that could have been run
    maker     the step that began an asynchronous operation; -1 if unknown
    waited    whether nobody could continue: the task was run to report what it waits for
    deferred  whether the task unsuccessfully tested a barrier for the last time before the answer
              changes: `POLLS`
    """

    agent: Agent
    enabled: tuple[Agent, ...]
    maker: int
    waited: bool
    footprint: Footprint = field(default_factory=Footprint)
    deferred: bool = False


class Directed(InOrder):
    """The scheduler of a cluster that calls ``choose(step, enabled, usual)`` for the next task,
    which returns an index into `enabled`."""

    explores = True

    def __init__(self, choose: Choose) -> None:
        super().__init__()
        self._choose = choose
        self._waiting: dict[Agent, _Task] = {}
        self._numbers: Counter[Agent] = Counter()
        self._clock = 0
        self._polls: Counter[Any] = Counter()
        self._ready: Ready | None = None
        self._now = Step((), (), -1, True)
        self.steps: list[Step] = []
        self.turns: list[tuple[int, int]] = []
        """The steps at which a task other than the default one was chosen."""
        self.over = False
        self.cut = False
        """Whether some steps were not recorded."""
        self._bases: list[Dim3] = []
        """(first byte, one past the last byte, index of the first array) of arrays that overlap."""
        self._stuck: set[Agent] = set()

    # ---- tasks
    def push(self, time: int, task: Task, owner: object) -> None:
        running = self._now.agent
        if not isinstance(owner, str):
            agent: Agent = (owner.place, owner.warpgroup)  # type: ignore[attr-defined]
        elif isinstance(running[0], str):  # the second half of a store, the next product
            agent = running
        elif owner == "wgmma":  # products run one after the other
            agent = owner, *running
        else:
            kind = owner, *running
            self._numbers[kind] += 1
            agent = *kind, self._numbers[kind]
        ready, self._ready = self._ready if agent == running else None, None
        deferred = ready is not None and self._now.deferred
        self._waiting[agent] = _Task(time, task, ready, len(self.steps) - 1, deferred)

    def pop(self) -> tuple[int, Task] | None:
        tasks = self._waiting
        if not tasks:
            self.over = True
            return None
        enabled = tuple(
            [agent for agent, task in tasks.items() if task.ready is None or task.ready()]
        )
        stuck = not enabled
        if stuck:  # a loop of tests may end by itself; then each task reports what it waits for
            tests = [a for a, task in tasks.items() if task.deferred and a not in self._stuck]
            enabled = (min(tests, default=next(iter(tasks))),)
        else:
            self._stuck.clear()
        again = stuck and enabled[0] in self._stuck  # it repeats an unsuccessful test
        self._stuck.update(enabled if stuck else ())
        self.cut = self.cut or (len(self.steps) == MOST_STEPS and not again)
        running = self._now.agent
        usual = enabled.index(running) if running in enabled else 0
        which = usual if self.cut or again else self._choose(len(self.steps), enabled, usual)
        if which != usual:
            self.turns.append((len(self.steps), which))
        agent = enabled[which]
        task = tasks.pop(agent)
        self._now = Step(agent, enabled, task.maker if isinstance(agent[0], str) else -1, stuck)
        if not again and not self.cut:
            self.steps.append(self._now)
        self._clock = max(self._clock, task.time)  # so that a trace shows the steps in order
        return self._clock, task.run

    def pause(self, ready: Ready | None = None) -> int | None:
        if ready is None and not self._now.footprint:
            return None  # no other task can observe the difference
        self._ready = ready
        return 0

    def defer(self, thing: tuple, ready: Ready) -> None:
        key = self._now.agent, thing
        self._polls[key] += 1
        if self._polls[key] >= POLLS:
            self._ready = ready
            self._now.deferred = True

    # ---- what a step touches
    def touch(self, *args: Any, **kwargs: Any) -> None:
        self._now.footprint.touch(*args, **kwargs)

    def touch_bytes(self, rank: int, lo: int, hi: int, how: str) -> None:
        self._now.footprint.touch_memory(rank, (), ((lo, hi),), how)

    def touch_array(self, array: np.ndarray, index: Sequence[slice], how: str) -> None:
        lo, hi = bounds(array)  # words may begin before their array
        first, _, number = next(
            (base for base in self._bases if base[0] < hi and lo < base[1]), (0, 0, -1)
        )
        view = lo - first, array.shape, array.strides, array.itemsize
        self._now.footprint.touch_memory(
            ("array", number), view, tuple([(part.start, part.stop) for part in index]), how
        )

    def arrays(self, arrays: Sequence[np.ndarray]) -> None:
        self._bases = joined(arrays)


class Guide:
    """Instructions for a run: one cluster's schedule is directed, and the others run in
    virtual-time order."""

    def __init__(
        self,
        cluster: int,
        choose: Choose,
        deal: Sequence[int] = (),
    ) -> None:
        self.cluster, self.deal = cluster, deal
        self.directed = Directed(choose)
        self.clusters = 0
        """Clusters of the launch."""
        self.drawn = 0
        """The number of work indices that were drawn."""
        self.layout: dict[str, int] = {}
        """Offsets in shared memory, so that footprints of two runs can be compared."""

    def scheduler(self) -> InOrder:
        """Return the scheduler of the next cluster."""
        self.clusters += 1
        return self.directed if self.clusters - 1 == self.cluster else InOrder()

    @property
    def name(self) -> Name:
        """The name of the schedule that was run."""
        return Name(self.cluster, tuple(self.directed.turns), tuple(self.deal))


def named_guide(name: Name) -> Guide:
    """Return the guide that reruns a schedule."""
    turns = dict(name.turns)

    def choose(step: int, enabled: tuple[Agent, ...], usual: int) -> int:
        which = turns.get(step, usual)
        if which >= len(enabled):
            raise SpecError(
                f"seed='{name}': at step {step} only {len(enabled)} could run: it is the schedule "
                "of another kernel, or of other arguments"
            )
        return which

    return Guide(name.cluster, choose, name.deal)
