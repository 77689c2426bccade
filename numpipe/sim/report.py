"""What a report says: the user's lines, who did what to which bytes, what orders nothing, and the mend."""

from __future__ import annotations

import dataclasses
import functools
import sys
from types import FrameType
from typing import TYPE_CHECKING, Any

from greenlet import getcurrent

from ..diagnostics.errors import PipelineRace, SimulationError, at
from ..diagnostics.reports import Line, Party, Report
from .sites import Site, context, line_of, noted, user_site
from .state import SM, Access, Mbarrier, Warpgroup

if TYPE_CHECKING:
    from ..plan.plans import BarrierPlace, RingPlan

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
         before: Access | Party | None = None, error: type[SimulationError] = PipelineRace, **about: Any) -> SimulationError:
    """A PipelineRace of one agent, or another `error`, with the context it was in.

    hazard   its name in `numpipe.hazards`
    mend     what to write instead; without it what is behind a semicolon in the message
    before   whom it conflicts with
    about    what `party` is told: mbar, span (bytes), phase, step
    """
    agent: Any = getattr(who, "agent", who)
    site = site or getattr(who, "site", None) or user_site()
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


violation = functools.partial(race, error=SimulationError)
"""A broken rule that is not a race."""
illegal = functools.partial(violation, hazard="illegal-instruction")
"""What no GPU executes."""


def one_lane(who: Warpgroup, operation: str) -> None:
    """SimulationError unless one lane executes."""
    if who.lanes != "one":
        raise violation(who, f"{operation} is executed by {who.lane_count()} lanes (lanes={who.lanes!r}) and would happen "
                             f"{who.lane_count()} times; call it under one_lane", hazard="divergent-aligned")


def collective(who: Warpgroup, operation: str) -> None:
    """SimulationError unless all lanes execute."""
    if who.lanes != "all":
        raise violation(who, f"{operation} needs all 128 lanes of the warpgroup, but lanes={who.lanes!r}; call it outside "
                             "one_lane, each_warp and the memory role", hazard="divergent-aligned")


# ---- where a warpgroup stands ------------------------------------------------------------------------------------
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
