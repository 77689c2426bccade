"""Result files as pictures, by matplotlib: ratios to the reference with their intervals, a panel for each protocol."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...diagnostics.errors import SpecError
from .files import same_model
from .report import Result, title

_COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00")
"""Okabe and Ito's"""


def plot(results: Sequence[tuple[str, Result]], path: str | Path | None = None, *, protocols: Sequence[str] = ()) -> Any:
    """Draw result files, (name, `Result`) each, in one picture; returns a `matplotlib.figure.Figure`.

    path       an .svg or .png file to write
    protocols  which panels; all that were measured by default

    A mark is a case's ratio, the line through it the 95 % interval, the grey band the reference against itself. Raises SpecError
    for files of different devices, for none that has a row to draw, and without matplotlib (``pip install 'numpipe[plot]'``).
    """
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError:
        raise SpecError("bench.plot: pictures are drawn by matplotlib, which is not installed: pip install 'numpipe[plot]'; as "
                        "text: bench.table(bench.read(file).rows)") from None
    if not results:
        raise SpecError("bench.plot: no result file")
    same_model(results)
    rows = [(name, row) for name, result in results for row in result.rows if not protocols or row.protocol in protocols]
    if not rows:
        raise SpecError(f"bench.plot: {', '.join(name for name, _ in results)}: no row of {', '.join(protocols) or 'any protocol'}")
    panels = list(dict.fromkeys(row.protocol for _, row in rows))
    cases = list(dict.fromkeys(title(row.case) for _, row in rows))
    series = list(dict.fromkeys((name, row.name) for name, row in rows))
    several = len(results) > 1
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "numpipe", "font.size": 8, "font.family": "sans-serif"}):
        size = 2.2 + 3.2 * len(panels), 1.4 + 0.16 * len(cases) * (len(series) + 1)
        figure = Figure(figsize=size, dpi=144, layout="constrained")
        drawn = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
        for axes, protocol in zip(drawn, panels, strict=True):
            axes.axvline(1.0, color="#808080", linewidth=0.8)
            for name, row in rows:
                if row.protocol != protocol:
                    continue
                at, number = cases.index(title(row.case)), series.index((name, row.name))
                y = at + (number + 0.5) / len(series) * 0.7 - 0.35
                if number == 0 and row.noise.low is not None and row.noise.high is not None:
                    axes.fill_betweenx([at - 0.45, at + 0.45], row.noise.low, row.noise.high, color="#e3e3e3", linewidth=0)
                colour = _COLOURS[number % len(_COLOURS)]
                if row.ratio.low is not None and row.ratio.high is not None:
                    axes.plot([row.ratio.low, row.ratio.high], [y, y], color=colour, linewidth=1)
                axes.plot([row.ratio.median], [y], "o", color=colour, markersize=3)
            axes.set_title(protocol)
            axes.set_xlabel(f"speed over that of {rows[0][1].reference}")
            axes.set_ylim(len(cases) - 0.5, -0.5)
            axes.set_yticks(range(len(cases)), cases)
        for number, (name, competitor) in enumerate(series):
            drawn[0].plot([], [], "o-", color=_COLOURS[number % len(_COLOURS)], markersize=3, linewidth=1,
                          label=f"{competitor}, {name}" if several else competitor)
        figure.legend(loc="outside lower center", ncols=len(series), frameon=False)
        figure.suptitle(f"{results[0][1].benchmark}, {results[0][1].machine.get('device', {}).get('name', 'an unknown device')}")
        if path is not None:
            figure.savefig(path)
    return figure
