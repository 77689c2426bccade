"""Estimate how long the transfers between GPUs take, from the order in which each GPU accesses its
peers.

All peers of a GPU share its outgoing port, and its incoming one. So n GPUs that load from one peer
at the same time, or store to it, take n times as long, even if all ports have carried the same
number of bytes in the end.
"""

from __future__ import annotations

import collections
import itertools
from collections.abc import Callable
from typing import Any

from ...arch.dimensions import Dim3
from ...plan.unit import Unit
from ...sim.inferred import Work
from ...sim.work_count import Tracer, run

Queue = list[tuple[int, int, float]]
"""The transfers of one warpgroup, in order: (source GPU, target GPU, bytes)."""


class _Transfers(Tracer):
    """A warpgroup that runs all its tiles and records its transfers between GPUs."""

    def note(self, event: str, **details: Any) -> None:
        self.tile = details.get("number", self.tile)

    def _moved(self, kind: str, what: str, nbytes: int, place: Any) -> bool:
        peer = what.rpartition(" of GPU ")[2]
        if peer.isdigit() and int(peer) != self.gpu:
            ends = (int(peer), self.gpu)
            super()._moved(kind, what, nbytes, ends if kind == "load" else ends[::-1])
        return False


def queues(unit: Unit, body: Callable[[Any], None], ctas: list[Dim3], grid: Dim3) -> list[Queue]:
    """Return the transfers of some CTAs of each GPU, GPU by GPU."""
    found = []
    for gpu, cta, warpgroup in itertools.product(range(unit.gpus), ctas, range(len(unit.parts))):
        machine = _Transfers(Work(), unit, warpgroup, cta, grid)
        machine.gpu = gpu
        run(machine, body)
        found.append([(*access.place, access.nbytes) for access in machine.accesses])
    return found


def port_bytes(waiting: list[Queue]) -> float:
    """Return how long transfers take, as the number of bytes that a busy port passes in that time.

    The first transfer of each queue is under way, all at the same time. A port divides its rate
    equally among the transfers that use it.

    >>> port_bytes([[(0, 1, 10.0)], [(0, 2, 10.0)]])
    20.0
    >>> port_bytes([[(0, 1, 10.0)], [(1, 2, 10.0)]])
    10.0
    """
    passed = 0.0
    while waiting := [queue for queue in waiting if queue]:
        out, into = (collections.Counter(queue[0][end] for queue in waiting) for end in (0, 1))
        moving = [(queue, *queue.pop(0)) for queue in waiting]
        step = min(nbytes * max(out[source], into[target]) for _, source, target, nbytes in moving)
        passed += step
        for queue, source, target, nbytes in moving:
            left = nbytes - step / max(out[source], into[target])
            if left >= 1:
                queue.insert(0, (source, target, left))
    return passed
