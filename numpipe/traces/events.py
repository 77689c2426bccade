"""The record of a run, on the simulated SM or on a GPU: its events, its rings, and the SMs that its
CTAs ran on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from ..arch.dimensions import Dim3, Ints
from ..diagnostics.argument_checks import NONE, each, require, whole, word
from ..diagnostics.errors import SpecError
from ..plan.protocol import KINDS, MOMENTS, OF_A_RING, Ring

__all__ = ["Event", "Ring"]

UNITS = {kind: row.unit for kind, row in KINDS.items() if row.unit}
"""kinds of events that do not belong to a warpgroup, and the unit of the SM that they are shown
on"""


Place: TypeAlias = Ints
"""a CTA, (x, y, z), or in a run on several GPUs (gpu, x, y, z)"""


def cta_name(place: Place) -> str:
    """Format the name of a CTA.

    >>> cta_name((1, 0, 0)), cta_name((1, 2, 0, 0))
    ('CTA (1, 0, 0)', 'CTA (2, 0, 0) of GPU 1')
    """
    return f"CTA {place[-3:]}" + (f" of GPU {place[0]}" if len(place) > 3 else "")


def place_of(mbar: str) -> dict[str, Any]:
    """Return the ring and slot in an mbarrier's name, which has the form
    ``ready[0] of a, b @ gemm.py:41``."""
    named = OF_A_RING.fullmatch(mbar)
    return {} if named is None else {"ring": named["ring"], "slot": int(named["slot"])}


def moment(what: str, details: Mapping[str, Any], step: Any = None) -> str:
    """Describe what happens in a slot of a ring.

    >>> moment("release", {"ring": "a, b @ gemm.py:53", "slot": 0, "step": 3})
    'release of step 3 (slot 0) of a, b @ gemm.py:53'
    """
    operand = f", operand {details['operand']}" if "operand" in details else ""
    where = f" (slot {details['slot']}{operand}) of {details['ring']}" if "ring" in details else ""
    step = details.get("step", step)
    return what + ("" if step is None else f" of step {step}") + where


@dataclass(frozen=True)
class Event:
    """Something that lasted from `start` to `end` (equal for a moment), in cycles of the model, or
    in nanoseconds on a GPU.

    ==============  ================================================================================
    kind            meaning
    ==============  ================================================================================
    ``wait``        blocked on an mbarrier (`details`: mbar, phase, step)
    ``barrier``     blocked on a named barrier
    ``registers``   blocked in setmaxnreg.inc
    ``drain``       blocked in wgmma_wait while its own products run
    ``flush``       blocked in bulk_wait while its own stores run
    ``semaphore``   blocked on a semaphore (`details`: semaphore, value)
    ``begin``       blocked until the launches of all GPUs have begun
    ``signal``      adds to a semaphore (`details`: semaphore, and the count after it)
    ``issue``       issues a TMA load; on a GPU all loads of a step
    ``arrive``      arrives at an mbarrier to release a slot
    ``read``        loads from GMEM itself; only on the simulated SM
    ``write``       writes shared memory or GMEM itself
    ``load``        a TMA load, from its turn on the copy port (until details["port_until"]) to its
                    landing
    ``store``       a TMA store, likewise, until it has arrived in GMEM; a reduction has
                    details["reduction"]
    ``mma``         a wgmma batch on the tensor core
    ``note``        a moment that the warpgroup recorded: details["event"], and the ring, slot, step
                    …
    ``end``         the warpgroup has finished; details["lost"]: number of its last events for which
                    a GPU had no room
    ==============  ================================================================================

    On the simulated SM, details["statement"] is the user's line that was executed, ``gemm.py:41 in
    matmul: for k in pipe(a, b):``. If a warpgroup was blocked when the run failed, its last event
    has details["unfinished"]. If a report names the event, details["now"], ["before"] or
    ["waits"] says as what. `gpu`
    is the number of the GPU, in a run on several.
    """

    cta: Dim3
    warpgroup: int
    role: str
    start: int
    end: int
    kind: str
    details: dict[str, Any] = field(default_factory=dict)
    gpu: int | None = None

    @property
    def place(self) -> Place:
        """The CTA; in a run on several GPUs, preceded by the GPU."""
        return self.cta if self.gpu is None else (self.gpu, *self.cta)

    @property
    def note(self) -> str:
        """The name of the moment (`MOMENTS`) if the event is a note, otherwise ""."""
        return str(self.details["event"]) if self.kind == "note" else ""

    @property
    def aside(self) -> bool:
        """Whether the event belongs to a region or a tile."""
        return self.note in MOMENTS and not MOMENTS[self.note].of


class Recording:
    """The events of a run. `numpipe.Trace` is a recording that can be drawn, summarized, checked
    and saved."""

    def __init__(self, clock: Literal["cycles", "ns"] = "cycles") -> None:
        """`clock`: the unit of times, "cycles" of the virtual-time model or "ns" on a GPU
        (`numpipe.last_profile`)."""
        require("Trace", locals(), clock=word("cycles", "ns"))
        self.clock = clock
        self.events: list[Event] = []
        self.failure: str | None = None
        """the error that ended the run"""
        self.lost = 0
        """number of events that a GPU had no room for"""
        self.rings: list[Ring] = []
        self.sms: dict[Dim3, int] = {}
        """the SM of the GPU that ran each CTA"""
        self.banks: dict[tuple[str, str, int], int] = {}
        """(line, access, ways) -> number of shared-memory accesses of a warp's lanes that took this
        many passes through the banks, on the simulated SM"""

    def add(self, who: Any, start: int, end: int, kind: str, /, **details: Any) -> None:
        """Append an event of `who`, a warpgroup of the simulated SM."""
        self.events.append(
            Event(who.cta, who.warpgroup, who.role.name, start, end, kind, details, who.gpu)
        )

    def of(self, kind: str, cta: Place | None = None) -> list[Event]:
        """Return the events of one kind, of one CTA or of all."""
        return [e for e in self.events if e.kind == kind and (cta is None or e.place == cta)]

    def tell_rings(self, rings: Iterable[Ring]) -> None:
        """Add the kernel's rings (`Unit.traced`)."""
        self.rings += [ring for ring in rings if ring not in self.rings]

    @property
    def ctas(self) -> list[Place]:
        """The CTAs that the trace has events of, in the order of their first events."""
        return list(of_ctas(self.events))

    @property
    def gpus(self) -> list[int]:
        """The GPUs of a run on several GPUs; otherwise empty."""
        return sorted({event.gpu for event in self.events if event.gpu is not None})

    def events_of(self, cta: Place | int | None = None) -> list[Event]:
        """Return the events of one CTA, by default the first; an int is its number along x. In a
        run on several GPUs, it is a CTA of the first GPU unless given as (gpu, x, y, z). Raises
        SpecError if there are none."""
        if cta is None and not self.events:
            return []
        require("trace", locals(), cta=whole() | each(whole(), 3) | each(whole(), 4) | NONE)
        wanted = (
            self.events[0].place
            if cta is None
            else tuple(cta)
            if isinstance(cta, (tuple, list))
            else (cta, 0, 0)
        )
        if len(wanted) == 3 and self.gpus:
            wanted = self.gpus[0], *wanted
        if wanted not in (by_cta := of_ctas(self.events)):
            raise SpecError(f"trace: no events of {cta_name(wanted)}; there are {sorted(by_cta)}")
        return by_cta[wanted]

    def side_by_side(self, cta: Place | int | None) -> list[tuple[str, list[Event]]]:
        """Return the (title, events) pairs to show for a run: one CTA's events without a title, or,
        for several GPUs unless `cta` names one, the events of the same CTA on each, with the GPU's
        name."""
        first = self.events_of(cta)
        if not first or first[0].gpu is None or (isinstance(cta, (tuple, list)) and len(cta) == 4):
            return [("", first)]
        return [(f"GPU {gpu}", self.events_of((gpu, *first[0].cta))) for gpu in self.gpus]


def of_ctas(events: list[Event]) -> dict[Place, list[Event]]:
    """Return the events by CTA, in order."""
    by_cta: dict[Place, list[Event]] = {}
    for event in events:
        by_cta.setdefault(event.place, []).append(event)
    return by_cta


def of_warpgroups(events: list[Event]) -> dict[int, list[Event]]:
    """Return the events of one CTA by warpgroup, in order, without the events of the SM's units."""
    by_warpgroup: dict[int, list[Event]] = {}
    for event in events:
        if event.kind not in UNITS:
            by_warpgroup.setdefault(event.warpgroup, []).append(event)
    return dict(sorted(by_warpgroup.items()))
