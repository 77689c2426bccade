"""Three protocols for comparing a kernel with a reference.

A Hopper card is limited by power: after a second of matrix products its clock settles where the
power meets the cap, and a kernel that draws less power then runs at a higher clock. So there are
three answers to the question which kernel is faster:

===========  ==============================================  ======================================
protocol     procedure                                       meaning of the ratio
===========  ==============================================  ======================================
burst        8 measurements after 1.5 s without work         both at the boost clock
interleaved  2 s of load, then rounds of all competitors     both at one clock: a ratio of cycles
alone        each under its own load, the reference first    each at the clock its own power allows
             and again last
===========  ==============================================  ======================================

The reference always runs twice. The ratio of its two times is the noise of the measurement; the
other competitors are compared with their mean.

numpipe's own benchmarks measure hundreds of rows with a fourth protocol, "sweep": interleaved,
after one load for all rows.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ...diagnostics.argument_checks import POSITIVE, finite, require, whole
from ...diagnostics.errors import SpecError
from .timer import Competitor, EventTimer, Timer, launch

Protocol = Literal["burst", "interleaved", "alone", "sweep"]
PROTOCOLS: tuple[Protocol, ...] = ("burst", "interleaved", "alone")
AGAIN = " again"


@dataclass(frozen=True)
class Plan:
    """Durations (seconds) and counts of the protocols; published results use the defaults."""

    idle: float = 1.5
    burst_count: int = 8
    load: float = 2.0
    rounds: int = 30
    alone_load: float = 1.1
    alone_count: int = 20
    work: float = 0.4e-3
    """GPU time between two events; shorter kernels are launched several times between them"""

    def __post_init__(self) -> None:
        counts = dict.fromkeys(("burst_count", "rounds", "alone_count"), POSITIVE)
        require("Plan", vars(self), **dict.fromkeys(vars(self), finite(0)) | counts)


@dataclass(frozen=True)
class Sample:
    """The measurements of one protocol in one process. Times are seconds per call.

    `sensors` were read under load: by competitor, or under "all" if all competitors alternated. The
    entry ``clock_mhz`` is the SMs' mean clock during the timed work, if the timer measures it
    (`Timer.megahertz`).
    """

    protocol: Protocol
    reference: str
    calls: int
    """launches between two events"""
    times: dict[str, list[float]]
    """raw measurements by competitor; the reference's second run is under its name + " again" """
    sensors: dict[str, dict[str, float]] = field(default_factory=dict)

    def seconds(self, name: str) -> float:
        return statistics.median(self.times[name])

    def sensed(self, name: str) -> dict[str, float]:
        """Return the sensors' readings while a competitor ran."""
        return {**self.sensors.get("all", {}), **self.sensors.get(name, {})}

    @property
    def reference_seconds(self) -> float:
        """The mean of the medians of the reference's two runs."""
        both = (self.reference, self.reference + AGAIN)
        return statistics.fmean(self.seconds(name) for name in both if name in self.times)

    def ratio(self, name: str) -> float:
        """Return the speed of `name` relative to the reference: more than 1 is faster."""
        return self.reference_seconds / self.seconds(name)

    @property
    def noise(self) -> float:
        """The ratio of the reference's first time to its second, ideally 1."""
        return self.seconds(self.reference) / self.seconds(self.reference + AGAIN)


def compare(
    competitors: Mapping[str, Competitor],
    *,
    reference: str,
    protocols: tuple[Protocol, ...] = PROTOCOLS,
    plan: Plan | None = None,
    timer: Timer | None = None,
    sensors: Callable[[], dict[str, float]] | None = None,
    poison: Callable[[], None] | None = None,
    check: Callable[[Protocol], None] | None = None,
) -> list[Sample]:
    """Measure the competitors against one of them, in this process.

    competitors  name -> function of a call count that launches the work once; use the count to
                 rotate buffers (`rotation_sets`), so that no call finds its inputs in L2
    reference    the competitor that the others are compared with, measured twice
    plan         durations and counts
    timer        default: `EventTimer`
    sensors      called under the protocol's load; returns e.g. ``{"sm_mhz": …, "watts": …}``
    poison       called before each protocol, e.g. to fill the outputs with NaN
    check        called with the protocol's name after it; should raise if an output is wrong

    Raises SpecError if `reference` is not a competitor or a protocol is unknown, TargetError
    without a GPU.
    """
    if reference not in competitors:
        raise SpecError(
            f"reference={reference!r} is not among the competitors "
            f"{list(competitors)}; fix: name one of them"
        )
    if unknown := set(protocols) - set(PROTOCOLS):
        raise SpecError(f"protocols: {sorted(unknown)} unknown, choose from {list(PROTOCOLS)}")
    session = Session(
        dict(competitors), reference, plan or Plan(), timer or EventTimer(), sensors or dict
    )
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
    """Return how many sets of buffers to rotate over, so that twice the size of L2 is accessed
    between two uses of a set.

    >>> rotation_sets(bytes_per_call=100 << 20, l2_bytes=60 << 20)
    3
    """
    require("rotation_sets", locals(), bytes_per_call=POSITIVE, l2_bytes=whole(0))
    return 1 + math.ceil(2 * l2_bytes / bytes_per_call) if bytes_per_call < 2 * l2_bytes else 1


class Session:
    """The competitors of one `compare`, with a method for each protocol.

    functions  the competitor by each name in `turns`
    count      launches so far, which selects the buffers
    calls      launches between two events
    """

    def __init__(
        self,
        competitors: dict[str, Competitor],
        reference: str,
        plan: Plan,
        timer: Timer,
        sensors: Callable[[], dict[str, float]],
    ) -> None:
        self.turns = [
            reference,
            *(name for name in competitors if name != reference),
            reference + AGAIN,
        ]
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

    def first_times(self) -> dict[str, float]:
        """Make the first calls, which compile, and choose `calls` so that they take `plan.work`.

        Return the seconds per call of each competitor, from these few calls.
        """
        for name in self.turns:
            self.timer.seconds(self.measure(name, 3))
        each = {name: self.timer.seconds(self.measure(name, 3)) for name in self.turns}
        self.calls = max(1, round(self.plan.work / max(statistics.fmean(each.values()), 1e-7)))
        return each

    def warm_up(self) -> None:
        self.first_times()
        for name in self.turns:  # compile programs of many calls before the load
            self.launch(name)
            self.timer.seconds(self.measure(name))

    def load(self, names: list[str], seconds: float) -> None:
        """Keep the GPU busy with `names` in turn, synchronizing each round to keep the queue
        short."""
        end = self.timer.now() + seconds
        while self.timer.now() < end:
            for name in names:
                self.launch(name)
            self.timer.synchronize()

    def burst(self) -> Sample:
        return self._one_by_one(
            "burst", lambda _name: self.timer.sleep(self.plan.idle), self.plan.burst_count
        )

    def alone(self) -> Sample:
        return self._one_by_one(
            "alone", lambda name: self.load([name], self.plan.alone_load), self.plan.alone_count
        )

    def _one_by_one(self, protocol: Protocol, prepare: Callable[[str], None], count: int) -> Sample:
        """Measure each competitor `count` times, after `prepare`."""
        handles = {}
        readings = {}
        for name in self.turns:
            prepare(name)
            handles[name] = [self.measure(name) for _ in range(count)]
            readings[name] = self.sensors()
            self.timer.synchronize()
        return self._sample(protocol, handles, readings)

    def interleaved(self, protocol: Protocol = "interleaved") -> Sample:
        self.load(self.turns, self.plan.load)
        handles: dict[str, list] = {name: [] for name in self.turns}
        draw = random.Random(0)
        for _ in range(self.plan.rounds):
            # in a new order each round, because the clock is higher after a competitor that draws
            # less power
            for name in draw.sample(self.turns, len(self.turns)):
                handles[name].append(self.measure(name))
        return self._sample(protocol, handles, {"all": self.sensors()})

    def _sample(
        self,
        protocol: Protocol,
        handles: dict[str, list],
        readings: dict[str, dict[str, float]],
    ) -> Sample:
        times = {
            name: [self.timer.seconds(handle) for handle in handles[name]] for name in self.turns
        }
        for name in self.turns:
            clocks = [self.timer.megahertz(handle) for handle in handles[name]]
            if known := [mhz for mhz in clocks if mhz is not None]:
                readings[name] = {**readings.get(name, {}), "clock_mhz": statistics.median(known)}
        return Sample(protocol, self.reference, self.calls, times, readings)
