"""A timeline as text."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ..diagnostics.arguments import FUNCTION, NONE, finite, require, whole
from ..diagnostics.errors import SpecError
from .events import UNITS, Place, Recording, cta_name, of_warpgroups
from .spans import spans

_LETTERS = {"compute": "#", "store": "S", "issue": "L", "data": ".", "slot": ".", "barrier": "."}
_LEGEND = "L load   # compute   S store   . wait   - other instructions   tensor core: number of the warpgroup"


def timeline(trace: Recording, width: int = 100, cta: Place | int | None = None, start: float | None = None,
             end: float | None = None, wanted: Callable[[str], bool] = lambda row: True) -> str:
    """Return the text of `Trace.timeline`: a row of letters for each warpgroup and unit of a CTA."""
    require("timeline", locals(), width=whole(1, 10_000), start=finite() | NONE, end=finite() | NONE, wanted=FUNCTION)
    parts = trace.side_by_side(cta)
    events = [event for _, each in parts for event in each]
    if not events:
        return "no events"
    first = min(e.start for e in events) if start is None else start
    last = max(max(e.end for e in events), first + 1) if end is None else end
    if not first < last:
        raise SpecError(f"timeline: start={first} is not before end={last} {trace.clock}")
    rows: list[tuple[str, str]] = []
    for gpu, part in parts:
        begin = f"{gpu} " * bool(gpu)
        for number, own in of_warpgroups(part).items():
            name = f"wg{number} {own[-1].role}"
            if not wanted(name):
                continue
            ended = max((e.end for e in own if e.kind == "end"), default=last)
            letters = [(span.start, span.end, _LETTERS[span.kind]) for span in spans(own) if span.kind in _LETTERS]
            rows.append((begin + name, _row(letters, width, first, last, ended, "-")))
        for kind, title in UNITS.items():
            letters = [(e.start, e.details.get("port_until", e.end), str(e.warpgroup) if kind == "mma" else kind[0].upper())
                       for e in part if e.kind == kind]
            if letters and wanted(title):
                rows.append((begin + title, _row(letters, width, first, last, last, " ")))
    label = max((len(name) for name, _ in rows), default=0)
    window = "" if start is None and end is None else f" from {first} to {last}"
    which = cta_name(events[0].place) if len(parts) == 1 else f"CTA {events[0].cta} of {len(parts)} GPUs"
    head = f"{which}: {last - first} {trace.clock}{window}, {(last - first) / width:.0f} a column"
    return "\n".join([head, *(f"{name:<{label}} |{row.rstrip()}" for name, row in rows), _LEGEND])


def _row(spans: Iterable[tuple[float, float, str]], width: int, first: float, last: float, ended: float, idle: str) -> str:
    """Return `width` letters for the time from `first` to `last`: what fills most of each column, else `idle` up to `ended`."""
    filled: list[dict[str, float]] = [{} for _ in range(width)]
    scale = width / (last - first)
    for start, end, letter in spans:
        lo, hi = max(start - first, 0) * scale, (min(end, last) - first) * scale
        if hi < lo or (hi == lo and not first <= start < last):
            continue
        for column in range(int(lo), min(int(hi) + 1, width)):
            share = min(hi, column + 1) - max(lo, column)
            filled[column][letter] = filled[column].get(letter, 0.0) + share
    text = ""
    for column, letters in enumerate(filled):
        rest = idle if column < (ended - first) * scale else " "
        best = max(letters, key=lambda x: letters[x], default=rest)
        if "L" in letters:  # issuing a load takes hardly any time, but is what one looks for
            best = "L"
        elif letters.get(best, 0.0) < (0.1 if best in "S#" else 0.5):
            best = rest
        text += best
    return text
