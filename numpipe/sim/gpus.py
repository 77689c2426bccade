"""The GPUs of a kernel with semaphores: which memory belongs to which GPU, when a launch has begun,
and what must be over when it ends.

All CTAs of all GPUs run at the same time, with one scheduler and one set of clocks (`clocks`). Only
the semaphores (`semaphore_counters`) make operations on one GPU known to another. `peer_memory`
compares their accesses to arrays.

A GPU's memory belongs to other kernels before its launch has begun and after it has ended. So a
warpgroup that accesses a peer's memory must know that the peer's launch has begun (its counter
`grid`). And when the last CTA of a GPU ends, it must know that every access to the GPU's memory is
over.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..diagnostics.errors import SimulationError
from . import race_report, sites
from .clocks import Need
from .footprints import ARRIVE, TEST
from .regions import bounds
from .state import Meeting, Reached, Warpgroup, side


class Begun(Meeting):
    """The launches of all GPUs, each of which signals the others that it has begun.

    A warpgroup that waits for them then knows what the preceding kernels in their streams did.
    """

    @property
    def missing(self) -> set[int]:
        return set(range(self.sm.gpus.count)) - {who.gpu or 0 for who in self.arrived}

    def text(self) -> str:
        return f"the launch of GPU {', '.join(map(str, sorted(self.missing)))}, which has not begun"


class Gpus:
    """The GPUs of one simulation; `arrays` are the arrays that the kernel was given on each of
    them."""

    def __init__(self, arrays: Sequence[Sequence[np.ndarray]]) -> None:
        self.count = len(arrays)
        self.begun: Begun | None = None
        """Created by the first warpgroup that arrives."""
        self.semaphores: dict[tuple[int, int], Any] = {}
        """`semaphore_counters.Semaphore`, by GPU and index, created on first use."""
        self._memory = [(*bounds(array), gpu) for gpu, each in enumerate(arrays) for array in each]
        self._left: list[bool] = [False] * self.count
        self._reached = [Reached() for _ in arrays]
        """Accesses of peers to the memory of each GPU."""
        self._free: dict[tuple[str, int], int] = {}
        """The cycle from which on each port of a GPU is free."""

    def owners(self, array: np.ndarray) -> frozenset[int]:
        """Return the GPUs in whose memory an array lies: several, if a call was given one array for
        all."""
        lo, hi = bounds(array)
        return frozenset(gpu for first, last, gpu in self._memory if first < hi and lo < last)

    def cross(self, source: int, target: int, begin: int, cycles: int) -> int:
        """Send a copy from one GPU to another, not before cycle `begin`. Return the cycle at which
        its last byte has arrived, not counting the latency.

        The copy occupies the source's outgoing port and the target's incoming port for `cycles`.
        All SMs of a GPU and all its peers share these two ports, in the order of issue.
        """
        for port in ("out", source), ("in", target):
            begin = max(begin, self._free.get(port, 0))
            self._free[port] = begin + cycles
        return begin + cycles

    def reach(
        self, gpu: int, who: Warpgroup, what: str, needs: tuple[Need, ...], site: sites.Site
    ) -> None:
        """Record that a warpgroup accesses the memory of a GPU. If it is a peer's, the access must
        be over when the peer's launch ends."""
        if gpu == who.gpu:
            return
        who.scheduler.touch(("launch", gpu), ARRIVE)
        if self._left[gpu]:
            raise _too_late(gpu, who, what, site, "has ended")
        self._reached[gpu].add(who, what, needs, site)

    def leave(self, who: Warpgroup) -> None:
        """End the launch of a GPU with its last warpgroup. Raises PipelineRace for accesses of
        peers to its memory that may not be over."""
        gpu, group = who.gpu, [sm for sm in who.sm.group if sm.gpu == who.gpu]
        if gpu is None or not all(w.over for sm in group for w in sm.warpgroups):
            return
        who.scheduler.touch(("launch", gpu), TEST)
        self._left[gpu] = True
        warpgroups = [w for sm in group for w in sm.warpgroups]
        for act in self._reached[gpu].unknown(warpgroups):
            raise _too_late(gpu, *act, "may have ended: it does not wait for this access", who)


def _too_late(
    gpu: int, who: Warpgroup, what: str, site: sites.Site, why: str, last: Warpgroup | None = None
) -> SimulationError:
    fix = (
        "the memory role reads it, but the compute role signals: signal after the compute role has "
        "used a tile that the memory role loads after this read; or copy the values to an array of "
        "this GPU in an earlier kernel"
        if who.role.loads and what.startswith("load")
        else (
            f"GPU {gpu} must wait for all signals that it is sent: numpipe.wait(semaphore.at[i], "
            "n) before its kernel ends"
        )
        if what.startswith("signal")
        else (
            f"numpipe.signal(semaphore.at[i], {gpu}) after it, and numpipe.wait(semaphore.at[i], "
            f"n) on GPU {gpu}, for each warpgroup that signals, before its kernel ends"
        )
    )
    return race_report.race(
        who,
        f"{what}, in the memory of GPU {gpu}, whose kernel {why}",
        site,
        hazard="exit-in-flight",
        fix=fix,
        before=None if last is None else side(last, "ends"),
    )


# ---- operations ----------------------------------------------------------------------------------
def _begun(who: Warpgroup) -> Begun:
    gpus: Gpus = who.sm.gpus
    gpus.begun = gpus.begun or Begun("begin", who.sm, ("begun",), 0)
    return gpus.begun


def begin(who: Warpgroup) -> None:
    race_report.one_lane(who, "red.release.sys")
    who.elapse_issue()
    who.breathe()
    begun = _begun(who)
    begun.arrive(who, len(begun.missing), who.costs.link)
    if not begun.missing:
        who.sm.progress += 1
        begun.end()


def await_begin(who: Warpgroup) -> None:
    if not who.scheduler.explores:
        who.breathe()
    _begun(who).meet(who)


def check_rank(who: Warpgroup, rank: int, what: str) -> int:
    """Return the number of a GPU of the mesh. Raises SimulationError for an invalid number."""
    rank, count = int(rank), who.sm.gpus.count
    if not 0 <= rank < count:
        raise race_report.violation(
            who,
            f"{what} of GPU {rank}, but the mesh has {count}",
            hazard="out-of-bounds",
            fix=f'a rank in 0…{count - 1}: (numpipe.axis_index("gpu") + 1) % '
            'numpipe.axis_size("gpu")',
        )
    return rank
