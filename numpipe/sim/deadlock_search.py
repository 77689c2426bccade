"""Deadlock reports: which warpgroup waits for what, and why it never happens."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from ..arch.dimensions import Ints
from ..diagnostics.errors import PipelineDeadlock, SimulationError, reported
from ..diagnostics.reports import Barrier, Party, Report
from ..traces import deadlocks
from . import gmem, named_barriers, race_report, semaphore_counters, sites
from .state import SM, Mbarrier, MbarrierWait, Warpgroup, side


def deadlock(sm: SM, why: str = deadlocks.WAITS) -> SimulationError:
    """Return the error for a deadlock: what each warpgroup waits for, the state of the mbarriers
    involved, and what is probably missing."""
    hints = [
        hint
        for peer in sm.group
        for hint in (*named_barriers.hints(peer), *peer.registers.hints(), *gmem.hints(peer))
    ]
    hints += semaphore_counters.hints(sm)
    return reported(PipelineDeadlock, report_of(sm, why, hints))


def report_of(sm: SM, why: str, hints: Sequence[deadlocks.Hint]) -> Report:
    """Return the report, with these hints and the hints that the state of the mbarriers gives."""
    which = (
        f"the CTAs of {sm.gpus.count} GPU{'s' * (sm.gpus.count > 1)}"
        if sm.gpus is not None
        else f"CTA {sm.cta}"
        if len(sm.peers) == 1
        else f"the cluster of CTAs {', '.join(str(peer.cta) for peer in sm.peers)}"
    )
    return deadlocks.deadlock(
        f"{which}: {why}",
        [_waiting(agent) for peer in sm.group for agent in peer.warpgroups],
        [
            _state(peer, mbar)
            for peer in sm.group
            for mbar in peer.mbarriers.values()
            if not mbar.idle or _polling(peer, mbar)
        ],
        hints,
        getattr(sm.unit, "kernel", ""),
    )


def _waiting(agent: Warpgroup) -> Party:
    """Return what a warpgroup waits for, and where."""
    sm, blocked = agent.sm, agent.blocked
    if agent.greenlet.dead:
        return side(agent, deadlocks.FINISHED)
    where: dict[str, Any] = {}
    if isinstance(blocked, MbarrierWait):
        at = race_report.place_of(sm, blocked.mbar)
        step = blocked.step if blocked.step >= 0 else None
        where = {
            "barrier": blocked.mbar.title,
            "phase": blocked.phase,
            "step": step,
            "slot": None if at is None else at.slot,
            "ring": None if at is None or at.plan is None else at.plan.name,
        }
    what = "" if blocked is None else f"blocked on {blocked.text()}"
    lines = race_report.lines_of(agent) or sites.lines(getattr(blocked, "site", None))
    return dataclasses.replace(
        side(agent, f"{what}{sites.context(agent.last_note, None)}", **where), lines=lines
    )


def _polling(sm: SM, mbar: Mbarrier) -> Ints:
    """Return the warpgroups that test an mbarrier repeatedly."""
    return tuple(
        agent.warpgroup
        for agent in sm.warpgroups
        if isinstance(test := agent.blocked, MbarrierWait)
        and test.kind == "poll"
        and test.mbar is mbar
    )


def _state(sm: SM, mbar: Mbarrier) -> Barrier:
    at = race_report.place_of(sm, mbar)
    plan, slot = (None, None) if at is None else (at.plan, at.slot)
    return Barrier(
        mbar.title,
        mbar.phase,
        mbar.pending,
        mbar.count,
        mbar.tx,
        mbar.expected,
        mbar.by_warpgroup(),
        tuple(agent.warpgroup for agent, _ in mbar.waiters) + _polling(sm, mbar),
        "own" if mbar.observed else "" if at is None else at.kind,
        None if plan is None else plan.name,
        slot,
        None if plan is None or slot is None else plan.step_at(slot, mbar.phase),
    )
