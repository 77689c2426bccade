"""Semaphores: counters in the memory of each GPU, which warpgroups of all GPUs add to, and which
the GPU's own warpgroups wait for.

An addition is a release at system scope (red.release.sys): it carries what its lane knows. A wait
for a value acquires (ld.acquire.sys) what the first additions that reach the value carried, and no
more, because other additions may not have come yet. A semaphore is 0 when a launch begins, and
waits do not decrement it, so any number of warpgroups may wait for the same one.

PTX ISA, "Memory Consistency Model: Scope; Release and Acquire Patterns; Causality order", "red",
"ld".
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from ..traces.deadlocks import FINISHED, Hint
from . import race_report, sites
from .clocks import Vector
from .footprints import AWAIT, WRITE
from .gpus import check_rank
from .state import SM, WaitReason, Warpgroup

_MOST = (1 << 31) - 1


class Signal(NamedTuple):
    """An addition: the sum after it, what all additions so far have carried, when it arrives, and
    who made it where."""

    total: int
    vector: Vector
    time: int
    who: Warpgroup
    site: sites.Site


@dataclass(eq=False)
class Semaphore:
    """One counter of one GPU."""

    name: str
    gpu: int
    signals: list[Signal] = field(default_factory=list)
    waits: list[Wait] = field(default_factory=list)

    @property
    def title(self) -> str:
        return f"{self.name} of GPU {self.gpu}"

    @property
    def count(self) -> int:
        return self.signals[-1].total if self.signals else 0

    def add(self, who: Warpgroup, amount: int) -> None:
        vector = who.clocks.vector()
        arrives = who.time + (0 if self.gpu == who.gpu else who.costs.link)
        if self.signals:
            before = self.signals[-1]
            vector += who.clocks.widen(before.vector)
            arrives = max(before.time, arrives)
        who.release_into(vector)
        self.signals.append(Signal(self.count + amount, vector, arrives, who, sites.user_site()))

    def reached(self, value: int) -> Signal | None:
        """Return the first addition with which the count has reached a value, or None."""
        return next((signal for signal in self.signals if signal.total >= value), None)

    def who(self) -> str:
        """Describe who has added to it."""
        told = [
            f"{signal.who.name} of {signal.who.sm.where} at {sites.place(signal.site)}"
            for signal in self.signals
        ]
        return (
            "no warpgroup has signaled it"
            if not told
            else "signaled by "
            + ", ".join(told[:4])
            + f" and {len(told) - 4} more" * (len(told) > 4)
        )


class Wait(WaitReason):
    """A warpgroup's wait for a value of a semaphore."""

    def __init__(self, semaphore: Semaphore, value: int) -> None:
        super().__init__("semaphore")
        self.semaphore, self.value = semaphore, value

    def text(self) -> str:
        return (
            f"the semaphore {self.semaphore.title}: it is {self.semaphore.count}, and the wait is "
            f"for {self.value}"
        )


def _of(
    who: Warpgroup, semaphores: np.ndarray, index: int, gpu: int, name: str, does: str
) -> Semaphore:
    """Return a semaphore of a GPU. Raises SimulationError for one that does not exist."""
    index, size = int(index), semaphores.shape[0]
    if not 0 <= index < size:
        raise race_report.violation(
            who,
            f"{does} of {name}[{index}], but there are only {size}",
            hazard="out-of-bounds",
            fix=f"an index in 0…{size - 1}, or more of them: @numpipe.kernel(semaphores=…)",
        )
    found: Semaphore = who.sm.gpus.semaphores.setdefault(
        (gpu, index), Semaphore(f"{name}[{index}]", gpu)
    )
    return found


def signal(
    who: Warpgroup, semaphores: np.ndarray, index: int, rank: int, add: int, what: str
) -> None:
    race_report.one_lane(who, "red.release.sys")
    rank, add = check_rank(who, rank, f"a signal to {what}"), int(add)
    semaphore = _of(who, semaphores, index, rank, what, "a signal")
    if not 1 <= add <= _MOST - semaphore.count:
        raise race_report.violation(
            who,
            f"a signal to {semaphore.title} adds {add} to {semaphore.count}",
            hazard="out-of-bounds",
            fix="add 1 or more: a semaphore is an int32, and only grows",
        )
    who.elapse_issue()
    who.breathe()
    who.scheduler.touch(("semaphore", rank, int(index)), WRITE)
    if not who.knows(who.clocks.grid + rank):
        raise race_report.race(
            who,
            f"a signal to {semaphore.title} before the launch of GPU {rank} has begun, which sets "
            "it to 0",
            hazard="read-before-grid-dependency",
            fix="numpipe.signal waits until all launches have begun",
        )
    who.sm.gpus.reach(rank, who, f"signal to {semaphore.title}", who.needs(), sites.user_site())
    semaphore.add(who, add)
    who.sm.progress += 1
    who.record(who.time, who.time, "signal", semaphore=semaphore.title, count=semaphore.count)
    now = semaphore.signals[-1]
    for wait in [wait for wait in semaphore.waits if wait.value <= now.total]:
        semaphore.waits.remove(wait)
        wait.open(now.time)
    who.breathe()


def wait(who: Warpgroup, semaphores: np.ndarray, index: int, value: int, what: str) -> None:
    race_report.one_lane(who, "ld.acquire.sys")
    gpu, value = who.gpu or 0, int(value)
    semaphore = _of(who, semaphores, index, gpu, what, "a wait")
    who.elapse_wait()
    who.breathe(lambda: semaphore.count >= value)
    who.scheduler.touch(("semaphore", gpu, int(index)), AWAIT)
    if semaphore.count < value:
        reason = Wait(semaphore, value)
        semaphore.waits.append(reason)
        reason.enqueue(who, semaphore=semaphore.title, value=value)
    if value <= 0:
        return
    came = semaphore.reached(value)
    assert came is not None
    who.acquire(who.clocks.widen(came.vector))
    who.time = max(who.time, came.time)
    who.elapse_wait()


def hints(sm: SM) -> list[Hint]:
    """Return a hint for each semaphore that a warpgroup waits for."""
    agents = [agent for each in sm.group for agent in each.warpgroups]
    found = {}
    for agent in agents:
        reason = agent.blocked
        if not isinstance(reason, Wait):
            continue
        of, lacks = reason.semaphore, reason.value - reason.semaphore.count
        left = [f"{other.name} of {other.sm.where}" for other in agents if not other.over]
        text = (
            f"hint: {of.title} is {of.count} and the wait is for {reason.value}: {of.who()}; "
            f"{len(agents) - len(left)} of {len(agents)} warpgroups have {FINISHED}, and the "
            "others wait"
        )
        call = f"numpipe.signal({of.name.partition('[')[0]}.at[…], {of.gpu})"
        fix = (
            f"{lacks} more signal{'s' * (lacks > 1)}, {call}, on every path, and not after a wait "
            f"that depends on it; or a wait for {of.count}"
            if of.count
            else f"{call} for {of.name}, by a warpgroup that does not wait for it first"
        )
        found[of.title, reason.value] = Hint("deadlock", text, fix)
    return list(found.values())
