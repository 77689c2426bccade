"""Flags in global memory: a CTA tells another one that what it stored is there.

A flag is set by a release (st.release.gpu), which takes with it what its lane knows of the CTA's stores, and seen by an acquire
(ld.acquire.gpu) of another CTA. CTAs do not share clocks, so the acquiring one has a counter that stands for having seen this flag:
barriers pass it on to the other warps. A load of what another CTA stored is ordered when the loading warps know such a counter, and
what was released under it covers the store.

CTAs run one after the other, in the order of their indices where kernels hand over (`grid.splits`: an owner waits for CTAs of a
smaller index only). So a flag that is not set when a CTA asks for it can be set by that CTA alone; else it is a deadlock.

PTX ISA, "Memory Consistency Model: Release and Acquire Patterns; Causality order".
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from ..diagnostics.errors import SimulationError
from ..diagnostics.reports import Party, Report
from ..traces.deadlocks import Hint
from . import report, sites
from .state import SM, Blocked, Handed, Warpgroup
from .touches import Touch


class Flag(Blocked):
    """A word of global memory, as somebody set it or waits for it."""

    def __init__(self, what: str) -> None:
        super().__init__("flag", f"the flag of {what}")
        self.what = what
        self.handed: Handed | None = None
        """by the release that set it; None: it is 0"""
        self.set_by = ""
        self.party: Party | None = None
        """who set it"""


def _flag(who: Warpgroup, flags: npt.NDArray[np.int32], index: int, what: str, instruction: str) -> Flag:
    """The flag that one lane touches with an instruction."""
    report.one_lane(who, instruction)
    who.elapse(who.sm.costs.tma_latency)
    who.breathe()
    address = int(flags.ctypes.data) + flags.strides[0] * int(index)
    found: Flag = who.sm.gmem.flags.setdefault(address, Flag(what))
    return found


def signal(who: Warpgroup, flags: npt.NDArray[np.int32], index: int, what: str) -> None:
    """Set a flag, by one lane."""
    flag = _flag(who, flags, index, what, "st.release.gpu")
    if flag.handed is not None:
        raise report.violation(who, f"the flag of {what} is set, and {flag.set_by} had set it: nobody has taken what that handed "
                               "over", mend="a slot of its own for each part", hazard="cta-conflict")
    vector = who.vectors[0].copy()
    who.release_into(vector)
    flag.handed = Handed(who.sm.gmem.number, vector)
    flag.set_by = f"{who.name} of CTA {who.cta} at {sites.place(sites.user_site())}"
    flag.party = report.party(who, f"sets the flag of {what}")
    flags[index] = 1
    who.sm.progress += 1
    flag.open(who.time)


def wait(who: Warpgroup, flags: npt.NDArray[np.int32], index: int, what: str) -> None:
    """Wait until a flag is set and clear it, by one lane."""
    flag = _flag(who, flags, index, what, "ld.acquire.gpu")
    while flag.handed is None:
        flag.enqueue(who, what=what)
    counter = who.sm.add_mbarrier_counter()
    who.sm.acquired[counter] = flag.handed
    who.vectors[0, counter] = 1
    flag.handed = None
    flags[index] = 0


def handed_over(sm: SM, earlier: Touch, known: list[int]) -> bool:
    """Whether warps that know so much have seen a flag behind another CTA's store."""
    return any(known[counter] and handed.number == earlier.number and all(handed.vector[at] >= value for at, value in earlier.needs)
               for counter, handed in sm.acquired.items())


def hints(sm: SM) -> list[Hint]:
    """Flags that somebody waits for."""
    waited: list[Any] = [w.blocked for w in sm.warpgroups if not w.greenlet.dead and isinstance(w.blocked, Flag)]
    return [Hint("deadlock", f"{flag.text()}: nobody has set it, and CTAs that hand over have a smaller index than the one that "
                 "waits: those have run", "hand every part over with numpipe.combine, and wait for parts of the CTAs before only")
            for flag in waited]


def left_set(flags: Iterable[Flag]) -> None:
    """SimulationError for a flag that is set when the grid has ended: the next launch would take it for its own."""
    for flag in flags:
        if flag.handed is not None:
            text = (f"the flag of {flag.what}, which {flag.set_by} set, is still set when the kernel has ended: the next launch "
                    "would take it for its own")
            mend = "run numpipe.combine in every part of a tile, in the owner's too"
            raise report.failed(SimulationError, Report("exit-in-flight", f"{text}: {mend}", flag.party, cause=text, mend=mend),
                                flag.party.lines[0] if flag.party and flag.party.lines else None)
