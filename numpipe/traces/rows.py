"""The rows of a timeline, for text and pictures: bars of a CTA's warpgroups and of its SM's
units."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from ..diagnostics.errors import SpecError
from .events import UNITS, Event, Place, Recording, cta_name, of_warpgroups, place_of
from .spans import Span, regions, spans, tiles

Wanted: TypeAlias = Callable[[str], bool]
"""Returns whether to show a row with this name (``wg0 compute``, ``copy in``), ``tiles`` or
``regions``."""


@dataclass(frozen=True)
class Bar:
    """A piece of a row: what it shows, and its label, which is drawn if there is room.

    look  a kind of span (`spans.MEANS`), ``copy in``, ``copy out``, or ``wg1``: products of
          warpgroup 1 on the tensor core
    about  details of the event, with its ring, slot and step, if known
    """

    start: float
    end: float
    look: str
    label: str = ""
    about: dict[str, Any] = field(default_factory=dict, compare=False)


@dataclass(frozen=True)
class Row:
    """Bars, with bands of tiles and regions above them, the outermost first.

    ended  when the warpgroup ended, or its last event did if the trace does not contain that
    """

    name: str
    bars: Sequence[Bar]
    bands: Sequence[Sequence[Span]] = ()
    ended: float = -math.inf


@dataclass(frozen=True)
class View:
    """The part of a trace that a timeline shows: the rows of a CTA, or of the same CTA on each GPU.

    first, last  the time range shown, in `clock`
    where        the CTA's name; `sm`: the SM that ran it, if known
    """

    rows: list[Row]
    first: float
    last: float
    clock: str
    where: str
    sm: int | None


def view(
    trace: Recording,
    cta: Place | int | None,
    start: float | None,
    end: float | None,
    wanted: Wanted,
) -> View | None:
    """Return what a timeline from `start` to `end` shows, or None if the trace has no events."""
    parts = trace.side_by_side(cta)
    events = [event for _, part in parts for event in part]
    if not events:
        return None
    first = min(e.start for e in events) if start is None else start
    last = max(max(e.end for e in events), first + 1) if end is None else end
    if not first < last:
        raise SpecError(f"timeline: start={first} is not before end={last} {trace.clock}")
    where = cta_name(events[0].place)
    if len(parts) > 1:
        where = f"CTA {events[0].cta} of {len(parts)} GPUs"
    rows = [row for gpu, part in parts for row in rows_of(part, wanted, f"{gpu} " * bool(gpu))]
    return View(rows, first, last, trace.clock, where, trace.sms.get(events[0].cta))


def rows_of(events: list[Event], wanted: Wanted, prefix: str = "") -> list[Row]:
    """Return the wanted rows of a CTA, with the wanted bands; `prefix` names its GPU."""
    rows = []
    for number, own in of_warpgroups(events).items():
        name = f"wg{number} {own[-1].role}"
        if wanted(name):
            last = max(e.end for e in own)
            bands = [list(tiles(own, last))] if wanted("tiles") else []
            bands += _levels(regions(own, last)) if wanted("regions") else []
            bars = [
                Bar(
                    span.start,
                    span.end,
                    span.kind,
                    "" if span.kind in ("load", "store") else _step(span.step, span.slot),
                    span.about,
                )
                for span in spans(own)
                if span.kind != "other"
            ]
            ended = max((e.end for e in own if e.kind == "end"), default=last)
            rows.append(Row(prefix + name, bars, [band for band in bands if band], ended))
    for kind, name in UNITS.items():
        own = [e for e in events if e.kind == kind]
        if own and wanted(name):
            bars = [
                Bar(
                    e.start,
                    e.details.get("port_until", e.end),
                    f"wg{e.warpgroup}" if kind == "mma" else name,
                    _step(e.details.get("step"), None),
                    {**place_of(e.details.get("mbar", "")), **e.details, "until": e.end},
                )
                for e in own
            ]
            rows.append(Row(prefix + name, bars))
    return rows


def _step(step: int | None, slot: int | None) -> str:
    return "" if step is None else str(step) if slot is None else f"{step}·{slot}"


def _levels(nested: Iterable[Span]) -> list[list[Span]]:
    """Split regions into one list per depth of nesting."""
    levels: list[list[Span]] = []
    for span in sorted(nested, key=lambda s: (s.start, -s.end)):
        level = next((level for level in levels if level[-1].end <= span.start), None)
        if level is None:
            levels.append(level := [])
        level.append(span)
    return levels
