"""Result files beside each other: what has changed, only where that can be said, and pictures of them by matplotlib.

Rates of two cards of one model differ by a tenth, and ratios within one process hardly do. So files of one card are compared by
rates and ratios, those of two cards of one model by ratios only, and those of different models not at all.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...diagnostics.arguments import NONE, PATH, STRING, Rule, a, each, require
from ...diagnostics.errors import SpecError
from .report import Figure, Result, aligned, case_key, title

_COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00")
"""Okabe and Ito's"""
_MODEL = ("name", "compute_capability", "sms", "l2_bytes", "memory_bytes", "power_limit_watts")


@dataclass(frozen=True)
class Change:
    """How one case, protocol and competitor differs between two files."""

    case: dict[str, Any]
    protocol: str
    name: str
    before: Figure
    """ratio to the reference"""
    after: Figure
    speed: float | None
    """rate after over rate before; None on two cards"""

    @property
    def certain(self) -> bool:
        """Whether the intervals of the ratios do not meet. False where only one process ran."""
        low, high, new_low, new_high = self.before.low, self.before.high, self.after.low, self.after.high
        if low is None or high is None or new_low is None or new_high is None:
            return False
        return new_low > high or new_high < low


def same_model(results: Sequence[tuple[str, Result]]) -> bool:
    """Return whether all files, given with their names, are of one card. Raises SpecError where they are not even of one model."""
    pair = Rule(("a pair (name, Result)",), lambda one: isinstance(one, tuple) and len(one) == 2 and isinstance(one[1], Result))
    require("bench", locals(), results=each(pair))
    if not results:
        raise SpecError("bench: no result file")
    (first, reference), *others = results
    known = reference.machine.get("device", {})
    for name, result in others:
        device = result.machine.get("device", {})
        differing = [f"{key} {known.get(key)!r} and {device.get(key)!r}" for key in _MODEL if device.get(key) != known.get(key)]
        if differing:
            raise SpecError(f"{first} and {name} are of different devices, whose results cannot be compared: "
                            f"{', '.join(differing)}; measure both on one of them")
    cards = {result.machine.get("device", {}).get("uuid") for _, result in results}
    return len(cards) == 1 and None not in cards


def changes(before: Result, after: Result, names: tuple[str, str] = ("the first file", "the second")) -> list[Change]:
    """Return the changes of all rows that both files have, in the first one's order.

    Raises SpecError for files of different devices, of different references, and where no row is in both.
    """
    require("changes", locals(), before=a(Result), after=a(Result), names=each(STRING, 2))
    one_card = same_model(list(zip(names, (before, after), strict=True)))
    known = {row.key: row for row in after.rows}
    common = []
    for old in before.rows:
        new = known.get(old.key)
        if new is None:
            continue
        if new.reference != old.reference:
            raise SpecError(f"{names[0]} compares {old.name} with {old.reference}, {names[1]} with {new.reference}: ratios to "
                            "different references say nothing of each other")
        common.append(Change(old.case, old.protocol, old.name, old.ratio, new.ratio, new.rate / old.rate if one_card else None))
    if not common:
        raise SpecError(f"{names[0]} and {names[1]} have no case, protocol and competitor in common")
    return common


def merge(results: Sequence[tuple[str, Result]]) -> Result:
    """Return the runs of several files, given with their names, as one result: each process of each file counts as one.

    The machine is the first file's; where the cards differ, each run says which it had. Raises SpecError for files of different
    models of GPU, and of different benchmarks.
    """
    one_card, (_, first) = same_model(results), results[0]
    if other := next((name for name, result in results if result.benchmark != first.benchmark), None):
        raise SpecError(f"{results[0][0]} is of the benchmark {first.benchmark!r} and {other} of another: their rows do not belong "
                        "together")
    machine, runs, begin = copy.deepcopy(first.machine), [], 0
    if not one_card:
        machine.get("device", {}).pop("uuid", None)
    for _, result in results:
        card = result.machine.get("device", {}).get("uuid")
        which = {} if one_card or card is None else {"gpu": card}
        runs += [which | run | {"process": begin + run["process"]} for run in result.runs]
        begin = 1 + max((run["process"] for run in runs), default=-1)
    order = {key: number for number, key in enumerate(dict.fromkeys(case_key(run) for run in runs))}
    return Result(first.benchmark, machine, first.method, sorted(runs, key=lambda run: (order[case_key(run)], run["process"])))


def as_text(rows: Sequence[Change]) -> str:
    """Return changes as aligned text, a line each; * marks ratios whose intervals do not meet."""
    lines = [["case", "protocol", "", "ratio before", "ratio after", "", "speed after / before"]]
    for change in rows:
        speed = "another card" if change.speed is None else f"{change.speed:.3f}"
        lines.append([title(change.case), change.protocol, change.name, str(change.before), str(change.after),
                      "*" * change.certain, speed])
    return aligned(lines)


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
    require("bench.plot", locals(), path=PATH | NONE, protocols=each(STRING))
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
