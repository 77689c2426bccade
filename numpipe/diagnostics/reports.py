"""`Report`, the description of a hazard that was found: who did what, to which bytes, where, and
how to fix it.

A report is available as an object, text or JSON. The simulated SM creates one, and so does the host
if a GPU kernel built with ``debug=True`` does not end; deadlocks read the same in both
(`numpipe.traces.deadlocks`)."""

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
        # functions nested in a kernel get a number when they are lifted out of it
        name = re.sub(r"__\d+$", "", self.function)
        return f"{os.path.basename(self.filename)}:{self.line} in {name}"


@dataclass(frozen=True)
class Party:
    """One side of a report: an access, or a waiting warpgroup.

    did      what it does: ``TMA load (a)``, ``wgmma (batch 3)``, ``blocked on ready[1] of a, b @
             gemm.py:41 phase 0 step 1``
    lines    the user's lines, innermost first
    ring, slot, step, phase, barrier   its place in the pipeline, as far as known; for a waiting
             warpgroup, what it waits for
    lo, hi   the range of shared-memory bytes, or None
    gpu      the GPU, for a kernel of several GPUs; otherwise None
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
        """``warpgroup 0 (compute)``."""
        return f"warpgroup {self.warpgroup} ({self.role})"

    @property
    def where(self) -> str:
        """``CTA (1, 0, 0)``, followed by its GPU if there are several."""
        return f"CTA {self.cta}" + ("" if self.gpu is None else f" of GPU {self.gpu}")


@dataclass(frozen=True)
class Barrier:
    """State of an mbarrier in a deadlock: the arrivals and bytes that its phase still lacks.

    expected       bytes announced in this phase
    arrived        (name of the warpgroup, arrivals) in this phase, as far as known
    waiters        warpgroups that wait for this phase
    kind           "ready" or "consumed" in a pipeline's ring, "own" for a `numpipe.Barrier`, "sums"
                   for the exchange between CTAs of a cluster (`numpipe.combine`), "" if unknown
    ring, slot, step   its place in a pipeline's ring; this phase fills, or frees, the tiles of the
                   step
    known          whether the missing arrivals are known; False for a cluster on the GPU
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

    hazard   its name (see `numpipe.hazards`)
    text     the full message of the error
    now      the access or warpgroup at which the hazard was found; before: the conflicting earlier
             access, if there is one
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
        """Return the report as dicts, lists, strings and numbers, as parsed from its JSON."""
        return json.loads(self.json())  # type: ignore[no-any-return]

    def json(self) -> str:
        """Return the report as one line of JSON."""
        return json.dumps(dataclasses.asdict(self))
