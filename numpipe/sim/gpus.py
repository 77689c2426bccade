"""The GPUs of a kernel with semaphores: whose memory is whose, when a launch has begun, and what
may not be over when it ends.

All CTAs of all GPUs run at the same time, with one scheduler and one set of clocks (`clocks`): who
knows of what, wherever it was done, is said by the semaphores (`semaphores`), and by nothing else.
`between` compares what they do to arrays.

A GPU's memory belongs to other kernels before its launch has begun and after it has ended. So
whoever touches a peer's memory has learnt that the peer's launch has begun (its counter `grid`),
and each access is over, to the knowledge of the GPU whose memory it is, when that GPU's last CTA
ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy.typing as npt

from ..diagnostics.errors import SimulationError
from . import race_report, sites
from .clocks import Clocks, Need
from .footprints import ARRIVE, TEST
from .regions import bounds
from .state import Meeting, Reached, Warpgroup, side


class Begun(Meeting):
    """The launches of all GPUs, of which each tells the others that it has begun.

    Whoever waits for them then knows what the kernels ahead in their streams did.
    """

    @property
    def missing(self) -> set[int]:
        return set(range(self.sm.gpus.count)) - {who.gpu or 0 for who in self.arrived}

    def text(self) -> str:
        return f"the launch of GPU {', '.join(map(str, sorted(self.missing)))}, which has not begun"


class Gpus:
    """The GPUs of one simulation; `arrays` are those that the kernel was given on each of them."""

    def __init__(self, arrays: Sequence[Sequence[npt.NDArray[Any]]], clocks: Clocks) -> None:
        self.count = len(arrays)
        self.clocks = clocks
        self.begun: Begun | None = None
        """made by the first who comes"""
        self.semaphores: dict[tuple[int, int], Any] = {}
        """`semaphores.Semaphore`, by GPU and index, of those that somebody has come to"""
        self._memory = [(*bounds(array), gpu) for gpu, each in enumerate(arrays) for array in each]
        self._left: list[bool] = [False] * self.count
        self._reached = [Reached() for _ in arrays]
        """what peers did in the memory of each GPU"""

    def owners(self, array: npt.NDArray[Any]) -> frozenset[int]:
        """Return the GPUs in whose memory an array lies: several, where a call was given one array
        for all."""
        lo, hi = bounds(array)
        return frozenset(gpu for first, last, gpu in self._memory if first < hi and lo < last)

    def reach(
        self, gpu: int, who: Warpgroup, what: str, needs: tuple[Need, ...], site: sites.Site
    ) -> None:
        """Note that a warpgroup touches the memory of a GPU: if it is a peer's, that has to be over
        when the peer's launch ends."""
        if gpu == who.sm.gpu:
            return
        who.sm.scheduler.touch(("launch", gpu), ARRIVE)
        if self._left[gpu]:
            raise _too_late(gpu, who, what, site, "has ended")
        self._reached[gpu].add(who, what, needs, site)

    def leave(self, who: Warpgroup) -> None:
        """With the last warpgroup of a GPU its launch ends: raise PipelineRace for what peers may
        still do in its memory."""
        gpu, group = who.sm.gpu, [sm for sm in who.sm.group if sm.gpu == who.sm.gpu]
        if gpu is None or not all(w.over for sm in group for w in sm.warpgroups):
            return
        who.sm.scheduler.touch(("launch", gpu), TEST)
        self._left[gpu] = True
        warpgroups = [w for sm in group for w in sm.warpgroups]
        for act in self._reached[gpu].unknown(warpgroups):
            raise _too_late(gpu, *act, "may have ended: nothing makes it wait for this", who)


def _too_late(
    gpu: int, who: Warpgroup, what: str, site: sites.Site, why: str, last: Warpgroup | None = None
) -> SimulationError:
    fix = (
        "the memory role reads it, and the compute role signals: a tile that it loads behind it, "
        "and that the compute role computes with, tells; or the numbers in an array of this GPU, "
        "which a kernel before has brought"
        if who.role.loads and what.startswith("load")
        else (
            f"GPU {gpu} waits for as much as it is sent: numpipe.wait(semaphore.at[i], n) before "
            "its kernel ends"
        )
        if what.startswith("signal")
        else (
            f"numpipe.signal(semaphore.at[i], {gpu}) behind it, and numpipe.wait(semaphore.at[i], "
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
    who.elapse(who.sm.costs.issue)
    who.breathe()
    begun = _begun(who)
    begun.arrive(who, len(begun.missing), who.sm.costs.link)
    if not begun.missing:
        who.sm.progress += 1
        begun.end()


def await_begin(who: Warpgroup) -> None:
    if not who.sm.scheduler.explores:
        who.breathe()
    _begun(who).meet(who)


def check_rank(who: Warpgroup, rank: int, what: str) -> int:
    """Return the number of a GPU of the mesh; raise SimulationError for another number."""
    rank, count = int(rank), who.sm.gpus.count
    if not 0 <= rank < count:
        raise race_report.violation(
            who,
            f"{what} of GPU {rank}, and the mesh has {count}",
            hazard="out-of-bounds",
            fix=f'a rank in 0…{count - 1}: (numpipe.axis_index("gpu") + 1) % '
            'numpipe.axis_size("gpu")',
        )
    return rank
