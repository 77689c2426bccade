"""Pictures of the ratios of hundreds of rows, which show where a kernel is fast and where not."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from numpipe.bench.report import Result, Row, case_key, title
from numpipe.errors import SpecError

from .files import groups, same_model

WORST = 6
"""number of slowest rows that are named"""


def ratio_map(results: Sequence[tuple[str, Result]], path: Path, name: str | None = None) -> Any:
    """Draw the rows of sweeps, given as (file name, `Result`), and write an .svg or .png file.

    The ``place`` of a row (`Contest.place`) has three numbers. On the left, each row is a mark at
    the first two, colored by its ratio: blue is faster than the reference, red slower. On the
    right, the ratio is plotted over the third number, with the geometric mean as a dashed line. The
    slowest rows are named. `name` is the competitor; default: the first.

    Returns the `matplotlib.figure.Figure`. Raises SpecError for files of different GPU models, if
    there are no such rows, and if matplotlib is not installed.
    """
    try:
        import matplotlib
        from matplotlib.colors import LogNorm
        from matplotlib.figure import Figure
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
    ratios = [row.ratio.median for row in group.rows]
    at = {key: [place(row)[key] for row in group.rows] for key in (x, y, along)}
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "numpipe"}):
        figure = Figure(figsize=(11, 5), layout="constrained")
        left, right = figure.subplots(1, 2)
        colors = {"cmap": "RdBu", "norm": LogNorm(1 / 1.5, 1.5), "edgecolors": "gray"}
        marks = left.scatter(at[x], at[y], 22, ratios, **colors)
        right.scatter(at[along], ratios, 22, ratios, **colors)
        right.axhline(group.mean, linestyle="--")
        left.set(xscale="log", yscale="log", xlabel=x, ylabel=y)
        speed = f"speed over that of {group.rows[0].reference}"
        right.set(xscale="log", yscale="log", xlabel=along, ylabel=speed)
        figure.colorbar(marks, ax=left, extend="both", label="ratio")
        named = []
        for rank, row in enumerate(group.least[:WORST], 1):
            named.append(f"{rank}: {title(row.case)}, {row.ratio.median:.2f}")
            left.annotate(str(rank), (place(row)[x], place(row)[y]))
            right.annotate(str(rank), (place(row)[along], row.ratio.median))
        figure.suptitle(
            f"{group.name}, {len(ratios)} rows, geometric mean {group.mean:.3f}, "
            f"{100 * group.below(0.9):.1f} % below 0.9"
        )
        figure.supxlabel("the slowest:   " + "   ".join(named), fontsize=6)
        figure.savefig(path)
    return figure
