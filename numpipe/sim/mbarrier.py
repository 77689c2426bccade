"""An mbarrier: its phases, pending arrivals and transaction bytes, and what those who arrive hand to those who wait.

A phase completes when its arrivals are all in *and* its bytes are; the next one starts with the same count. An arrival counts for
whatever phase is going on: it must be ordered after the end of the phase before, or it may count for either.

PTX ISA, "Parallel Synchronization and Communication Instructions: mbarrier".
"""

from __future__ import annotations

import numpy as np

from ..diagnostics.errors import SimulationError
from ..traces.protocol import BARRIERS
from . import report
from .clocks import Vector
from .sites import Site
from .state import Access, Mbarrier, Warpgroup

_MAX_BYTES = 2**20 - 1


def who_arrived(mbar: Mbarrier) -> str:
    return ", ".join(f"{who} x {times}" for who, times in mbar.by_warpgroup())


def arrive(mbar: Mbarrier, who: Warpgroup, count: int) -> None:
    """Arrivals of the executing lanes."""
    if count > mbar.pending or (mbar.phase and who.knows(mbar.landed) < mbar.phase):
        raise _unwanted(mbar, who, count)
    who.release_into(mbar.current)
    mbar.pending -= count
    mbar.arrivals.append((who, count))
    settle(mbar, who.time)


def count_arrival(mbar: Mbarrier, who: Warpgroup, count: int, known: list[int], vector: Vector, time: int, site: Site) -> None:
    """Arrivals that have been under way, from lanes that knew `known` each, and `vector` together."""
    if count > mbar.pending or known[mbar.landed] < mbar.phase:
        raise _unwanted(mbar, who, count, site)
    learn(mbar, vector)
    mbar.pending -= count
    mbar.arrivals.append((who, count))
    settle(mbar, time)


def learn(mbar: Mbarrier, vector: Vector) -> None:
    """What came with something that has been under way; vectors may have grown since."""
    np.maximum(mbar.current, mbar.sm.clocks.widen(vector) if len(vector) < len(mbar.current) else vector, out=mbar.current)


def _unwanted(mbar: Mbarrier, who: Warpgroup, count: int, site: Site = None) -> SimulationError:
    """Why arrivals cannot count for the phase that is going on."""
    if count > mbar.pending:
        counted = " (a warpgroup's or a copy's arrival counts 4, one a warp)" if mbar.observed else ""
        return report.violation(
            who, f"{count} arrival{'s' * (count > 1)} on {mbar.name}, but phase {mbar.phase} has only "
                 f"{mbar.pending} of {mbar.count} pending (arrived: {who_arrived(mbar) or 'nobody'}): either this slot was "
            f"passed on twice, or the phase before was not waited for, or the barrier's count is too small{counted}; "
            f"{_once(mbar, mbar.phase)}", site, hazard="too-many-arrivals", mbar=mbar, before=mbar.arrived())
    return report.race(who, f"arrives on {mbar.name} in phase {mbar.phase}, but nothing orders this after the end of phase "
                       f"{mbar.phase - 1}, so it may count for either (arrived so far: {who_arrived(mbar) or 'nobody'}): this slot "
                       f"was passed on twice, or the phase before was not waited for; {_once(mbar, mbar.phase - 1)}", site,
                       hazard="too-many-arrivals", mbar=mbar)


def _once(mbar: Mbarrier, phase: int) -> str:
    """What to write instead of an arrival that counts for phase `phase`, or the one behind it."""
    at = report.place_of(mbar.sm, mbar)
    if at is None or at.plan is None or at.slot is None:
        less = f", or num_arrivals={mbar.count // 4 + 1}" if mbar.observed else ""
        return f"wait for phase {phase} before the next arrival{less}"
    slot = f"slot {at.slot} of {at.plan.name}"
    return BARRIERS[at.kind].once.format(slot=slot, step=at.plan.step_at(at.slot, phase + 1), number=at.slot, phase=phase)


def expect(mbar: Mbarrier, who: Warpgroup, nbytes: int) -> None:
    mbar.tx += nbytes
    mbar.expected += nbytes
    if nbytes < 0 or abs(mbar.tx) > _MAX_BYTES:
        raise report.violation(who, f"expect_tx of {nbytes} bytes on {mbar.name}: its transaction count would be {mbar.tx}, and it "
                               f"holds 0 … {_MAX_BYTES}; spread the copies over more phases", hazard="wrong-expect-tx", mbar=mbar)


def land(mbar: Mbarrier, copy: Access, nbytes: int, time: int) -> None:
    """A TMA load has written its bytes."""
    mbar.copies -= 1
    mbar.tx -= nbytes
    if mbar.tx < 0 and not mbar.pending:
        raise report.violation(copy, f"{copy.describe()} brings {nbytes} bytes to {mbar.name}, {-mbar.tx} more than phase "
                               f"{mbar.phase} expects ({mbar.expected} announced); announce the bytes of all copies of the phase "
                               f"with expect_tx, {mbar.expected - mbar.tx} or more", hazard="wrong-expect-tx", mbar=mbar)
    settle(mbar, time)


def settle(mbar: Mbarrier, time: int) -> None:
    """Complete the phase if nothing is missing."""
    mbar.time = max(mbar.time, time)
    if mbar.pending or mbar.tx:
        return
    if mbar.copies:
        raise report.violation(mbar.last or mbar.sm.warpgroups[0], f"phase {mbar.phase} of {mbar.name} completes with "
                               f"{mbar.copies} of its copies still in flight: expect_tx announced {mbar.expected} bytes, fewer "
                               "than the copies bring; announce the bytes of all of them", hazard="wrong-expect-tx", mbar=mbar)
    if mbar.observed and mbar.phase - 1 > mbar.waited:
        raise report.race(mbar.arrivals[-1][0], f"phase {mbar.phase} of {mbar.name} completes, but nobody has waited for phase "
                          f"{mbar.phase - 1}: a later wait could not tell the two apart; wait for each phase before the next one "
                          "can complete", hazard="phase-unobserved", mbar=mbar)
    np.maximum(mbar.done, mbar.current, out=mbar.done)
    mbar.done_time = mbar.time
    mbar.phase += 1
    mbar.done[mbar.landed] = mbar.phase
    for twin in mbar.twins:
        mbar.done[twin.landed] = mbar.phase
    mbar.pending = mbar.count
    mbar.expected = 0
    mbar.arrivals = []
    mbar.sm.progress += 1
    if mbar.waiters:
        reached = mbar.phase - 1
        still = []
        for agent, phase in mbar.waiters:
            if (reached ^ phase) & 1:
                still.append((agent, phase))
            else:
                agent.wake(mbar.done_time)
        mbar.waiters = still
