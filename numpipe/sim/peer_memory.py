"""Global memory of several GPUs that run at the same time: clocks must order every access, or it is
a race.

Where CTAs run one after the other (`gmem`), a conflict of two CTAs is a mistake whatever they know
of each other. Here all CTAs of all GPUs share clocks, and semaphores order them. So two accesses to
an element, one of which writes, are ordered exactly when the later one's warps know the counters of
the earlier one::

    then \\ first    TMA load,      TMA store,        ordinary store
                    ordinary load  reduction
    TMA load        -              its group has     shown to the async proxy: a semaphore
                                   been waited for   was waited for (fence.proxy.async.global)
    TMA store       it is over     the same          the same
    ordinary store  it is over     the same          same warpgroup, or a barrier or semaphore
    ordinary load   -              the same          a barrier, or a semaphore

Reductions of one kind may meet on the GPU that owns the memory: they are atomic at its scope
(.gpu), and not beyond.

PTX ISA, "Memory Consistency Model: Data-races; Proxies; Causality order".
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..arch.dimensions import Ints
from ..diagnostics.errors import SimulationError
from . import sites
from .boxes import Box
from .clocks import lacks
from .footprints import READS
from .gmem import GlobalMemory
from .gmem_accesses import (
    LOAD,
    STORE,
    Codes,
    Index,
    Touch,
    before_launch,
    in_transfer,
    other_proxy,
    unordered,
    unsignaled,
)
from .gpus import Gpus
from .regions import Place, overlap
from .state import Access, Warpgroup

_Held = dict[Place, dict[tuple, Touch]]
"""Accesses by array, and by who made them where."""


class SharedArrays(GlobalMemory):
    """The record of what the GPUs of a launch have done to global memory so far."""

    def __init__(self, gpus: Gpus, *args: Any) -> None:
        super().__init__(*args)
        self.gpus = gpus
        self._held: _Held = {}
        """By array: the newest load of each place by a warpgroup, or towards an mbarrier, which a
        write must come after."""
        self._updates: _Held = {}
        """Likewise the newest reductions, which every other access must come after."""
        self._owners: dict[Place, frozenset[int]] = {}

    # ---- accesses
    def load(self, access: Access, box: Box, where: Ints, known: list[int]) -> None:
        place, _ = self._cut(box)
        touch = Touch(access, box.elements(where), box.tensor.flipped)
        self._visit(access, place, touch, known)

    def read(self, access: Access, array: np.ndarray, index: Index, known: list[int]) -> None:
        touch = Touch(access, index, False)
        self._visit(access, self.place(array), touch, known)

    def _visit(self, access: Access, place: Place, touch: Touch, known: list[int]) -> None:
        """Record a load."""
        access.agent.scheduler.touch_array(place.array, touch.index, READS)
        self._enter(access, place, touch, known)
        self._check_read(access, place, touch, known)
        self._check_held(self._updates, access, place, touch, known)
        self._hold(self._held, access, place, touch)

    @staticmethod
    def _hold(held: _Held, access: Access, place: Place, touch: Touch) -> None:
        agent = access.agent
        held.setdefault(place, {})[
            (agent.place, agent.warpgroup, touch.kind, touch.reduction, touch.needs[0][0], touch.at)
        ] = touch

    def _write(self, access: Access, place: Place, touch: Touch, known: list[int]) -> None:
        self._touch_written(access, place, touch)
        self._enter(access, place, touch, known)
        place.region.open = True
        written = place.written[touch.index]
        if not written.size:
            return
        for held in (self._held, self._updates):
            self._check_held(held, access, place, touch, known)
        self._earlier_writes(access, touch, written, known)
        if touch.reduction and place.fresh:
            self._check_written(access, touch, written)
        self._remember(touch)
        if touch.reduction:
            self._hold(self._updates, access, place, touch)
        written[...] = touch.code

    # ---- whose memory it is
    def owners(self, place: Place) -> frozenset[int]:
        """Return the GPUs in whose memory an array lies."""
        if place not in self._owners:
            self._owners[place] = self.gpus.owners(place.array)
        return self._owners[place]

    def link(self, who: Warpgroup, array: np.ndarray) -> int:
        owners = self.owners(self.place(array))
        return who.costs.link if owners and who.gpu not in owners else 0

    def _enter(self, access: Access, place: Place, touch: Touch, known: list[int]) -> None:
        """Raise an error unless the launch of the GPU that owns the memory has begun, and record
        that a peer's launch must not end before the access is over."""
        agent, owners = access.agent, self.owners(place)
        gpu = agent.gpu
        if owners and gpu not in owners:
            gpu = min(owners)
            what = f"{touch.describe()} of {touch.where()}"
            self.gpus.reach(gpu, agent, what, touch.needs, sites.user_site())
        if not known[agent.clocks.grid + (gpu or 0)]:
            if gpu != agent.gpu:
                raise before_launch(access, touch, gpu or 0)
            self._too_early(access, touch)

    # ---- conflicts
    def _check_held(
        self,
        every: _Held,
        access: Access,
        place: Place,
        touch: Touch,
        known: list[int],
    ) -> None:
        """Raise PipelineRace unless the loads of these elements, or the reductions, are over;
        forget the ones that a write covers."""
        writes = touch.kind not in (LOAD, "TMA load")
        for held, touches in every.items():
            if held.region is not place.region:
                continue
            for key, earlier in list(touches.items()):
                if _atomic(touch, earlier):
                    continue
                # the lanes of a warpgroup load and store in program order
                same = (earlier.kind, touch.kind) == (LOAD, STORE) and earlier.agent is touch.agent
                unknown = not same and lacks(known, earlier.needs)
                if unknown and overlap(place, touch.index, held, earlier.index):
                    raise self._race(access, touch, earlier, None)
                if (
                    writes
                    and not touch.reduction
                    and held is place
                    and _within(earlier.index, touch.index)
                ):
                    del touches[key]

    def _check_order(
        self,
        access: Access,
        touch: Touch,
        earlier: Touch,
        written: Codes | None,
        known: list[int],
    ) -> None:
        if _atomic(touch, earlier):
            return
        if earlier.kind == STORE == touch.kind and earlier.agent is touch.agent:
            return
        if lacks(known, earlier.needs):
            raise self._race(access, touch, earlier, written)
        shown = access.agent.clocks.shown
        if (
            earlier.kind == STORE
            and touch.kind not in (STORE, LOAD)
            and lacks(known, map(shown, earlier.needs))
        ):
            raise other_proxy(access, touch, earlier, written)

    def _race(
        self, access: Access, touch: Touch, earlier: Touch, written: Codes | None
    ) -> SimulationError:
        if earlier.agent.where != touch.agent.where:
            return unsignaled(access, touch, earlier, written)
        if earlier.kind in (STORE, LOAD):
            return unordered(access, touch, earlier, written)
        return in_transfer(access, touch, earlier)


def _atomic(one: Touch, other: Touch) -> bool:
    """Return whether two accesses are reductions of one kind by one GPU."""
    return (one.reduction, one.agent.gpu) == (other.reduction, other.agent.gpu) and bool(
        one.reduction
    )


def _within(inner: Index, outer: Index) -> bool:
    return all(o.start <= i.start and i.stop <= o.stop for i, o in zip(inner, outer, strict=True))
