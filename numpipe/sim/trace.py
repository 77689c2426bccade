"""What happened when: the events of a simulated run, a timeline of them as text, and a file of either kind.

>>> from numpipe.sim import Trace
>>> trace = Trace()          # simulate(..., trace=trace), then print(trace.timeline())
>>> print(trace.timeline())
no events
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ..errors import SpecError
from .chrome import UNITS, trace_events

if TYPE_CHECKING:
    from .port import Warpgroup


@dataclass(frozen=True)
class Event:
    """Something that took from cycle `start` to cycle `end` (equal for a moment).

    ==============  =================================================================================
    kind            what
    ==============  =================================================================================
    ``wait``        blocked on an mbarrier (`details`: mbar, phase, step)
    ``barrier``     blocked on a named barrier
    ``registers``   blocked in setmaxnreg.inc
    ``drain``       blocked in wgmma_wait: its own products run
    ``flush``       blocked in bulk_wait: its own stores run
    ``issue``       issues a TMA load
    ``arrive``      arrives at an mbarrier: a slot's release
    ``write``       writes shared memory or GMEM itself
    ``load``        a TMA load, from its turn on the copy port (until details["port_until"]) to its landing
    ``store``       a TMA store, likewise, to its arrival in GMEM
    ``mma``         a wgmma batch on the tensor core
    ``note``        what `Machine.note` said: details["event"] and the ring, slot, step …
    ``end``         the warpgroup has finished
    ==============  =================================================================================

    A warpgroup that was blocked when the run failed has a last event with details["unfinished"].
    """

    cta: tuple[int, int, int]
    warpgroup: int
    role: str
    start: int
    end: int
    kind: str
    details: dict[str, Any] = field(default_factory=dict)


_LETTERS = {
    "wait": ".", "barrier": ".", "registers": ".", "drain": "#", "flush": "S", "issue": "L", "write": "S",
    "load": "L", "store": "S",
}
_LEGEND = "L load   # compute   S store   . wait   - other instructions   tensor core: number of the warpgroup"


class Trace:
    """Collects events of `simulate`; virtual cycles restart at 0 with every CTA."""

    def __init__(self, clock: Literal["cycles", "ns"] = "cycles") -> None:
        """`clock`: of its times, cycles of the virtual-time model, or nanoseconds on a GPU (`numpipe.last_profile`)."""
        self.clock = clock
        self.events: list[Event] = []
        self.failure: str | None = None
        """the error that ended the run"""
        self.lost = 0
        """events that a GPU had no room for"""
        self.sms: dict[tuple[int, int, int], int] = {}
        """which SM of the GPU ran a CTA"""

    def add(self, who: Warpgroup, start: int, end: int, kind: str, /, **details: Any) -> None:
        """One more event of `who`; called by the simulated SM."""
        self.events.append(Event(who.cta, who.warpgroup, who.role, start, end, kind, details))

    def of(self, kind: str, cta: tuple[int, int, int] | None = None) -> list[Event]:
        """The events of one kind, of one CTA or of all."""
        return [e for e in self.events if e.kind == kind and (cta is None or e.cta == cta)]

    def timeline(self, width: int = 100, cta: tuple[int, int, int] | None = None) -> str:
        """The run of one CTA (the first one by default) as text.

        One row a warpgroup, then the copy port and the tensor core; each of `width` columns shows what took most of its
        cycles, or the issue of a load::

            wg0 compute |---.....####..####..####SSS
            wg2 memory  |-LL.....L.....L.....
            copy in     |  LLLLLLLLLLLLLLLL
            tensor core |        0000  0000  0000
        """
        if not self.events:
            return "no events"
        cta = self.events[0].cta if cta is None else cta
        events = [e for e in self.events if e.cta == cta]
        if not events:
            raise ValueError(f"no events of CTA {cta}; there are {sorted({e.cta for e in self.events})}")
        last = max(max(e.end for e in events), 1)
        rows: list[tuple[str, str]] = []
        for number in sorted({e.warpgroup for e in events}):
            own = [e for e in events if e.warpgroup == number]
            ended = max((e.end for e in own if e.kind == "end"), default=last)
            spans = [(e.start, e.end, _LETTERS[e.kind]) for e in own if e.kind in _LETTERS and e.kind not in UNITS]
            rows.append((f"wg{number} {own[-1].role}", _row(spans, width, last, ended, "-")))
        for kind, title in UNITS.items():
            spans = [(e.start, e.details.get("port_until", e.end), _LETTERS.get(kind, str(e.warpgroup)))
                     for e in events if e.kind == kind]
            if spans:
                rows.append((title, _row(spans, width, last, last, " ")))
        label = max(len(name) for name, _ in rows)
        head = f"CTA {cta}: {last} {self.clock}, {last / width:.0f} a column"
        return "\n".join([head, *(f"{name:<{label}} |{row.rstrip()}" for name, row in rows), _LEGEND])

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the events to a file, in the format that its name ends in.

        ``.json``  the Trace Event Format: open it in ui.perfetto.dev (see `numpipe.sim.chrome`); a microsecond is a cycle
        ``.txt``   the timeline of every CTA

        Raises SpecError for another ending.
        """
        file = file_of(path)
        if file.suffix == ".json":
            text = json.dumps(trace_events(self.events, self.failure, self.clock, self.lost, self.sms), indent=0)
        else:
            ctas = list(dict.fromkeys(e.cta for e in self.events))
            text = "\n\n".join([*(self.timeline(cta=cta) for cta in ctas)] or [self.timeline()])
            text += f"\n\n{self.failure}" if self.failure else ""
        file.write_text(text + "\n", encoding="utf8")


def _row(spans: Iterable[tuple[int, int, str]], width: int, last: int, ended: int, idle: str) -> str:
    """`width` characters for cycles 0 … last: what fills most of each column; if nothing, `idle` up to `ended`."""
    filled: list[dict[str, float]] = [{} for _ in range(width)]
    scale = width / last
    for start, end, letter in spans:
        lo, hi = start * scale, end * scale
        for column in range(int(lo), min(int(hi) + 1, width)):
            share = min(hi, column + 1) - max(lo, column)
            filled[column][letter] = filled[column].get(letter, 0.0) + share
    text = []
    for column, letters in enumerate(filled):
        rest = idle if column < ended * scale else " "
        best = max(letters, key=lambda x: letters[x], default=rest)
        if "L" in letters:  # issuing a load takes no time to speak of, but is what one looks for
            best = "L"
        elif letters.get(best, 0.0) < (0.1 if best in "S#" else 0.5):
            best = rest
        text.append(best)
    return "".join(text)


def file_of(path: Any) -> Path:
    """The file a trace is saved to; SpecError for what is no path, or one of an unknown format."""
    try:
        file = Path(path)
    except TypeError:
        raise SpecError(f"trace: a numpipe.Trace or a file name, got {path!r}") from None
    if file.suffix not in (".json", ".txt"):
        raise SpecError(f"trace: {str(file)!r} ends in neither .json (for ui.perfetto.dev) nor .txt (timelines)")
    return file


@contextlib.contextmanager
def collecting(trace: Any) -> Iterator[Trace | None]:
    """The Trace of a run: a given one, or one that is saved to the file of this name, also when the run fails."""
    file = None if trace is None or isinstance(trace, Trace) else file_of(trace)
    kept = trace if file is None else Trace()
    try:
        yield kept
    except Exception as error:
        if kept is not None:
            kept.failure = f"{type(error).__name__}: {error}"
        raise
    finally:
        if file is not None:
            kept.save(file)
