"""Timelines as pictures: SVG and PNG, by matplotlib.

A row is a warpgroup, or a unit of the SM; above a warpgroup's bar are its tiles and regions. Colours are told apart by those who
see few of them, and in grey by lightness and hatching: products are dark, waits are light and hatched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..diagnostics.errors import SpecError
from .events import UNITS, Event, Recording, of_warpgroups
from .spans import MEANS, Span, regions, spans, tiles

# Okabe and Ito's colours; (face, hatch, colour of text on it)
_LOOKS = {
    "compute": ("#0072b2", "", "white"),
    "store": ("#e69f00", "", "black"),
    "issue": ("#000000", "", "white"),
    "data": ("#f7ef9a", "////", "black"),
    "slot": ("#e3e3e3", "----", "black"),
    "barrier": ("#e8c7dc", "xxxx", "black"),
    "copy in": ("#56b4e9", "", "black"),
    "copy out": ("#e69f00", "", "black"),
}
_PRODUCTS = (("#0072b2", "white"), ("#66cdaa", "black"), ("#d55e00", "white"), ("#f0c0dc", "black"))
"""of the warpgroups on the tensor core, and the colour of text on it: dark and light in turn"""
_BANDS = {"tile": ("#d0d0d0", "#f0f0f0"), "region": ("#b8e0d2", "#dcefe7")}
"""of tiles and regions, each second one the other colour"""
_INCHES = 11.0
_ROW, _BAND, _MARGIN = 0.34, 0.17, 0.75
"""inches: a row, a band above it, and title and axis of a trace"""


@dataclass(frozen=True)
class Bar:
    """A piece of a row: its look (a key of `_LOOKS`), and what is written on it where there is room."""

    start: float
    end: float
    look: str
    label: str = ""


@dataclass(frozen=True)
class Row:
    """A row of a picture: bars in time, and bands of tiles and regions, the outer ones first."""

    name: str
    bars: Sequence[Bar]
    bands: Sequence[Sequence[Span]] = ()


def rows_of(events: list[Event], wanted: Callable[[str], bool]) -> list[Row]:
    """The rows of a CTA, those whose names are wanted: ``wg0 compute``, ``copy in``; of bands: ``tiles``, ``regions``."""
    found: list[Row] = []
    for number, own in of_warpgroups(events).items():
        name = f"wg{number} {own[-1].role}"
        if wanted(name):
            last = max(e.end for e in own)
            bands = [list(tiles(own, last))] if wanted("tiles") else []
            bands += _levels(regions(own, last)) if wanted("regions") else []
            found.append(Row(name, [bar for span in spans(own) if (bar := _bar(span)) is not None], [b for b in bands if b]))
    for kind, name in UNITS.items():
        own = [e for e in events if e.kind == kind]
        if own and wanted(name):
            found.append(Row(name, [Bar(e.start, e.details.get("port_until", e.end), f"wg{e.warpgroup}" if kind == "mma" else name,
                                        _step(e.details.get("step"), None)) for e in own]))
    return found


def _bar(span: Span) -> Bar | None:
    """What is not shown as a gap."""
    if span.kind == "other":
        return None
    return Bar(span.start, span.end, span.kind, _step(span.step, span.slot) if span.kind != "store" else "")


def _step(step: int | None, slot: int | None) -> str:
    return "" if step is None else str(step) if slot is None else f"{step}·{slot}"


def _levels(found: Iterable[Span]) -> list[list[Span]]:
    """Regions, one list for each depth of nesting."""
    levels: list[list[Span]] = []
    for span in sorted(found, key=lambda s: (s.start, -s.end)):
        for level in levels:
            if level[-1].end <= span.start:
                level.append(span)
                break
        else:
            levels.append([span])
    return levels


@dataclass(frozen=True)
class Panel:
    """A trace in a picture."""

    trace: Recording
    title: str
    cta: Any
    start: float | None
    end: float | None


def draw(panels: Sequence[Panel], wanted: Callable[[str], bool], path: Path) -> None:
    """Draw traces under each other, each with a scale of its own, into an .svg or .png file."""
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError:
        raise SpecError("timeline: pictures are drawn by matplotlib, which is not installed: pip install 'numpipe[plot]'; without "
                        "path= the timeline is text") from None
    shown = [(panel, rows_of(panel.trace.events_of(panel.cta), wanted)) for panel in panels]
    for panel, rows in shown:
        if not rows:
            raise SpecError(f"timeline: nothing to draw of {panel.title}: no events, or none of the rows that were asked for")
    heights = [sum(_ROW + _BAND * len(row.bands) for row in rows) + _MARGIN for _, rows in shown]
    legend = 0.55
    total = sum(heights) + legend
    style = {"svg.fonttype": "none", "svg.hashsalt": "numpipe", "hatch.linewidth": 0.5, "font.size": 8, "font.family": "sans-serif"}
    with matplotlib.rc_context(style):
        figure = Figure(figsize=(_INCHES, total), dpi=144)
        used: dict[str, tuple[str, str]] = {}
        top = total
        for (panel, rows), height in zip(shown, heights, strict=True):
            top -= height
            axes = figure.add_axes((0.1, (top + 0.42) / total, 0.885, (height - _MARGIN) / total))
            used |= _panel(axes, panel, rows, (height - _MARGIN))
        _legend(figure, used)
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else {"Software": "numpipe"})


def _panel(axes: Any, panel: Panel, rows: Sequence[Row], inches: float) -> dict[str, tuple[str, str]]:
    """Draw one trace; returns what the legend has to explain: (face, hatch) by words."""
    events = panel.trace.events_of(panel.cta)
    first = min(e.start for e in events) if panel.start is None else panel.start
    last = max(max(e.end for e in events), first + 1) if panel.end is None else panel.end
    if not first < last:
        raise SpecError(f"timeline: start={first} is not before end={last} {panel.trace.clock}")
    used: dict[str, tuple[str, str]] = {}
    points = (last - first) / (_INCHES * 0.885 * 72)
    y, ticks = inches, []
    for row in rows:
        for level, band in enumerate(row.bands):
            y -= _BAND
            _band(axes, band, y, first, last, points, level)
        y -= _ROW
        ticks.append((y + _ROW / 2, row.name))
        used |= _bars(axes, row.bars, y + 0.03, _ROW - 0.06, first, last, points)
    axes.set(xlim=(first, last), ylim=(0, inches), yticks=[at for at, _ in ticks], yticklabels=[name for _, name in ticks])
    axes.set_xlabel({"cycles": "cycles of the simulated SM", "ns": "ns"}[panel.trace.clock], labelpad=1)
    sm = panel.trace.sms.get(events[0].cta)
    axes.set_title(f"{panel.title}    CTA {events[0].cta}" + ("" if sm is None else f", SM {sm}"), loc="left", fontsize=9, pad=4)
    axes.tick_params(length=2)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    return used


def _bars(axes: Any, bars: Sequence[Bar], y: float, height: float, first: float, last: float, points: float
          ) -> dict[str, tuple[str, str]]:
    """The bars of a row inside the window; those shorter than half a point would not be seen, unless they are an issue."""
    used: dict[str, tuple[str, str]] = {}
    by_look: dict[str, list[tuple[float, float]]] = {}
    for bar in bars:
        least = points if bar.look == "issue" else 0.0
        start, end = max(bar.start, first), min(max(bar.end, bar.start + least), last)
        if start >= end:
            continue
        by_look.setdefault(bar.look, []).append((start, end - start))
        face, hatch, ink = look(bar.look)
        if bar.label and (end - start) / points > 4.6 * len(bar.label) + 3:
            box = {"facecolor": face, "edgecolor": "none", "pad": 0.6} if hatch else None
            axes.text((start + end) / 2, y + height / 2 - 0.005, bar.label, ha="center", va="center", color=ink, fontsize=7,
                      bbox=box, clip_on=True)
    for name, pieces in by_look.items():
        face, hatch, _ = look(name)
        mean = sum(length for _, length in pieces) / len(pieces) / points
        gap = 0.0 if hatch or name == "issue" else min(0.4, mean / 20)  # lines between bars, which must not make them paler
        axes.broken_barh(pieces, (y, height), facecolor=face, hatch=hatch or None, edgecolor="#707070" if hatch else "white",
                         linewidth=gap)
        if name not in UNITS.values():  # its row says what it is
            used[MEANS.get(name) or f"products of {name}"] = face, hatch
    return used


def look(name: str) -> tuple[str, str, str]:
    """(face, hatch, ink) of a bar; ``wg1`` are products of warpgroup 1 on the tensor core."""
    if name in _LOOKS:
        return _LOOKS[name]
    face, ink = _PRODUCTS[int(name[2:]) % len(_PRODUCTS)]
    return face, "", ink


def _band(axes: Any, band: Sequence[Span], y: float, first: float, last: float, points: float, level: int) -> None:
    for number, span in enumerate(band):
        start, end = max(span.start, first), min(span.end, last)
        if start >= end:
            continue
        axes.broken_barh([(start, end - start)], (y + 0.02, _BAND - 0.03), facecolor=_BANDS[span.kind][number % 2], linewidth=0)
        label = f"tile {span.name}" if span.kind == "tile" else span.name
        if (end - start) / points > 4.2 * len(label) + 3:
            axes.text(start + 2 * points, y + _BAND / 2, label, ha="left", va="center", fontsize=6.5, color="#202020", clip_on=True)


def _legend(figure: Any, used: dict[str, tuple[str, str]]) -> None:
    from matplotlib.patches import Patch

    order = list(MEANS.values())
    names = sorted(used, key=lambda name: (order.index(name) if name in order else len(order), name))
    patches = [Patch(facecolor=used[name][0], hatch=used[name][1] or None, edgecolor="#707070", linewidth=0.3, label=name)
               for name in names]
    figure.legend(handles=patches, loc="lower left", bbox_to_anchor=(0.09, 0.0), ncols=min(len(patches), 7), frameon=False,
                  title="white: other instructions; on a bar: step·slot", title_fontsize=7.5, alignment="left", handlelength=1.6,
                  fontsize=8)
