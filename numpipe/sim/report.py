"""What a report says: the user's lines, who did what to which bytes, what orders nothing, and the mend.

Accesses record only a code object and a line number; text is made when something is wrong.
"""

from __future__ import annotations

import functools
import os
import re
import sys
from importlib.util import find_spec
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any, TypeAlias

from ..errors import PipelineDeadlock, PipelineRace, SimulationError, at
from ..reports import Report
from . import clocks

if TYPE_CHECKING:
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
        if not is_own(code.co_filename):
            return code, frame.f_lineno
        frame = frame.f_back
    return None


def place(site: Site) -> str:
    """``gemm.py:41 in matmul``, or what can be said without a user's frame."""
    if site is None:
        return "(no line)"
    name = re.sub(r"__\d+$", "", site[0].co_name)  # nested functions are numbered where they are lifted out of a kernel
    return f"{os.path.basename(site[0].co_filename)}:{site[1]} in {name}"


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


def stamped(error: type[SimulationError], site: Site, message: str) -> SimulationError:
    """An error that starts with the user's ``file:line:``."""
    return error(message if site is None else at(site[0].co_filename, site[1], message))


def race(access_or_agent: Any, message: str, site: Site = None, *, hazard: str = "") -> SimulationError:
    """A PipelineRace of one agent, with the context it was in."""
    return _failure(PipelineRace, access_or_agent, message, site, hazard)


def violation(access_or_agent: Any, message: str, site: Site = None, *, hazard: str = "") -> SimulationError:
    """A broken rule that is not a race."""
    return _failure(SimulationError, access_or_agent, message, site, hazard)


def _failure(error: type[SimulationError], who: Any, message: str, site: Site, hazard: str) -> SimulationError:
    agent = getattr(who, "agent", who)
    where = context(who.note_, who.wait_)
    made = stamped(error, site or getattr(who, "site", None) or user_site(sys._getframe(2)),
                   f"{agent.title}: {message}{where}")
    made.report = Report(hazard, str(made))
    return made


# ---- two accesses to the same bytes -----------------------------------------------------------------------------
def _told(sm: SM, kind: int, access: Access, known: list[int]) -> str:
    warps = sm.clocks.warps_of(kind, access.needs, known)
    return f"warp{'s' * (len(warps) > 1)} {', '.join(str(w % 4) for w in warps)} of {access.agent.title}"


def _why(sm: SM, earlier: Access, later: Access, known: list[int], asynchronous: bool) -> tuple[str, str]:
    """(what is not ordered, how to mend it)"""
    if earlier.kind == "TMA load":
        assert earlier.mbar is not None
        own = earlier.mbar.observed
        return (f"nothing tells {later.agent.title} that this copy has landed",
                f"{'barrier_wait' if own else 'wait'} for {earlier.mbar.name}, phase {earlier.phase}, before the bytes are touched"
                + ("" if own else "; a pipeline's tile is there for its step only"))
    if earlier.kind == "wgmma":
        return (f"{_told(sm, clocks.DRAINED, earlier, known)} never told that their wgmma drained",
                "wgmma_wait with few enough groups pending, then a release by each of the four warps: barrier_arrive, or "
                "commit_smem before a copy of the warpgroup's own")
    if earlier.kind == "TMA store":
        return (f"the lane of {earlier.agent.title} that issued the store never told that it has read its bytes",
                "wait_smem_to_gmem(n, wait_read_only=True) behind the group's commit, before the bytes are written again "
                "(bulk_wait(pending, read=True) by the lane that stored, then a barrier)")
    late = sm.clocks.warps_of(clocks.GENERIC, earlier.needs, known)
    if asynchronous and earlier.kind.endswith("write") and not late:
        return (f"the writing warps did not fence: the store of {earlier.agent.title} is not visible to the async "
                "proxy",
                "commit_smem (fence.proxy.async by every warp that wrote, then a barrier) before the "
                f"{'copy' if 'TMA' in later.kind else 'wgmma'}, or before the arrival that tells of the tile")
    return (f"no barrier orders {_told(sm, clocks.GENERIC, earlier, known)} before {later.agent.title}",
            "a barrier between the two: commit_smem within a warpgroup, barrier_arrive and barrier_wait from one to another")


_VERBS = {
    "TMA load": "fills", "TMA store": "reads", "wgmma": "reads", "read": "reads", "write": "writes",
    "mbarrier": "initialises",
}


def conflict(sm: SM, earlier: Access, later: Access, lo: int, hi: int, known: list[int], asynchronous: bool,
             filled: Access | None) -> SimulationError:
    """`later` touches SMEM[lo:hi) although nothing orders it after `earlier`; `filled`: who wrote the bytes before."""
    if "mbarrier" in (earlier.kind, later.kind):
        return violation(later, f"{later.describe()} {_VERBS[later.kind]} SMEM[{lo}:{hi}), where "
                         f"{earlier.describe()} is in use (at {place(earlier.site)}); "
                         "place mbarriers outside the slots, and mbar_inval before the bytes serve something else")
    what, mend = _why(sm, earlier, later, known, asynchronous)
    lines = [
        f"{later.describe()} {_VERBS[later.kind]} SMEM[{lo}:{hi}) while {earlier.describe()} of {earlier.agent.title} "
        f"may still be {'writing' if earlier.kind in ('TMA load', 'write') else 'reading'} it",
        f"  now:    {later.tell()}",
        f"  before: {earlier.tell()}",
    ]
    if filled is not None and filled is not earlier and filled.mbar is not None:
        lines.append(f"  slot:   filled on {filled.mbar.name} phase {filled.phase}, at {place(filled.site)}")
    lines += [f"  {what}", f"  mend:   {mend}"]
    return stamped(PipelineRace, later.site, "\n".join(lines))


# ---- nobody can run ---------------------------------------------------------------------------------------------
def _lines_of(agent: Warpgroup) -> str:
    frame = agent.greenlet.gr_frame
    found: list[str] = []
    while frame is not None and len(found) < 3:
        site = user_site(frame)
        if site is None:
            break
        found.append(place(site))
        while frame is not None and (frame.f_code, frame.f_lineno) != site:
            frame = frame.f_back
        frame = frame.f_back if frame is not None else None
    return " <- ".join(found) or "(no line)"


def deadlock(sm: SM, why: str = "every warpgroup waits and nothing is in flight") -> SimulationError:
    """Who waits for what, the state of the mbarriers they wait for, and what is probably missing."""
    lines, first = [f"CTA {sm.cta}: {why}"], None
    hints: list[str] = []
    idle: list[str] = []
    for agent in sm.warpgroups:
        if agent.greenlet.dead:
            lines.append(f"  {agent.name}: finished")
            continue
        blocked = agent.blocked.text() if agent.blocked is not None else "nothing: it polls"
        lines.append(f"  {agent.name}: blocked on {blocked}{context(agent.note_, None)} at {_lines_of(agent)}")
        first = first or user_site(agent.greenlet.gr_frame)
    for mbar in sm.mbarriers.values():
        if mbar.idle:
            continue
        lines.append(f"  {mbar.name}: phase {mbar.phase}, {mbar.pending} of {mbar.count} arrivals missing, "
                     f"{mbar.tx} bytes missing" + (f"; arrived: {mbar.who_arrived()}" if mbar.arrivals else ""))
        if mbar.tx and not mbar.pending:
            hints.append(f"{mbar.name} still misses {mbar.tx} bytes and no copy is in flight: expect_tx announced "
                         f"{mbar.expected} bytes, the copies of this phase brought {mbar.expected - mbar.tx}")
        elif mbar.waiters and mbar.pending:
            # one that somebody has arrived at is nearer to the cause than one that waits for a blocked warpgroup
            (hints if mbar.arrivals else idle).append(
                f"{mbar.name} still misses {mbar.pending} of {mbar.count} arrivals in phase {mbar.phase}: "
                f"{'a barrier_arrive or a copy is missing' if mbar.observed else 'a slot was never released'}, or the count is too "
                f"high for those who arrive{mbar.counted}")
    lines += [f"  {hint}" for hint in sm.named_hints()]
    lines += [f"  {hint}" for hint in sm.registers.hints()]
    lines += [f"  hint: {hint}" for hint in hints or idle]
    return stamped(PipelineDeadlock, first, "\n".join(lines))
