"""A timeline as a page: one HTML file that a browser zooms and searches.

The page shows the rows of `rows.view` in the colors of `looks`. It requests nothing: the data is in
the file, as JSON that the script in ``timeline_page.html`` draws. Without JavaScript, it shows the
timeline as text.
"""

from __future__ import annotations

import copy
import heapq
import html
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..core.records import plain
from .chrome import Json
from .events import UNITS, Event, Place, Recording, of_ctas
from .looks import BANDS, LOOKS, PRODUCTS
from .rows import View, Wanted, view
from .spans import MEANS
from .text import lines_of

MOST_BARS = 20_000
"""bars of a trace in a page; a file has some 200 bytes for each"""
REPORTED = "now", "before", "waits"
"""details of events that a report names"""


class Page:
    """A page with one or more traces (`panel`); a notebook shows it."""

    def __init__(self, panels: Sequence[tuple[Json, str]]) -> None:
        self.panels = panels

    def __str__(self) -> str:
        looks = {"looks": LOOKS, "products": PRODUCTS, "bands": BANDS, "means": MEANS}
        data = json.dumps({"traces": [data for data, _ in self.panels], **looks})
        filled = {
            "text": html.escape("\n\n\n".join(text for _, text in self.panels)),
            "data": data.replace("<", r"\u003c"),  # no tag of a trace's text ends the script
        }
        template = Path(__file__).with_name("timeline_page.html").read_text(encoding="utf8")
        return re.sub(r"\{\{(\w+)\}\}", lambda found: filled[found[1]], template)

    def _repr_html_(self) -> str:
        return (
            f'<iframe srcdoc="{html.escape(str(self))}" sandbox="allow-scripts" title="timeline" '
            'style="width: 100%; height: 620px; border: 0"></iframe>'
        )


def panel(
    trace: Recording,
    title: str = "",
    start: float | None = None,
    end: float | None = None,
    cta: Place | int | None = None,
    wanted: Wanted = lambda row: True,
) -> tuple[Json, str]:
    """Return a trace for a page, as data for its script and as text: all CTAs, or one.

    At most `MOST_BARS` bars are included: the first CTAs or, of a single CTA, the longest bars; the
    page says what is left out.
    """
    runs: dict[Place, list[Event]] = {}
    if cta is None:
        for place, events in of_ctas(trace.events).items():
            runs.setdefault(place[-3:], []).extend(events)
    elif trace.events:
        runs[()] = [event for _, part in trace.side_by_side(cta) for event in part]
    marks = {
        place: [
            [f"{when}: {event.details[when]}", _row(event), event.start, event.end]
            for when in REPORTED
            for event in events
            if when in event.details
        ]
        for place, events in runs.items()
    }
    part, left, said = copy.copy(trace), MOST_BARS, []
    ctas: list[Json] = []
    texts: list[str] = []
    for place in sorted(runs, key=lambda place: not marks[place]):
        part.events = runs[place]
        if not left or (shown := view(part, cta, start, end, wanted)) is None:
            break
        lines: Any = [line for row in shown.rows for line in (row.bars, *row.bands)]
        pieces = [
            each
            for line in lines
            for each in line
            if each.end >= shown.first and each.start <= shown.last
        ]
        if len(pieces) > left and ctas:
            break
        if len(pieces) > left:
            said.append(
                f"{left} of {len(pieces)} bars are included, the longest: start= and end= of "
                "numpipe.timeline select a part."
            )
        pieces = heapq.nlargest(left, pieces, lambda piece: piece.end - piece.start)
        left -= len(pieces)
        where = shown.where + ("" if shown.sm is None else f", SM {shown.sm}")
        rows = _rows(shown, set(map(id, pieces)), _ended_by(part.events))
        time = {"first": shown.first, "last": shown.last}
        ctas.append({"where": where, **time, "rows": rows, "marks": marks[place]})
        texts.append(lines_of(shown))
    if len(ctas) < len(runs):
        said.append(
            f"{len(ctas)} of {len(runs)} CTAs are included: cta= of numpipe.timeline selects one."
        )
    if trace.lost:
        said.append(f"{trace.lost} events were lost: raise profile_space.")
    data = {
        "title": title or {"cycles": "simulated", "ns": "GPU"}[trace.clock],
        "clock": trace.clock,
        "failure": trace.failure,
        "note": " ".join(said),
        "ctas": ctas,
    }
    return plain(data), "\n\n".join([*texts, *said, trace.failure or ""])


Ended = dict[tuple[str, float], tuple[str, str, int, int]]


def _rows(shown: View, kept: set[int], ended: Ended) -> list[Json]:
    """Return the rows of a CTA with those bars and bands whose id is in `kept`."""
    return [
        {
            "name": row.name,
            "bars": [
                [b.start, b.end, b.look, b.label, b.about, ended.get((row.name, b.end))]
                for b in row.bars
                if id(b) in kept
            ],
            "bands": [
                [[span.start, span.end, span.name, span.kind] for span in band if id(span) in kept]
                for band in row.bands
            ],
        }
        for row in shown.rows
    ]


def _row(event: Event) -> str:
    """Return the name of the row that shows an event."""
    gpu = "" if event.gpu is None else f"GPU {event.gpu} "
    return gpu + (UNITS.get(event.kind) or f"wg{event.warpgroup} {event.role}")


def _ended_by(events: list[Event]) -> Ended:
    """Return what ended the waits for mbarriers, by row and end of the wait: text, row, start and
    end of the last copy that landed there, or of the last arrival."""
    last: dict[Any, Event] = {}
    ended: Ended = {}
    for event in sorted(events, key=lambda event: event.end):
        mbar = event.gpu, event.details.get("mbar")
        if event.kind in ("load", "arrive"):
            last[mbar] = event
        elif event.kind == "wait" and mbar in last:
            by, row = last[mbar], _row(last[mbar])
            what = f"{by.details.get('tensor')} landed" if by.kind == "load" else "arrival"
            ended[_row(event), event.end] = f"{what}, {row}", row, by.start, by.start
    return ended
