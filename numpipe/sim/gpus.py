"""The GPUs of a kernel with semaphores: whose memory is whose, when a launch has begun, and what may not be over when it ends.

All CTAs of all GPUs run at the same time, with one scheduler and one set of clocks (`clocks`): who knows of what, wherever it was
done, is said by the semaphores (`semaphores`), and by nothing else. `between` compares what they do to arrays.

A GPU's memory belongs to other kernels before its launch has begun and after it has ended. So whoever touches a peer's memory has
learnt that the peer's launch has begun (its counter `grid`), and each access is over, to the knowledge of the GPU whose memory it
is, when that GPU's last CTA ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..diagnostics.errors import SimulationError
from . import report, sites
from .clocks import Clocks, Need
from .footprints import ARRIVE, AWAIT, TEST
from .regions import bounds
from .state import WaitReason, Warpgroup, side


class Begun(WaitReason):
    """The launches of all GPUs, of which each tells the others that it has begun."""

    def __init__(self, clocks: Clocks, gpus: int) -> None:
        super().__init__("begin")
        self._clocks, self.vector = clocks, clocks.vector()
        self.missing = set(range(gpus))
        self.time = 0

    def text(self) -> str:
        return f"the launch of GPU {', '.join(map(str, sorted(self.missing)))}, which has not begun"

    def begin(self, who: Warpgroup) -> None:
        """Tell all GPUs that the launch of this one has begun."""
        who.elapse(who.sm.costs.issue)
        who.breathe()
        who.sm.scheduler.touch(("begun",), ARRIVE, 0, (1, 0), (len(self.missing), 0))
        self.vector = self._clocks.widen(self.vector)
        who.release_into(self.vector)
        self.missing.discard(who.sm.gpu or 0)
        self.time = max(self.time, who.time + who.sm.costs.link)
        if not self.missing:
            who.sm.progress += 1
            self.open(self.time)

    def meet(self, who: Warpgroup) -> None:
        """Wait until all launches have begun; who waits knows then what their kernels ahead in the stream did."""
        who.breathe(lambda: not self.missing)
        who.sm.scheduler.touch(("begun",), AWAIT, 0)
        if self.missing:
            self.enqueue(who)
        who.acquire(self._clocks.widen(self.vector))
        who.time = max(who.time, self.time)


class Gpus:
    """The GPUs of one simulation; `arrays` are those that the kernel was given on each of them."""

    def __init__(self, arrays: Sequence[Sequence[npt.NDArray[Any]]], clocks: Clocks) -> None:
        self.count = len(arrays)
        self.clocks = clocks
        self.begun = Begun(clocks, self.count)
        self.semaphores: dict[tuple[int, int], Any] = {}
        """`semaphores.Semaphore`, by GPU and index, of those that somebody has come to"""
        self._memory = [(*bounds(array), gpu) for gpu, each in enumerate(arrays) for array in each]
        self._left: list[bool] = [False] * self.count
        self._reached: list[dict[int, tuple[int, Warpgroup, str, sites.Site]]] = [{} for _ in arrays]
        """the last thing that warps of peers did in the memory of each GPU, by their counters"""

    def owners(self, array: npt.NDArray[Any]) -> frozenset[int]:
        """Return the GPUs in whose memory an array lies: several, where a call was given one array for all."""
        lo, hi = bounds(array)
        return frozenset(gpu for first, last, gpu in self._memory if first < hi and lo < last)

    def reach(self, gpu: int, who: Warpgroup, what: str, needs: tuple[Need, ...], site: sites.Site) -> None:
        """Note that a warpgroup touches the memory of a GPU: if it is a peer's, that has to be over when the peer's launch ends."""
        if gpu == who.sm.gpu:
            return
        who.sm.scheduler.touch(("launch", gpu), ARRIVE)
        if self._left[gpu]:
            raise _too_late(gpu, who, what, site, "has ended")
        reached = self._reached[gpu]
        for index, value in needs:
            if index not in reached or reached[index][0] <= value:
                reached[index] = value, who, what, site

    def leave(self, who: Warpgroup) -> None:
        """With the last warpgroup of a GPU its launch ends: raise PipelineRace for what peers may still do in its memory."""
        gpu, group = who.sm.gpu, [sm for sm in who.sm.group if sm.gpu == who.sm.gpu]
        if gpu is None or not all(w.over for sm in group for w in sm.warpgroups):
            return
        who.sm.scheduler.touch(("launch", gpu), TEST)
        self._left[gpu] = True
        known = np.maximum.reduce([np.maximum.reduce(w.vectors) for sm in group for w in sm.warpgroups])
        for index, (value, peer, what, site) in self._reached[gpu].items():
            if known[index] < value:
                raise _too_late(gpu, peer, what, site, "may have ended: nothing makes it wait for this", who)


def _too_late(gpu: int, who: Warpgroup, what: str, site: sites.Site, why: str, last: Warpgroup | None = None) -> SimulationError:
    mend = ("the memory role reads it, and the compute role signals: a tile that it loads behind it, and that the compute role "
            "computes with, tells; or the numbers in an array of this GPU, which a kernel before has brought"
            if who.role == "memory" and what.startswith("load") else
            f"GPU {gpu} waits for as much as it is sent: numpipe.wait(semaphore.at[i], n) before its kernel ends"
            if what.startswith("signal") else
            f"numpipe.signal(semaphore.at[i], {gpu}) behind it, and numpipe.wait(semaphore.at[i], n) on GPU {gpu}, for each "
            "warpgroup that signals, before its kernel ends")
    return report.race(who, f"{what}, in the memory of GPU {gpu}, whose kernel {why}", site, hazard="exit-in-flight", mend=mend,
                       before=None if last is None else side(last, "ends"))


# ---- operations ------------------------------------------------------------------------------------------------------
def begin(who: Warpgroup) -> None:
    report.one_lane(who, "red.release.sys")
    who.sm.gpus.begun.begin(who)


def await_begin(who: Warpgroup) -> None:
    who.sm.gpus.begun.meet(who)


def check_rank(who: Warpgroup, rank: int, what: str) -> int:
    """Return the number of a GPU of the mesh; raise SimulationError for another number."""
    rank, count = int(rank), who.sm.gpus.count
    if not 0 <= rank < count:
        raise report.violation(who, f"{what} of GPU {rank}, and the mesh has {count}", hazard="out-of-bounds",
                               mend=f"a rank in 0…{count - 1}: (numpipe.axis_index(\"gpu\") + 1) % numpipe.axis_size(\"gpu\")")
    return rank


