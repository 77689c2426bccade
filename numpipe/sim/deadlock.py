"""Nobody can run: who waits for what, and why that never comes."""

from __future__ import annotations

import dataclasses
from typing import Any

from ..diagnostics.errors import PipelineDeadlock, SimulationError
from ..diagnostics.reports import Barrier, Party
from ..traces import deadlocks
from . import handover, named, report
from .sites import context
from .state import SM, Blocked, Mbarrier, Warpgroup


def poll(who: Warpgroup, what: Blocked) -> None:
    """A test of `what` failed: everybody else goes first. Polling for ever with nobody else left is a deadlock."""
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
    """Who waits for what, the state of the mbarriers they wait for, and what is probably missing."""
    which = f"CTA {sm.cta}" if len(sm.peers) == 1 else f"the cluster of CTAs {', '.join(str(peer.cta) for peer in sm.peers)}"
    found = deadlocks.deadlock(
        f"{which}: {why}", [_waiting(agent) for peer in sm.peers for agent in peer.warpgroups],
        [_state(peer, mbar) for peer in sm.peers for mbar in peer.mbarriers.values() if not mbar.idle or _polling(peer, mbar)],
        [hint for peer in sm.peers
         for hint in (*named.hints(peer), *peer.registers.hints(), *handover.hints(peer))], report.kernel_of(sm))
    first = next((line for party in found.waiting for line in party.lines[:1]), None)
    return report.failed(PipelineDeadlock, found, first)


def _waiting(agent: Warpgroup) -> Party:
    """What a warpgroup waits for, and where."""
    sm, blocked = agent.sm, agent.blocked
    if agent.greenlet.dead:
        return Party(deadlocks.FINISHED, agent.warpgroup, agent.role, sm.cta)
    what = "" if blocked is None else f"blocked on {blocked.text()}"
    waiting = Party(f"{what}{context(agent.note_, None)}", agent.warpgroup, agent.role, sm.cta, report.lines_of(agent))
    mbar: Mbarrier | None = getattr(blocked, "mbar", None)
    if mbar is None:
        return waiting
    wait: Any = blocked
    at = report.place_of(sm, mbar)
    return dataclasses.replace(
        waiting, barrier=_name(sm, mbar), phase=wait.phase, step=wait.step if wait.step >= 0 else None,
        ring=None if at is None or at.plan is None else at.plan.name, slot=None if at is None else at.slot)


def _name(sm: SM, mbar: Mbarrier) -> str:
    """Of an mbarrier, and where there are several its CTA."""
    return mbar.name if len(sm.peers) == 1 else f"{mbar.name} of CTA {sm.cta}"


def _polling(sm: SM, mbar: Mbarrier) -> tuple[int, ...]:
    """The warpgroups that test an mbarrier again and again."""
    return tuple(agent.warpgroup for agent in sm.warpgroups
                 if agent.blocked is not None and agent.blocked.kind == "poll" and getattr(agent.blocked, "mbar", None) is mbar)


def _state(sm: SM, mbar: Mbarrier) -> Barrier:
    at = report.place_of(sm, mbar)
    plan, slot = (None, None) if at is None else (at.plan, at.slot)
    return Barrier(_name(sm, mbar), mbar.phase, mbar.pending, mbar.count, mbar.tx, mbar.expected,
                   mbar.by_warpgroup(), tuple(agent.warpgroup for agent, _ in mbar.waiters) + _polling(sm, mbar),
                   "own" if mbar.observed else "" if at is None else at.kind, None if plan is None else plan.name, slot,
                   None if plan is None or slot is None else plan.step_at(slot, mbar.phase))
