"""Measure hundreds of rows, a fraction of a second each: one load for all, then row after row.

The protocols of `numpipe.bench` take 10 s per row, mostly to settle the card's clock. A sweep loads
the card once, on one row, and then measures each row as "interleaved" does, in rounds of all
competitors. A process holds the buffers of one row at a time:

    make       inputs, outputs and competitors of the row, a `Contest`
    verify     after all competitors have run once, on the first set of buffers
    time       a few calls of each; if one takes less than `SweepPlan.graph_below`, all are captured
               in CUDA graphs that go through all sets of buffers
    measure    some milliseconds of the row's own load, then the rounds, on poisoned outputs
    check      the outputs of the rounds

With `SweepPlan.idle`, a row is measured as "burst" does: each competitor after a pause.

A row that fails, because it is wrong or runs out of memory, is recorded, and the next row follows.
If the GPU no longer serves a process, the process ends, and the next one starts with the remaining
rows.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from numpipe.bench import EventTimer, Plan, Row, Timer, read, run_entry
from numpipe.bench.protocols import Session
from numpipe.bench.timer import Competitor, launch

from .files import Case, summary
from .pictures import ratio_map
from .workers import PROCESS, main

Replay = Callable[[], object]
Capture = Callable[[Callable[[], object], Callable[[], object]], Replay]
"""Runs the first function, captures the launches of the second, and returns a function that replays
them."""


@dataclass(frozen=True)
class SweepPlan:
    """Durations (seconds) and counts of a sweep."""

    load: float = 2.0
    """load of the card, once per process, before the first row"""
    reload: float = 0.02
    """load by the row itself, before its rounds"""
    rounds: int = 11
    work: float = 0.4e-3
    """GPU time between two events; shorter kernels are launched several times between them"""
    graph_below: float = 20e-6
    """if a call is shorter, all competitors of its row are launched in CUDA graphs; 0: never"""
    idle: float = 0.0
    """pause before the measurements of each competitor; 0: rounds under load"""


@dataclass(frozen=True)
class Contest:
    """A row that is ready to be measured.

    competitors  name -> function of a call count; launches on the buffers of set ``count % sets``
    sets         number of sets of buffers (`bench.rotation_sets`)
    work         work of one call: 1e-12 × flops gives TFLOPS
    poison       fills all outputs with a value that no competitor computes
    verify       called when each competitor has run on set 0 of poisoned outputs; returns what is
                 stored with the times, such as ``errors`` (name -> relative error); raises
                 AssertionError for a wrong result
    check        called after the rounds, on outputs that were poisoned before; raises
                 AssertionError for a wrong or missing result
    place        name -> positive number: where `pictures.ratio_map` draws the row
    """

    competitors: Mapping[str, Competitor]
    sets: int
    work: float
    poison: Callable[[], object]
    verify: Callable[[], Mapping[str, Any]]
    check: Callable[[], object]
    place: Mapping[str, float] = field(default_factory=dict)


class Sweep:
    """Measures rows in turn on one warm card, as ``sweep(process, case)``.

    make       (process, case) -> `Contest`; the process number is a seed of the inputs
    reference  the competitor that all are compared with, measured twice
    load       the case on which the card is loaded; default: the first row
    """

    def __init__(
        self,
        make: Callable[[int, Case], Contest],
        *,
        reference: str,
        plan: SweepPlan,
        load: Case | None = None,
        timer: Timer | None = None,
        capture: Capture | None = None,
    ) -> None:
        self.make, self.reference, self.plan, self.load = make, reference, plan, load
        self.timer, self.capture = timer, capture
        self._loaded = False

    def __call__(self, process: int, case: Case) -> dict[str, Any]:
        """Measure a row, and return its entry of the result file, which may have ``failed``.

        Raises the driver's error if it no longer serves this process.
        """
        self.timer = self.timer or EventTimer()
        if not self._loaded:
            self._load(process, self.load or case)
        try:
            return self._measured(self.timer, process, case)
        except Exception as error:
            traceback.print_exc()
            failed = f"{type(error).__name__}: {error}"
        self.timer.synchronize()  # fails if the context is lost
        return {"process": process, "case": dict(case), "failed": failed}

    def _load(self, process: int, case: Case) -> None:
        session = self._session(self.make(process, case), 0)
        session.first_times()
        session.load(session.turns, self.plan.load)
        self._loaded = True

    def _session(self, contest: Contest, load: float) -> Session:
        own = self.plan
        plan = Plan(
            load=load, rounds=own.rounds, work=own.work, idle=own.idle, burst_count=own.rounds
        )
        return Session(dict(contest.competitors), self.reference, plan, self.timer, dict)

    def _measured(self, timer: Timer, process: int, case: Case) -> dict[str, Any]:
        begun, plan = timer.now(), self.plan
        contest = self.make(process, case)
        contest.poison()
        for competitor in contest.competitors.values():
            competitor(0)
        timer.synchronize()
        facts = dict(contest.verify())
        session = self._session(contest, plan.reload)
        times = session.first_times()
        if min(times.values()) < plan.graph_below:
            facts |= self._in_graphs(timer, session, contest, statistics.fmean(times.values()))
        contest.poison()
        sample = session.burst() if plan.idle else session.interleaved("sweep")
        contest.check()
        facts |= {"place": dict(contest.place), "rotation_sets": contest.sets}
        took = round(timer.now() - begun, 3)
        return run_entry(process, case, contest.work, [sample], **facts, took=took)

    def _in_graphs(
        self, timer: Timer, session: Session, contest: Contest, seconds: float
    ) -> dict[str, Any]:
        """Replace all competitors by graphs. Return the number of launches in a graph, or why there
        are none."""
        rounds = math.ceil(self.plan.work / max(seconds, 1e-7) / contest.sets)
        launches = contest.sets * max(rounds, 1)
        try:
            self.capture = self.capture or TorchCapture()
            graphs = {
                name: Captured(each, launches, self.capture)
                for name, each in contest.competitors.items()
            }
        except Exception as error:
            timer.synchronize()
            return {"not_captured": f"{type(error).__name__}: {error}"[:200]}
        session.functions = {
            name: graphs[name if name in graphs else self.reference] for name in session.turns
        }
        session.calls = launches
        return {"graph": launches}


def sweep(
    benchmark: str,
    cases: Sequence[Case],
    make: Callable[[int, Case], Contest],
    *,
    reference: str,
    plan: SweepPlan | None = None,
    load: Case | None = None,
    patience: float = 90,
    method: Mapping[str, Any] | None = None,
    tell: Callable[[Sequence[Row]], str] = summary,
    **options: Any,
) -> int:
    """Measure hundreds of rows in several processes, as `main` does; return the exit status.

    make       (process, case) -> `Contest`: makes the buffers and competitors of a row
    load       the case on which each process first loads the card; default: its first row
    options    further arguments of `main`

    The file has the protocol "sweep". A row that failed is in the file with the reason, and makes
    the exit status 1.
    """
    plan = plan or SweepPlan()
    measure = Sweep(make, reference=reference, plan=plan, load=load)
    method = {**asdict(plan), **(method or {})}
    return main(benchmark, cases, measure, method=method, tell=tell, patience=patience, **options)


def sweep_or_read(
    benchmark: str,
    options: argparse.Namespace,
    make: Callable[[int, Case], Contest],
    *,
    name: str,
    tell: Callable[[Sequence[Row]], str],
    method: Mapping[str, Any] | None = None,
    **more: Any,
) -> int:
    """Sweep over ``options.cases``, or read a file, depending on the options of `parse_sweep`.

    name  the competitor that ``--picture`` draws
    more  further arguments of `sweep`
    """
    first, status, file = PROCESS not in os.environ, 0, options.read or options.out
    if options.read is not None:
        print(tell(read(options.read).rows))
    else:
        if first:
            print(f"seed {options.seed}, {len(options.cases)} rows", flush=True)
        names = ("processes", "gpus", "out", "seconds", "resume")
        more |= {each: getattr(options, each) for each in names}
        method = {"seed": options.seed, **(method or {})}
        status = sweep(benchmark, options.cases, make, method=method, tell=tell, **more)
    if options.picture is not None and file is not None and first:
        ratio_map([(file.name, read(file))], options.picture, name)
        print(f"drawn to {options.picture}")
    return status


# ---- graphs
class Captured:
    """A competitor as a CUDA graph of its launches 0, 1, …, which `many` replays.

    The GPU takes some microseconds to start a launch, and the host longer to queue one. In a graph,
    shorter kernels are timed without either, because the GPU knows the nodes of a graph beforehand.
    """

    def __init__(self, competitor: Competitor, launches: int, capture: Capture) -> None:
        self.launches = launches
        self._replay = capture(lambda: competitor(0), lambda: launch(competitor, 0, launches))

    def __call__(self, i: int) -> object:
        return self._replay()

    def many(self, first: int, calls: int) -> None:
        """Replay the graph until `calls` launches, a multiple of `launches`, have run."""
        for _ in range(calls // self.launches):
            self._replay()


class TorchCapture:
    """Capture on a PyTorch stream, which the launches of PyTorch and of numpipe follow.

    `torch.cuda.graph` would collect garbage and empty the allocator's cache before each capture,
    which takes longer than a row. The first call, outside the capture, allocates the workspaces
    that are kept for each stream.
    """

    def __init__(self) -> None:
        import torch

        self._torch, self._stream = torch, torch.cuda.Stream()

    def __call__(self, first: Callable[[], object], work: Callable[[], object]) -> Replay:
        torch, stream = self._torch, self._stream
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            first()
            stream.synchronize()
            graph: Any = torch.cuda.CUDAGraph()
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                work()
            finally:
                graph.capture_end()
        torch.cuda.synchronize()
        return graph.replay  # type: ignore[no-any-return]
