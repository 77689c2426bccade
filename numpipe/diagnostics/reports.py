"""`Report`: a hazard that was found: who did what, to which bytes, where, and how to fix it; as an
object, text or JSON.

The simulated SM fills one, and so does the host when a kernel on the GPU that was built with
``debug=True`` did not end: a deadlock reads the same in both (`numpipe.traces.deadlocks`).
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
        # nested functions are numbered where they are lifted out of a kernel
        name = re.sub(r"__\d+$", "", self.function)
        return f"{os.path.basename(self.filename)}:{self.line} in {name}"


@dataclass(frozen=True)
class Party:
    """One side of a report: an access, or a warpgroup that waits.

    did      what it does: ``TMA load (a)``, ``wgmma (batch 3)``, ``blocked on ready[1] of a, b @
             gemm.py:41 phase 0 step 1``
    lines    the user's lines, innermost first
    ring, slot, step, phase, barrier   its place in the pipeline, as far as known; for a warpgroup
             that waits, what it waits for
    lo, hi   the range of shared-memory bytes, or None
    gpu      the GPU of a kernel of several; None: there is one
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
    gpu: int | None = None

    @property
    def name(self) -> str:
        """Return ``warpgroup 0 (compute)``."""
        return f"warpgroup {self.warpgroup} ({self.role})"

    @property
    def where(self) -> str:
        """Return ``CTA (1, 0, 0)``, with its GPU where there are several."""
        return f"CTA {self.cta}" + ("" if self.gpu is None else f" of GPU {self.gpu}")


@dataclass(frozen=True)
class Barrier:
    """The state of an mbarrier when nobody could go on: arrivals and bytes that its phase still
    misses.

    expected       bytes announced in this phase
    arrived        (warpgroup's name, arrivals) in this phase, as far as known
    waiters        warpgroups that wait for this phase
    kind           "ready" or "consumed" in a pipeline's ring, "own" for a `numpipe.Barrier`, "sums"
                   for the exchange between CTAs of a cluster (`numpipe.combine`), "" where unknown
    ring, slot, step   its place in a pipeline's ring; this phase brings, or frees, the tiles of the
                   step
    known          whether what it misses is known; on the GPU, in a cluster, it is not
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
    text     the whole message of the error
    now      the access or warpgroup at which the hazard was found; before: the access that it
             conflicts with, if any
    waiting, barriers   the warpgroups and barriers of a deadlock
    cause    why it is a mistake; fix: what to write instead
    """

    hazard: str
    text: str
    now: Party | None = None
    before: Party | None = None
    waiting: tuple[Party, ...] = ()
    barriers: tuple[Barrier, ...] = ()
    cause: str = ""
    fix: str = ""
    kernel: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return the report in dicts, lists, strings and numbers, as they come out of its JSON."""
        return json.loads(self.json())  # type: ignore[no-any-return]

    def json(self) -> str:
        """Return the report as JSON, in one line."""
        return json.dumps(dataclasses.asdict(self))
