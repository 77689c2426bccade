"""A picture of the ratios of hundreds of rows over what tells the rows apart: where a kernel is fast, and where it is not."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...diagnostics.arguments import NONE, PATH, STRING, each, finite, require
from ...diagnostics.errors import SpecError
from .files import same_model
from .report import Result, Row, title

WORST = 6
"""rows that a picture names"""
_SPAN = 1.5
"""the ratio whose colour, and its inverse's, is the strongest"""
_MARKS = "o", "^", "s", "D", "v", "P"


def ratio_map(results: Sequence[tuple[str, Result]], path: str | Path | None = None, *, x: str | None = None, y: str | None = None,
              along: str | None = None, name: str | None = None, limits: Sequence[float] = (0.9, 1.0)) -> Any:
    """Draw the rows of sweeps, (file name, `Result`) each, as marks; returns a `matplotlib.figure.Figure`.

    On the left a row stands where two of its numbers say (`Contest.place`); its colour is the ratio to the reference: blue is
    faster, red slower, white equal. On the right the ratio stands over a third number, with the geometric mean as a dashed line.
    The slowest rows are named.

    path    an .svg or .png file to write
    x, y    the numbers of the left picture, by name; by default the first two of the first row
    along   that of the right one; by default the third, or the last
    name    the competitor; by default the first one
    limits  ratios that are drawn as lines

    Raises SpecError for files of different models of GPU, for rows without such numbers, for files without rows, and without
    matplotlib (``pip install 'numpipe[plot]'``).
    """
    try:
        import matplotlib
        from matplotlib.colors import LogNorm
        from matplotlib.figure import Figure
        from matplotlib.ticker import FixedLocator, NullFormatter, StrMethodFormatter
    except ImportError:
        raise SpecError("bench.ratio_map: pictures are drawn by matplotlib, which is not installed: pip install 'numpipe[plot]'; "
                        "as text: bench.summary(bench.read(file).rows)") from None
    text = STRING | NONE
    require("bench.ratio_map", locals(), path=PATH | NONE, x=text, y=text, along=text, name=text, limits=each(finite(above=0)))
    same_model(results)
    rows = _rows(results, name)
    numbers = list(rows[0].place)
    x, y, along = x or numbers[0], y or numbers[min(1, len(numbers) - 1)], along or numbers[min(2, len(numbers) - 1)]
    for number in (x, y, along):
        if missing := [row for row in rows if row.place.get(number, 0) <= 0]:
            raise SpecError(f"bench.ratio_map: {number!r} is no positive number of {title(missing[0].case)}, which has "
                            f"{missing[0].place}: name others as x, y and along")
    ratios = [row.ratio.median for row in rows]
    mean = math.exp(math.fsum(map(math.log, ratios)) / len(ratios))
    slowest = sorted(rows, key=lambda row: row.ratio.median)[:WORST]
    types = list(dict.fromkeys(str(row.case.get("dtype", "")) for row in rows))
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "numpipe", "font.size": 8, "font.family": "sans-serif"}):
        figure = Figure(figsize=(10.5, 4.6), dpi=144, layout="constrained")
        left, right = figure.subplots(1, 2)
        colours = {"cmap": "RdBu", "norm": LogNorm(1 / _SPAN, _SPAN), "edgecolors": "#404040", "linewidths": 0.4}
        for mark, dtype in zip(itertools.cycle(_MARKS), types):
            own = [row for row in rows if str(row.case.get("dtype", "")) == dtype]
            own.sort(key=lambda row: abs(math.log(row.ratio.median)))
            ratio = [row.ratio.median for row in own]
            drawn = left.scatter([row.place[x] for row in own], [row.place[y] for row in own], 22, ratio, marker=mark, **colours)
            right.scatter([row.place[along] for row in own], ratio, 22, ratio, marker=mark, **colours)
            left.plot([], [], mark, color="#808080", markersize=5, label=dtype)
        for rank, row in enumerate(slowest, 1):
            left.annotate(str(rank), (row.place[x], row.place[y]), xytext=(4, 3), textcoords="offset points", fontsize=7)
            right.annotate(str(rank), (row.place[along], row.ratio.median), xytext=(4, 3), textcoords="offset points", fontsize=7)
        for limit in limits:
            right.axhline(limit, color="#808080", linewidth=0.8, zorder=0)
        right.axhline(mean, color="#0072b2", linewidth=1, linestyle="--", zorder=0)
        left.set(xscale="log", yscale="log", xlabel=x, ylabel=y)
        right.set(xscale="log", yscale="log", xlabel=along, ylabel=f"speed over that of {rows[0].reference}")
        ticks = [tick for tick in (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.5, 2.0, 3.0, 5.0, 10.0)
                 if 0.95 * min(ratios) <= tick <= 1.05 * max(ratios)]
        right.yaxis.set_major_locator(FixedLocator(ticks or [1.0]))
        right.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        right.yaxis.set_minor_formatter(NullFormatter())
        bar = figure.colorbar(drawn, ax=left, extend="both", ticks=[0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.4], shrink=0.9)
        bar.ax.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        bar.ax.yaxis.set_minor_formatter(NullFormatter())
        bar.set_label("ratio")
        if len(types) > 1:
            left.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=len(types), frameon=False)
        device = results[0][1].machine.get("device", {}).get("name", "an unknown device")
        figure.suptitle(f"{results[0][1].benchmark}: {rows[0].name} over {rows[0].reference}, {len(rows)} rows, geometric mean "
                        f"{mean:.3f}, {sum(ratio < limits[0] for ratio in ratios)} below {limits[0]:g}, {device}")
        named = [f"{rank}: {title(row.case)}, {row.ratio.median:.2f}" for rank, row in enumerate(slowest, 1)]
        half = (len(named) + 1) // 2
        lines = ["   ".join(part) for part in (named[:half], named[half:]) if part]
        figure.supxlabel("the slowest   " + "\n".join(lines), fontsize=7)
        if path is not None:
            figure.savefig(path)
    return figure


def _rows(results: Sequence[tuple[str, Result]], name: str | None) -> list[Row]:
    """The rows of one competitor that have numbers to be placed by; SpecError where there are none."""
    every = [row for _, result in results for row in result.rows]
    chosen = name or next((row.name for row in every if row.place), None)
    rows = [row for row in every if row.name == chosen and row.place]
    if not rows:
        names = ", ".join(dict.fromkeys(row.name for row in every if row.place)) or "none"
        files = ", ".join(file for file, _ in results)
        raise SpecError(f"bench.ratio_map: {files}: no row of a sweep of {name or 'anybody'}; there are rows of: {names}")
    return rows
