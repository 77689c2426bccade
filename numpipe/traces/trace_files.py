"""Traces as files. Every value is validated when a file is read, because files may come from
anywhere."""

from __future__ import annotations

import dataclasses
import json
import reprlib
from pathlib import Path
from types import UnionType
from typing import Any, get_type_hints

from ..diagnostics.argument_checks import PATH, told
from ..diagnostics.errors import SpecError
from ..diagnostics.regular_files import content
from ..plan.protocol import Ring
from .chrome import Json, plain, trace_events
from .events import Event, Recording
from .text import timeline

FORMAT = 1
MOST_BYTES = 1 << 31
KEY = "numpipe"
"""the member of the file's object that `load` reads and that viewers of the format ignore"""
CTA = (int, int, int)
FORM: Json = {
    "clock": str,
    "failure": str | None,
    "lost": int,
    "sms": [(CTA, int)],
    "rings": [get_type_hints(Ring)],
    "banks": [(str, str, int, int)],
    "who": [(CTA, int, str)],
    "gpus": [int],
    "events": [(int, int, int, str, dict)],
}
"""the form of that member: a list has any number of values of one form, a tuple has one value of
each"""
DETAILS: Json = {
    "event": str,
    "ring": str,
    "slot": int,
    "step": int,
    "number": int,
    "region": str,
    "mbar": str,
    "tensor": str,
    "what": str,
    "port_until": int,
    "semaphore": str,
}
NEEDED = {
    "arrive": ("mbar",),
    "signal": ("semaphore",),
    "issue": ("tensor",),
    "write": ("what",),
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
    if file.suffix not in (".json", ".txt"):
        raise SpecError(
            f"trace: {str(file)!r} ends in neither .json (for ui.perfetto.dev) nor .txt (timelines)"
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
        who: dict[tuple[Any, ...], int] = {}  # an event has the number of its warpgroup here
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
                "sms": [[list(cta), sm] for cta, sm in trace.sms.items()],
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
        raise SpecError(f"{where} is a text timeline; load the .json file that Trace.save wrote")
    try:
        found = json.loads(content(file, MOST_BYTES).decode("utf8"))
    except OSError as error:
        raise SpecError(f"{where} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise SpecError(f"{where} is not JSON: {error}") from None
    packed = found.get(KEY) if isinstance(found, dict) else None
    if not isinstance(packed, dict) or packed.get("format") != FORMAT:
        raise SpecError(
            f"{where} has no member {KEY!r} of format {FORMAT}, which Trace.load needs; save the "
            "trace again with this version of numpipe"
        )
    try:
        for later in ("banks", "gpus"):  # older files lack these keys
            packed.setdefault(later, [])
        _check(packed, FORM, KEY)
        if packed["clock"] not in ("cycles", "ns"):
            raise ValueError(f"{KEY}.clock is {packed['clock']!r}, 'cycles' or 'ns' expected")
        who = [(tuple(cta), warpgroup, role) for cta, warpgroup, role in packed["who"]]
        if len(packed["gpus"]) not in (0, len(who)):
            raise ValueError(
                f"{KEY}.gpus has {len(packed['gpus'])} numbers for {len(who)} warpgroups"
            )
        gpus = packed["gpus"] or [None] * len(who)
        trace.clock, trace.failure, trace.lost = (
            packed["clock"],
            packed.get("failure"),
            packed["lost"],
        )
        trace.tell_rings(
            Ring(**{key: ring[key] for key in FORM["rings"][0]}) for ring in packed["rings"]
        )
        trace.banks = {(line, access, ways): count for line, access, ways, count in packed["banks"]}
        trace.sms = {tuple(cta): sm for cta, sm in packed["sms"]}
        for number, (whose, start, end, kind, details) in enumerate(packed["events"]):
            place = f"{KEY}.events[{number}]"
            if not 0 <= whose < len(who) or max(abs(start), abs(end)) >= 2**63:
                raise ValueError(
                    f"{place} is of warpgroup {whose} of {len(who)}, from {start} to {end}"
                )
            needed = (
                NEEDED.get(f"note {details.get('event')}", ("event",))
                if kind == "note"
                else NEEDED.get(kind, ())
            )
            known = {
                key: DETAILS[key]
                for key in DETAILS
                if details.get(key) is not None or key in needed
            }
            _check(details, known, f"{place}[4]")
            cta, warpgroup, role = who[whose]
            details = {key: _tuples(each) for key, each in details.items()}
            trace.events.append(Event(cta, warpgroup, role, start, end, kind, details, gpus[whose]))
    except (ValueError, RecursionError) as error:
        raise SpecError(f"{where} is damaged: {error}; save the trace again") from None


def _check(value: Any, form: Any, place: str) -> None:
    """Raise ValueError, which names the place, if a value does not have the form (`FORM`)."""
    if isinstance(form, dict) and isinstance(value, dict):
        parts = [(value.get(key), each, f"{place}.{key}") for key, each in form.items()]
    elif isinstance(form, list) and isinstance(value, list):
        parts = [(each, form[0], f"{place}[{number}]") for number, each in enumerate(value)]
    elif isinstance(form, tuple) and isinstance(value, list) and len(value) == len(form):
        parts = [
            (*pair, f"{place}[{number}]")
            for number, pair in enumerate(zip(value, form, strict=True))
        ]
    elif (
        isinstance(form, (type, UnionType))
        and isinstance(value, form)
        and (form is bool or not isinstance(value, bool))
    ):
        parts = []
    else:
        wanted = (
            f"list of {len(form)}"
            if isinstance(form, tuple)
            else getattr(form, "__name__", None)
            or (form if isinstance(form, UnionType) else type(form).__name__)
        )
        raise ValueError(f"{place} is {reprlib.repr(value)}, {wanted} expected")
    for part in parts:
        _check(*part)


def _tuples(value: Any) -> Any:
    """Convert lists from JSON back to the tuples that they were before."""
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
