"""Timelines as text."""

from __future__ import annotations

from ..diagnostics.argument_checks import FUNCTION, NONE, finite, require, whole
from ..plan.protocol import COMPUTING
from .events import Place, Recording
from .rows import Row, View, Wanted, view

_LETTERS = {
    COMPUTING: "#",
    "load": "L",
    "store": "S",
    "issue": "l",
    "data": ".",
    "slot": ".",
    "barrier": ".",
    "copy in": "l",
    "copy out": "S",
}
_LEGEND = (
    "L load   # compute   S store   . wait   - other instructions   tensor core: number of the "
    "warpgroup"
)


def timeline(
    trace: Recording,
    width: int = 100,
    cta: Place | int | None = None,
    start: float | None = None,
    end: float | None = None,
    wanted: Wanted = lambda row: True,
) -> str:
    """Return the text of `Trace.timeline`: letters for each warpgroup and unit of a CTA."""
    require(
        "timeline",
        locals(),
        width=whole(1, 10_000),
        start=finite() | NONE,
        end=finite() | NONE,
        wanted=FUNCTION,
    )
    shown = view(trace, cta, start, end, wanted)
    if shown is None:
        return "no events"
    return lines_of(shown, width, start is not None or end is not None)


def lines_of(shown: View, width: int = 100, part: bool = False) -> str:
    """Return what a timeline shows as text; `part`: whether it names the time range."""
    label = max((len(row.name) for row in shown.rows), default=0)
    length = shown.last - shown.first
    window = f" from {shown.first} to {shown.last}" if part else ""
    lines = [f"{shown.where}: {length} {shown.clock}{window}, {length / width:.0f} a column"]
    for row in shown.rows:
        letters = _row(row, width, shown.first, shown.last)
        lines.append(f"{row.name:<{label}} |{letters.rstrip()}")
    return "\n".join([*lines, _LEGEND])


def _row(row: Row, width: int, first: float, last: float) -> str:
    """Return `width` letters for the time from `first` to `last`. Each letter is what fills most of
    its column.

    An empty column is ``-`` until the warpgroup has ended.
    """
    filled: list[dict[str, float]] = [{} for _ in range(width)]
    scale = width / (last - first)
    for bar in row.bars:
        letter = _LETTERS.get(bar.look) or bar.look[2:]
        lo, hi = max(bar.start - first, 0) * scale, (min(bar.end, last) - first) * scale
        if hi < lo or (hi == lo and not first <= bar.start < last):
            continue
        for column in range(int(lo), min(int(hi) + 1, width)):
            share = min(hi, column + 1) - max(lo, column)
            filled[column][letter] = filled[column].get(letter, 0.0) + share
    text = ""
    for column, letters in enumerate(filled):
        rest = "-" if column < (row.ended - first) * scale else " "
        best = max(letters, key=letters.__getitem__, default=rest)
        if "l" in letters:  # issuing a copy takes hardly any time, but is what one looks for
            best = "L"
        elif letters.get(best, 0.0) < (0.1 if best in "LS#" else 0.5):
            best = rest
        text += best
    return text
