"""mbarriers: phases, pending arrivals, transaction bytes, and what a wait learns.

A phase completes when its arrivals are all in *and* its bytes are; the next one starts with the same count. The
machine waits by parity alone, so a wait that comes a phase too late or too early passes, or hangs, on stale state: the
simulator knows the phase number that was meant and compares. An arrival, too, counts for whatever phase is going on: it
must be ordered after the end of the phase before, or it may count for either.

PTX ISA, "Parallel Synchronization and Communication Instructions: mbarrier".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..errors import SimulationError
from ..reports import Party
from . import report
from .clocks import GENERIC, INITIALISED, Vector
from .memory import Access

if TYPE_CHECKING:
    from .port import Warpgroup
    from .sm import SM

_MAX_COUNT = _MAX_BYTES = 2**20 - 1


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


# ---- operations of a warpgroup ----------------------------------------------------------------------------------
def find(who: Warpgroup, address: int, operation: str, asynchronous: bool = False, of: SM | None = None) -> Mbarrier:
    """The live mbarrier at `address`, of another CTA's SM if it is said `of` which, seen initialised by the executing warps
    (`asynchronous`: also by the TMA)."""
    mbar = (of or who.sm).mbarriers.get(address)
    if mbar is None:
        raise report.race(who, f"{operation} on SMEM[{address}], where no mbarrier has been initialised yet; "
                               "initialise it, "
                          "fence_mbarrier_init, then bar_sync before anyone uses it", hazard="missing-init-fence")
    key = (who.first_warp, asynchronous) if who.lanes != "one" else (~who.first_warp, asynchronous)
    if key not in mbar.seen_by:
        clocks = who.sm.clocks
        if who.knows(clocks.index(GENERIC, mbar.warp)) < mbar.epoch:
            raise report.race(who, f"{operation} on {mbar.name}, but nothing orders its initialisation at "
                              f"{report.place(mbar.site)} before; bar_sync between the two", hazard="missing-init-fence", mbar=mbar,
                              before=mbar.party())
        if asynchronous and who.knows(clocks.index(INITIALISED, mbar.warp)) < mbar.epoch:
            raise report.race(who, f"{operation} on {mbar.name}, whose initialisation at {report.place(mbar.site)} "
                                   "the TMA may "
                              "not see; fence_mbarrier_init by the lane that initialised it, before the bar_sync",
                              hazard="missing-init-fence", mbar=mbar, before=mbar.party())
        mbar.seen_by.add(key)
    if mbar.epoch:
        site = report.user_site()
        mbar.used |= {who.first_warp + warp: (who.epoch(warp), who, site) for warp in who.warps()}
    return mbar


def init(who: Warpgroup, address: int, count: int, name: str) -> None:
    who.one_lane("mbar_init")
    old = who.sm.mbarriers.get(address)
    if old is not None:
        raise report.violation(who, f"mbar_init on {old.name}, live since {report.place(old.site)}; mbar_inval it "
                                    "first", hazard="barrier-reinitialised", mbar=old, before=old.party())
    who.elapse(who.sm.costs.issue)
    _create(who, address, count, name, who.epoch())


def init_at_entry(who: Warpgroup, address: int, count: int, name: str, observed: bool) -> None:
    """What the entries of a compiled kernel do with all its mbarriers, before any warpgroup of the cluster runs."""
    old = who.sm.mbarriers.get(address)
    if old is None:
        for sm in who.sm.peers:
            if sm is not who.sm and address not in sm.mbarriers:
                _create(sm.warpgroups[who.warpgroup], address, count, name, 0).observed = observed
        _create(who, address, count, name, 0).observed = observed  # epoch 0: everybody has seen it
    elif old.count != count or old.epoch:
        raise report.violation(who, f"{name or 'an mbarrier'} with count {count} at SMEM[{address}], where {old.name} "
                                    "with "
                               f"count {old.count} is live since {report.place(old.site)}",
                               hazard="barrier-reinitialised", mbar=old, before=old.party(),
                               mend="all warpgroups give a barrier the same count")


def _create(who: Warpgroup, address: int, count: int, name: str, epoch: int) -> Mbarrier:
    sm = who.sm
    if address % 8:
        raise report.violation(who, f"mbar_init at SMEM[{address}]; an mbarrier is 8 bytes at a multiple of 8",
                               hazard="illegal-instruction")
    sm.memory.check_range(who, address, address + 8, "mbar_init")
    if not 1 <= count <= _MAX_COUNT:
        raise report.violation(who, f"mbar_init with count {count}; an mbarrier counts 1 … {_MAX_COUNT} arrivals",
                               hazard="illegal-instruction")
    mbar = Mbarrier(who, address, count, name, epoch)
    access = Access(who, "mbarrier", mbar.name, ((0, 1 << 62),))
    sm.memory.write(access, address, address + 8, who.known(), False)
    sm.mbarriers[address] = mbar
    return mbar


def invalidate(who: Warpgroup, address: int) -> None:
    who.one_lane("mbar_inval")
    mbar = find(who, address, "mbar_inval")
    if not mbar.idle:
        raise report.violation(who, f"mbar_inval on {mbar.name} in the middle of phase {mbar.phase}: {mbar.pending} of "
                               f"{mbar.count} arrivals pending, {mbar.tx} bytes missing, {mbar.copies} copies in flight, "
                               f"{len(mbar.waiters)} waiting", hazard="barrier-reinitialised", mbar=mbar,
                               mend="wait for the phase before")
    for warp, (epoch, user, site) in mbar.used.items():
        if who.knows(who.sm.clocks.index(GENERIC, warp)) < epoch:
            raise report.race(who, f"mbar_inval on {mbar.name}, but nothing orders its use by warp {warp % 4} of {user.title} at "
                              f"{report.place(site)} before: it may still test or arrive there", hazard="barrier-reinitialised",
                              mbar=mbar, mend="bar_sync between the last use of all warps and mbar_inval")
    who.elapse(who.sm.costs.issue)
    who.sm.retired.append(mbar)
    del who.sm.mbarriers[address]
    gone = Access(who, "mbarrier", mbar.name, ((who.sm.clocks.index(GENERIC, who.first_warp), who.epoch()),))
    who.sm.memory.forget(gone, address, address + 8)


def arrive(who: Warpgroup, address: int, count: int) -> None:
    if count < 1:
        raise report.violation(who, f"mbar_arrive with count {count}; at least 1", hazard="illegal-instruction")
    mbar = find(who, address, "mbar_arrive")
    who.elapse(who.sm.costs.issue)
    if who.sm.trace is not None:
        who.sm.trace.add(who, who.time - who.sm.costs.issue, who.time, "arrive", mbar=mbar.name)
    mbar.arrive(who, count * who.lane_count())
    who.breathe()


def arrive_expect_tx(who: Warpgroup, address: int, nbytes: int) -> None:
    mbar = find(who, address, "mbar_arrive_expect_tx")
    who.elapse(who.sm.costs.issue)
    lanes = who.lane_count()
    mbar.expect(who, int(nbytes) * lanes)
    mbar.arrive(who, lanes)
    who.breathe()


class Waiting:
    """Why a warpgroup is blocked in `mbar_wait`."""

    kind = "wait"

    def __init__(self, mbar: Mbarrier, phase: int, step: int) -> None:
        self.mbar = mbar
        self.phase = phase
        self.step = step

    def text(self) -> str:
        of = "" if len(self.mbar.sm.peers) == 1 else f" of CTA {self.mbar.sm.cta}"
        return f"{self.mbar.name}{of} phase {self.phase}" + (f" step {self.step}" if self.step >= 0 else "")


class Polling(Waiting):
    """Why a warpgroup that tests again and again gets no further."""

    kind = "poll"

    def text(self) -> str:
        return f"{super().text()}, which it tests again and again"


def wait(who: Warpgroup, address: int, phase: int, step: int) -> None:
    who.breathe()
    mbar = find(who, address, "mbar_wait")
    phase = int(phase)
    who.wait_ = (mbar.name, phase, int(step))
    reached = mbar.phase - 1
    if reached < phase and (reached ^ phase) & 1:
        mbar.waiters.append((who, phase))
        who.block(Waiting(mbar, phase, int(step)), mbar=mbar.name, phase=phase, step=int(step))
        # a second completion before this warpgroup looked again: the machine may or may not have seen the first
        reached = mbar.phase - 1
    if reached != phase:
        raise report.race(who, _wrong_phase(mbar, phase, reached, step), hazard="wrong-phase", mbar=mbar, phase=phase,
                          step=int(step) if step >= 0 else None)
    _acquire(who, mbar, reached)
    who.elapse(who.sm.costs.wait)


def _wrong_phase(mbar: Mbarrier, phase: int, reached: int, step: int) -> str:
    of = f"phase {phase} of {mbar.name}" + (f" for step {step}" if step >= 0 else "")
    if reached < phase:
        return (f"waited for {of}, and passed on the stale phase {reached}, which has the same parity: nothing of "
                "phase "
                f"{phase} is there; a wait may be at most one phase ahead of its mbarrier")
    return (f"waited for {of}, but the mbarrier has already reached phase {reached}: the phase was missed, someone "
            "arrived for a later one without this warpgroup's release (a slot passed on twice, or not waited for); wait for every "
            "phase, and count the phases from 0")


def _acquire(who: Warpgroup, mbar: Mbarrier, reached: int) -> None:
    who.acquire(mbar.done)
    if who.time < mbar.done_time:
        who.time = mbar.done_time
    if reached > mbar.waited:
        mbar.waited = reached


def test(who: Warpgroup, address: int, parity: int) -> bool:
    mbar = find(who, address, "mbar_test")
    who.elapse(who.sm.costs.wait)
    reached = mbar.phase - 1
    if (reached ^ int(parity)) & 1:
        who.poll(Polling(mbar, mbar.phase, -1))
        return False
    _acquire(who, mbar, reached)
    who.breathe()
    return True


def unfinished(sm: SM) -> None:
    """At the end of the CTA: every copy must have been waited for, or it lands in memory that is somebody else's."""
    for mbar in [*sm.mbarriers.values(), *sm.retired]:
        if mbar.tx:
            raise report.violation(sm.warpgroups[0], f"the CTA ends while {mbar.name} still misses {mbar.tx} bytes of "
                                                     "phase "
                                   f"{mbar.phase}: expect_tx announced {mbar.expected} bytes, its copies brought "
                                   "others; announce the bytes of all copies that are issued for the phase, and no more",
                                   mbar.site, hazard="wrong-expect-tx", mbar=mbar)
        copy = mbar.last
        if copy is not None and copy.phase > mbar.waited:
            raise report.race(copy, f"{copy.describe()} on {mbar.name} phase {copy.phase} (at "
                                    f"{report.place(copy.site)}) was "
                              f"never waited for before the CTA ends (the newest phase waited for is {mbar.waited}); wait for "
                              f"phase {copy.phase} of {mbar.name}", hazard="exit-in-flight")
        if mbar.observed and mbar.phase - 1 > mbar.waited:
            raise report.race(sm.warpgroups[0], f"the CTA ends, and nobody has waited for phase {mbar.phase - 1} of {mbar.name}: "
                              "what arrived there told nobody; wait for each phase that completes", mbar.site, phase=mbar.phase - 1,
                              hazard="phase-unobserved", mbar=mbar)
        if mbar.observed and mbar.pending != mbar.count:
            raise report.race(sm.warpgroups[0], f"the CTA ends in the middle of phase {mbar.phase} of {mbar.name}: {mbar.pending} "
                              f"of {mbar.count} arrivals missing (arrived: {mbar.who_arrived()}): num_arrivals is too high, or "
                              f"somebody did not arrive; {mbar.pending // 4 or 1} more (barrier_arrive, or a copy), or "
                              f"num_arrivals={(mbar.count - mbar.pending) // 4}", mbar.site, hazard="too-few-arrivals", mbar=mbar)
