"""Hundreds of rows, a fraction of a second each: one load for all of them, then row after row.

The protocols of `protocols` take 10 s a row, mostly to settle the card's clock. A sweep loads the card once, on a row that is
chosen for that, and goes on from row to row; each is measured as "interleaved" measures it, in rounds of all competitors. A process
holds the buffers of one row at a time:

    make       inputs, outputs and competitors of a row, a `Contest`, by a function of the caller's
    verify     all competitors run once, on the first set of buffers
    time       a few calls of each; where one takes less than `SweepPlan.graph_below`, all are captured in CUDA graphs
               that go through all sets of buffers
    measure    some milliseconds of the row's own load, then the rounds, on poisoned outputs
    check      the outputs of the rounds

With `SweepPlan.idle` a row is measured as "burst" of `protocols` does: behind a pause, so many times in a row, each competitor.

A row that fails, because it is wrong or has no memory, is noted, and the next one follows. A process that the GPU stops serving
ends, and the next process begins with the rows behind.
"""

from __future__ import annotations

import math
import os
import statistics
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ...diagnostics.arguments import finite, require, whole
from ...diagnostics.errors import SpecError
from .device import Sensors
from .graphs import Capture, Captured, TorchCapture
from .protocols import Plan, Session
from .report import Row, run_entry
from .summaries import summary
from .timer import Competitor, EventTimer, Timer, require_gpu
from .workers import PROCESS, Case, main


@dataclass(frozen=True)
class SweepPlan:
    """Durations (seconds) and counts of a sweep."""

    load: float = 2.0
    """of the card, once in a process, before the first row"""
    reload: float = 0.02
    """of the row's own load, before its rounds"""
    rounds: int = 11
    work: float = 0.4e-3
    """GPU time between two events: shorter kernels are launched several times between them"""
    graph_below: float = 20e-6
    """a call that is shorter is launched in CUDA graphs, as are all competitors of its row; 0: never"""
    idle: float = 0.0
    """without work before the measurements of each competitor, which then run at the boost clock; 0: rounds under load"""

    def __post_init__(self) -> None:
        require("SweepPlan", vars(self), **dict.fromkeys(vars(self), finite(0)) | {"rounds": whole(1)})


@dataclass(frozen=True)
class Contest:
    """A row that is ready to be measured.

    competitors  name -> function of a call count, which launches the work on the buffers of set ``count % sets``
    sets         sets of buffers (`rotation_sets`)
    work         what one call does: 1e-12 × flops gives TFLOPS
    poison       fills all outputs with what no competitor computes
    verify       called when each competitor ran on set 0 of poisoned outputs: returns what is to be kept with the times, ``errors``
                 (name -> relative error) among it; raises AssertionError for a wrong result
    check        called after the rounds, which began with poisoned outputs: raises AssertionError for a wrong or missing result
    place        numbers by which `ratio_map` places the row: name -> value, all positive
    """

    competitors: Mapping[str, Competitor]
    sets: int
    work: float
    poison: Callable[[], object]
    verify: Callable[[], Mapping[str, Any]]
    check: Callable[[], object]
    place: Mapping[str, float] = field(default_factory=dict)


class Sweep:
    """Measures rows in turn on one warm card, as ``sweep(process, case)``; makes what the rows share with the first one.

    make       (process, case) -> `Contest`; the process' number is a seed of the inputs
    reference  the competitor that all are compared with, measured twice
    load       the case on which the card is loaded; None: the first row that comes
    """

    def __init__(self, make: Callable[[int, Case], Contest], *, reference: str, plan: SweepPlan | None = None,
                 load: Case | None = None, timer: Timer | None = None, capture: Capture | None = None,
                 sensors: Sensors | None = None) -> None:
        self.make, self.reference, self.plan, self.load = make, reference, plan or SweepPlan(), load
        self._timer, self._capture, self._sensors = timer, capture, sensors
        self._loaded = False

    def __call__(self, process: int, case: Case) -> dict[str, Any]:
        """Measure a row; returns its entry of the result file, which says what `failed` where it did.

        Raises what the driver reports when it no longer serves this process.
        """
        if not self._loaded:
            self._load_once(process, case)
        try:
            return self._measured(process, case)
        except Exception as error:
            traceback.print_exc()
            failed = f"{type(error).__name__}: {error}"
        self.timer.synchronize()  # of a lost context every call fails
        return {"process": process, "case": dict(case), "failed": failed}

    @property
    def timer(self) -> Timer:
        if self._timer is None:
            self._timer = EventTimer()
        return self._timer

    @property
    def capture(self) -> Capture:
        if self._capture is None:
            self._capture = TorchCapture()
        return self._capture

    def _session(self, contest: Contest, load: float) -> Session:
        if self.reference not in contest.competitors:
            raise SpecError(f"reference={self.reference!r} is not among the competitors {list(contest.competitors)}: name one")
        plan = Plan(load=load, rounds=self.plan.rounds, work=self.plan.work, idle=self.plan.idle, burst_count=self.plan.rounds)
        return Session(dict(contest.competitors), self.reference, plan, self.timer, self._sensors or dict)

    def _load_once(self, process: int, case: Case) -> None:
        session = self._session(self.make(process, case if self.load is None else self.load), 0)
        session.first_times()
        session.load(session.turns, self.plan.load)
        self._loaded = True

    def _measured(self, process: int, case: Case) -> dict[str, Any]:
        begun, plan = self.timer.now(), self.plan
        contest = self.make(process, case)
        contest.poison()
        for competitor in contest.competitors.values():
            competitor(0)
        self.timer.synchronize()
        facts = dict(contest.verify())
        session = self._session(contest, plan.reload)
        times = session.first_times()
        if min(times.values()) < plan.graph_below:
            facts |= self._in_graphs(session, contest, statistics.fmean(times.values()))
        contest.poison()
        sample = session.burst() if plan.idle else session.interleaved("sweep")
        contest.check()
        return run_entry(process, case, contest.work, [sample], **facts, place=dict(contest.place), rotation_sets=contest.sets,
                         took=round(self.timer.now() - begun, 3))

    def _in_graphs(self, session: Session, contest: Contest, seconds: float) -> dict[str, Any]:
        """Put graphs in the place of all competitors; returns what to note: launches of a graph, or why one was not captured."""
        rounds = math.ceil(self.plan.work / max(seconds, 1e-7) / contest.sets)  # through all sets of buffers
        launches = contest.sets * max(rounds, 1)
        try:
            graphs = {name: Captured(each, launches, self.capture) for name, each in contest.competitors.items()}
        except Exception as error:
            self.timer.synchronize()
            return {"not_captured": f"{type(error).__name__}: {error}"[:200]}
        session.functions = {name: graphs[name if name in graphs else self.reference] for name in session.turns}
        session.calls = launches
        return {"graph": launches}


def sweep(benchmark: str, cases: Sequence[Case], make: Callable[[int, Case], Contest], *, reference: str,
          plan: SweepPlan | None = None, load: Case | None = None, processes: int = 3, gpus: int = 1, out: Path | None = None,
          seconds: float | None = None, resume: bool = False, patience: float = 90, method: Mapping[str, Any] | None = None,
          unit: str = "TFLOPS", ahead: Callable[[], object] | None = None, tell: Callable[[Sequence[Row]], str] = summary) -> int:
    """Measure hundreds of rows in `processes` processes, print table and summary, and write `out`; returns the exit status.

    make      (process, case) -> `Contest`: makes the buffers and competitors of a row
    load      the case on which each process loads the card before the first row; by default the first row that comes
    seconds   of the whole run, `ahead` included: then the processes begin no more rows
    resume    go on with the file `out`: its runs stay, and rows of the fewest runs come first
    patience  seconds that a row may take; then its process is ended
    ahead     called once, before the processes start: what it compiles is in the disk cache for all (`spread`)
    tell      makes the text that is printed below the table

    The file has the schema of `main`, with the protocol "sweep"; it holds `method` before the first row is measured, and is written
    anew after each. A failed row stands in the file with the reason, and makes the status 1.
    Raises TargetError on a machine without a GPU.
    """
    plan, begun = plan or SweepPlan(), time.time()
    measure = Sweep(make, reference=reference, plan=plan, load=load)
    if PROCESS not in os.environ and ahead is not None:
        require_gpu()
        ahead()
    return main(benchmark, cases, measure, processes=processes, gpus=gpus, out=out, method={**asdict(plan), **(method or {})},
                unit=unit, tell=tell, seconds=seconds, begun=begun, resume=resume, patience=patience)
