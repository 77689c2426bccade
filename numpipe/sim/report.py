"""What a report says: the user's lines, who did what to which bytes, what orders nothing, and the mend.

Accesses record only a code object and a line number; text and objects are made when something is wrong.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import sys
from importlib.util import find_spec
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any, TypeAlias

from greenlet import getcurrent

from ..diagnostics import deadlocks
from ..diagnostics.errors import PipelineDeadlock, PipelineRace, SimulationError, at
from ..diagnostics.reports import Barrier, Line, Party, Report

if TYPE_CHECKING:
    from ..plan.plans import BarrierPlace, RingPlan
    from .mbarrier import Mbarrier
    from .memory import Access
    from .port import Warpgroup
    from .sm import SM

Site: TypeAlias = tuple[CodeType, int] | None

_is_own: dict[str, bool] = {}


@functools.cache
def _own_directories() -> tuple[str, ...]:
    """Directories whose frames are numpipe's, not the user's."""
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    spec = find_spec("numpipe.intrinsics")
    places = [package]
    if spec is not None and spec.origin is not None:
        places.append(os.path.dirname(os.path.abspath(spec.origin)))
    return tuple(place + os.sep for place in places)


def is_own(filename: str) -> bool:
    """Is this a file of numpipe?"""
    own = _is_own.get(filename)
    if own is None:
        own = _is_own[filename] = os.path.abspath(filename).startswith(_own_directories())
    return own


def user_site(frame: FrameType | None = None) -> Site:
    """The innermost frame that is not numpipe's: of `frame`, else of the caller."""
    if frame is None:
        frame = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        name = code.co_filename
        if not (_is_own[name] if name in _is_own else is_own(name)):  # asked for each access, of a dozen frames
            return code, frame.f_lineno
        frame = frame.f_back
    return None


def line_of(site: Site) -> Line:
    assert site is not None
    return Line(site[0].co_filename, site[1], site[0].co_name)


def place(site: Site) -> str:
    """``gemm.py:41 in matmul``, or what can be said without a user's frame."""
    return "(no line)" if site is None else str(line_of(site))


def details(values: dict[str, Any]) -> str:
    """The numbers and names among `values`, as ``slot=2 step=5``."""
    plain = {k: v for k, v in values.items() if isinstance(v, (int, str, tuple)) or hasattr(v, "__index__")}
    return " ".join(f"{k}={v}" for k, v in plain.items())


def context(note: tuple[str, dict[str, Any]] | None, wait: tuple[str, int, int] | None) -> str:
    """The ring, slot and step a warpgroup was at: its last note and its last mbarrier wait."""
    parts = []
    if note is not None:
        parts.append(f"{note[0]} {details(note[1])}".strip())
    if wait is not None:
        parts.append(f"after waiting for {wait[0]} phase {wait[1]}" + (f" step {wait[2]}" if wait[2] >= 0 else ""))
    return f" [{'; '.join(parts)}]" if parts else ""


def failed(error: type[SimulationError], report: Report, first: Line | None) -> SimulationError:
    """The error of a report, which starts with the user's ``file:line:``."""
    made = error(report.text if first is None else at(first.filename, first.line, report.text))
    made.report = dataclasses.replace(report, text=str(made))
    return made


# ---- who, and where in the pipeline ------------------------------------------------------------------------------
def kernel_of(sm: SM) -> str:
    return getattr(sm.unit, "kernel", "")


def place_of(sm: SM, mbar: Mbarrier) -> BarrierPlace | None:
    """Which mbarrier of the kernel's rings one is; None where the body places its own."""
    find = getattr(sm.unit, "barrier_at", None)
    return None if find is None else find(mbar.address)


def slot_of(sm: SM, address: int) -> tuple[RingPlan, int] | None:
    """The ring and slot that an address lies in."""
    find = getattr(sm.unit, "slot_at", None)
    return None if find is None else find(address)


def noted(note: tuple[str, dict[str, Any]] | None, key: str) -> int | None:
    """A number of a note."""
    value = None if note is None else note[1].get(key)
    return None if value is None or not hasattr(value, "__index__") else int(value)


def ring_name(sm: SM, plan: RingPlan, note: tuple[str, dict[str, Any]] | None) -> str:
    """How the pipeline that was running calls a ring: one on another one's allocations has a name of its own, and no plan."""
    noted_as = None if note is None else note[1].get("ring")
    known = {ring.name for ring in (*sm.unit.rings.values(), *sm.unit.outputs.values())}
    return plan.name if noted_as is None or noted_as in known else str(noted_as)


def party(who: Access | Warpgroup, did: str = "", site: Site = None, *, mbar: Mbarrier | None = None,
          span: tuple[int, int] | None = None, note: tuple[str, dict[str, Any]] | None = None, phase: int | None = None,
          step: int | None = None) -> Party:
    """One side of a report: an access, or what a warpgroup does, to an mbarrier or to the bytes of `span`.

    note          where it was then, if that is not where it is now
    phase, step   of the barrier, if they are not those that are going on
    """
    access: Any = who if hasattr(who, "agent") else None
    agent: Warpgroup = who if access is None else access.agent  # type: ignore[assignment]
    note, sm = note or who.note_, agent.sm
    if phase is None and mbar is not None:
        phase = mbar.phase
    if mbar is None and access is not None and access.mbar is not None:
        mbar, phase = access.mbar, access.phase
    ring = None if note is None else note[1].get("ring")
    slot, at_step = noted(note, "slot"), noted(note, "step")
    bytes_in = slot_of(sm, span[0]) if span is not None else None
    where = place_of(sm, mbar) if mbar is not None else None
    if where is not None and where.plan is not None and where.slot is not None:
        if access is not None or ring != ring_name(sm, where.plan, note):
            at_step = where.plan.step_at(where.slot, phase or 0)
        ring, slot = ring_name(sm, where.plan, note), where.slot
    elif bytes_in is not None:
        mine = ring_name(sm, bytes_in[0], note)
        if ring != mine:
            at_step = None
        ring, slot = mine, bytes_in[1]
    elif span is not None and hasattr(sm.unit, "slot_at"):
        ring = slot = None
    site = site or (user_site() if access is None else access.site)
    return Party(did or access.describe(), agent.warpgroup, agent.role, agent.cta, () if site is None else (line_of(site),),
                 ring, slot, at_step if step is None else step, None if mbar is None else mbar.name, phase, *(span or (None, None)))


# ---- a warpgroup breaks a rule -----------------------------------------------------------------------------------
def race(who: Access | Warpgroup, message: str, site: Site = None, *, hazard: str, mend: str = "",
         before: Access | Party | None = None, **about: Any) -> SimulationError:
    """A PipelineRace of one agent, with the context it was in.

    hazard   its name in `numpipe.hazards`
    mend     what to write instead; without it what is behind a semicolon in the message
    before   whom it conflicts with
    about    what `party` is told: mbar, span (bytes), phase, step
    """
    return _failure(PipelineRace, who, message, site, hazard, mend, before, about)


def violation(who: Access | Warpgroup, message: str, site: Site = None, *, hazard: str, mend: str = "",
              before: Access | Party | None = None, **about: Any) -> SimulationError:
    """A broken rule that is not a race."""
    return _failure(SimulationError, who, message, site, hazard, mend, before, about)


def _failure(error: type[SimulationError], who: Any, message: str, site: Site, hazard: str, mend: str,
             before: Access | Party | None, about: dict[str, Any]) -> SimulationError:
    agent = getattr(who, "agent", who)
    site = site or getattr(who, "site", None) or user_site(sys._getframe(2))
    cause = message
    if mend:
        message = f"{message}: {mend}"
    else:
        cause, _, mend = message.partition("; ")
    access = agent is not who
    now = party(who, "" if access else cause, site, **about)
    other = before if before is None or isinstance(before, Party) else party(before, span=about.get("span"))
    text = f"{agent.title}: {message}{context(who.note_, who.wait_)}"
    return failed(error, Report(hazard, text, now, other, cause=cause, mend=mend, kernel=kernel_of(agent.sm)),
                  None if site is None else line_of(site))


# ---- nobody can run ---------------------------------------------------------------------------------------------
def deadlock(sm: SM, why: str = deadlocks.WAITS) -> SimulationError:
    """Who waits for what, the state of the mbarriers they wait for, and what is probably missing."""
    which = f"CTA {sm.cta}" if len(sm.peers) == 1 else f"the cluster of CTAs {', '.join(str(peer.cta) for peer in sm.peers)}"
    found = deadlocks.deadlock(
        f"{which}: {why}", [_waiting(agent) for peer in sm.peers for agent in peer.warpgroups],
        [_state(peer, mbar) for peer in sm.peers for mbar in peer.mbarriers.values() if not mbar.idle or _polling(peer, mbar)],
        [hint for peer in sm.peers for hint in peer.hints()], kernel_of(sm))
    first = next((line for party in found.waiting for line in party.lines[:1]), None)
    return failed(PipelineDeadlock, found, first)


def _waiting(agent: Warpgroup) -> Party:
    """What a warpgroup waits for, and where."""
    sm, blocked = agent.sm, agent.blocked
    if agent.greenlet.dead:
        return Party(deadlocks.FINISHED, agent.warpgroup, agent.role, sm.cta)
    what = "" if blocked is None else f"blocked on {blocked.text()}"
    waiting = Party(f"{what}{context(agent.note_, None)}", agent.warpgroup, agent.role, sm.cta, lines_of(agent))
    mbar: Mbarrier | None = getattr(blocked, "mbar", None)
    if mbar is None:
        return waiting
    wait: Any = blocked
    at = place_of(sm, mbar)
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
    at = place_of(sm, mbar)
    plan, slot = (None, None) if at is None else (at.plan, at.slot)
    return Barrier(_name(sm, mbar), mbar.phase, mbar.pending, mbar.count, mbar.tx, mbar.expected,
                   mbar.by_warpgroup(), tuple(agent.warpgroup for agent, _ in mbar.waiters) + _polling(sm, mbar),
                   "own" if mbar.observed else "" if at is None else at.kind, None if plan is None else plan.name, slot,
                   None if plan is None or slot is None else plan.step_at(slot, mbar.phase))


def lines_of(agent: Warpgroup) -> tuple[Line, ...]:
    """The innermost three of the user's frames in which a warpgroup stands: one that waits, or that has come here itself."""
    frame: FrameType | None = sys._getframe() if agent.greenlet is getcurrent() else agent.greenlet.gr_frame
    found: list[Line] = []
    while frame is not None and len(found) < 3:
        site = user_site(frame)
        if site is None:
            break
        found.append(line_of(site))
        while frame is not None and (frame.f_code, frame.f_lineno) != site:
            frame = frame.f_back
        frame = frame.f_back if frame is not None else None
    return tuple(found)
