"""Traces as files. Every value is validated when a file is read, because files may come from
anywhere."""

from __future__ import annotations

import dataclasses
import json
import reprlib
from pathlib import Path
from typing import Any, Literal

from ..arch.dimensions import Dim3, Ints
from ..core.records import parsed, plain, record
from ..diagnostics.argument_checks import PATH, told
from ..diagnostics.errors import SpecError
from ..diagnostics.regular_files import content
from ..plan.protocol import Ring
from . import page
from .chrome import Json, trace_events
from .events import Event, Recording
from .text import timeline

FORMAT = 1
MOST_BYTES = 1 << 31
KEY = "numpipe"
"""the member of the file's object that `load` reads and that viewers of the format ignore"""


@dataclasses.dataclass(frozen=True)
class Saved:
    """That member."""

    format: int
    clock: Literal["cycles", "ns"]
    failure: str | None
    lost: int
    sms: tuple[tuple[Dim3, int], ...]
    rings: tuple[Ring, ...]
    banks: tuple[tuple[str, str, int, int], ...]
    """line, access, ways and count"""
    who: tuple[tuple[Dim3, int, str], ...]
    gpus: Ints
    events: tuple[tuple[int, int, int, str, dict[str, Any]], ...]
    """index in `who`, start, end, kind and details"""


DETAILS: Json = {
    **dict.fromkeys(("event", "ring", "region", "mbar", "tensor", "what", "semaphore"), str),
    **dict.fromkeys(("slot", "step", "number", "port_until"), int),
    **dict.fromkeys(("statement", "now", "before", "waits"), str),
}
NEEDED = {
    "arrive": ("mbar",),
    "signal": ("semaphore",),
    "issue": ("tensor",),
    **dict.fromkeys(("read", "write"), ("what",)),
    "note tile begin": ("event", "number"),
    **dict.fromkeys(("note region begin", "note region end"), ("event", "region")),
    **dict.fromkeys(
        ("note fill", "note compute", "note release", "note store"),
        ("event", "ring", "slot", "step"),
    ),
}
"""the details that an event must have, by its kind; `DETAILS`: their types"""


def file_of(path: Any) -> Path:
    """Return the path of a trace's file. Raises SpecError for anything that is not a path, for an
    unknown format, and for a folder that does not exist."""
    if not PATH.holds(path):
        raise SpecError(f"trace: a numpipe.Trace or a file name, got {told(path)}")
    file = Path(path)
    if file.suffix not in (".html", ".json", ".txt"):
        raise SpecError(
            f"trace: {str(file)!r} ends in none of .html (a page), .json (for ui.perfetto.dev) and "
            ".txt (timelines)"
        )
    if not file.parent.is_dir():
        raise SpecError(
            f"trace: {str(file)!r}: there is no folder {str(file.parent)!r}; fix: "
            f"os.makedirs({str(file.parent)!r})"
        )
    return file


def save(trace: Recording, file: Path) -> None:
    """Write a trace to a file whose path `file_of` returned."""
    if file.suffix == ".json":
        who: dict[tuple, int] = {}  # an event has the number of its warpgroup here
        events = [
            [
                who.setdefault((e.cta, e.warpgroup, e.role, e.gpu), len(who)),
                int(e.start),
                int(e.end),
                e.kind,
                plain(e.details),
            ]
            for e in trace.events
        ]
        packed = json.dumps(
            {
                "format": FORMAT,
                "clock": trace.clock,
                "failure": trace.failure,
                "lost": trace.lost,
                "sms": list(trace.sms.items()),
                "rings": [dataclasses.asdict(ring) for ring in trace.rings],
                "banks": [[*key, count] for key, count in trace.banks.items()],
                "who": [of[:3] for of in who],
                "gpus": [gpu for *_, gpu in who if gpu is not None],
                "events": events,
            },
            separators=(",", ":"),
        )
        content = (
            json.dumps(trace_events(trace), indent=0).removesuffix("\n}")
            + f',\n"{KEY}": {packed}\n}}'
        )
    elif file.suffix == ".html":
        content = str(page.Page([page.panel(trace)]))
    else:
        content = "\n\n".join(timeline(trace, cta=cta) for cta in trace.ctas) or timeline(trace)
        content += f"\n\n{trace.failure}" if trace.failure else ""
    # a failure may hold characters that are no text, such as half of a surrogate pair
    file.write_text(content + "\n", encoding="utf8", errors="backslashreplace")


def load(trace: Recording, path: Any) -> None:
    """Fill an empty trace with what `save` wrote. Raises SpecError, which names the file and the
    place in it, for anything else."""
    file = file_of(path)
    where = f"Trace.load: {str(file)!r}"
    if file.suffix != ".json":
        raise SpecError(f"{where} is a timeline; load the .json file that Trace.save wrote")
    try:
        found = parsed(content(file, MOST_BYTES))
    except OSError as error:
        raise SpecError(f"{where} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise SpecError(f"{where} is not JSON: {error}") from None
    packed = found.get(KEY) if isinstance(found, dict) else None
    if not isinstance(packed, dict) or packed.get("format") != FORMAT:
        raise SpecError(
            f"{where} has no member {KEY!r} of format {FORMAT}, which Trace.load needs; save the "
            "trace again with this version of numpipe"
        )
    try:
        saved = record(Saved, packed)
        warpgroups = len(saved.who)
        if len(saved.gpus) not in (0, warpgroups):
            raise ValueError(f"gpus has {len(saved.gpus)} numbers for {warpgroups} warpgroups")
        gpus = saved.gpus or [None] * warpgroups
        trace.clock, trace.failure, trace.lost = saved.clock, saved.failure, saved.lost
        trace.tell_rings(saved.rings)
        trace.banks = {(line, access, ways): count for line, access, ways, count in saved.banks}
        trace.sms = dict(saved.sms)
        for number, (whose, start, end, kind, details) in enumerate(saved.events):
            place = f"events[{number}]"
            if whose >= warpgroups or max(start, end) >= 2**63:
                raise ValueError(
                    f"{place} is of warpgroup {whose} of {warpgroups}, from {start} to {end}"
                )
            needed = (
                NEEDED.get(f"note {details.get('event')}", ("event",))
                if kind == "note"
                else NEEDED.get(kind, ())
            )
            for key, of in DETAILS.items():
                value = details.get(key)
                if type(value) is not of and (value is not None or key in needed):
                    raise ValueError(
                        f"{place}[4].{key} is {reprlib.repr(value)}, not {of.__name__}"
                    )
            details = {key: _tuples(each) for key, each in details.items()}
            trace.events.append(Event(*saved.who[whose], start, end, kind, details, gpus[whose]))
    except (ValueError, RecursionError) as error:
        raise SpecError(f"{where} is damaged: {error}; save the trace again") from None


def _tuples(value: Any) -> Any:
    """Convert lists from JSON back to the tuples that they were before."""
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
