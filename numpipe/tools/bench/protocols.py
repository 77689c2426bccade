"""The three ways to hold a kernel against a reference.

A Hopper card is limited by its power: after a second of matrix products its clock settles where the power meets the
cap, and a kernel that draws less then runs at a higher clock. So one number does not say which kernel is faster:

===========  ===================================================  ========================================
protocol     what happens                                         what the ratio says
===========  ===================================================  ========================================
burst        8 measurements after 1.5 s without work              both at the boost clock, power to spare
interleaved  2 s of load, then rounds of all competitors          both at one clock: a ratio of cycles
alone        each under its own load, the reference first and     each at the clock its own power allows
             again last
===========  ===================================================  ========================================

The reference always runs twice. Its second time over its first is the noise of the very measurement that the ratio
comes from; the others are compared with the mean of the two.

Hundreds of rows are measured by a fourth, "sweep" (`sweeps`): interleaved, after one load for all rows.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ...diagnostics.arguments import finite, require, whole
from ...diagnostics.errors import SpecError
from .timer import Competitor, EventTimer, Timer, launch

Protocol = Literal["burst", "interleaved", "alone", "sweep"]
PROTOCOLS: tuple[Protocol, ...] = ("burst", "interleaved", "alone")
AGAIN = " again"


@dataclass(frozen=True)
class Plan:
    """Durations (seconds) and counts of the protocols; the defaults are the ones results are published with."""

    idle: float = 1.5
    burst_count: int = 8
    load: float = 2.0
    rounds: int = 30
    alone_load: float = 1.1
    alone_count: int = 20
    work: float = 0.4e-3
    """GPU time between two events: shorter kernels are launched several times between them"""

    def __post_init__(self) -> None:
        counts = dict.fromkeys(("burst_count", "rounds", "alone_count"), whole(1))
        require("Plan", vars(self), **dict.fromkeys(vars(self), finite(0)) | counts)


@dataclass(frozen=True)
class Sample:
    """The measurements of one protocol in one process. Times are seconds per call.

    `sensors` were read under load: by competitor, or under "all" while all ran in turn. ``clock_mhz`` among them is no reading: it
    is the SMs' clock during the measurements of the times, where the timer knows it (`Timer.megahertz`).
    """

    protocol: Protocol
    reference: str
    calls: int
    """launches between two events"""
    times: dict[str, list[float]]
    """raw measurements by competitor; the reference's second turn is under its name + " again" """
    sensors: dict[str, dict[str, float]] = field(default_factory=dict)

    def seconds(self, name: str) -> float:
        return statistics.median(self.times[name])

    def sensed(self, name: str) -> dict[str, float]:
        """Return what is known of the card while a competitor ran."""
        return {**self.sensors.get("all", {}), **self.sensors.get(name, {})}

    @property
    def reference_seconds(self) -> float:
        """The mean of the medians of the reference's turns."""
        return statistics.fmean(self.seconds(name) for name in (self.reference, self.reference + AGAIN) if name in self.times)

    def ratio(self, name: str) -> float:
        """Speed of `name` over the reference's: more than 1 is faster."""
        return self.reference_seconds / self.seconds(name)

    @property
    def noise(self) -> float:
        """The reference's first turn over its second: what the ratio of equals looks like."""
        return self.seconds(self.reference) / self.seconds(self.reference + AGAIN)


def compare(competitors: Mapping[str, Competitor], *, reference: str, protocols: tuple[Protocol, ...] = PROTOCOLS,
            plan: Plan | None = None, timer: Timer | None = None, sensors: Callable[[], dict[str, float]] | None = None,
            poison: Callable[[], None] | None = None, check: Callable[[Protocol], None] | None = None) -> list[Sample]:
    """Measure the competitors against one of them, in this process.

    competitors  name -> function of a call count that launches the work once; use the count to rotate buffers
                 (`rotation_sets`), so that no call finds its inputs in the L2
    reference    the competitor that the others are compared with, measured twice
    plan         durations and counts
    timer        CUDA events unless given
    sensors      called while the GPU is under the protocol's load -> e.g. ``{"sm_mhz": …, "watts": …}``
    poison       called before each protocol: fill the outputs with NaN
    check        called with the protocol's name after it: raise if an output is wrong

    Raises SpecError if `reference` is not a competitor or a protocol is unknown, TargetError where there is no GPU to measure on.
    """
    if reference not in competitors:
        raise SpecError(f"reference={reference!r} is not among the competitors {list(competitors)}: name one of them")
    if unknown := set(protocols) - set(PROTOCOLS):
        raise SpecError(f"protocols: {sorted(unknown)} unknown, choose from {list(PROTOCOLS)}")
    session = Session(dict(competitors), reference, plan or Plan(), timer or EventTimer(), sensors or dict)
    session.warm_up()
    samples = []
    for protocol in protocols:
        if poison:
            poison()
        samples.append(getattr(session, protocol)())
        if check:
            check(protocol)
    return samples


def rotation_sets(bytes_per_call: int, l2_bytes: int) -> int:
    """Return how many sets of buffers to rotate over, so that 2 x L2 of other data pass between two uses of one set.

    >>> rotation_sets(bytes_per_call=100 << 20, l2_bytes=60 << 20)
    3
    """
    require("rotation_sets", locals(), bytes_per_call=whole(1), l2_bytes=whole(0))
    return 1 + math.ceil(2 * l2_bytes / bytes_per_call) if bytes_per_call < 2 * l2_bytes else 1


class Session:
    """The competitors of one `compare`, or of one row of a sweep, with a method for each protocol.

    functions  what is launched for each name of `turns`
    count      launches so far, by which buffers rotate
    calls      launches between two events
    """

    def __init__(self, competitors: dict[str, Competitor], reference: str, plan: Plan, timer: Timer,
                 sensors: Callable[[], dict[str, float]]) -> None:
        self.turns = [reference, *(name for name in competitors if name != reference), reference + AGAIN]
        self.functions = competitors | {reference + AGAIN: competitors[reference]}
        self.reference, self.plan, self.timer, self.sensors = reference, plan, timer, sensors
        self.count, self.calls = 0, 1

    def measure(self, name: str, calls: int | None = None) -> Any:
        calls = calls or self.calls
        self.count += calls
        return self.timer.measure(self.functions[name], calls, self.count - calls)

    def launch(self, name: str) -> None:
        launch(self.functions[name], self.count, 4 * self.calls)
        self.count += 4 * self.calls

    def first_times(self, calls: int = 3) -> dict[str, float]:
        """Make the first calls (compiles, plans) outside all measurements, and find how many make `plan.work` of GPU time.

        Returns the seconds of a call of each, as far as so few calls tell.
        """
        for name in self.turns:
            self.timer.seconds(self.measure(name, calls))
        each = {name: self.timer.seconds(self.measure(name, calls)) for name in self.turns}
        self.calls = max(1, round(self.plan.work / max(statistics.fmean(each.values()), 1e-7)))
        return each

    def warm_up(self) -> None:
        self.first_times()
        for name in self.turns:  # a competitor that makes a program of many calls compiles it now, not under the load
            self.launch(name)
            self.timer.seconds(self.measure(name))

    def load(self, names: list[str], seconds: float) -> None:
        """Keep the GPU busy with `names` in turn. Every round is waited for, so that the queue stays short."""
        end = self.timer.now() + seconds
        while self.timer.now() < end:
            for name in names:
                self.launch(name)
            self.timer.synchronize()

    def burst(self) -> Sample:
        return self._one_by_one("burst", lambda _name: self.timer.sleep(self.plan.idle), self.plan.burst_count)

    def alone(self) -> Sample:
        return self._one_by_one("alone", lambda name: self.load([name], self.plan.alone_load), self.plan.alone_count)

    def _one_by_one(self, protocol: Protocol, prepare: Callable[[str], None], count: int) -> Sample:
        """Measure each competitor `count` times, after `prepare`."""
        handles: dict[str, list[Any]] = {}
        readings: dict[str, dict[str, float]] = {}
        for name in self.turns:
            prepare(name)
            handles[name] = [self.measure(name) for _ in range(count)]
            readings[name] = self.sensors()
            self.timer.synchronize()
        return self._sample(protocol, handles, readings)

    def interleaved(self, protocol: Protocol = "interleaved") -> Sample:
        self.load(self.turns, self.plan.load)
        handles: dict[str, list[Any]] = {name: [] for name in self.turns}
        draw = random.Random(0)
        for _ in range(self.plan.rounds):
            for name in draw.sample(self.turns, len(self.turns)):  # after milliseconds of one that draws less the clock is higher
                handles[name].append(self.measure(name))
        return self._sample(protocol, handles, {"all": self.sensors()})

    def _sample(self, protocol: Protocol, handles: dict[str, list[Any]], readings: dict[str, dict[str, float]]) -> Sample:
        times = {name: [self.timer.seconds(handle) for handle in handles[name]] for name in self.turns}
        for name in self.turns:
            if clocks := [mhz for handle in handles[name] if (mhz := self.timer.megahertz(handle)) is not None]:
                readings[name] = {**readings.get(name, {}), "clock_mhz": statistics.median(clocks)}
        return Sample(protocol, self.reference, self.calls, times, readings)
