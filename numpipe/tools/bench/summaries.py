"""What hundreds of rows come to: the mean, how many are slow, which are the slowest, and whether all are right."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ...diagnostics.arguments import FUNCTION, a, each, finite, require, whole
from .report import Row, aligned, title

LEAST = 12
"""rows that a summary names"""


@dataclass(frozen=True)
class Group:
    """The rows of one kind and of one competitor.

    mean   geometric mean of the rows' ratios, each the median of its processes
    error  the largest relative error over the reference's of the same row; None where no row has both
    """

    name: str
    rows: tuple[Row, ...]

    @property
    def mean(self) -> float:
        return math.exp(math.fsum(math.log(row.ratio.median) for row in self.rows) / len(self.rows))

    @property
    def error(self) -> float | None:
        return max((row.error / row.reference_error for row in self.rows if row.error is not None and row.reference_error),
                   default=None)

    @property
    def least(self) -> list[Row]:
        """The rows, the slowest first."""
        return sorted(self.rows, key=lambda row: row.ratio.median)

    def below(self, ratio: float) -> float:
        """Return the share of rows whose ratio is below this one."""
        return sum(row.ratio.median < ratio for row in self.rows) / len(self.rows)


def by_competitor(row: Row) -> str:
    return f"{row.name} / {row.reference}, {row.protocol}"


def groups(rows: Sequence[Row], by: Callable[[Row], str] = by_competitor) -> list[Group]:
    """Return the rows in groups of the same `by`, in the order in which the groups begin."""
    require("groups", locals(), rows=each(a(Row)), by=FUNCTION)
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(by(row), []).append(row)
    return [Group(name, tuple(members)) for name, members in found.items()]


def summary(rows: Sequence[Row], *, by: Callable[[Row], str] = by_competitor, limits: Sequence[float] = (0.70, 0.90, 0.93, 1.0),
            least: int = LEAST) -> str:
    """Return a line for each group of rows, and its slowest rows: ratios are speeds over the reference's, above 1 is faster.

    by      what rows have in common that are told together
    limits  ratios; the share of rows below each is told
    least   how many of a group's slowest rows are told
    """
    require("summary", locals(), rows=each(a(Row)), by=FUNCTION, limits=each(finite()), least=whole(0))
    if not rows:
        return "nothing was measured"
    told = groups(rows, by)
    lines = [["", "rows", "geometric mean", *(f"below {limit:.2f}" for limit in limits), "least", "largest error / reference's"]]
    for group in told:
        lines.append([group.name, str(len(group.rows)), f"{group.mean:.3f}",
                      *(f"{100 * group.below(limit):.1f} %" for limit in limits), f"{group.least[0].ratio.median:.3f}",
                      "" if group.error is None else f"{group.error:.3f}"])
    parts = [aligned(lines)]
    for group in told if least else ():
        slowest = [["the slowest of " + group.name, "us", "reference's us", "ratio [95 %]", "reference / itself"]]
        slowest += [[title(row.case), _micro(row.seconds), _micro(row.reference_seconds), str(row.ratio), f"{row.noise.median:.3f}"]
                    for row in group.least[:least]]
        parts.append(aligned(slowest))
    return "\n\n".join(parts)


def _micro(seconds: float | None) -> str:
    return "" if seconds is None else f"{1e6 * seconds:.1f}"
