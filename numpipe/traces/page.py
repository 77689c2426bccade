"""A timeline as a page: one HTML file that a browser zooms and searches.

The page shows the rows of `rows.view` in the colors of `looks`. It requests nothing: the data is in
the file, as JSON that ``timeline_page.html`` draws. Without JavaScript, it shows the timeline as
text.
"""

from __future__ import annotations

import bisect
import copy
import dataclasses
import html
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from ..diagnostics.errors import SpecError
from .chrome import Json, described, plain
from .events import UNITS, Event, Place, Recording, of_ctas
from .looks import BANDS, look
from .rows import Bar, Row, View, Wanted, view
from .spans import MEANS
from .text import lines_of

MOST_BARS = 20_000
"""bars of a trace in a page; a file has some 150 bytes for each"""
TEXTS = 8
"""CTAs of a trace whose timelines a page contains as text"""
T = TypeVar("T")


@dataclass(frozen=True)
class Panel:
    """A trace in a page: `data` for its script, `text` for a browser without JavaScript."""

    data: Json
    text: str


class Page:
    """A page with one or more traces; a notebook shows it."""

    def __init__(self, panels: Sequence[Panel]) -> None:
        self.panels = panels

    def __str__(self) -> str:
        drawn = sorted({bar[2] for panel in self.panels for bar in _bars(panel.data)})
        names = [*(kind for kind in MEANS if kind in drawn), *(n for n in drawn if n not in MEANS)]
        looks = {name: [MEANS.get(name) or _work(name), *look(name)] for name in names}
        data = {"traces": [panel.data for panel in self.panels], "looks": looks, "bands": BANDS}
        filled = {
            "text": html.escape("\n\n\n".join(panel.text for panel in self.panels)),
            "data": json.dumps(data, separators=(",", ":")).replace("<", "\\u003c"),
        }
        template = Path(__file__).with_name("timeline_page.html").read_text(encoding="utf8")
        return re.sub(r"\{\{(\w+)\}\}", lambda found: filled[found[1]], template)

    def _repr_html_(self) -> str:
        rows = sum(
            len(panel.data["ctas"][0]["rows"]) for panel in self.panels if panel.data["ctas"]
        )
        return (
            f'<iframe srcdoc="{html.escape(str(self))}" sandbox="allow-scripts" title="timeline" '
            f'style="width: 100%; height: {min(330 + 40 * rows, 900)}px; border: 0"></iframe>'
        )

    def save(self, path: Path) -> None:
        """Write the page to a file."""
        path.write_text(str(self), encoding="utf8", errors="backslashreplace")


def panel(
    trace: Recording,
    title: str = "",
    start: float | None = None,
    end: float | None = None,
    cta: Place | int | None = None,
    wanted: Wanted = lambda row: True,
) -> Panel:
    """Return a trace for a page: all CTAs, or one, from `start` to `end`.

    At most `MOST_BARS` bars are included: the first CTAs or, of a single CTA, the longest bars; the
    page says what is left out.
    """
    runs: dict[Place, list[Event]] = {}
    if cta is None:
        for place, events in of_ctas(trace.events).items():
            runs.setdefault(place[-3:], []).extend(events)
    elif trace.events:
        runs[()] = [event for _, part in trace.side_by_side(cta) for event in part]
    part, ctas, texts, left = copy.copy(trace), [], [], MOST_BARS
    left_out = []
    reported = {trace.events[number].place[-3:] for _, number, _ in trace.accesses}
    for place in sorted(runs, key=lambda place: place not in reported):
        part.events = runs[place]
        if not left:
            break
        shown = view(part, cta, start, end, wanted)
        if shown is None or not shown.rows:
            raise SpecError(
                f"timeline: nothing to draw of {title}: none of the rows that were asked for"
            )
        rows = [_part(row, shown) for row in shown.rows]
        bars = sum(len(row.bars) + sum(map(len, row.bands)) for row in rows)
        if bars > left and ctas:
            break
        if bars > left:
            left_out.append(
                f"{left} of the {bars} bars are included, the longest: start= and end= of "
                "numpipe.timeline select a part."
            )
        ctas.append(_cta(trace, part.events, shown, rows, left / max(bars, left)))
        left -= min(bars, left)
        if len(texts) < TEXTS:
            texts.append(lines_of(shown, part=start is not None or end is not None))
    if len(ctas) < len(runs):
        left_out.append(
            f"{len(ctas)} of {len(runs)} CTAs are included: cta= of numpipe.timeline selects one."
        )
    if trace.lost:
        left_out.append(f"{trace.lost} events were lost: raise profile_space.")
    data = {
        "title": title or {"cycles": "simulated", "ns": "GPU"}[trace.clock],
        "clock": trace.clock,
        "failure": trace.failure or "",
        "thinned": " ".join(left_out),
        "ctas": ctas,
    }
    return Panel(data, "\n\n".join([*texts, *filter(None, (trace.failure, *left_out))]))


def _part(row: Row, shown: View) -> Row:
    """Return what a row has in the time range shown."""

    def inside(pieces: Sequence[T]) -> list[T]:
        timed: Any = pieces
        return [one for one in timed if one.end >= shown.first and one.start <= shown.last]

    return dataclasses.replace(row, bars=inside(row.bars), bands=[*map(inside, row.bands)])


def _cta(
    trace: Recording, events: list[Event], shown: View, parts: Sequence[Row], share: float
) -> Json:
    """Return one CTA, with this share of the bars of its rows."""
    ends = _ends(events)
    rows = [
        {
            "name": row.name,
            "bars": [
                [bar.start, bar.end, bar.look, bar.label, _about(bar, ends)]
                for bar in _longest(row.bars, share)
            ],
            "bands": [
                [
                    [s.start, s.end, f"tile {s.name}" if s.kind == "tile" else s.name, s.kind]
                    for s in _longest(band, share)
                ]
                for band in row.bands
            ],
        }
        for row in parts
    ]
    own = set(map(id, events))
    marks = [
        [text, _row(trace.events[number]), time]
        for text, number, time in trace.accesses
        if id(trace.events[number]) in own
    ]
    where = shown.where + ("" if shown.sm is None else f", SM {shown.sm}")
    return plain(
        {"where": where, "first": shown.first, "last": shown.last, "rows": rows, "marks": marks}
    )


def _bars(data: Json) -> Iterator[list[Any]]:
    for cta in data["ctas"]:
        for row in cta["rows"]:
            yield from row["bars"]


def _work(name: str) -> str:
    """Return what a bar of a unit is, in words."""
    return name if name in UNITS.values() else f"products of {name}"


def _longest(pieces: Sequence[T], share: float) -> Sequence[T]:
    """Return this share of bars or spans, the longest, in order."""
    if share >= 1:
        return pieces
    lengths: Any = pieces
    order = sorted(range(len(pieces)), key=lambda n: lengths[n].start - lengths[n].end)
    return [pieces[number] for number in sorted(order[: int(len(pieces) * share)])]


def _row(event: Event) -> str:
    """Return the name of the row that shows an event."""
    gpu = "" if event.gpu is None else f"GPU {event.gpu} "
    return gpu + (UNITS.get(event.kind) or f"wg{event.warpgroup} {event.role}")


Ends = dict[Any, list[tuple[int, str, str, int]]]
"""(GPU, mbarrier) -> (time, what, row and start) of copies that land and arrivals, in order"""


def _ends(events: list[Event]) -> Ends:
    """Return what may end a wait for each mbarrier."""
    found: Ends = {}
    for event in events:
        if event.kind in ("load", "arrive") and "mbar" in event.details:
            what = f"{event.details.get('tensor')} landed" if event.kind == "load" else "arrival"
            found.setdefault((event.gpu, event.details["mbar"]), []).append(
                (event.end, f"{what}, {_row(event)}", _row(event), event.start)
            )
    for each in found.values():
        each.sort()
    return found


def _about(bar: Bar, ends: Ends) -> Json:
    """Return what the page says about a bar: its place, the details of its event, its statement,
    and what ended it if it is a wait."""
    about: Json = {key: value for key, value in bar.place.items() if value is not None}
    if (event := bar.event) is None:
        return about
    about |= described(event)
    about.pop("event", None)
    if event.statement is not None:
        about |= {"statement": event.statement.text, "line": event.statement.where}
    before = ends.get((event.gpu, event.details.get("mbar")), [])
    if event.kind == "wait" and (number := bisect.bisect(before, (event.end, "\uffff"))):
        about["ended by"] = before[number - 1][1:]
    return about
