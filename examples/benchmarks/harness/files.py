"""Merging and comparing result files, and summaries of hundreds of rows.

Rates of two cards of the same model differ by up to a tenth; ratios within one process hardly
differ. So files of one card are compared by rates and ratios, files of two cards of one model only
by ratios, and files of different models not at all.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from numpipe.bench.report import Figure, Result, Row, aligned, case_key, title
from numpipe.errors import SpecError

Case = Mapping[str, Any]
MODEL = (
    "name",
    "compute_capability",
    "sms",
    "l2_bytes",
    "memory_bytes",
    "power_limit_watts",
)
LEAST = 12
"""number of rows that a summary names"""


# ---- several files
def same_model(results: Sequence[tuple[str, Result]]) -> bool:
    """Return whether all files, given with their names, are from one card.

    Raises SpecError if they are from different GPU models.
    """
    devices = [(name, result.machine.get("device", {})) for name, result in results]
    (first, known), *others = devices
    for name, device in others:
        if differing := [
            f"{key} {known.get(key)!r} and {device.get(key)!r}"
            for key in MODEL
            if device.get(key) != known.get(key)
        ]:
            raise SpecError(
                f"{first} and {name} are of different devices, whose results cannot be compared: "
                f"{', '.join(differing)}; measure both on one of them"
            )
    cards = {device.get("uuid") for _, device in devices}
    return len(cards) == 1 and None not in cards


def merge(results: Sequence[tuple[str, Result]]) -> Result:
    """Return the runs of several files as one result: every process of every file counts as one.

    The machine is the first file's; if the cards differ, each run has its ``gpu``. Raises SpecError
    for files of different models of GPU or of different benchmarks.
    """
    one_card, (first_name, first) = same_model(results), results[0]
    machine, runs, begin = copy.deepcopy(first.machine), [], 0
    if not one_card:
        machine.get("device", {}).pop("uuid", None)
    for name, result in results:
        if result.benchmark != first.benchmark:
            raise SpecError(
                f"{first_name} is of the benchmark {first.benchmark!r} and {name} of another: "
                "their rows do not belong together"
            )
        card = result.machine.get("device", {}).get("uuid")
        which = {} if one_card or card is None else {"gpu": card}
        runs += [which | run | {"process": begin + run["process"]} for run in result.runs]
        begin = 1 + max((run["process"] for run in runs), default=-1)
    order = {key: at for at, key in enumerate(dict.fromkeys(map(case_key, runs)))}
    runs.sort(key=lambda run: (order[case_key(run)], run["process"]))
    return Result(first.benchmark, machine, first.method, runs)


def apart(before: Figure, after: Figure) -> bool:
    """Return whether the intervals of two ratios do not overlap; False if there was one process."""
    if None in (before.low, before.high, after.low, after.high):
        return False
    return after.low > before.high or after.high < before.low  # type: ignore[operator]


def changes(results: Sequence[tuple[str, Result]]) -> str:
    """Return, as text, what changed between two files in the rows that both have.

    Ratios whose intervals do not overlap are marked with *. Raises SpecError for files of different
    GPU models or with different references, and if they have no row in common.
    """
    one_card = same_model(results)
    (first, before), (second, after) = results
    known = {(case_key({"case": row.case}), row.protocol, row.name): row for row in after.rows}
    lines = [["case", "protocol", "", "ratio before", "ratio after", "", "speed after / before"]]
    for old in before.rows:
        new = known.get((case_key({"case": old.case}), old.protocol, old.name))
        if new is None:
            continue
        if new.reference != old.reference:
            raise SpecError(
                f"{first} compares {old.name} with {old.reference}, {second} with {new.reference}"
            )
        speed = f"{new.rate / old.rate:.3f}" if one_card else "another card"
        mark = "*" * apart(old.ratio, new.ratio)
        ratios = [str(old.ratio), str(new.ratio)]
        lines.append([title(old.case), old.protocol, old.name, *ratios, mark, speed])
    if len(lines) == 1:
        raise SpecError(f"{first} and {second} have no case, protocol and competitor in common")
    return aligned(lines)


# ---- many rows
@dataclass(frozen=True)
class Group:
    """The result rows of one kind of case and one competitor."""

    name: str
    rows: tuple[Row, ...]

    @property
    def mean(self) -> float:
        """Geometric mean of the rows' ratios, each the median of its processes."""
        return math.exp(math.fsum(math.log(row.ratio.median) for row in self.rows) / len(self.rows))

    @property
    def error(self) -> float | None:
        """Largest error relative to the reference's in the same row; None if no row has both."""
        ratios = [
            row.error / row.reference_error
            for row in self.rows
            if row.error is not None and row.reference_error
        ]
        return max(ratios, default=None)

    @property
    def least(self) -> list[Row]:
        """The rows, the slowest first."""
        return sorted(self.rows, key=lambda row: row.ratio.median)

    def below(self, ratio: float) -> float:
        """Return the fraction of rows whose ratio is below this one."""
        return sum(row.ratio.median < ratio for row in self.rows) / len(self.rows)


def by_competitor(row: Row) -> str:
    return f"{row.name} / {row.reference}, {row.protocol}"


def groups(rows: Sequence[Row], by: Callable[[Row], str] = by_competitor) -> list[Group]:
    """Return the rows grouped by `by`, in the order in which the groups first occur."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(by(row), []).append(row)
    return [Group(name, tuple(members)) for name, members in found.items()]


def summary(
    rows: Sequence[Row],
    *,
    by: Callable[[Row], str] = by_competitor,
    limits: Sequence[float] = (0.70, 0.90, 0.93, 1.0),
    least: int = LEAST,
) -> str:
    """Return one line for each group of rows, and its `least` slowest rows, as text.

    Ratios are speeds relative to the reference: above 1 is faster. There is a column with the
    fraction of rows below each of `limits`.
    """
    if not rows:
        return "nothing was measured"
    below = [f"below {limit:.2f}" for limit in limits]
    lines = [["", "rows", "geometric mean", *below, "least", "largest error / reference's"]]
    parts = []
    for group in groups(rows, by):
        shares = [f"{100 * group.below(limit):.1f} %" for limit in limits]
        error = "" if group.error is None else f"{group.error:.3f}"
        worst = f"{group.least[0].ratio.median:.3f}"
        lines.append([group.name, str(len(group.rows)), f"{group.mean:.3f}", *shares, worst, error])
        head = f"the slowest of {group.name}"
        slowest = [[head, "us", "reference's us", "ratio [95 %]", "reference / itself"]]
        for row in group.least[:least]:
            times = [
                "" if seconds is None else f"{1e6 * seconds:.1f}"
                for seconds in (row.seconds, row.reference_seconds)
            ]
            slowest.append([title(row.case), *times, str(row.ratio), f"{row.noise.median:.3f}"])
        parts.append(aligned(slowest))
    return "\n\n".join([aligned(lines), *(parts if least else ())])
