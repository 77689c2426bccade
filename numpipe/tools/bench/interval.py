"""A figure with its uncertainty, from one number a process.

Runs inside one process share its clocks, its memory addresses and its luck, so the unit that is repeated is the
process: each gives one ratio, the figure is their median, and its 95 % interval comes from their spread.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

_T_975 = {2: 12.7062, 3: 4.3027, 4: 3.1824, 5: 2.7764}
"""97.5 % quantile of Student's t for n values (n - 1 degrees of freedom)"""


@dataclass(frozen=True)
class Figure:
    """The median of a few processes' ratios and its 95 % interval, `low` to `high`, which are None where one process ran."""

    median: float
    low: float | None
    high: float | None
    count: int

    def reaches(self, target: float) -> bool:
        """Return whether the interval's upper end reaches `target`, by which a required ratio is judged."""
        return (self.median if self.high is None else self.high) >= target

    def __str__(self) -> str:
        if self.low is None or self.high is None:
            return f"{self.median:.3f} [one process]"
        return f"{self.median:.3f} [{self.low:.3f}, {self.high:.3f}]"


def figure(ratios: Sequence[float]) -> Figure:
    """Return the median and the 95 % interval of positive ratios, one a process.

    Two to five values: Student's t on the logarithms, ``exp(mean ± t s / sqrt n)``, which assumes that they scatter
    like a normal variable, since so few values can say nothing of their distribution's shape. Six or more: the
    distribution-free interval of the median, between the order statistics whose binomial coverage is at least 95 %.

    >>> print(figure([1.02, 1.03, 1.04]))
    1.030 [1.005, 1.055]
    """
    values = sorted(ratios)
    n = len(values)
    if n == 0:
        raise ValueError("figure() needs at least one ratio")
    if values[0] <= 0:
        raise ValueError(f"ratios of times are positive, got {values[0]}")
    median = statistics.median(values)
    if n == 1:
        return Figure(median, None, None, 1)
    if n in _T_975:
        logs = [math.log(v) for v in values]
        centre, half = statistics.fmean(logs), _T_975[n] * statistics.stdev(logs) / math.sqrt(n)
        return Figure(median, math.exp(centre - half), math.exp(centre + half), n)
    below, outside = 1 / 2**n, 0  # values to drop at either end: the largest k with P(Binomial(n, 1/2) <= k) <= 2.5 %
    while (below := below + math.comb(n, outside + 1) / 2**n) <= 0.025:
        outside += 1
    return Figure(median, values[outside], values[n - 1 - outside], n)
