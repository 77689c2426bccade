"""Global memory: the record of which CTA wrote and read what, and the flags by which CTAs hand data
to each other.

Here the CTAs of a grid run one after the other; on a GPU they run at the same time and in any
order. So two CTAs that access an element conflict as soon as one of them writes it. Only reductions
of one kind (`REDUCTIONS`) may meet, because each updates an element atomically. An array that the
call allocates is uninitialized until it is written. Kernels of a stream run one after the other, so
what a kernel wrote is visible to the next, whose accesses must come after a griddepcontrol.wait.

Within a CTA, its clocks order accesses::

    then \\ first    TMA load           TMA store,        ordinary store     ordinary load
                                       reduction
    TMA load        -                  its group has     never: see below   -
                                       been waited for
    TMA store       the phase is over  the same          never              a barrier
    ordinary store  the phase is over  the same          same warpgroup,    same warpgroup,
                                                         or a barrier       or a barrier
    ordinary load   -                  the same          a barrier          -

An ordinary store is in the generic proxy and TMA copies are in the async proxy. A proxy fence on
global memory would order the two, but the fence that kernels have is on shared memory.

Maps by address (`regions`) hold the newest write and the first read of each element. A box that is
loaded again from a place that nobody has written is recognized by its place, without looking at the
maps.

Flags hand stores over from one CTA to another. A release (st.release.gpu) sets a flag and carries
what its lane knows of the CTA's stores; an acquire (ld.acquire.gpu) by another CTA sees it. CTAs do
not share clocks, so the acquiring CTA has a counter that represents having seen this flag, and
barriers pass it on to the other warps. A load of another CTA's store is ordered if the loading
warps know such a counter, and what was released under it covers the store.

CTAs run one after the other, in index order in kernels that hand data over (`grid.split_k`: an
owner waits only for CTAs with a smaller index). So if a flag is not set when a CTA waits for it,
only that CTA itself can set it; otherwise it is a deadlock.

PTX ISA, "Memory Consistency Model: Data-races; Proxies; Release and Acquire Patterns; Causality
order", "cp.reduce.async.bulk", "griddepcontrol".
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from ..arch.dimensions import Ints
from ..core.machine import TensorMap
from ..diagnostics.errors import SimulationError, reported
from ..diagnostics.reports import Party, Report
from ..traces.deadlocks import Hint
from . import race_report, sites
from .boxes import UPDATES, Box
from .clocks import Need, Release, lacks
from .footprints import READS, WRITES
from .gmem_accesses import (
    LOAD,
    STORE,
    Codes,
    Index,
    Touch,
    before_wait,
    conflict,
    extent,
    failure,
    in_transfer,
    other_proxy,
    unordered,
)
from .regions import Place, Region, bounds, overlap, settle
from .state import SM, Access, WaitReason, Warpgroup

IN_TURN = "add in turn"
"""Additions of CTAs that wait for each other (`grid.cta_turns`)."""
_FIRST = np.iinfo(np.int32).max
"""Code of the first access that is remembered. Later accesses have smaller codes, so a maximum is
the earliest access, and 0 means none."""


class Flag(WaitReason):
    """A flag in global memory that a CTA has set or waits for."""

    def __init__(self, what: str) -> None:
        super().__init__("flag", f"the flag of {what}")
        self.what = what
        self.release: Release | None = None
        """The release that set it; None if it is 0."""
        self.set_by = ""
        self.party: Party | None = None
        """The warpgroup that set it."""
        self.stays = False
        """Whether waits leave it set, so that any number of CTAs may wait for it."""


class GlobalMemory:
    """The record of what the CTAs of a grid have done to global memory so far.

    fresh         arrays that are uninitialized until the kernel writes them
    programmatic  the kernel may start before preceding kernels in the stream have ended, so each
                  access must come after a ``griddepcontrol.wait`` (as soon as the kernel executes
                  one)
    """

    def __init__(self, fresh: Sequence[np.ndarray] = (), programmatic: bool = False) -> None:
        self.number = -1
        """Number of the running cluster."""
        self._fresh = [bounds(array) for array in fresh]
        self._touches: list[Touch] = []
        self._foreign = _FIRST
        """Codes above this belong to accesses by earlier clusters."""
        self._regions: list[Region] = []
        self._places: dict[tuple, Place] = {}
        self._cuts: dict[TensorMap, tuple[Place, set[Ints]]] = {}
        self.flags: dict[tuple[int, int], Flag] = {}
        """The flags with which CTAs hand data to each other, by address and value."""
        self._awaits = programmatic
        self._early: Touch | None = None
        """The first access before a griddepcontrol.wait."""
        self._reads: dict[Place, dict[int, dict[Ints, Touch]]] = {}
        """Ordinary loads of the running CTA, by array, warpgroup and place."""
        self._reductions: dict[Place, dict[str, dict[tuple, Touch]]] = {}
        """Reductions of the running CTA, by array, kind, and who changed which place; maps hold
        only the newest of a kind."""
        self.of_lanes: dict[tuple, dict[tuple[int, str], tuple[int, Need]]] = {}
        """By CTA, warpgroup and address: (warp, kind of access) -> the last lane in per-lane code
        that did so, and what a later access must know."""

    def begin(self) -> None:
        """Begin the next CTA, or cluster."""
        self.number += 1
        self._foreign = _FIRST - len(self._touches)
        self._reads.clear()
        self._reductions.clear()
        self.of_lanes.clear()

    # ---- arrays
    def place(self, array: np.ndarray) -> Place:
        """Return the `Place` of an array, the same for all views of its memory with one shape."""
        key = array.ctypes.data, array.shape, array.strides, array.dtype.itemsize
        place = self._places.get(key)
        if place is None:
            lo, hi = bounds(array)
            place = self._places[key] = Place(
                array, any(first <= lo and hi <= last for first, last in self._fresh)
            )
            settle(place, self._regions)
        return place

    def _cut(self, box: Box) -> tuple[Place, set[Ints]]:
        """Return the array of a box, and the places from which boxes of its shape have been
        loaded."""
        if box.tensor not in self._cuts:
            place, shape = self.place(box.tensor.array), (box.tensor.box, box.tensor.flipped)
            # each warpgroup has its own tensor maps
            self._cuts[box.tensor] = place, place.seen.setdefault(shape, set())
        return self._cuts[box.tensor]

    def _remember(self, touch: Touch) -> Touch:
        touch.code = _FIRST - len(self._touches)
        self._touches.append(touch)
        return touch

    def _mark_read(self, place: Place, touch: Touch, seen: set[Ints], where: Ints) -> None:
        if where not in seen:
            seen.add(where)
            read = place.read[touch.index]
            np.copyto(read, self._remember(touch).code, where=read == 0)

    def _check_read(self, access: Access, place: Place, touch: Touch, known: list[int]) -> None:
        """Raise PipelineRace unless a read comes after the writes of its elements, or
        SimulationError if there were none."""
        written = place.written[touch.index]
        if written.size:
            self._earlier_writes(access, touch, written, known)
            self._earlier_reductions(access, place, touch, known)
            if place.fresh:
                self._check_written(access, touch, written)

    # ---- accesses
    def load(self, access: Access, box: Box, where: Ints, known: list[int]) -> None:
        """Record a TMA load of a box."""
        if access.agent.scheduler.explores:
            access.agent.scheduler.touch_array(box.tensor.array, box.elements(where), READS)
        place, seen = self._cut(box)
        early = not known[access.agent.clocks.grid] and (self._awaits or self._early is None)
        unwritten = not (place.region.open or place.fresh)
        if where in seen and unwritten and not early:
            return
        touch = Touch(access, box.elements(where), box.tensor.flipped)
        if early:
            self._too_early(access, touch)
        if not unwritten:
            self._check_read(access, place, touch, known)
        self._mark_read(place, touch, seen, where)

    def read(self, access: Access, array: np.ndarray, index: Index, known: list[int]) -> None:
        """Record ordinary loads by the warps of a warpgroup; `access` says what orders them."""
        place, touch = self.place(array), Touch(access, index, False)
        access.agent.scheduler.touch_array(array, index, READS)
        if not known[access.agent.clocks.grid]:
            self._too_early(access, touch)
        if place.region.open or place.fresh:
            self._check_read(access, place, touch, known)
        at = touch.at
        self._reads.setdefault(place, {}).setdefault(access.agent.warpgroup, {})[at] = touch
        self._mark_read(place, touch, place.seen.setdefault((), set()), at)

    def store(
        self,
        access: Access,
        box: Box,
        where: Ints,
        known: list[int],
        need: Need,
        reduction: str,
    ) -> None:
        """Record a TMA store of a box, or a reduction. An agent that knows `need` knows that it has
        reached global memory."""
        place, _ = self._cut(box)
        touch = Touch(access, box.elements(where), box.tensor.flipped, reduction, (need,))
        self._write(access, place, touch, known)

    def write(
        self,
        access: Access,
        array: np.ndarray,
        index: Index,
        known: list[int],
        reduction: str = "",
    ) -> None:
        """Record ordinary stores, or reductions, by the warps of a warpgroup; `access` says what
        orders them."""
        self._write(
            access,
            self.place(array),
            Touch(access, index, False, reduction),
            known,
        )

    @staticmethod
    def _touch_written(access: Access, place: Place, touch: Touch) -> None:
        # TMA sums of floats round differently in another order, and `verify` allows that.
        exact = touch.kind != STORE or place.array.dtype.kind in "iub"
        how = touch.reduction if exact and touch.reduction in UPDATES else WRITES
        access.agent.scheduler.touch_array(place.array, touch.index, how)

    def _write(self, access: Access, place: Place, touch: Touch, known: list[int]) -> None:
        self._touch_written(access, place, touch)
        if not known[access.agent.clocks.grid]:
            self._too_early(access, touch)
        place.region.open = True
        written = place.written[touch.index]
        if not written.size:
            return
        self._check_loads(access, place, touch, known)
        for held, by_warpgroup in self._reads.items():
            for warpgroup, reads in by_warpgroup.items() if held.region is place.region else ():
                same = touch.kind == STORE and warpgroup == touch.agent.warpgroup
                for earlier in () if same else reads.values():
                    if (earlier.steers or lacks(known, earlier.needs)) and (
                        overlap(place, touch.index, held, earlier.index)
                    ):
                        raise unordered(access, touch, earlier)
        writes = self._earlier_writes(access, touch, written, known)
        self._earlier_reductions(access, place, touch, known)
        if touch.reduction and place.fresh:
            self._check_written(access, touch, written)
        read = place.read[touch.index]
        first = int(read.max())
        if first > self._foreign:
            raise conflict(access, touch, self._touches[_FIRST - first], read)
        self._remember(touch)
        if touch.reduction:
            who = (
                access.agent.place,
                access.agent.warpgroup,
                *touch.at,
            )
            self._reductions.setdefault(place, {}).setdefault(touch.reduction, {})[who] = touch
        if touch.reduction in ("", IN_TURN) or not writes:
            written[...] = touch.code
            return
        other = [code for code, earlier in writes.items() if earlier.reduction != touch.reduction]
        mixed = np.isin(written, other)
        # Keep reductions of other CTAs: plain accesses of this one must still conflict with them.
        written[written <= self._foreign] = touch.code
        # No reduction of another CTA may meet an element that this CTA writes in two ways.
        if other:
            written[mixed] = self._remember(
                Touch(access, touch.index, touch.flipped, needs=touch.needs)
            ).code

    def _writes_of(self, written: Codes) -> dict[int, Touch]:
        """Return the accesses that wrote elements, by code."""
        first = int(written.max())
        if not first:
            return {}
        codes = (
            [first]
            if (written == first).all()
            else [int(code) for code in np.unique(written)[::-1] if code]
        )
        return {code: self._touches[_FIRST - code] for code in codes}

    def link(self, who: Warpgroup, array: np.ndarray) -> int:
        """Return the additional cycles of an access if the array belongs to another GPU."""
        return 0

    def newest_write(self, place: Place) -> Touch | None:
        """Return the newest access that wrote elements of an array; None if there is none."""
        codes = place.written[place.written > 0]
        return self._touches[_FIRST - int(codes.min())] if codes.size else None

    # ---- conflicts
    def _earlier_writes(
        self, access: Access, touch: Touch, written: Codes, known: list[int]
    ) -> dict[int, Touch]:
        """Return the earlier writes of these elements, by code. Raises PipelineRace if one of them
        conflicts."""
        writes = self._writes_of(written)
        for earlier in writes.values():
            self._check_order(access, touch, earlier, written, known)
        return writes

    def _earlier_reductions(
        self, access: Access, place: Place, touch: Touch, known: list[int]
    ) -> None:
        """Raise PipelineRace if a reduction of this CTA, of another kind than this access,
        conflicts."""
        for held, kinds in self._reductions.items():
            for kind, touches in kinds.items() if held.region is place.region else ():
                for earlier in touches.values() if kind != touch.reduction else ():
                    if overlap(place, touch.index, held, earlier.index):
                        self._check_order(access, touch, earlier, None, known)

    def _check_order(
        self, access: Access, touch: Touch, earlier: Touch, written: Codes | None, known: list[int]
    ) -> None:
        """Raise PipelineRace unless an access comes after an earlier write."""
        same = touch.reduction == earlier.reduction
        if touch.reduction and same and touch.reduction != IN_TURN:
            return
        if earlier.number != self.number:
            ordered = touch.kind == LOAD or (same and touch.reduction == IN_TURN)
            if ordered and handed_over(access.agent.sm, earlier, known):
                return
            raise conflict(access, touch, earlier, written)
        together = earlier.agent.cta == touch.agent.cta
        if touch.steers:  # in whatever order: other roles read it at other times
            raise unordered(access, touch, earlier, written)
        if earlier.kind == STORE and touch.kind not in (STORE, LOAD):
            raise (other_proxy if together else conflict)(access, touch, earlier, written)
        if earlier.kind == STORE == touch.kind and earlier.agent is touch.agent:
            return
        if lacks(known, earlier.needs):
            if together and earlier.kind != STORE:
                raise in_transfer(access, touch, earlier)
            raise (unordered if together else conflict)(access, touch, earlier, written)

    def _check_loads(self, access: Access, place: Place, touch: Touch, known: list[int]) -> None:
        """Raise PipelineRace if a TMA load of this CTA, or of its cluster, may still be reading the
        elements that are written."""
        # per-lane stores come in thousands, so check this cheaply first
        if all(other.region is not place.region for other, _ in self._cuts.values()):
            return
        for load in (load for sm in access.agent.sm.peers for load in sm.memory.loads()):
            assert load.box is not None
            other, _ = self._cuts[load.box.tensor]
            if other.region is not place.region or not lacks(known, load.needs):
                continue
            index = load.box.elements(load.where)
            if overlap(place, touch.index, other, index):
                raise in_transfer(
                    access,
                    touch,
                    Touch(load, index, load.box.tensor.flipped),
                    mbar=load.mbar,
                )

    def _check_written(self, access: Access, touch: Touch, written: Codes) -> None:
        """Raise SimulationError unless all elements have been written."""
        if not written.all():
            does = "changes" if touch.reduction else "reads"
            raise failure(
                access,
                touch,
                None,
                "uninitialised-read",
                (
                    f"{touch.describe()} {does} {touch.where(extent(written == 0, touch.index))}, "
                    f"which has not been written: '{touch.what}' is allocated by the call "
                    "(out_type) and is uninitialized"
                ),
                "nothing was stored there before",
                f"pass '{touch.what}' (or out=) with the values it starts from, or write it "
                "before it is read"
                + (
                    ": numpipe.wait for a semaphore that is signaled after the store"
                    * (access.agent.sm.gpus is not None)
                ),
                SimulationError,
            )

    # ---- griddepcontrol
    def _too_early(self, access: Access, touch: Touch) -> None:
        """Record an access that nothing orders after a griddepcontrol.wait. It is a race as soon as
        the kernel executes one."""
        if self._awaits:
            raise before_wait(access, touch)
        self._early = self._early or touch

    def await_grid(self, who: Warpgroup) -> None:
        """Execute griddepcontrol.wait in the executing lanes."""
        who.vectors[: len(who.warps()), who.clocks.grid + (who.gpu or 0)] = 1
        self._awaits = True
        if self._early is not None:
            raise before_wait(Access(who, "griddepcontrol.wait", "", ()), self._early)


# ---- flags ---------------------------------------------------------------------------------------
def _flag(
    who: Warpgroup, flags: np.ndarray, index: int, what: str, instruction: str, value: int
) -> Flag:
    """Return the flag in global memory, ``flags[index]``, that an instruction of one lane sets or
    reads."""
    race_report.one_lane(who, instruction)
    who.elapse(who.costs.tma_latency)
    who.breathe()
    place = int(flags.ctypes.data) + flags.strides[0] * int(index), value
    flag: Flag = who.gmem.flags.setdefault(place, Flag(what))
    if instruction == "ld.acquire.gpu" and who.scheduler.explores:
        who.breathe(lambda: flag.release is not None)
    who.scheduler.touch_array(flags, (slice(int(index), int(index) + 1),), WRITES)
    return flag


def signal(
    who: Warpgroup,
    flags: np.ndarray,
    index: int,
    what: str,
    value: int = 1,
    stays: bool = False,
) -> None:
    flag = _flag(who, flags, index, what, "st.release.gpu", value)
    if flag.release is not None:
        raise race_report.violation(
            who,
            f"the flag of {what} is still set, by {flag.set_by}: no CTA has received that part yet",
            fix="use a separate slot for each part",
            hazard="cta-conflict",
        )
    vector = who.vectors[0].copy()
    who.release_into(vector)
    flag.release, flag.stays = Release(who.gmem.number, vector), stays
    flag.set_by = f"{who.name} of CTA {who.cta} at {sites.place(sites.user_site())}"
    flag.party = race_report.party(who, f"sets the flag of {what}")
    flags[index] = value
    who.sm.progress += 1
    flag.open(who.time)


def wait(who: Warpgroup, flags: np.ndarray, index: int, what: str, value: int = 1) -> None:
    flag = _flag(who, flags, index, what, "ld.acquire.gpu", value)
    while flag.release is None:
        flag.enqueue(who, what=what)
    counter = who.sm.add_counter()
    who.sm.acquired[counter] = flag.release
    who.vectors[0, counter] = 1
    if not flag.stays:
        flag.release = None
        flags[index] = 0


def handed_over(sm: SM, earlier: Touch, known: list[int]) -> bool:
    """Return whether warps with the clock `known` have seen a flag that another CTA set after its
    store."""
    return any(
        known[counter]
        and release.number == earlier.number
        and not lacks(release.vector, earlier.needs)
        for counter, release in sm.acquired.items()
    )


def hints(sm: SM) -> list[Hint]:
    """Return a hint for each flag that a warpgroup waits for."""
    return [
        Hint(
            "deadlock",
            f"{w.blocked.text()}: it was never set, although the CTAs that can set it, those with "
            "a smaller index, have run",
            "pass every part on with numpipe.combine, and wait only for parts of CTAs with a "
            "smaller index",
        )
        for w in sm.warpgroups
        if isinstance(w.blocked, Flag)
    ]


def left_set(flags: Iterable[Flag]) -> None:
    """Raise SimulationError for a flag that is still set when the grid has ended: the next launch
    would see it."""
    for flag in flags:
        if flag.release is not None and not flag.stays:
            text = (
                f"the flag of {flag.what}, which {flag.set_by} set, is still set when the kernel "
                "has ended: the next launch would read it as its own"
            )
            fix = "run numpipe.combine in every part of a tile, including the owner's"
            raise reported(
                SimulationError,
                Report("exit-in-flight", f"{text}: {fix}", flag.party, cause=text, fix=fix),
            )
