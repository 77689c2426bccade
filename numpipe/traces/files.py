"""Traces as files: written, and read again."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any, TypeVar

from ..diagnostics.errors import SpecError
from .chrome import Json, plain, trace_events
from .events import Event, Recording, Ring
from .text import timeline

FORMAT = 1
KEY = "numpipe"
"""What `load` reads: a member of the file's object, which viewers of the format pass over."""
T = TypeVar("T", bound=Recording)


def file_of(path: Any) -> Path:
    """The file a trace is saved to; SpecError for what is no path, or one of an unknown format."""
    try:
        file = Path(path)
    except TypeError:
        raise SpecError(f"trace: a numpipe.Trace or a file name, got {path!r}") from None
    if file.suffix not in (".json", ".txt"):
        raise SpecError(f"trace: {str(file)!r} ends in neither .json (for ui.perfetto.dev) nor .txt (timelines)")
    return file


def save(trace: Recording, file: Path) -> None:
    """Write a trace to a file whose name `file_of` found right."""
    if file.suffix == ".json":
        shown = trace_events(trace.events, trace.failure, trace.clock, trace.lost, trace.sms)
        packed = json.dumps(_packed(trace), separators=(",", ":"))
        written = json.dumps(shown, indent=0).removesuffix("\n}") + f',\n"{KEY}": {packed}\n}}'
    else:
        written = "\n\n".join(timeline(trace, cta=cta) for cta in trace.ctas) or timeline(trace)
        written += f"\n\n{trace.failure}" if trace.failure else ""
    file.write_text(written + "\n", encoding="utf8")


def _packed(trace: Recording) -> Json:
    """A trace in lists and dicts; of whom an event tells is a number in it."""
    who: dict[tuple[Any, ...], int] = {}
    events = [[who.setdefault((e.cta, e.warpgroup, e.role), len(who)), int(e.start), int(e.end), e.kind, plain(e.details)]
              for e in trace.events]
    return {"format": FORMAT, "clock": trace.clock, "failure": trace.failure, "lost": trace.lost,
            "sms": [[list(cta), sm] for cta, sm in trace.sms.items()], "rings": [dataclasses.asdict(ring) for ring in trace.rings],
            "who": list(who), "events": events}


def load(trace: T, path: Any) -> T:
    """Fill an empty trace with what `save` wrote."""
    file = file_of(path)
    where = f"Trace.load: {str(file)!r}"
    if file.suffix != ".json":
        raise SpecError(f"{where} is a picture in text; a trace is read from the .json file that Trace.save wrote")
    try:
        found = json.loads(file.read_text(encoding="utf8"))
    except OSError as error:
        raise SpecError(f"{where} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise SpecError(f"{where} is no JSON: {error}") from None
    packed = found.get(KEY) if isinstance(found, dict) else None
    if not isinstance(packed, dict) or packed.get("format") != FORMAT:
        raise SpecError(f"{where} lacks what a trace is read from, a member {KEY!r} of format {FORMAT}; what viewers of the format "
                        "show is not enough: save the trace again with this version of numpipe")
    who = [(tuple(cta), warpgroup, role) for cta, warpgroup, role in packed["who"]]
    trace.clock, trace.failure, trace.lost = packed["clock"], packed["failure"], packed["lost"]
    trace.tell_rings(Ring(**ring) for ring in packed["rings"])
    trace.sms = {tuple(cta): sm for cta, sm in packed["sms"]}
    for number, start, end, kind, details in packed["events"]:
        cta, warpgroup, role = who[number]
        trace.events.append(Event(cta, warpgroup, role, start, end, kind, {key: _tuples(each) for key, each in details.items()}))
    return trace


def _tuples(value: Any) -> Any:
    """Lists are what tuples become in JSON."""
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
