"""`numpipe.timeline`: traces as text, or as SVG and PNG with matplotlib.

In a picture, each row is a warpgroup or a unit of the SM. A warpgroup's tiles and regions are above
its bar. Colors are chosen for color-blind readers, and lightness and hatching distinguish them in
grayscale: products are dark, waits are light and hatched."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..diagnostics.argument_checks import NONE, PATH, STRING, each, require
from ..diagnostics.errors import SpecError
from ..plan.roles import ROLES
from . import page
from .events import UNITS, Place
from .looks import BANDS, look
from .rows import Bar, View, view
from .spans import MEANS, Span
from .trace import Trace

__all__ = ["timeline"]

Cta = Place | int
ROWS = (*map(str, ROLES), "copy in", "copy out", "tensor core", "tiles", "regions")
"""valid entries of `rows`, in addition to ``wg0``, ``wg1`` …"""

_Legend = dict[str, tuple[str, str]]
"""words, and their (face, hatch)"""
_INCHES = 11.0
_ROW, _BAND, _MARGIN, _LEGEND = 0.34, 0.17, 0.75, 0.55
"""inches: a row, a band above it, the title and axis of a trace, and the legend"""


def timeline(
    *traces: Trace | str | os.PathLike[str],
    path: str | os.PathLike[str] | None = None,
    cta: Cta | None = None,
    start: float | Sequence[float | None] | None = None,
    end: float | Sequence[float | None] | None = None,
    rows: Sequence[str] | None = None,
    titles: Sequence[str] | None = None,
    width: int = 100,
) -> str:
    """Draw what the warpgroups of a CTA did over time, for one or more traces of the simulated SM
    or of a GPU, below one another.

    traces      `Trace` objects, or names of ``.json`` files that they were saved to
    path        a file name ending in ``.html`` (a page that zooms and searches), or in ``.svg`` or
                ``.png`` (needs ``pip install 'numpipe[plot]'``); None: text
    cta         (x, y, z), or x; by default the first CTA of each trace. In a run on several GPUs,
                the CTA is drawn for each GPU, or for one if given as (gpu, x, y, z)
    start, end  the time range to draw, in cycles, or in nanoseconds on a GPU; one value for all
                traces, or a sequence with one per trace. Each trace has its own scale
    rows        what to draw: some of ``compute``, ``memory`` (the warpgroups of that role), ``wg0``
                …, ``copy in``, ``copy out``, ``tensor core``, ``tiles``, ``regions`` (bands above
                the warpgroups); by default everything that a trace has
    titles      titles of the traces, in the picture and the text
    width       number of columns of the text

    Returns the timeline as text, or the name of the file. The text does not include bands of tiles
    and regions. Raises SpecError for anything that cannot be drawn.

    >>> trace = numpipe.Trace()
    >>> print(numpipe.timeline(trace))
    no events
    """
    if not traces:
        raise SpecError(
            "timeline: no trace given; pass a numpipe.Trace or the name of a file that Trace.save "
            "wrote"
        )
    require(
        "timeline", locals(), path=PATH | NONE, rows=each(STRING) | NONE, titles=each(STRING) | NONE
    )
    loaded = [trace if isinstance(trace, Trace) else Trace.load(trace) for trace in traces]
    starts, ends = _each("start", start, len(loaded)), _each("end", end, len(loaded))
    if titles is not None and len(titles) != len(loaded):
        raise SpecError(
            f"timeline: titles={titles!r}; a title for each of the {len(loaded)} traces"
        )
    names = (
        list(titles)
        if titles is not None
        else ["simulated" if trace.clock == "cycles" else "GPU" for trace in loaded]
    )
    for row in rows or ():
        if row not in ROWS and not (row.startswith("wg") and row[2:].isdigit()):
            raise SpecError(f"timeline: rows: {row!r} is not one of {', '.join(ROWS)}, wg0, wg1 …")

    def wanted(name: str) -> bool:
        return rows is None or name in rows or any(word in rows for word in name.split())

    if path is None:
        heads = [""] if len(loaded) == 1 and titles is None else [f"{name}: " for name in names]
        return "\n\n".join(
            head + trace.timeline(width, cta, first, last, wanted)
            for trace, head, first, last in zip(loaded, heads, starts, ends, strict=True)
        )
    file = Path(path)
    if file.suffix not in (".html", ".svg", ".png"):
        raise SpecError(
            f"timeline: path={str(file)!r} ends in none of .html, .svg and .png; without path= the "
            "timeline is text"
        )
    shows = zip(loaded, names, starts, ends, strict=True)
    if file.suffix == ".html":
        text = str(page.Page([page.panel(*one, cta, wanted) for one in shows]))
        file.write_text(text, encoding="utf8", errors="backslashreplace")
        return str(file)
    panels = []
    for trace, title, first, last in shows:
        shown = view(trace, cta, first, last, wanted)
        if shown is None or not shown.rows:
            raise SpecError(
                f"timeline: nothing to draw of {title}: no events, or none of the rows that were "
                "asked for"
            )
        panels.append((title, shown))
    _draw(panels, file)
    return str(file)


def _each(name: str, value: Any, count: int) -> list[float | None]:
    """Return one value for each of `count` traces: `value` for all of them, or its elements if it
    is a sequence."""
    if not isinstance(value, (tuple, list)):
        return [value] * count
    if len(value) != count:
        raise SpecError(
            f"timeline: {name}={value!r}; one number, or one for each of the {count} traces"
        )
    return list(value)


# ---- pictures
def _draw(panels: Sequence[tuple[str, View]], path: Path) -> None:
    """Draw traces below one another, each with its own scale, into an .svg or .png file."""
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError:
        raise SpecError(
            "timeline: pictures are drawn by matplotlib, which is not installed: pip install "
            "'numpipe[plot]'; without path= the timeline is text"
        ) from None
    heights = [
        sum(_ROW + _BAND * len(row.bands) for row in shown.rows) + _MARGIN for _, shown in panels
    ]
    top = total = sum(heights) + _LEGEND
    longest = max(len(row.name) for _, shown in panels for row in shown.rows)
    left = 0.1 + 0.006 * max(0, longest - 12)  # "GPU 0 wg0 compute" has 17
    style = {
        "svg.fonttype": "none",
        "svg.hashsalt": "numpipe",
        "hatch.linewidth": 0.5,
        "font.size": 8,
        "font.family": "sans-serif",
    }
    with matplotlib.rc_context(style):
        figure = Figure(figsize=(_INCHES, total), dpi=144)
        legend: _Legend = {}
        for (title, shown), height in zip(panels, heights, strict=True):
            top -= height
            axes = figure.add_axes(
                (left, (top + 0.42) / total, 0.985 - left, (height - _MARGIN) / total)
            )
            _panel(axes, title, shown, height - _MARGIN, legend)
        _legend(figure, legend)
        figure.savefig(
            path, metadata={"Date": None} if path.suffix == ".svg" else {"Software": "numpipe"}
        )


def _panel(axes: Any, title: str, shown: View, inches: float, legend: _Legend) -> None:
    """Draw one trace, and add entries to the legend."""
    first, last = shown.first, shown.last
    points = (last - first) / (_INCHES * axes.get_position().width * 72)
    y, ticks = inches, []
    for row in shown.rows:
        for band in row.bands:
            y -= _BAND
            _band(axes, band, y, first, last, points)
        y -= _ROW
        ticks.append((y + _ROW / 2, row.name))
        _bars(axes, row.bars, y + 0.03, _ROW - 0.06, first, last, points, legend)
    axes.set(
        xlim=(first, last),
        ylim=(0, inches),
        yticks=[at for at, _ in ticks],
        yticklabels=[name for _, name in ticks],
    )
    unit = {"cycles": "cycles of the simulated SM", "ns": "ns"}[shown.clock]
    axes.set_xlabel(unit, labelpad=1)
    sm = "" if shown.sm is None else f", SM {shown.sm}"
    axes.set_title(f"{title}    {shown.where}{sm}", loc="left", fontsize=9, pad=4)
    axes.tick_params(length=2)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)


def _bars(
    axes: Any,
    bars: Sequence[Bar],
    y: float,
    height: float,
    first: float,
    last: float,
    points: float,
    legend: _Legend,
) -> None:
    """Draw the bars of a row inside the window, with issues at least one point wide; `points` is
    the time per point."""
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
            axes.text(
                (start + end) / 2,
                y + height / 2 - 0.005,
                bar.label,
                ha="center",
                va="center",
                color=ink,
                fontsize=7,
                bbox=box,
                clip_on=True,
            )
    for name, pieces in by_look.items():
        face, hatch, _ = look(name)
        mean = sum(length for _, length in pieces) / len(pieces) / points
        # lines between bars, which must not make them paler
        gap = 0.0 if hatch or name == "issue" else min(0.4, mean / 20)
        axes.broken_barh(
            pieces,
            (y, height),
            facecolor=face,
            hatch=hatch or None,
            edgecolor="#707070" if hatch else "white",
            linewidth=gap,
        )
        if name not in UNITS.values():  # its row says what it is
            legend[MEANS.get(name) or f"products of {name}"] = face, hatch


def _band(
    axes: Any, band: Sequence[Span], y: float, first: float, last: float, points: float
) -> None:
    for number, span in enumerate(band):
        start, end = max(span.start, first), min(span.end, last)
        if start >= end:
            continue
        axes.broken_barh(
            [(start, end - start)],
            (y + 0.02, _BAND - 0.03),
            facecolor=BANDS[span.kind][number % 2],
            linewidth=0,
        )
        label = f"tile {span.name}" if span.kind == "tile" else span.name
        if (end - start) / points > 4.2 * len(label) + 3:
            axes.text(
                start + 2 * points,
                y + _BAND / 2,
                label,
                ha="left",
                va="center",
                fontsize=6.5,
                color="#202020",
                clip_on=True,
            )


def _legend(figure: Any, looks: _Legend) -> None:
    from matplotlib.patches import Patch

    order = list(MEANS.values())
    names = sorted(
        looks, key=lambda name: (order.index(name) if name in order else len(order), name)
    )
    patches = [
        Patch(
            facecolor=looks[name][0],
            hatch=looks[name][1] or None,
            edgecolor="#707070",
            linewidth=0.3,
            label=name,
        )
        for name in names
    ]
    figure.legend(
        handles=patches,
        loc="lower left",
        bbox_to_anchor=(0.09, 0.0),
        ncols=min(len(patches), 7),
        frameon=False,
        title="white: other instructions; on a bar: step·slot",
        title_fontsize=7.5,
        alignment="left",
        handlelength=1.6,
        fontsize=8,
    )
