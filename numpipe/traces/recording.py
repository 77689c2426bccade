"""What a run, simulated or on a GPU, left behind: its events, its rings, and the SMs that its CTAs ran on."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

from .events import Event, Ring


class Recording:
    """The events of a run; `numpipe.Trace` is one that can be drawn, summed up, checked and saved."""

    def __init__(self, clock: Literal["cycles", "ns"] = "cycles") -> None:
        """`clock`: of its times, cycles of the virtual-time model, or nanoseconds on a GPU (`numpipe.last_profile`)."""
        self.clock = clock
        self.events: list[Event] = []
        self.failure: str | None = None
        """the error that ended the run"""
        self.lost = 0
        """events that a GPU had no room for"""
        self.rings: list[Ring] = []
        """rings of the kernel"""
        self.sms: dict[tuple[int, int, int], int] = {}
        """which SM of the GPU ran a CTA"""

    def add(self, who: Any, start: int, end: int, kind: str, /, **details: Any) -> None:
        """One more event of `who`, a warpgroup; called by the simulated SM."""
        self.events.append(Event(who.cta, who.warpgroup, who.role, start, end, kind, details))

    def of(self, kind: str, cta: tuple[int, int, int] | None = None) -> list[Event]:
        """The events of one kind, of one CTA or of all."""
        return [e for e in self.events if e.kind == kind and (cta is None or e.cta == cta)]

    def tell_rings(self, rings: Iterable[Ring]) -> None:
        """Which rings the kernel has (`Unit.traced`)."""
        self.rings += [ring for ring in rings if ring not in self.rings]

    @property
    def ctas(self) -> list[tuple[int, int, int]]:
        """The CTAs that the trace has events of, in their order."""
        return list(dict.fromkeys(e.cta for e in self.events))

    def events_of(self, cta: tuple[int, int, int] | int | None = None) -> list[Event]:
        """The events of one CTA, by default the first; an int is its number in x. Raises ValueError if there are none."""
        if cta is None and not self.events:
            return []
        wanted = self.events[0].cta if cta is None else (cta, 0, 0) if isinstance(cta, int) else tuple(cta)
        found = [e for e in self.events if e.cta == wanted]
        if not found:
            raise ValueError(f"no events of CTA {wanted}; there are {sorted(self.ctas)}")
        return found
