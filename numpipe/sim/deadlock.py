"""Deadlocks: who waits for what, and why it never comes."""

from __future__ import annotations

import dataclasses

from ..diagnostics.errors import PipelineDeadlock, SimulationError
from ..diagnostics.reports import Barrier, Party
from ..traces import deadlocks
from . import gmem, named, report, sites
from .state import SM, Mbarrier, Waiting, Warpgroup, side


def poll(who: Warpgroup, what: Waiting) -> None:
    """Let everybody else go first, because a test of `what` failed; raise PipelineDeadlock if only tests are left."""
    sm, who.blocked = who.sm, what
    progress = sum(peer.progress for peer in sm.peers)
    if progress != sm.polled_at:
        sm.polled_at, sm.polls = progress, 0
    sm.polls += 1
    if sm.polls > sm.poll_limit:
        raise deadlock(sm, f"{sm.polls} tests in a row failed while nothing else happened")
    sm.scheduler.defer()
    who.wake(who.time)
    who.switch()


def deadlock(sm: SM, why: str = deadlocks.WAITS) -> SimulationError:
    """Return the error: who waits for what, the state of the mbarriers they wait for, and what is probably missing."""
    which = f"CTA {sm.cta}" if len(sm.peers) == 1 else f"the cluster of CTAs {', '.join(str(peer.cta) for peer in sm.peers)}"
    found = deadlocks.deadlock(
        f"{which}: {why}", [_waiting(agent) for peer in sm.peers for agent in peer.warpgroups],
        [_state(peer, mbar) for peer in sm.peers for mbar in peer.mbarriers.values() if not mbar.idle or _polling(peer, mbar)],
        [hint for peer in sm.peers for hint in (*named.hints(peer), *peer.registers.hints(), *gmem.hints(peer))],
        report.kernel_of(sm))
    return report.failed(PipelineDeadlock, found)


def _waiting(agent: Warpgroup) -> Party:
    """Return what a warpgroup waits for, and where."""
    sm, blocked = agent.sm, agent.blocked
    if agent.greenlet.dead:
        return side(agent, deadlocks.FINISHED)
    what = "" if blocked is None else f"blocked on {blocked.text()}"
    lines = report.lines_of(agent) or sites.lines(getattr(blocked, "site", None))
    waiting = dataclasses.replace(side(agent, f"{what}{sites.context(agent.last_note, None)}"), lines=lines)
    if not isinstance(blocked, Waiting):
        return waiting
    at = report.place_of(sm, blocked.mbar)
    return dataclasses.replace(
        waiting, barrier=blocked.mbar.title, phase=blocked.phase, step=blocked.step if blocked.step >= 0 else None,
        ring=None if at is None or at.plan is None else at.plan.name, slot=None if at is None else at.slot)


def _polling(sm: SM, mbar: Mbarrier) -> tuple[int, ...]:
    """Return the warpgroups that test an mbarrier again and again."""
    tests = [(agent.warpgroup, agent.blocked) for agent in sm.warpgroups if isinstance(agent.blocked, Waiting)]
    return tuple(number for number, test in tests if test.kind == "poll" and test.mbar is mbar)


def _state(sm: SM, mbar: Mbarrier) -> Barrier:
    at = report.place_of(sm, mbar)
    plan, slot = (None, None) if at is None else (at.plan, at.slot)
    return Barrier(mbar.title, mbar.phase, mbar.pending, mbar.count, mbar.tx, mbar.expected,
                   mbar.by_warpgroup(), tuple(agent.warpgroup for agent, _ in mbar.waiters) + _polling(sm, mbar),
                   "own" if mbar.observed else "" if at is None else at.kind, None if plan is None else plan.name, slot,
                   None if plan is None or slot is None else plan.step_at(slot, mbar.phase))
