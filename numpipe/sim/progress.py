"""The progress of a simulation: the fraction done, the estimated time, the bar on stderr, and the
time limit.

A run that has done a fraction f of its work in t seconds takes t / f. Finished clusters count
fully, the running one by the progress of its loop over tiles.
"""

from __future__ import annotations

import math
import time
from typing import Any

from ..diagnostics.errors import SpecError
from ..diagnostics.progress_bar import progress_bar

LIMIT = 3600.0
"""Seconds that a simulation may take by default."""
PATIENCE = 2.0
"""Seconds before an estimate is trusted."""
SHOWN = 5.0
"""Seconds before the bar appears."""
LEAST = 1e-4
"""Seconds that an empty CTA takes."""
_OFTEN = 256
"""Events between two checks of the clock."""


class RunProgress:
    """The progress of a simulation of `clusters` clusters with `ctas` CTAs in total.

    Raises SpecError if `limit` (seconds) is not a positive number, and as soon as the run exceeds
    the limit, or is estimated to.
    """

    def __init__(self, name: str, clusters: int, ctas: int, limit: float | None) -> None:
        limit = LIMIT if limit is None else limit
        if isinstance(limit, bool) or not isinstance(limit, (int, float)) or not limit > 0:
            raise SpecError(
                f"kernel {name}: simulate: limit={limit!r}: it must be a number of seconds above "
                "0, or math.inf for no limit"
            )
        self.name, self.limit, self.clusters = name, limit, clusters
        self.begin, self.ended, self.part = time.monotonic(), 0, 0.0
        self._counts: dict[int, int] = {}
        self._events = 0
        self._bar: Any = None
        if ctas * LEAST > limit:
            self._refuse(ctas * LEAST, f"a grid of {ctas} CTAs")

    def tiles(self, dimension: int, count: int) -> None:
        """Record the `count` of tiles along a `dimension` of a tile loop that begins."""
        self._counts = {**(self._counts if dimension else {}), dimension: max(count, 0)}

    def noted(self, event: str, details: dict[str, Any]) -> None:
        """Record an event of a warpgroup."""
        self._events += 1
        if event == "tile begin" and self._counts:
            self.part = min(0.99, details["number"] / max(1, math.prod(self._counts.values())))
        if event == "tile begin" or not self._events % _OFTEN:
            self.check()

    def end(self) -> None:
        """Record the end of a cluster."""
        self.ended, self.part = self.ended + 1, 0.0
        self.check()

    def estimate(self) -> float | None:
        """Return the estimated duration of the whole run in seconds; None before a cluster or a
        tile has ended."""
        done = (self.ended + self.part) / self.clusters
        return (time.monotonic() - self.begin) / done if done else None

    def check(self) -> None:
        """Advance the bar. Raises SpecError if the run exceeds its limit, or is estimated to."""
        seconds = time.monotonic() - self.begin
        if seconds < PATIENCE:
            return
        done = f"{self.ended + self.part:.3g} of {self.clusters} clusters took {seconds:.0f} s"
        estimate = self.estimate()
        if (estimate or seconds) > self.limit:
            self._refuse(
                estimate or seconds, done if estimate else f"{done}: the rest cannot be estimated"
            )
        if seconds > SHOWN and self._bar is None:
            self._bar = progress_bar(f"simulate {self.name}", total=self.clusters, unit="cluster")
        if self._bar is not None:
            self._bar.update(self.ended + self.part - self._bar.n)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()

    def _refuse(self, seconds: float, why: str) -> None:
        raise SpecError(
            f"kernel {self.name}: simulating it would take about {seconds:.0f} s ({why}), and the "
            f"limit is {self.limit:g} s: use smaller arrays, which show the same races and "
            f"deadlocks, or call kernel.simulate(…, limit={math.ceil(1.5 * seconds)})"
        )
