"""mbarriers: their phases, what completes a phase, and the operations of warpgroups on them.

A phase completes when all its arrivals *and* its bytes are in; the next one starts with the same
count. An arrival counts for the present phase, so it must be ordered after the end of the previous
phase, or it may count for either. The hardware waits by parity only, so a wait that comes a phase
too late or too early returns, or hangs, on stale state. The simulator knows the phase that was
meant, and compares. In any order that is run, it checks two things for a wait on phase p: is it
ordered after the end of phase p - 1, and is what completes phase p + 1 ordered after it? So a wait
that may come two phases late (ABA) is also found in runs in which it comes in time.

PTX ISA, "Parallel Synchronization and Communication Instructions: mbarrier".
"""

from __future__ import annotations

import functools
import operator

import numpy as np

from ..diagnostics.errors import SimulationError
from ..plan.protocol import BARRIERS, WARPS
from . import deadlock_search, race_report, sites
from .clocks import GENERIC, INITIALISED, UNREACHABLE, WAITED, Vector, lacks
from .footprints import ARRIVE, AWAIT, TEST, WRITE, WRITES
from .sites import Site
from .state import HELD_LAST, SM, Access, Mbarrier, MbarrierWait, Warpgroup, side

_MOST = 2**20 - 1
"""The maximum number of arrivals, and of bytes, that an mbarrier can count."""


# ---- phases --------------------------------------------------------------------------------------
def count_arrivals(
    mbar: Mbarrier,
    who: Warpgroup,
    count: int,
    seen: int,
    time: int,
    site: Site = None,
    nbytes: int = 0,
) -> None:
    """Count arrivals of the executing lanes, which know that phases before `seen` are over, and
    announce bytes in the phase."""
    mbar.sm.scheduler.touch(
        mbar.thing, ARRIVE, mbar.phase, (count, -nbytes), (mbar.pending, mbar.tx)
    )
    expect(mbar, who, nbytes)
    if count > mbar.pending or seen < mbar.phase:
        raise _not_awaited(mbar, who) or _unwanted(mbar, who, count, site)
    mbar.pending -= count
    # More bytes have come than were announced: without them the phase would have ended.
    if mbar.tx < 0 and not mbar.pending:
        mbar.sm.scheduler.touch(mbar.thing, TEST)
    mbar.arrivals.append((who, count, site or sites.user_site()))
    settle(mbar, time)


def learn(mbar: Mbarrier, vector: Vector) -> None:
    """Add what the sender of an arrival or a copy knew to an mbarrier's phase. The vector clock is
    shorter if counters were added since."""
    np.maximum(mbar.current, mbar.sm.clocks.widen(vector), out=mbar.current)


def _arrived(mbar: Mbarrier) -> str:
    return ", ".join(f"{who} x {times}" for who, times in mbar.by_warpgroup()) or "nobody"


def _unwanted(mbar: Mbarrier, who: Warpgroup, count: int, site: Site) -> SimulationError:
    """Return the error for arrivals that cannot count for the present phase."""
    if count > mbar.pending:
        last = None
        if mbar.arrivals:
            agent, _, at = mbar.arrivals[-1]
            last = side(agent, f"arrived on {mbar.name}", at, barrier=mbar.name, phase=mbar.phase)
        counted = (
            " (an arrival by a warpgroup or a copy counts 4, one per warp)" if mbar.observed else ""
        )
        return race_report.violation(
            who,
            f"{count} arrival{'s' * (count > 1)} on {mbar.name}, but phase {mbar.phase} has only "
            f"{mbar.pending} of {mbar.count} pending (arrived: {_arrived(mbar)}): either this slot "
            "was handed over twice, or the previous phase was not waited for, or the barrier's "
            f"count is too small{counted}; {_once(mbar, mbar.phase)}",
            site,
            hazard="too-many-arrivals",
            mbar=mbar,
            before=last,
        )
    if all(agent is who for agent, *_ in mbar.arrivals_before):
        who.hold(HELD_LAST)  # a later reader of the slot may hold a clearer error
    return race_report.race(
        who,
        f"arrives on {mbar.name} in phase {mbar.phase}, but nothing orders this after the end of "
        f"phase {mbar.phase - 1}, so it may count for either (arrived so far: {_arrived(mbar)}): "
        "this slot was handed over twice, or the previous phase was not waited for; "
        f"{_once(mbar, mbar.phase - 1)}",
        site,
        hazard="too-many-arrivals",
        mbar=mbar,
    )


def telling(sm: SM, write: Access) -> Mbarrier | None:
    """Return the barrier of which a phase has ended with an arrival since a store: the first, if
    there are several; None if there is none."""
    known = {
        mbar: [mbar.done[index] for index, _ in write.needs]
        for mbar in sm.mbarriers.values()
        if mbar.observed
    }
    values = [value for _, value in write.needs]
    told = [mbar for mbar in known if all(map(operator.ge, known[mbar], values))]
    return min(told, key=known.__getitem__, default=None)


def await_next(read: Access, mbar: Mbarrier) -> str:
    """Return the fix of a read before the phase that its warpgroup has yet to wait for."""
    phase = read.agent.knows(mbar.landed)
    return f"barrier_wait for {mbar.name}, phase {phase}, before the bytes are read"


def not_awaited(read: Access, mbar: Mbarrier) -> tuple[str, str]:
    """Return the cause and fix of a read that repeats another one, and does not wait for what comes
    next."""
    return (
        f"{read.agent.title} read these bytes here before and has arrived on a barrier since, but "
        "has not waited for the next data",
        await_next(read, mbar),
    )


def _not_awaited(mbar: Mbarrier, who: Warpgroup) -> SimulationError | None:
    """Return the error for an arrival that comes too early because `who` has not waited for the
    tile that it has just read."""
    if not mbar.observed or who.stale is None or who.stale[0].waits != who.counters[WAITED][0]:
        return None
    read, filled = who.stale
    ready = filled.mbar or telling(who.sm, filled)
    if ready is None:
        return None
    cause, fix = not_awaited(read, ready)
    if filled.mbar is None:
        return race_report.race(read, cause, hazard="unordered-accesses", fix=fix, before=filled)
    return race_report.race(read, cause, hazard="read-before-ready", fix=fix, before=filled)


def _once(mbar: Mbarrier, phase: int) -> str:
    """Return the fix for an arrival that counts for phase `phase` or the next."""
    at = race_report.place_of(mbar.sm, mbar)
    if at is not None and at.plan is not None and at.slot is not None:
        slot = f"slot {at.slot} of {at.plan.name}"
        return BARRIERS[at.kind].once.format(
            slot=slot, step=at.plan.step_at(at.slot, phase + 1), number=at.slot, phase=phase
        )
    if not mbar.observed:
        return f"wait for phase {phase} before the next arrival"
    if any(
        plan.led and mbar.address in plan.memory
        for part in mbar.sm.unit.scratch.values()
        for plan in part.barriers
    ):
        return (
            f"the CTA that waits for {mbar.name}, the leader, arrives on another ClusterBarrier "
            "after its wait, and the others wait for that one before they arrive again"
        )
    often = _repeated(mbar, before=phase < mbar.phase)
    each = (
        f"one barrier_arrive by each warpgroup per phase (phase {phase} counts {often}); or "
        if often
        else ""
    )
    return (
        f"{each}wait for phase {phase} before the next arrival, or "
        f"num_arrivals={mbar.count // WARPS + 1}"
    )


def _repeated(mbar: Mbarrier, *, before: bool) -> str:
    """Describe who arrived more than once in the present phase, or in the one `before`; "" if
    copies may have arrived too."""
    if mbar.last is not None or len(mbar.sm.warpgroups) == 1:
        return ""
    return ", ".join(
        f"{times // WARPS} of {who}"
        for who, times in mbar.by_warpgroup(before=before)
        if times > WARPS
    )


def missing_arrival(who: Warpgroup, mbar: Mbarrier | None) -> str:
    """Return a hint that `who` has to arrive on an mbarrier whose last phase counts another
    warpgroup's arrivals instead; "" if it does not apply."""
    if mbar is None or not mbar.observed or any(agent is who for agent, *_ in mbar.arrivals_before):
        return ""
    often = _repeated(mbar, before=True)
    return often and (
        f"one barrier_arrive on {mbar.name} by {who.name} and one by each of the others: phase "
        f"{mbar.phase - 1} counts {often}, and none of {who.name}"
    )


def awaited(access: Access) -> Mbarrier | None:
    """Return the mbarrier that a warpgroup had last waited for when it made an access."""
    name = access.last_wait[0] if access.last_wait is not None else None
    return next((mbar for mbar in access.agent.sm.mbarriers.values() if mbar.name == name), None)


def land(mbar: Mbarrier, copy: Access, nbytes: int, time: int) -> None:
    """Complete the bytes of a copy that has written them."""
    mbar.sm.scheduler.touch(mbar.thing, ARRIVE, mbar.phase, (0, nbytes), (mbar.pending, mbar.tx))
    mbar.copies -= 1
    mbar.tx -= nbytes
    if mbar.tx < 0 and not mbar.pending:
        raise race_report.violation(
            copy,
            f"{copy.describe()} delivers {nbytes} bytes to {mbar.name}, {-mbar.tx} more than phase "
            f"{mbar.phase} expects ({mbar.expected} announced); announce the bytes of all copies "
            f"of the phase with expect_tx, {mbar.expected - mbar.tx} or more",
            hazard="wrong-expect-tx",
            mbar=mbar,
        )
    settle(mbar, time)


def settle(mbar: Mbarrier, time: int) -> None:
    """Complete the phase if nothing is missing."""
    mbar.time = max(mbar.time, time)
    if mbar.pending or mbar.tx:
        return
    if mbar.copies:
        raise race_report.violation(
            mbar.last or mbar.sm.warpgroups[0],
            f"phase {mbar.phase} of {mbar.name} completes with {mbar.copies} of its copies still "
            f"in flight: expect_tx announced {mbar.expected} bytes, fewer than the copies bring; "
            "announce the bytes of all of them",
            hazard="wrong-expect-tx",
            mbar=mbar,
        )
    if mbar.observed and mbar.phase - 1 > mbar.waited:
        raise race_report.race(
            mbar.arrivals[-1][0],
            f"phase {mbar.phase} of {mbar.name} completes, but no warpgroup has waited for phase "
            f"{mbar.phase - 1}: a later wait could not distinguish the two; wait for each phase "
            "before the next one can complete",
            hazard="phase-unobserved",
            mbar=mbar,
        )
    mbar.sm.scheduler.touch(mbar.waits_of(mbar.phase - 1), TEST)
    unknown = [waited for waited in mbar.waits if lacks(mbar.current, waited[-1])]
    if unknown:  # the order of waits for one phase depends on the schedule
        raise _may_be_missed(mbar, *min(unknown, key=lambda waited: waited[0].first_warp)[:-1])
    mbar.waits.clear()
    np.maximum(mbar.done, mbar.current, out=mbar.done)
    mbar.done_time = mbar.time
    mbar.phase += 1
    mbar.done[mbar.landed] = mbar.phase
    for twin in mbar.twins:
        mbar.done[twin.landed] = mbar.phase
    mbar.pending = mbar.count
    mbar.expected = 0
    mbar.arrivals_before, mbar.arrivals = mbar.arrivals, []
    mbar.sm.progress += 1
    waiters, mbar.waiters = mbar.waiters, []
    for agent, phase in waiters:
        if (mbar.phase - 1 ^ phase) & 1:
            mbar.waiters.append((agent, phase))
        else:
            agent.wake(mbar.done_time)


# ---- initialisation ------------------------------------------------------------------------------
def find(
    who: Warpgroup, address: int, operation: str, asynchronous: bool = False, of: SM | None = None
) -> Mbarrier:
    """Return the live mbarrier at `address`, of another CTA if `of` is given. Raises PipelineRace
    unless the executing warps (and, if `asynchronous`, the TMA) see that it is initialized."""
    mbar = (of or who.sm).mbarriers.get(address)
    if mbar is None:
        who.scheduler.touch(("mbarrier", (of or who.sm).place, address), WRITE)
        raise race_report.race(
            who,
            f"{operation} on SMEM[{address}], where no mbarrier has been initialized yet; "
            "initialize it, then fence_mbarrier_init, then bar_sync, before its first use",
            hazard="missing-init-fence",
        )
    if mbar.epoch:
        clocks, lacking, fix = who.clocks, "", ""
        if who.knows(clocks.index(GENERIC, mbar.warp)) < mbar.epoch:
            lacking = (
                f"but nothing orders this after its initialization at {sites.place(mbar.site)}"
            )
            fix = "bar_sync between the two"
        elif asynchronous and who.knows(clocks.index(INITIALISED, mbar.warp)) < mbar.epoch:
            lacking = f"whose initialization at {sites.place(mbar.site)} the TMA may not see"
            fix = "fence_mbarrier_init by the lane that initialized it, before the bar_sync"
        if lacking:
            raise race_report.race(
                who,
                f"{operation} on {mbar.name}, {lacking}; {fix}",
                hazard="missing-init-fence",
                mbar=mbar,
                before=mbar.party(),
            )
        site = sites.user_site()
        mbar.used |= {who.first_warp + warp: (who.epoch(warp), who, site) for warp in who.warps()}
    return mbar


def init(who: Warpgroup, address: int, count: int, name: str = "") -> None:
    race_report.one_lane(who, "mbar_init")
    old = who.sm.mbarriers.get(address)
    if old is not None:
        who.scheduler.touch(old.thing, WRITE)
        raise race_report.violation(
            who,
            f"mbar_init on {old.name}, live since {sites.place(old.site)}; mbar_inval it first",
            hazard="barrier-reinitialised",
            mbar=old,
            before=old.party(),
        )
    who.elapse_issue()
    _create(who, int(address), int(count), name, who.epoch())
    who.scheduler.touch(("mbarrier", who.place, int(address)), WRITE)
    who.scheduler.touch_bytes(who.place, int(address), int(address) + 8, WRITES)


def init_at_entry(
    who: Warpgroup, address: int, count: int, name: str = "", *, observed: bool = False
) -> None:
    address, count = int(address), int(count)
    old = who.sm.mbarriers.get(address)
    if old is None:
        for sm in who.sm.peers:
            if address not in sm.mbarriers:  # epoch 0: every warp has seen it
                _create(sm.warpgroups[who.warpgroup], address, count, name, 0).observed = observed
    elif old.count != count or old.epoch:
        raise race_report.violation(
            who,
            f"{name or 'an mbarrier'} with count {count} at SMEM[{address}], where {old.name} "
            f"with count {old.count} is live since {sites.place(old.site)}",
            hazard="barrier-reinitialised",
            mbar=old,
            before=old.party(),
            fix="give the barrier the same count in all warpgroups",
        )


def _create(who: Warpgroup, address: int, count: int, name: str, epoch: int) -> Mbarrier:
    sm = who.sm
    if address % 8:
        raise race_report.illegal(
            who, f"mbar_init at SMEM[{address}]; an mbarrier is 8 bytes at a multiple of 8"
        )
    sm.memory.check_range(who, address, address + 8, "mbar_init")
    if not 1 <= count <= _MOST:
        raise race_report.illegal(
            who, f"mbar_init with count {count}; an mbarrier counts 1 … {_MOST} arrivals"
        )
    mbar = Mbarrier(who, address, count, name, epoch)
    sm.memory.write(
        Access(who, "mbarrier", mbar.name, (UNREACHABLE,)), address, address + 8, who.known(), False
    )
    sm.mbarriers[address] = mbar
    return mbar


def invalidate(who: Warpgroup, address: int) -> None:
    race_report.one_lane(who, "mbar_inval")
    address = int(address)
    mbar = find(who, address, "mbar_inval")
    who.scheduler.touch(mbar.thing, WRITE)
    if not mbar.idle:
        raise race_report.violation(
            who,
            f"mbar_inval on {mbar.name} in the middle of phase {mbar.phase}: {mbar.pending} of "
            f"{mbar.count} arrivals pending, {mbar.tx} bytes missing, {mbar.copies} copies in "
            f"flight, {len(mbar.waiters)} waiting",
            hazard="barrier-reinitialised",
            mbar=mbar,
            fix="wait for the phase before mbar_inval",
        )
    for warp, (epoch, user, site) in mbar.used.items():
        if who.knows(who.clocks.index(GENERIC, warp)) < epoch:
            raise race_report.race(
                who,
                f"mbar_inval on {mbar.name}, but nothing orders this after its use by warp "
                f"{warp % 4} of {user.title} at {sites.place(site)}: that warp may still test it "
                "or arrive on it",
                hazard="barrier-reinitialised",
                mbar=mbar,
                fix="bar_sync between the last use of all warps and mbar_inval",
            )
    who.elapse_issue()
    who.sm.retired.append(mbar)
    del who.sm.mbarriers[address]
    who.sm.memory.forget(Access(who, "mbarrier", mbar.name, who.needs()), address, address + 8)


# ---- arrivals and waits --------------------------------------------------------------------------
def _arrive(who: Warpgroup, mbar: Mbarrier, count: int, nbytes: int = 0) -> None:
    who.release_into(mbar.current)
    count_arrivals(mbar, who, count, who.knows(mbar.landed), who.time, nbytes=nbytes)
    who.breathe()


def arrive(who: Warpgroup, address: int, count: int = 1) -> None:
    if count < 1:
        raise race_report.illegal(who, f"mbar_arrive with count {count}; at least 1")
    mbar = find(who, address, "mbar_arrive")
    who.elapse_issue()
    who.record(who.time - who.costs.issue, who.time, "arrive", mbar=mbar.name)
    _arrive(who, mbar, int(count) * who.lane_count())


def arrive_expect_tx(who: Warpgroup, address: int, nbytes: int) -> None:
    mbar = find(who, address, "mbar_arrive_expect_tx")
    who.elapse_issue()
    _arrive(who, mbar, who.lane_count(), int(nbytes) * who.lane_count())


def expect(mbar: Mbarrier, who: Warpgroup, nbytes: int) -> None:
    """Announce bytes in the present phase."""
    mbar.tx += nbytes
    mbar.expected += nbytes
    if nbytes < 0 or abs(mbar.tx) > _MOST:
        raise race_report.violation(
            who,
            f"expect_tx of {nbytes} bytes on {mbar.name}: its transaction count would be "
            f"{mbar.tx}, but must be in 0 … {_MOST}; spread the copies over more phases",
            hazard="wrong-expect-tx",
            mbar=mbar,
        )


def wait(who: Warpgroup, address: int, phase: int, step: int = -1) -> None:
    phase, step = int(phase), int(step)
    who.breathe(functools.partial(_ready, who, address, phase))
    mbar = find(who, address, "mbar_wait")
    who.scheduler.touch(mbar.thing, AWAIT, phase)
    who.scheduler.touch(mbar.waits_of(phase), ARRIVE)
    who.last_wait = (mbar.name, phase, step)
    reached = mbar.phase - 1
    if who.knows(mbar.landed) < phase <= mbar.phase:
        raise race_report.race(
            who,
            f"{_waited(mbar, phase, step)}, but nothing orders this after the end of phase "
            f"{phase - 1}: if it comes earlier, it returns on the stale state of an earlier phase "
            f"of the same parity; wait for phase {phase - 1} too, or for a barrier on which a "
            "warpgroup arrives after waiting for it",
            hazard="wrong-phase",
            mbar=mbar,
            phase=phase,
            step=step,
        )
    if mbar.blocks(phase):
        mbar.waiters.append((who, phase))
        known = {"step": step} if step >= 0 else {}
        who.block(MbarrierWait(mbar, phase, step), mbar=mbar.name, phase=phase, **known)
        # A second completion before this warpgroup looked again: the machine may or may not have
        # seen the first.
        reached = mbar.phase - 1
    if reached != phase:
        raise race_report.race(
            who,
            _wrong_phase(who, mbar, phase, reached, step),
            hazard="wrong-phase",
            mbar=mbar,
            phase=phase,
            step=step,
        )
    _acquire(who, mbar, reached)
    who.counters[WAITED][: len(who.warps())] += 1
    mbar.waits.append((who, phase, step, sites.user_site(), who.needs(WAITED)))
    who.elapse_wait()


def _ready(who: Warpgroup, address: int, phase: int) -> bool:
    """Return whether a wait for a phase ends at once, with or without a report."""
    mbar = who.sm.mbarriers.get(address)
    return mbar is None or not mbar.blocks(phase) or who.knows(mbar.landed) < phase <= mbar.phase


def _waited(mbar: Mbarrier, phase: int, step: int) -> str:
    return f"waited for phase {phase} of {mbar.name}" + f" for step {step}" * (step >= 0)


def _wrong_phase(who: Warpgroup, mbar: Mbarrier, phase: int, reached: int, step: int) -> str:
    waited = _waited(mbar, phase, step)
    if reached < phase:
        return (
            f"{waited}, and returned on the stale state of an earlier phase of the same parity: "
            f"phase {phase} has not completed; a wait may be at most one phase ahead of its "
            "mbarrier"
        )
    missing = missing_arrival(who, mbar if mbar.last is None else awaited(mbar.last))
    last = _completes(mbar, who)
    return (
        f"{waited}, but the mbarrier has already reached phase {reached}: the phase was missed: "
        "another warpgroup arrived for a later phase without this warpgroup's release (a slot was "
        "handed over twice, or was not waited for); "
        + (
            missing
            or (
                _tell(mbar, who, last)
                if last is not who
                else "wait for every phase, and count the phases from 0"
            )
        )
    )


def _may_be_missed(
    mbar: Mbarrier, who: Warpgroup, phase: int, step: int, site: Site
) -> SimulationError:
    """Return the error for a wait on the phase before the present one, which completes whether or
    not that wait is over."""
    last = _completes(mbar, who)
    by = (
        f"{last.title} completes phase {mbar.phase}"
        if last is not who
        else f"phase {mbar.phase} completes"
    )
    of = " by all four warps" if last is who else ""
    return race_report.race(
        who,
        f"{_waited(mbar, phase, step)}, but {by} before this wait{of} is known to have ended: if "
        f"the wait comes later, it finds phase {mbar.phase} and waits for phase {mbar.phase + 1}, "
        "which has the same parity; " + (missing_arrival(who, mbar) or _tell(mbar, who, last)),
        site,
        hazard="wrong-phase",
        mbar=mbar,
        phase=phase,
        step=step,
        before=side(
            last,
            f"completes phase {mbar.phase}",
            mbar.last.site if mbar.last is not None else mbar.arrivals[-1][2],
            barrier=mbar.name,
            phase=mbar.phase,
        ),
    )


def _completes(mbar: Mbarrier, who: Warpgroup) -> Warpgroup:
    """Return the warpgroup whose arrival or copy completes the newest phase; `who` if it is
    unknown."""
    return (
        mbar.last.agent
        if mbar.last is not None
        else (mbar.arrivals or mbar.arrivals_before or [(who, 0, None)])[-1][0]
    )


def _tell(mbar: Mbarrier, who: Warpgroup, last: Warpgroup) -> str:
    """Describe how a warpgroup's waits can become known to the warpgroup that completes the next
    phase."""
    if last is who:
        return (
            "a barrier of the four warps (bar_sync) between the wait and the next arrival on "
            f"{mbar.name}"
        )
    return (
        f"an arrival by {who.name} after each of its waits: on {mbar.name} itself, with a count "
        "that is one higher (and one arrival before the first wait), or on another barrier that "
        f"{last.name} waits for before it arrives on {mbar.name} again"
    )


def _acquire(who: Warpgroup, mbar: Mbarrier, reached: int) -> None:
    who.acquire(mbar.done)
    if who.time < mbar.done_time:
        who.time = mbar.done_time
    if reached > mbar.waited:
        mbar.waited = reached


def test(who: Warpgroup, address: int, parity: int) -> bool:
    mbar = find(who, address, "mbar_test")
    who.elapse_wait()
    who.scheduler.touch(mbar.thing, TEST)
    reached = mbar.phase - 1
    if (reached ^ int(parity)) & 1:
        sm, who.blocked = who.sm, MbarrierWait(mbar, mbar.phase, kind="poll")
        progress = sum(peer.progress for peer in sm.group)
        sm.polls = sm.polls + 1 if progress == sm.polled_at else 1
        sm.polled_at = progress
        if sm.polls > sm.poll_limit:  # no other warpgroup is left to complete the phase
            raise deadlock_search.deadlock(
                sm, f"{sm.polls} tests in a row failed while nothing else happened"
            )
        sm.scheduler.defer((*mbar.thing, mbar.phase), lambda: mbar.phase - 1 != reached)
        who.wake(who.time)
        who.switch()
        return False
    _acquire(who, mbar, reached)
    who.breathe()
    return True


def unfinished(sm: SM) -> None:
    """Raise SimulationError at the CTA's end for a copy that nobody has waited for: it lands in
    memory that belongs to another CTA."""
    first = sm.warpgroups[0]
    for mbar in [*sm.mbarriers.values(), *sm.retired]:
        if mbar.tx:
            raise race_report.violation(
                first,
                f"the CTA ends while {mbar.name} is still missing {mbar.tx} bytes of phase "
                f"{mbar.phase}: expect_tx announced {mbar.expected} bytes, but its copies brought "
                "a different number; announce the bytes of all copies that are issued for the "
                "phase, and no more",
                mbar.site,
                hazard="wrong-expect-tx",
                mbar=mbar,
            )
        copy = mbar.last
        if copy is not None and copy.phase > mbar.waited:
            raise race_report.race(
                copy,
                f"{copy.describe()} on {mbar.name} phase {copy.phase} (at "
                f"{sites.place(copy.site)}) was never waited for before the CTA ends"
                + f" (the newest phase waited for is {mbar.waited})" * (mbar.waited >= 0)
                + f"; wait for phase {copy.phase} of {mbar.name}",
                hazard="exit-in-flight",
            )
        if mbar.observed and mbar.phase - 1 > mbar.waited:
            raise race_report.race(
                first,
                f"the CTA ends, but no warpgroup has waited for phase {mbar.phase - 1} of "
                f"{mbar.name}: its arrivals ordered nothing; wait for each phase that completes",
                mbar.site,
                phase=mbar.phase - 1,
                hazard="phase-unobserved",
                mbar=mbar,
            )
        if mbar.observed and mbar.pending != mbar.count:
            raise race_report.race(
                first,
                f"the CTA ends in the middle of phase {mbar.phase} of {mbar.name}: {mbar.pending} "
                f"of {mbar.count} arrivals missing (arrived: {_arrived(mbar)}): num_arrivals is "
                f"too high, or an arrival is missing; {mbar.pending // 4 or 1} more "
                "(barrier_arrive, or a copy), or "
                f"num_arrivals={(mbar.count - mbar.pending) // 4}, and wait for the phase "
                "(barrier_wait)",
                mbar.site,
                hazard="too-few-arrivals",
                mbar=mbar,
            )
