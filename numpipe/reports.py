"""What a report of the verifier holds: who did what, to which bytes, where, and the mend; as an object, as text, as JSON.

The simulated SM fills it, and so does the host when a kernel on the GPU that was built with ``debug=True`` did not end: a
deadlock reads the same in both.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Line:
    """A line of the user's source."""

    filename: str
    line: int
    function: str


@dataclass(frozen=True)
class Party:
    """One side of a report: an access, or a warpgroup that waits.

    did      what it does: ``TMA load (a)``, ``wgmma (batch 3)``, ``waits for ready[1] of a, b @ gemm.py:41``
    lines    of the user, innermost first
    ring, slot, step, phase, barrier   where in the pipeline, as far as known
    lo, hi   bytes of shared memory, or None
    """

    did: str
    warpgroup: int
    role: str
    cta: tuple[int, int, int] = (0, 0, 0)
    lines: tuple[Line, ...] = ()
    ring: str | None = None
    slot: int | None = None
    step: int | None = None
    barrier: str | None = None
    phase: int | None = None
    lo: int | None = None
    hi: int | None = None


@dataclass(frozen=True)
class Barrier:
    """State of an mbarrier when nobody could go on: arrivals and bytes that its phase still misses."""

    name: str
    phase: int
    pending: int
    count: int
    missing_bytes: int


@dataclass(frozen=True)
class Report:
    """A hazard that was found.

    hazard   its name (`numpipe.hazards`)
    text     the whole message, as the error says it
    now      who came upon it; before: whom it conflicts with, if anybody
    waiting, barriers   of a deadlock
    cause    what orders, tells or allows nothing; mend: what to write instead
    """

    hazard: str
    text: str
    now: Party | None = None
    before: Party | None = None
    waiting: tuple[Party, ...] = ()
    barriers: tuple[Barrier, ...] = ()
    cause: str = ""
    mend: str = ""
    kernel: str = ""

    def as_dict(self) -> dict[str, Any]:
        """All of it in dicts, lists, strings and numbers."""
        return dataclasses.asdict(self)

    def json(self) -> str:
        """`as_dict` as JSON, in one line."""
        return json.dumps(self.as_dict())
