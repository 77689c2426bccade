"""What a report of the verifier holds: who did what, to which bytes, where, and the mend; as an object, as text, as JSON.

The simulated SM fills it, and so does the host when a kernel on the GPU that was built with ``debug=True`` did not end: a
deadlock reads the same in both (`numpipe.traces.deadlocks`).
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Line:
    """A line of the user's source.

    >>> print(Line("/home/me/gemm.py", 41, "matmul"))
    gemm.py:41 in matmul
    """

    filename: str
    line: int
    function: str

    def __str__(self) -> str:
        name = re.sub(r"__\d+$", "", self.function)  # nested functions are numbered where they are lifted out of a kernel
        return f"{os.path.basename(self.filename)}:{self.line} in {name}"


@dataclass(frozen=True)
class Party:
    """One side of a report: an access, or a warpgroup that waits.

    did      what it does: ``TMA load (a)``, ``wgmma (batch 3)``, ``blocked on ready[1] of a, b @ gemm.py:41 phase 0 step 1``
    lines    of the user, innermost first
    ring, slot, step, phase, barrier   where in the pipeline, as far as known; of a warpgroup that waits: what it waits for
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

    @property
    def name(self) -> str:
        """``warpgroup 0 (compute)``"""
        return f"warpgroup {self.warpgroup} ({self.role})"


@dataclass(frozen=True)
class Barrier:
    """State of an mbarrier when nobody could go on: arrivals and bytes that its phase still misses.

    expected       bytes announced in this phase
    arrived        (warpgroup's name, arrivals) in this phase, as far as known
    waiters        warpgroups that wait for this phase
    kind           "ready" or "consumed" of a pipeline's ring, "own" of a `numpipe.Barrier`, "sums" of what CTAs of a cluster
                   exchange (`numpipe.combine`); "": unknown
    ring, slot, step   of a pipeline's ring: the step whose tiles this phase brings, or frees
    known          whether anybody asked what it misses; on the GPU, in a cluster, nobody can
    """

    name: str
    phase: int
    pending: int
    count: int
    missing_bytes: int
    expected: int | None = None
    arrived: tuple[tuple[str, int], ...] = ()
    waiters: tuple[int, ...] = ()
    kind: str = ""
    ring: str | None = None
    slot: int | None = None
    step: int | None = None
    known: bool = True


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
        """All of it in dicts, lists, strings and numbers: what `json` gives when it is read again."""
        found: dict[str, Any] = json.loads(self.json())
        return found

    def json(self) -> str:
        """As JSON, in one line."""
        return json.dumps(dataclasses.asdict(self))
