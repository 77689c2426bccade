"""Construction of reports: the user's lines, who did what to which bytes, what is not ordered, and
the fix."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterable, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any

from greenlet import getcurrent

from ..diagnostics.errors import PipelineRace, SimulationError, reported
from ..diagnostics.reports import Line, Party, Report
from .sites import Note, Site, context, lines, noted, user_site
from .state import SM, Access, Mbarrier, Warpgroup, side

if TYPE_CHECKING:
    from ..plan.plans import BarrierPlace, RingPlan


# ---- who, and where in the pipeline --------------------------------------------------------------
def place_of(sm: SM, mbar: Mbarrier) -> BarrierPlace | None:
    """Return the place of `mbar` in the kernel's rings; None for an mbarrier that the body
    allocates."""
    find = getattr(sm.unit, "barrier_at", None)
    return None if find is None else find(mbar.address)


def slot_of(sm: SM, address: int) -> tuple[RingPlan, int] | None:
    """Return the ring and slot that an address lies in."""
    find = getattr(sm.unit, "slot_at", None)
    return None if find is None else find(address)


def ring_name(sm: SM, plan: RingPlan, note: Note) -> str:
    """Return a ring's name in the running pipeline, which may use another pipeline's ring under its
    own name."""
    named = note[1].get("ring")
    known = {ring.name for ring in (*sm.unit.rings.values(), *sm.unit.outputs.values())}
    return plan.name if named is None or named in known else str(named)


def party(
    who: Access | Warpgroup,
    did: str = "",
    site: Site = None,
    *,
    mbar: Mbarrier | None = None,
    span: tuple[int, int] | None = None,
    note: Note = ("", {}),
    phase: int | None = None,
    step: int = -1,
) -> Party:
    """Return one side of a report: an access, or what a warpgroup does, to an mbarrier or to the
    bytes of `span`.

    note          the warpgroup's position then, if not its present one
    phase, step   of the barrier, if not the present ones (None, -1)
    """
    access: Any = who if hasattr(who, "agent") else None
    agent: Warpgroup = who if access is None else access.agent  # type: ignore[assignment]
    note, sm = note if note[0] else who.last_note, agent.sm
    if phase is None and mbar is not None:
        phase = mbar.phase
    if mbar is None and access is not None and access.mbar is not None:
        mbar, phase = access.mbar, access.phase
    ring = note[1].get("ring")
    slot, at_step = noted(note, "slot"), noted(note, "step")
    bytes_in = slot_of(sm, span[0]) if span is not None else None
    where = place_of(sm, mbar) if mbar is not None else None
    if where is not None and where.plan is not None and where.slot is not None:
        if access is not None or ring != ring_name(sm, where.plan, note):
            at_step = where.plan.step_at(where.slot, phase or 0)
        ring, slot = ring_name(sm, where.plan, note), where.slot
    elif bytes_in is not None:
        name = ring_name(sm, bytes_in[0], note)
        if ring != name:
            at_step = None
        ring, slot = name, bytes_in[1]
    elif span is not None and hasattr(sm.unit, "slot_at"):
        ring = slot = None
    lo, hi = span or (None, None)
    return side(
        agent,
        did or access.describe(),
        site or (user_site() if access is None else access.site),
        ring=ring,
        slot=slot,
        step=step if step >= 0 else at_step,
        barrier=None if mbar is None else mbar.name,
        phase=phase,
        lo=lo,
        hi=hi,
    )


# ---- a warpgroup breaks a rule -------------------------------------------------------------------
def race(
    who: Access | Warpgroup,
    message: str,
    site: Site = None,
    *,
    hazard: str,
    fix: str = "",
    before: Access | Party | None = None,
    error: type[SimulationError] = PipelineRace,
    **about: Any,
) -> SimulationError:
    """Return a PipelineRace, or another `error`, of one agent in its context.

    hazard   its name in `numpipe.hazards`
    fix      what to write instead; by default the text after a semicolon in the message
    before   the access that it conflicts with
    about    further arguments of `party`: mbar, span (bytes), phase, step
    """
    agent: Any = getattr(who, "agent", who)
    site = site or getattr(who, "site", None) or user_site()
    cause = message
    if fix:
        message = f"{message}: {fix}"
    else:
        cause, _, fix = message.partition("; ")
    now = party(who, cause if agent is who else "", site, **about)
    earlier = (
        before
        if before is None or isinstance(before, Party)
        else party(before, span=about.get("span"))
    )
    text = f"{agent.title}: {message}{context(who.last_note, who.last_wait)}"
    return reported(
        error,
        Report(
            hazard,
            text,
            now,
            earlier,
            cause=cause,
            fix=fix,
            kernel=getattr(agent.sm.unit, "kernel", ""),
        ),
    )


violation = functools.partial(race, error=SimulationError)
"""A broken rule that is not a race."""
illegal = functools.partial(violation, hazard="illegal-instruction")
"""An instruction that no GPU can execute."""


def conflict(
    error: type[SimulationError],
    hazard: str,
    what: str,
    accesses: Sequence[tuple[str, Party]],
    cause: str,
    fix: str,
    sm: SM,
    more: Iterable[str] = (),
) -> SimulationError:
    """Return the error for an access and an earlier one that it conflicts with, if there is one:
    each as (line of text, party)."""
    sides = [
        f"  {when} {text}"
        for when, (text, _) in zip(("now:   ", "before:"), accesses, strict=False)
    ]
    text = "\n".join((what, *sides, *more, f"  {cause}", f"  fix:    {fix}"))
    now, before = (*(each for _, each in accesses), None)[:2]
    return reported(
        error,
        Report(
            hazard, text, now, before, cause=cause, fix=fix, kernel=getattr(sm.unit, "kernel", "")
        ),
    )


def one_lane(who: Warpgroup, operation: str) -> None:
    """Raise SimulationError unless one lane executes."""
    if who.lanes != "one":
        raise violation(
            who,
            f"{operation} is executed by {who.lane_count()} lanes (lanes={who.lanes!r}) and would "
            f"happen {who.lane_count()} times; call it under one_lane",
            hazard="divergent-aligned",
        )


def collective(who: Warpgroup, operation: str) -> None:
    """Raise SimulationError unless all lanes execute."""
    if who.lanes != "all":
        raise violation(
            who,
            f"{operation} needs all 128 lanes of the warpgroup, but lanes={who.lanes!r}; call it "
            "outside one_lane, each_warp and the memory role",
            hazard="divergent-aligned",
        )


# ---- where a warpgroup stands --------------------------------------------------------------------
def lines_of(agent: Warpgroup) -> tuple[Line, ...]:
    """Return the innermost three of the user's lines that a waiting warpgroup, or the calling one,
    is executing."""
    frame: FrameType | None = (
        sys._getframe() if agent.greenlet is getcurrent() else agent.greenlet.gr_frame
    )
    stack: list[Line] = []
    while frame is not None and len(stack) < 3:
        site = user_site(frame)
        if site is None:
            break
        stack += lines(site)
        while frame is not None and (frame.f_code, frame.f_lineno) != site:
            frame = frame.f_back
        frame = frame.f_back if frame is not None else None
    return tuple(stack)
