"""An mbarrier: its phases, pending arrivals and transaction bytes, and what those who arrive hand to those who wait.

A phase completes when its arrivals are all in *and* its bytes are; the next one starts with the same count. An arrival counts for
whatever phase is going on: it must be ordered after the end of the phase before, or it may count for either.

PTX ISA, "Parallel Synchronization and Communication Instructions: mbarrier".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..diagnostics.errors import SimulationError
from ..diagnostics.reports import Party
from . import report
from .clocks import Vector
from .memory import Access

if TYPE_CHECKING:
    from .port import Warpgroup

_MAX_BYTES = 2**20 - 1


class Mbarrier:
    """One live mbarrier."""

    __slots__ = ("address", "arrivals", "copies", "count", "current", "done", "done_time", "epoch",
                 "expected", "landed", "last", "name", "observed", "owner", "pending", "phase", "seen_by", "site", "sm", "time",
                 "twins", "tx", "used", "waited", "waiters", "warp")

    def __init__(self, owner: Warpgroup, address: int, count: int, name: str, epoch: int) -> None:
        sm = owner.sm
        self.sm = sm
        self.address = address
        self.name = name or f"mbarrier at {address}"
        self.count = count
        self.pending = count
        self.tx = 0
        self.phase = 0
        """number of the phase that is going on; phases 0 … phase - 1 are complete"""
        self.expected = 0
        """bytes announced in this phase"""
        self.copies = 0
        """TMA loads in flight towards this phase"""
        self.last: Access | None = None
        """the newest copy issued"""
        self.waited = -1
        """the newest phase somebody waited for"""
        self.observed = False
        """whether a phase may complete only after somebody has waited for the one before"""
        self.arrivals: list[tuple[Warpgroup, int]] = []
        self.waiters: list[tuple[Warpgroup, int]] = []
        self.landed = sm.add_mbarrier_counter()  # before the vectors: it may widen them
        self.current = sm.clocks.vector()
        self.done = sm.clocks.vector()
        self.time = self.done_time = 0
        self.site = report.user_site()
        self.owner, self.warp, self.epoch = owner, owner.first_warp, epoch
        self.seen_by: set[tuple[int, bool]] = set()
        self.twins: Sequence[Mbarrier] = ()
        """in other CTAs, where whoever arrives here arrives there too"""
        self.used: dict[int, tuple[int, Warpgroup, report.Site]] = {}
        """by warp, the epoch of its newest operation on it; not of an mbarrier of the entry, which is never invalidated"""

    @property
    def idle(self) -> bool:
        return self.pending == self.count and not self.tx and not self.waiters and not self.copies

    @property
    def counted(self) -> str:
        """How the arrivals of a report add up, where that is not what the kernel says."""
        return " (a warpgroup's or a copy's arrival counts 4, one a warp)" if self.observed else ""

    def who_arrived(self) -> str:
        return ", ".join(f"{who} x {times}" for who, times in self.by_warpgroup())

    def by_warpgroup(self) -> tuple[tuple[str, int], ...]:
        """(warpgroup's name, arrivals) in this phase."""
        found: dict[str, int] = {}
        for who, times in self.arrivals:
            name = who.name if len(self.sm.peers) == 1 else f"{who.name} of CTA {who.cta}"
            found[name] = found.get(name, 0) + times
        return tuple(found.items())

    def party(self) -> Party:
        """Who initialised it, for reports."""
        owner = self.owner
        return Party(f"initialises {self.name}", owner.warpgroup, owner.role, owner.cta,
                     () if self.site is None else (report.line_of(self.site),), barrier=self.name)

    def arrived(self) -> Party | None:
        """Who has arrived last in this phase, for reports; its line is not kept."""
        who = self.arrivals[-1][0] if self.arrivals else None
        return None if who is None else Party(f"arrived on {self.name}", who.warpgroup, who.role, who.cta, barrier=self.name,
                                              phase=self.phase)

    # ---- phases
    def arrive(self, who: Warpgroup, count: int) -> None:
        """Arrivals of the executing lanes."""
        if count > self.pending or (self.phase and who.knows(self.landed) < self.phase):
            raise self._unwanted(who, count)
        who.release_into(self.current)
        self.pending -= count
        self.arrivals.append((who, count))
        self.settle(who.time)

    def count_arrival(self, who: Warpgroup, count: int, known: list[int], vector: Vector, time: int, site: report.Site) -> None:
        """Arrivals that have been under way, from lanes that knew `known` each, and `vector` together."""
        if count > self.pending or known[self.landed] < self.phase:
            raise self._unwanted(who, count, site)
        self.learn(vector)
        self.pending -= count
        self.arrivals.append((who, count))
        self.settle(time)

    def learn(self, vector: Vector) -> None:
        """What came with something that has been under way; vectors may have grown since."""
        np.maximum(self.current, self.sm.clocks.widen(vector) if len(vector) < len(self.current) else vector, out=self.current)

    def _unwanted(self, who: Warpgroup, count: int, site: report.Site = None) -> SimulationError:
        """Why arrivals cannot count for the phase that is going on."""
        if count > self.pending:
            return report.violation(
                who, f"{count} arrival{'s' * (count > 1)} on {self.name}, but phase {self.phase} has only "
                     f"{self.pending} of {self.count} pending (arrived: {self.who_arrived() or 'nobody'}): either this slot was "
                f"passed on twice, or the phase before was not waited for, or the barrier's count is too small{self.counted}; "
                f"{self._once(self.phase)}", site, hazard="too-many-arrivals", mbar=self, before=self.arrived())
        return report.race(
            who, f"arrives on {self.name} in phase {self.phase}, but nothing orders this after the end of phase "
            f"{self.phase - 1}, so it may count for either (arrived so far: {self.who_arrived() or 'nobody'}): "
            f"this slot was passed on twice, or the phase before was not waited for; {self._once(self.phase - 1)}",
            site, hazard="too-many-arrivals", mbar=self)

    def _once(self, phase: int) -> str:
        """What to write instead of an arrival that counts for phase `phase`, or the one behind it."""
        at = report.place_of(self.sm, self)
        if at is None or at.plan is None or at.slot is None:
            less = f", or num_arrivals={self.count // 4 + 1}" if self.observed else ""
            return f"wait for phase {phase} before the next arrival{less}"
        slot = f"slot {at.slot} of {at.plan.name}"
        if at.kind == "ready":
            step = at.plan.step_at(at.slot, phase + 1)
            return f"fill {slot} for step {step} behind a wait for consumed[{at.slot}], phase {phase}"
        return f"release {slot} once a step, each step behind a wait for its ready[{at.slot}]"

    def expect(self, who: Warpgroup, nbytes: int) -> None:
        self.tx += nbytes
        self.expected += nbytes
        if nbytes < 0 or abs(self.tx) > _MAX_BYTES:
            raise report.violation(who, f"expect_tx of {nbytes} bytes on {self.name}: its transaction count would be "
                                        f"{self.tx}, and it holds 0 … {_MAX_BYTES}; spread the copies over more phases",
                                   hazard="wrong-expect-tx", mbar=self)

    def land(self, copy: Access, nbytes: int, time: int) -> None:
        """A TMA load has written its bytes."""
        self.copies -= 1
        self.tx -= nbytes
        if self.tx < 0 and not self.pending:
            raise report.violation(
                copy, f"{copy.describe()} brings {nbytes} bytes to {self.name}, {-self.tx} more than phase "
                      f"{self.phase} "
                f"expects ({self.expected} announced); announce the bytes of all copies of the phase with expect_tx, "
                f"{self.expected - self.tx} or more",
                hazard="wrong-expect-tx", mbar=self)
        self.settle(time)

    def settle(self, time: int) -> None:
        """Complete the phase if nothing is missing."""
        self.time = max(self.time, time)
        if self.pending or self.tx:
            return
        if self.copies:
            raise report.violation(
                self.last or self.sm.warpgroups[0],
                f"phase {self.phase} of {self.name} completes with {self.copies} of its copies still in flight: expect_tx "
                f"announced {self.expected} bytes, fewer than the copies bring; announce the bytes of all of them",
                hazard="wrong-expect-tx", mbar=self)
        if self.observed and self.phase - 1 > self.waited:
            raise report.race(self.arrivals[-1][0], (
                f"phase {self.phase} of {self.name} completes, but nobody has waited for phase {self.phase - 1}: a later wait "
                "could not tell the two apart; wait for each phase before the next one can complete"),
                              hazard="phase-unobserved", mbar=self)
        np.maximum(self.done, self.current, out=self.done)
        self.done_time = self.time
        self.phase += 1
        self.done[self.landed] = self.phase
        for twin in self.twins:
            self.done[twin.landed] = self.phase
        self.pending = self.count
        self.expected = 0
        self.arrivals = []
        self.sm.progress += 1
        if self.waiters:
            reached = self.phase - 1
            still = []
            for agent, phase in self.waiters:
                if (reached ^ phase) & 1:
                    still.append((agent, phase))
                else:
                    agent.wake(self.done_time)
            self.waiters = still
