"""Global memory: which CTA wrote and read what.

CTAs of a grid run one after the other here, on a GPU at once and in any order. So two of them that touch an element conflict, as
soon as one of them writes it; reductions of one kind (`REDUCTIONS`) may meet, because each changes an element at once. Kernels of
a stream run one after the other, so what a kernel wrote is there for the next.

Within a CTA accesses are ordered, or not, by its clocks::

    then \\ first      TMA load             TMA store, reduction            ordinary store                 ordinary load
    TMA load          -                    its group has been waited for   never: see below               -
    TMA store         the phase is over    its group has been waited for   never                          a barrier
    ordinary store    the phase is over    its group has been waited for   same warpgroup, or a barrier   the same
    ordinary load     -                    its group has been waited for   a barrier                      -

An ordinary store is of the generic proxy and TMA copies are of the async proxy. What orders the two in global memory is a proxy
fence on it, and the one that kernels have is on shared memory.

Elements are told apart by their addresses (`regions`), which have maps: by element the newest write, and the first read. A box that
is loaded again from where nobody has written is known by its place, and costs no look at these.

PTX ISA, "Memory Consistency Model: Data-races; Proxies", "cp.reduce.async.bulk", "griddepcontrol".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..core.machine import TensorMap
from ..diagnostics.errors import SimulationError
from .boxes import Box
from .clocks import Need
from .handover import Flag, handed_over
from .regions import Place, Region, bounds, overlap, settle
from .state import Access, Warpgroup
from .touches import LOAD, STORE, Codes, Index, Touch, before_wait, conflict, extent, found, in_transfer, other_proxy, unordered

_FIRST = np.iinfo(np.int32).max
"""code of the first access that is remembered; later ones have smaller codes, so a maximum is the earliest, and 0 is nobody"""


class GlobalMemory:
    """What the CTAs of a grid did to global memory so far.

    `fresh`: arrays that hold nothing before the kernel writes them. `programmatic`: the kernel may start before those ahead of it
    in the stream have ended, so each access has to come after a ``griddepcontrol.wait`` (known too when one is executed).
    """

    def __init__(self, fresh: Sequence[npt.NDArray[Any]] = (), programmatic: bool = False) -> None:
        self.number = -1
        """of the running cluster"""
        self._fresh = [bounds(array) for array in fresh]
        self._touches: list[Touch] = []
        self._foreign = _FIRST
        """codes above are of CTAs before those of the running cluster"""
        self._regions: list[Region] = []
        self._places: dict[tuple[Any, ...], Place] = {}
        self._cuts: dict[TensorMap, tuple[Place, set[tuple[int, ...]]]] = {}
        self.flags: dict[int, Flag] = {}
        """flags by which CTAs tell each other, by address (`handover`)"""
        self._awaits = programmatic
        self._early: Touch | None = None
        """an access before a griddepcontrol.wait"""
        self._reads: dict[Place, dict[tuple[int, ...], Touch]] = {}
        """ordinary loads of the running CTA, by array, then by warpgroup and where"""

    def begin(self) -> None:
        """Another CTA, or cluster, runs from here on."""
        self.number += 1
        self._foreign = _FIRST - len(self._touches)
        self._reads.clear()

    # ---- arrays
    def place(self, array: npt.NDArray[Any]) -> Place:
        """Where an array lies: the same for all views of its memory of one shape."""
        key = array.ctypes.data, array.shape, array.strides, array.dtype.itemsize
        place = self._places.get(key)
        if place is None:
            lo, hi = bounds(array)
            place = self._places[key] = Place(array, any(first <= lo and hi <= last for first, last in self._fresh))
            settle(place, self._regions)
        return place

    def _cut(self, box: Box) -> tuple[Place, set[tuple[int, ...]]]:
        """The array of a box, and where boxes of its shape have been loaded from."""
        place, shape = self.place(box.tensor.array), (box.tensor.box, box.tensor.flipped)
        cut = self._cuts[box.tensor] = place, place.seen.setdefault(shape, set())  # every warpgroup has tensor maps of its own
        return cut

    def _remember(self, touch: Touch) -> Touch:
        touch.code = _FIRST - len(self._touches)
        self._touches.append(touch)
        return touch

    def _of(self, code: int) -> Touch:
        return self._touches[_FIRST - code]

    def _mark_read(self, place: Place, touch: Touch) -> None:
        read = place.read[touch.index]
        np.copyto(read, self._remember(touch).code, where=read == 0)

    def _behind_writes(self, access: Access, place: Place, touch: Touch, known: list[int]) -> None:
        """A read: the writes of what it reads came before, and there were some."""
        written = place.written[touch.index]
        if written.size:
            self._writes(access, touch, written, known)
            if place.fresh:
                self._initialised(access, touch, written)

    # ---- accesses
    def load(self, access: Access, box: Box, where: tuple[int, ...], known: list[int]) -> None:
        """A TMA load of a box."""
        place, seen = self._cuts.get(box.tensor) or self._cut(box)
        early = not known[access.agent.sm.clocks.grid] and (self._awaits or self._early is None)
        unwritten = not (place.region.open or place.fresh)
        if where in seen and unwritten and not early:
            return
        touch = Touch(access, self.number, box.elements(where), box.tensor.flipped)
        if early:
            self._too_early(access, touch)
        if not unwritten:
            self._behind_writes(access, place, touch, known)
        if where not in seen:
            seen.add(where)
            self._mark_read(place, touch)

    def read(self, access: Access, array: npt.NDArray[Any], index: Index, known: list[int]) -> None:
        """Ordinary loads by the warps of a warpgroup; `access` says what orders them."""
        place, touch = self.place(array), Touch(access, self.number, index, False, access.needs)
        if not known[access.agent.sm.clocks.grid]:
            self._too_early(access, touch)
        if place.region.open or place.fresh:
            self._behind_writes(access, place, touch, known)
        at = tuple(n for part in index for n in (part.start, part.stop))
        self._reads.setdefault(place, {})[(access.agent.warpgroup, *at)] = touch
        seen = place.seen.setdefault((), set())
        if at not in seen:
            seen.add(at)
            self._mark_read(place, touch)

    def store(self, access: Access, box: Box, where: tuple[int, ...], known: list[int], need: Need, reduction: str) -> None:
        """A TMA store of a box, or a reduction; `need`: what says that it has reached global memory."""
        place, _ = self._cuts.get(box.tensor) or self._cut(box)
        touch = Touch(access, self.number, box.elements(where), box.tensor.flipped, (need,), reduction)
        self._write(access, place, touch, known)

    def write(self, access: Access, array: npt.NDArray[Any], index: Index, known: list[int], reduction: str = "") -> None:
        """Ordinary stores, or reductions, by the warps of a warpgroup; `access` says what orders them."""
        self._write(access, self.place(array), Touch(access, self.number, index, False, access.needs, reduction), known)

    def _write(self, access: Access, place: Place, touch: Touch, known: list[int]) -> None:
        if not known[access.agent.sm.clocks.grid]:
            self._too_early(access, touch)
        place.region.open = True
        written = place.written[touch.index]
        if not written.size:
            return
        self._loads(access, place, touch, known)
        for held, reads in self._reads.items():
            for earlier in reads.values() if held.region is place.region else ():
                same = touch.kind == STORE and earlier.agent.warpgroup == touch.agent.warpgroup
                if not same and any(known[counter] < value for counter, value in earlier.needs) and (
                        overlap(place, touch.index, held, earlier.index)):
                    raise unordered(access, touch, earlier)
        met = self._writes(access, touch, written, known)
        if touch.reduction and place.fresh:
            self._initialised(access, touch, written)
        read = place.read[touch.index]
        first = int(read.max())
        if first > self._foreign:
            raise conflict(access, touch, self._of(first), read)
        self._remember(touch)
        if not touch.reduction or not met:
            written[...] = touch.code
            return
        own = written <= self._foreign  # where other CTAs reduce too theirs stays: plain accesses of this one must not pass
        other = [code for code, earlier in met.items() if earlier.reduction != touch.reduction]
        mixed = np.isin(written, other)
        written[own] = touch.code
        if other:  # written in two ways: no reduction of another CTA may meet it
            written[mixed] = self._remember(Touch(access, self.number, touch.index, touch.flipped, touch.needs)).code

    # ---- what may not be
    def _writes(self, access: Access, touch: Touch, written: Codes, known: list[int]) -> dict[int, Touch]:
        """The earlier writes of these elements, by code; raises where one of them conflicts."""
        first = int(written.max())
        if not first:
            return {}
        codes = [first] if (written == first).all() else [int(code) for code in np.unique(written)[::-1] if code]
        met = {code: self._of(code) for code in codes}
        for earlier in met.values():
            if touch.reduction and touch.reduction == earlier.reduction:
                continue
            if earlier.number != self.number:
                if touch.kind == LOAD and handed_over(access.agent.sm, earlier, known):
                    continue
                raise conflict(access, touch, earlier, written)
            together = earlier.agent.cta == touch.agent.cta
            if earlier.kind == STORE and touch.kind not in (STORE, LOAD):
                raise (other_proxy if together else conflict)(access, touch, earlier, written)
            if earlier.kind == STORE == touch.kind and together and earlier.agent.warpgroup == touch.agent.warpgroup:
                continue
            if any(known[counter] < value for counter, value in earlier.needs):
                told = conflict if not together else unordered if earlier.kind == STORE else in_transfer
                raise told(access, touch, earlier, written)
        return met

    def _loads(self, access: Access, place: Place, touch: Touch, known: list[int]) -> None:
        """PipelineRace if a TMA load of this CTA, or of its cluster, may still be reading what is written."""
        for load in (load for sm in access.agent.sm.peers for load in sm.memory.loads()):
            assert load.box is not None
            other, _ = self._cuts[load.box.tensor]
            if other.region is not place.region or not any(known[counter] < value for counter, value in load.needs):
                continue
            index = load.box.elements(load.where)
            if overlap(place, touch.index, other, index):
                raise in_transfer(access, touch, Touch(load, self.number, index, load.box.tensor.flipped), mbar=load.mbar)

    def _initialised(self, access: Access, touch: Touch, written: Codes) -> None:
        """SimulationError unless all elements have been written."""
        if not written.all():
            raise found(SimulationError, access, touch, None, "uninitialised-read", (
                f"{touch.describe()} {'changes' if touch.reduction else 'reads'} {touch.where(extent(written == 0, touch.index))}, "
                f"which nobody has written: '{touch.what}' is allocated by the call (out_type) and holds anything"),
                "nothing was stored there before",
                f"pass '{touch.what}' (or out=) with the values it starts from, or write it before it is read")

    # ---- griddepcontrol
    def _too_early(self, access: Access, touch: Touch) -> None:
        """An access that nothing orders after a griddepcontrol.wait: wrong as soon as there is one."""
        if self._awaits:
            raise before_wait(access, touch)
        self._early = self._early or touch

    def await_grid(self, who: Warpgroup) -> None:
        """griddepcontrol.wait by the executing lanes."""
        who.vectors[:len(who.warps()), who.sm.clocks.grid] = 1
        self._awaits = True
        if self._early is not None:
            raise before_wait(Access(who, "griddepcontrol.wait", "", ()), self._early)
