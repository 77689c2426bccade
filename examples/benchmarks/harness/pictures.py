"""A picture of the ratios of hundreds of rows: where a kernel is fast, and where it is not."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from numpipe.bench.report import Result, Row, case_key, title
from numpipe.errors import SpecError

from .files import groups, same_model

WORST = 6
"""slowest rows that are named"""
LIMITS = (0.9, 1.0)
"""ratios that are drawn as lines"""
TICKS = (0.2, 0.3, 0.5, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.5, 2.0, 3.0, 5.0, 10.0)


def ratio_map(results: Sequence[tuple[str, Result]], path: Path, name: str | None = None) -> Any:
    """Draw the rows of sweeps, (file name, `Result`) each, and write an .svg or .png file.

    The ``place`` of a row (`Contest.place`) has three numbers. On the left a mark stands at the
    first two, in the color of the ratio: blue is faster than the reference, red slower. On the
    right the ratio stands over the third, with the geometric mean as a dashed line. The slowest
    rows are named. `name` is the competitor; default: the first.

    Returns the `matplotlib.figure.Figure`. Raises SpecError for files of different models of GPU,
    without such rows, and without matplotlib.
    """
    try:
        import matplotlib
        from matplotlib.colors import LogNorm
        from matplotlib.figure import Figure
        from matplotlib.ticker import FixedLocator, NullFormatter, StrMethodFormatter
    except ImportError:
        raise SpecError("matplotlib is not installed: pip install 'numpipe[plot]'") from None
    same_model(results)
    places = {case_key(run): run["place"] for _, r in results for run in r.runs if run.get("place")}

    def place(row: Row) -> dict[str, float]:
        return places.get(case_key({"case": row.case}), {})

    rows = [row for _, result in results for row in result.rows if place(row)]
    known = groups(rows, lambda row: row.name)
    group = next((each for each in known if name in (None, each.name)), None)
    if group is None:
        names = ", ".join(each.name for each in known) or "none"
        raise SpecError(f"no row of a sweep of {name or 'anybody'}; there are rows of: {names}")
    x, y, along = place(group.rows[0])
    style = {"svg.fonttype": "none", "svg.hashsalt": "numpipe", "font.size": 8}
    with matplotlib.rc_context(style):
        figure = Figure(figsize=(10.5, 4.6), dpi=144, layout="constrained")
        left, right = figure.subplots(1, 2)
        drawn = sorted(group.rows, key=lambda row: abs(math.log(row.ratio.median)))
        at = {key: [place(row)[key] for row in drawn] for key in (x, y, along)}
        ratios = [row.ratio.median for row in drawn]
        look = {"cmap": "RdBu", "norm": LogNorm(1 / 1.5, 1.5), "edgecolors": "#404040"}
        marks = left.scatter(at[x], at[y], 22, ratios, linewidths=0.4, **look)
        right.scatter(at[along], ratios, 22, ratios, linewidths=0.4, **look)
        named = []
        for rank, row in enumerate(group.least[:WORST], 1):
            ratio, its = row.ratio.median, place(row)
            named.append(f"{rank}: {title(row.case)}, {ratio:.2f}")
            for axes, point in ((left, (its[x], its[y])), (right, (its[along], ratio))):
                offset = {"xytext": (4, 3), "textcoords": "offset points"}
                axes.annotate(str(rank), point, fontsize=7, **offset)
        for limit in LIMITS:
            right.axhline(limit, color="#808080", linewidth=0.8, zorder=0)
        right.axhline(group.mean, color="#0072b2", linewidth=1, linestyle="--", zorder=0)
        left.set(xscale="log", yscale="log", xlabel=x, ylabel=y)
        speed = f"speed over that of {group.rows[0].reference}"
        right.set(xscale="log", yscale="log", xlabel=along, ylabel=speed)
        bar = figure.colorbar(marks, ax=left, extend="both", shrink=0.9, label="ratio")
        for axis in (right.yaxis, bar.ax.yaxis):
            axis.set_major_locator(FixedLocator(TICKS))
            axis.set_major_formatter(StrMethodFormatter("{x:g}"))
            axis.set_minor_formatter(NullFormatter())
        right.set_ylim(0.95 * min(ratios), 1.05 * max(ratios))
        device = results[0][1].machine.get("device", {}).get("name", "an unknown device")
        low = sum(ratio < LIMITS[0] for ratio in ratios)
        figure.suptitle(
            f"{results[0][1].benchmark}: {group.name}, {len(ratios)} rows, geometric mean "
            f"{group.mean:.3f}, {low} below {LIMITS[0]:g}, {device}"
        )
        half = (len(named) + 1) // 2
        lines = ["   ".join(part) for part in (named[:half], named[half:]) if part]
        figure.supxlabel("the slowest   " + "\n".join(lines), fontsize=7)
        figure.savefig(path)
    return figure
