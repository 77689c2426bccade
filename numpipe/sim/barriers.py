"""What a warpgroup does with mbarriers: it initialises them, arrives, waits, tests and invalidates.

The machine waits by parity alone, so a wait that comes a phase too late or too early passes, or hangs, on stale state: the
simulator knows the phase number that was meant and compares.

PTX ISA, "Parallel Synchronization and Communication Instructions: mbarrier".
"""

from __future__ import annotations

from . import deadlock, mbarrier, report, sites
from .clocks import GENERIC, INITIALISED
from .state import SM, Access, Blocked, Mbarrier, Warpgroup

_MAX_COUNT = 2**20 - 1


def find(who: Warpgroup, address: int, operation: str, asynchronous: bool = False, of: SM | None = None) -> Mbarrier:
    """The live mbarrier at `address`, of another CTA's SM if it is said `of` which, seen initialised by the executing warps
    (`asynchronous`: also by the TMA)."""
    mbar = (of or who.sm).mbarriers.get(address)
    if mbar is None:
        raise report.race(who, f"{operation} on SMEM[{address}], where no mbarrier has been initialised yet; initialise it, "
                          "fence_mbarrier_init, then bar_sync before anyone uses it", hazard="missing-init-fence")
    if mbar.epoch:
        clocks = who.sm.clocks
        if who.knows(clocks.index(GENERIC, mbar.warp)) < mbar.epoch:
            raise report.race(who, f"{operation} on {mbar.name}, but nothing orders its initialisation at {sites.place(mbar.site)} "
                              "before; bar_sync between the two", hazard="missing-init-fence", mbar=mbar, before=mbar.party())
        if asynchronous and who.knows(clocks.index(INITIALISED, mbar.warp)) < mbar.epoch:
            raise report.race(who, f"{operation} on {mbar.name}, whose initialisation at {sites.place(mbar.site)} the TMA may not "
                              "see; fence_mbarrier_init by the lane that initialised it, before the bar_sync",
                              hazard="missing-init-fence", mbar=mbar, before=mbar.party())
        site = sites.user_site()
        mbar.used |= {who.first_warp + warp: (who.epoch(warp), who, site) for warp in who.warps()}
    return mbar


def init(who: Warpgroup, address: int, count: int, name: str = "") -> None:
    report.one_lane(who, "mbar_init")
    old = who.sm.mbarriers.get(address)
    if old is not None:
        raise report.violation(who, f"mbar_init on {old.name}, live since {sites.place(old.site)}; mbar_inval it "
                                    "first", hazard="barrier-reinitialised", mbar=old, before=old.party())
    who.elapse(who.sm.costs.issue)
    _create(who, int(address), int(count), name, who.epoch())


def init_at_entry(who: Warpgroup, address: int, count: int, name: str = "", *, observed: bool = False) -> None:
    """What the entries of a compiled kernel do with all its mbarriers, before any warpgroup of the cluster runs."""
    address, count = int(address), int(count)
    old = who.sm.mbarriers.get(address)
    if old is None:
        for sm in who.sm.peers:
            if sm is not who.sm and address not in sm.mbarriers:
                _create(sm.warpgroups[who.warpgroup], address, count, name, 0).observed = observed
        _create(who, address, count, name, 0).observed = observed  # epoch 0: everybody has seen it
    elif old.count != count or old.epoch:
        raise report.violation(who, f"{name or 'an mbarrier'} with count {count} at SMEM[{address}], where {old.name} with count "
                               f"{old.count} is live since {sites.place(old.site)}", hazard="barrier-reinitialised", mbar=old,
                               before=old.party(), mend="all warpgroups give a barrier the same count")


def _create(who: Warpgroup, address: int, count: int, name: str, epoch: int) -> Mbarrier:
    sm = who.sm
    if address % 8:
        raise report.illegal(who, f"mbar_init at SMEM[{address}]; an mbarrier is 8 bytes at a multiple of 8")
    sm.memory.check_range(who, address, address + 8, "mbar_init")
    if not 1 <= count <= _MAX_COUNT:
        raise report.illegal(who, f"mbar_init with count {count}; an mbarrier counts 1 … {_MAX_COUNT} arrivals")
    mbar = Mbarrier(who, address, count, name, epoch)
    access = Access(who, "mbarrier", mbar.name, ((0, 1 << 62),))
    sm.memory.write(access, address, address + 8, who.known(), False)
    sm.mbarriers[address] = mbar
    return mbar


def invalidate(who: Warpgroup, address: int) -> None:
    report.one_lane(who, "mbar_inval")
    address = int(address)
    mbar = find(who, address, "mbar_inval")
    if not mbar.idle:
        raise report.violation(who, f"mbar_inval on {mbar.name} in the middle of phase {mbar.phase}: {mbar.pending} of "
                               f"{mbar.count} arrivals pending, {mbar.tx} bytes missing, {mbar.copies} copies in flight, "
                               f"{len(mbar.waiters)} waiting", hazard="barrier-reinitialised", mbar=mbar,
                               mend="wait for the phase before")
    for warp, (epoch, user, site) in mbar.used.items():
        if who.knows(who.sm.clocks.index(GENERIC, warp)) < epoch:
            raise report.race(who, f"mbar_inval on {mbar.name}, but nothing orders its use by warp {warp % 4} of {user.title} at "
                              f"{sites.place(site)} before: it may still test or arrive there", hazard="barrier-reinitialised",
                              mbar=mbar, mend="bar_sync between the last use of all warps and mbar_inval")
    who.elapse(who.sm.costs.issue)
    who.sm.retired.append(mbar)
    del who.sm.mbarriers[address]
    gone = Access(who, "mbarrier", mbar.name, ((who.sm.clocks.index(GENERIC, who.first_warp), who.epoch()),))
    who.sm.memory.forget(gone, address, address + 8)


def arrive(who: Warpgroup, address: int, count: int = 1) -> None:
    if count < 1:
        raise report.illegal(who, f"mbar_arrive with count {count}; at least 1")
    mbar = find(who, address, "mbar_arrive")
    who.elapse(who.sm.costs.issue)
    if who.sm.trace is not None:
        who.sm.trace.add(who, who.time - who.sm.costs.issue, who.time, "arrive", mbar=mbar.name)
    mbarrier.arrive(mbar, who, int(count) * who.lane_count())
    who.breathe()


def arrive_expect_tx(who: Warpgroup, address: int, nbytes: int) -> None:
    mbar = find(who, address, "mbar_arrive_expect_tx")
    who.elapse(who.sm.costs.issue)
    lanes = who.lane_count()
    mbarrier.expect(mbar, who, int(nbytes) * lanes)
    mbarrier.arrive(mbar, who, lanes)
    who.breathe()


class Waiting(Blocked):
    """Why a warpgroup is blocked in `mbar_wait`, or gets no further although it tests again and again."""

    def __init__(self, mbar: Mbarrier, phase: int, step: int = -1, kind: str = "wait") -> None:
        super().__init__(kind)
        self.mbar = mbar
        self.phase = phase
        self.step = step

    def text(self) -> str:
        of = "" if len(self.mbar.sm.peers) == 1 else f" of CTA {self.mbar.sm.cta}"
        return (f"{self.mbar.name}{of} phase {self.phase}" + (f" step {self.step}" if self.step >= 0 else "")
                + (", which it tests again and again" if self.kind == "poll" else ""))


def wait(who: Warpgroup, address: int, phase: int, step: int = -1) -> None:
    who.breathe()
    mbar = find(who, address, "mbar_wait")
    phase, step = int(phase), int(step)
    who.wait_ = (mbar.name, phase, step)
    reached = mbar.phase - 1
    if reached < phase and (reached ^ phase) & 1:
        mbar.waiters.append((who, phase))
        who.block(Waiting(mbar, phase, step), mbar=mbar.name, phase=phase, step=step)
        # a second completion before this warpgroup looked again: the machine may or may not have seen the first
        reached = mbar.phase - 1
    if reached != phase:
        raise report.race(who, _wrong_phase(mbar, phase, reached, step), hazard="wrong-phase", mbar=mbar, phase=phase,
                          step=step if step >= 0 else None)
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
        deadlock.poll(who, Waiting(mbar, mbar.phase, kind="poll"))
        return False
    _acquire(who, mbar, reached)
    who.breathe()
    return True


def unfinished(sm: SM) -> None:
    """At the end of the CTA: every copy must have been waited for, or it lands in memory that is somebody else's."""
    for mbar in [*sm.mbarriers.values(), *sm.retired]:
        if mbar.tx:
            raise report.violation(sm.warpgroups[0], f"the CTA ends while {mbar.name} still misses {mbar.tx} bytes of phase "
                                   f"{mbar.phase}: expect_tx announced {mbar.expected} bytes, its copies brought others; announce "
                                   "the bytes of all copies that are issued for the phase, and no more", mbar.site,
                                   hazard="wrong-expect-tx", mbar=mbar)
        copy = mbar.last
        if copy is not None and copy.phase > mbar.waited:
            raise report.race(copy, f"{copy.describe()} on {mbar.name} phase {copy.phase} (at {sites.place(copy.site)}) was never "
                              f"waited for before the CTA ends (the newest phase waited for is {mbar.waited}); wait for phase "
                              f"{copy.phase} of {mbar.name}", hazard="exit-in-flight")
        if mbar.observed and mbar.phase - 1 > mbar.waited:
            raise report.race(sm.warpgroups[0], f"the CTA ends, and nobody has waited for phase {mbar.phase - 1} of {mbar.name}: "
                              "what arrived there told nobody; wait for each phase that completes", mbar.site, phase=mbar.phase - 1,
                              hazard="phase-unobserved", mbar=mbar)
        if mbar.observed and mbar.pending != mbar.count:
            raise report.race(sm.warpgroups[0], f"the CTA ends in the middle of phase {mbar.phase} of {mbar.name}: {mbar.pending} "
                              f"of {mbar.count} arrivals missing (arrived: {mbarrier.who_arrived(mbar)}): num_arrivals is too "
                              f"high, or somebody did not arrive; {mbar.pending // 4 or 1} more (barrier_arrive, or a copy), or "
                              f"num_arrivals={(mbar.count - mbar.pending) // 4}", mbar.site, hazard="too-few-arrivals", mbar=mbar)
