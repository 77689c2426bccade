"""How far a simulation is: the estimate of its time, the bar on stderr, and the refusal of what would take too long.

A large call is judged before it begins, by what its first CTA will do (`ahead`): one that would take `DOUBT` times the limit is
refused. Then the run itself tells: one that has done a part f of its work in t seconds ends after t / f. Clusters that have ended
count whole; of one that runs, the loop over tiles says how far it is, or where there is none the steps of its pipelines, of all
that its first CTA has. A kernel of one CTA with neither gives no estimate, and ends at the limit itself. Nothing is asked of a run
of less than `PATIENCE` seconds, but of a grid so large that its CTAs could do nothing in that time.
"""

from __future__ import annotations

import importlib.util
import math
import sys
import time
from collections.abc import Callable
from typing import Any

from ..diagnostics.errors import SpecError
from .ahead import Ahead

LIMIT = 3600.0
"""seconds that a simulation may take by default"""
PATIENCE = 2.0
"""seconds behind which a run is judged"""
SHOWN = 5.0
"""seconds behind which the bar appears"""
LEAST = 1e-4
"""seconds that a CTA takes which does nothing"""
LARGE, MANY = 1 << 23, 256
"""elements of arrays, or CTAs, above which a call is judged before it begins"""
DOUBT = 3.0
"""how many times too long that judgement may be"""
_OFTEN = 256
"""notes of warpgroups from one look at the clock to the next"""


class Pace:
    """The pace of one simulation, which `limit` seconds bound; SpecError where they are no positive number."""

    def __init__(self, name: str, clusters: int, ctas: int, limit: float | None, elements: int = 0,
                 look_ahead: Callable[[], Ahead | None] | None = None) -> None:
        limit = LIMIT if limit is None else limit
        if isinstance(limit, bool) or not isinstance(limit, (int, float)) or not limit > 0:
            raise SpecError(f"kernel {name}: simulate: limit={limit!r}: it is a number of seconds above 0, math.inf for no bound")
        self.name, self.limit, self.clusters, self.ctas = name, limit, clusters, ctas
        self._look_ahead = look_ahead
        self._ahead: Ahead | None = None
        self._counts: dict[int, int] = {}
        self._notes = self._steps = 0
        self._bar: Any = None
        if ctas * LEAST > limit:
            self._refuse(ctas * LEAST, f"a grid of {ctas} CTAs")
        first = self._first() if (elements > LARGE or ctas > MANY) and math.isfinite(limit) else None
        if first is not None and ctas * first.seconds > DOUBT * limit:
            more = "" if first.whole else "more than "
            self._refuse(ctas * first.seconds, f"{ctas} CTAs, of which the first has {more}{first.steps} steps")
        self.begin, self.ended, self.part = time.monotonic(), 0, 0.0

    def _first(self) -> Ahead | None:
        """Return what the first CTA does, counted once."""
        if self._look_ahead is not None:
            self._ahead, self._look_ahead = self._look_ahead(), None
        return self._ahead

    def estimate(self) -> float | None:
        """Return the seconds of the whole run, or None where nothing tells."""
        done = (self.ended + self.part) / self.clusters
        return (time.monotonic() - self.begin) / done if done else None

    def tiles(self, dimension: int, count: int) -> None:
        """A loop over tiles begins, with so many along a dimension."""
        self._counts = {**(self._counts if dimension else {}), dimension: max(count, 0)}

    def noted(self, event: str, details: dict[str, Any]) -> None:
        """A warpgroup noted an event."""
        if event == "tile begin":
            self.part = min(0.99, details["number"] / max(1, math.prod(self._counts.values()))) if self._counts else 0.0
            self.look()
        else:
            self._steps += event == "compute"
            self._notes += 1
            if not self._notes % _OFTEN:
                self.look()

    def end(self) -> None:
        """A cluster has ended."""
        self.ended, self.part, self._steps = self.ended + 1, 0.0, 0
        self.look()

    def look(self) -> None:
        seconds = time.monotonic() - self.begin
        if seconds < PATIENCE:
            return
        if not self._counts and (first := self._first()) is not None and first.whole and first.steps:
            self.part = min(0.99, self._steps / (first.steps * self.ctas / self.clusters))
        estimate = self.estimate()
        if estimate is not None and estimate > self.limit:
            self._refuse(estimate, f"{self.ended + self.part:.3g} of {self.clusters} clusters took {seconds:.0f} s")
        if seconds > self.limit:
            self._refuse(seconds, "it has run for so long, and says nothing of its end")
        if seconds > SHOWN and self._bar is None and importlib.util.find_spec("tqdm"):
            from tqdm.auto import tqdm

            self._bar = tqdm(total=self.clusters, desc=f"simulate {self.name}", unit="CTA", leave=False, file=sys.stderr)
        if self._bar is not None:
            self._bar.update(self.ended + self.part - self._bar.n)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()

    def _refuse(self, seconds: float, why: str) -> None:
        raise SpecError(f"kernel {self.name}: simulated it takes about {seconds:.0f} s ({why}), and simulations end at "
                        f"{self.limit:g} s: take smaller arrays, which have the same races and deadlocks, or say "
                        f"kernel.simulate(…, limit={math.ceil(1.5 * seconds)})")
