"""The work of a simulation, told before it is done: the control flow of its first CTA runs on the counting machine.

One compute warpgroup stands for all, and one CTA for the grid. What is counted becomes seconds by rates that were measured for
simulated products, copies and stores; they differ between computers, and a kernel may do what is not counted.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..plan.unit import Unit
from .count import Counter, Enough, Work, run

LONGEST = 0.5
"""seconds that counting may take; the rest of a loop over tiles is told by its number of tiles"""
STEP, FLOP, BYTE = 1e-3, 2.5e-9, 1e-8
"""seconds of a step of a warpgroup, of an operation of a product, of a byte in a warpgroup's own accesses"""


@dataclass(frozen=True)
class Ahead:
    """Of one CTA: the steps of its pipelines that all its compute warpgroups see, and its seconds.

    `whole`: whether that is all of it; else it is what was counted before the time was over.
    """

    steps: int
    seconds: float
    whole: bool


class Looking(Counter):
    """A warpgroup that is counted until a moment; it knows how far in a loop over tiles it is."""

    def __init__(self, work: Work, unit: Unit, grid: tuple[int, int, int], end: float) -> None:
        super().__init__(work, unit, unit.first_compute, (0, 0, 0), grid)
        self.end, self.over = end, False
        self.tiles: dict[int, int] = {}
        self.begun = 0

    def note(self, event: str, **details: Any) -> None:
        super().note(event, **details)
        if event == "tiles":
            self.tiles = {**(self.tiles if details["dimension"] else {}), details["dimension"]: max(details["count"], 0)}
        elif event == "tile begin":
            self.begun = details["number"]
        self.round()

    def round(self) -> None:
        if time.monotonic() > self.end:
            self.over = True
            raise Enough


def ahead(unit: Unit, body: Callable[[Any], None], grid: tuple[int, int, int]) -> Ahead | None:
    """Return the work of the first CTA; None where it cannot be told. `unit` is used up, ``body(machine)`` is one warpgroup."""
    work = Work()
    machine = Looking(work, unit, grid, time.monotonic() + LONGEST)
    try:
        run(machine, body)
    except Exception:  # what is wrong with the kernel, or cannot be followed without data, the simulation tells
        return None
    steps, flop, nbytes = (sum(n for key, n in work.items() if key[0] in kinds)
                           for kinds in (("steps",), ("flop",), ("read", "written")))
    tiles = math.prod(machine.tiles.values()) if machine.tiles else 0
    scale = max(1.0, tiles / (machine.begun + 0.5)) if machine.over and machine.begun else 1.0  # it ended within a tile
    scale *= unit.compute_wgs
    return Ahead(round(scale * steps), scale * (STEP * (1 + steps) + FLOP * flop + BYTE * nbytes),
                 not machine.over or bool(machine.begun))
