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

Elements are told apart by their addresses (`regions`). A region that nobody has written keeps the boxes loaded from it, each once:
this is all that the inputs of a kernel cost. The first write makes maps of it: by element the newest write, and the first read.

PTX ISA, "Memory Consistency Model: Data-races; Proxies", "cp.reduce.async.bulk", "griddepcontrol".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .._machine import TensorMap
from ..errors import PipelineRace, SimulationError
from ..reports import Party, Report
from . import report
from .handover import Flag, handed_over
from .memory import Access
from .regions import Codes, Cut, Index, Place, Region, bounds, extent, overlap, settle

if TYPE_CHECKING:
    from .barriers import Mbarrier
    from .clocks import Need
    from .port import Warpgroup
    from .tma import Box

_FIRST = np.iinfo(np.int32).max
"""code of the first access that is remembered; later ones have smaller codes, so a maximum is the earliest, and 0 is nobody"""
STORE, LOAD = "store", "load"
"""kinds of ordinary accesses"""
_VERBS = {"TMA load": "reads", LOAD: "reads", "TMA store": "writes", STORE: "writes"}
STORES_END = ("the stores of a pipeline end with the kernel, so load what they write in the next one; copies of your own end at "
              "wait_smem_to_gmem(0)")


class Agent(NamedTuple):
    """A warpgroup, when the CTA that it was of has ended."""

    name: str
    warpgroup: int
    role: str
    cta: tuple[int, int, int]


class Touch:
    """An access to global memory, remembered while the grid runs.

    `number` is of the cluster (of a CTA, where there are none) in the order of the run, `needs` what another access of that cluster
    must know to come after a write.
    """

    __slots__ = ("agent", "code", "flipped", "index", "kind", "needs", "note_", "number", "phase", "reduction", "site", "wait_",
                 "what")

    def __init__(self, access: Access, number: int, index: Index, flipped: bool, needs: tuple[Need, ...] = (),
                 reduction: str = "") -> None:
        self.agent = access.agent.identity
        self.kind, self.what, self.site = access.kind, access.what, access.site
        self.note_, self.wait_, self.phase = access.note_, access.wait_, access.phase
        self.number, self.index, self.needs, self.reduction, self.flipped = number, index, needs, reduction, flipped
        self.code = 0

    def describe(self) -> str:
        return f"{f'TMA reduction {self.reduction!r}' if self.reduction else self.kind} ({self.what})"

    def where(self, index: Index | None = None) -> str:
        """``c[64:128, 0:64]``"""
        parts = self.index if index is None else index
        inside = ", ".join(f"{part.start}:{part.stop}" for part in (reversed(parts) if self.flipped else parts))
        return f"{self.what}[{inside}]"

    def tell(self) -> str:
        """Who, where, in which step."""
        return (f"{self.describe()} by {self.agent.name} of CTA {self.agent.cta} at {report.place(self.site)}: {self.where()}"
                + report.context(self.note_, self.wait_))

    def party(self) -> Party:
        ring = None if self.note_ is None else self.note_[1].get("ring")
        return Party(f"{self.describe()} of {self.where()}", self.agent.warpgroup, self.agent.role, self.agent.cta,
                     () if self.site is None else (report.line_of(self.site),), ring, report.noted(self.note_, "slot"),
                     report.noted(self.note_, "step"))


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
        self._cuts: dict[TensorMap, Cut] = {}
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
            region = settle(place, self._regions)
            if region.written is not None:
                self._look(region)
        return place

    def _cut(self, box: Box) -> Cut:
        place, key = self.place(box.tensor.array), (box.tensor.box, box.tensor.flipped)
        cut = self._cuts[box.tensor] = place.cuts.setdefault(key, Cut(place))  # every warpgroup has tensor maps of its own
        return cut

    def _remember(self, touch: Touch) -> Touch:
        touch.code = _FIRST - len(self._touches)
        self._touches.append(touch)
        return touch

    def _of(self, code: int) -> Touch:
        return self._touches[_FIRST - code]

    def _open(self, region: Region) -> None:
        """Make the maps of a region that is written, or holds nothing yet."""
        if region.written is None:
            region.written = region.codes()
            self._look(region)

    def _look(self, region: Region) -> None:
        """All arrays of a region see its maps, in which their loads are marked."""
        for place in region.places:
            place.look()
        loads = [(touch, place) for place in region.places for cut in place.cuts.values() for touch in cut.seen.values()]
        for touch, place in sorted(loads, key=lambda load: -load[0].code):
            self._mark_read(place, touch)

    def _mark_read(self, place: Place, touch: Touch) -> None:
        region = place.region
        if region.read is None:
            region.read = region.codes()
            for other in region.places:
                other.look()
        read = place.read[touch.index]
        np.copyto(read, touch.code, where=read == 0)

    # ---- accesses
    def load(self, access: Access, box: Box, where: tuple[int, ...], known: list[int]) -> None:
        """A TMA load of a box."""
        cut = self._cuts.get(box.tensor) or self._cut(box)
        place = cut.place
        seen = where in cut.seen
        early = not known[access.agent.sm.clocks.grid] and (self._awaits or self._early is None)
        unwritten = place.region.written is None and not place.fresh
        if seen and unwritten and not early:
            return
        touch = self._touch(access, box.elements(where), box.tensor.flipped)
        if early:
            self._too_early(access, touch)
        if not unwritten:
            self._open(place.region)
            written = place.written[touch.index]
            if written.size:
                self._writes(access, touch, written, known)
                if place.fresh:
                    self._initialised(access, touch, written)
        if not seen:
            cut.seen[where] = self._remember(touch)
            if not unwritten:
                self._mark_read(place, touch)

    def read(self, access: Access, array: npt.NDArray[Any], index: Index, known: list[int]) -> None:
        """Ordinary loads by the warps of a warpgroup; `access` says what orders them."""
        place, touch = self.place(array), self._touch(access, index, False, access.needs)
        if not known[access.agent.sm.clocks.grid]:
            self._too_early(access, touch)
        unwritten = place.region.written is None and not place.fresh
        if not unwritten:
            self._open(place.region)
            written = place.written[touch.index]
            if written.size:
                self._writes(access, touch, written, known)
                if place.fresh:
                    self._initialised(access, touch, written)
        at = tuple(n for part in index for n in (part.start, part.stop))
        self._reads.setdefault(place, {})[(access.agent.warpgroup, *at)] = touch
        seen = place.cuts.setdefault(((), False), Cut(place)).seen
        if at not in seen:
            seen[at] = self._remember(touch)
            if not unwritten:
                self._mark_read(place, touch)

    def store(self, access: Access, box: Box, where: tuple[int, ...], known: list[int], need: Need, reduction: str) -> None:
        """A TMA store of a box, or a reduction; `need`: what says that it has reached global memory."""
        cut = self._cuts.get(box.tensor) or self._cut(box)
        touch = self._touch(access, box.elements(where), box.tensor.flipped, (need,), reduction)
        self._write(access, cut.place, touch, known)

    def write(self, access: Access, array: npt.NDArray[Any], index: Index, known: list[int]) -> None:
        """Ordinary stores by the warps of a warpgroup; `access` says what orders them."""
        self._write(access, self.place(array), self._touch(access, index, False, access.needs), known)

    def _touch(self, access: Access, index: Index, flipped: bool, needs: tuple[Need, ...] = (), reduction: str = "") -> Touch:
        return Touch(access, self.number, index, flipped, needs, reduction)

    def _write(self, access: Access, place: Place, touch: Touch, known: list[int]) -> None:
        if not known[access.agent.sm.clocks.grid]:
            self._too_early(access, touch)
        self._open(place.region)
        written = place.written[touch.index]
        if not written.size:
            return
        if place.region.loaded:
            self._loads(access, place, touch, known)
        for held, reads in self._reads.items():
            for earlier in reads.values() if held.region is place.region else ():
                same = touch.kind == STORE and earlier.agent.warpgroup == touch.agent.warpgroup
                if not same and any(known[counter] < value for counter, value in earlier.needs) and (
                        overlap(place, touch.index, held, earlier.index)):
                    raise _unordered(access, touch, earlier)
        met = self._writes(access, touch, written, known)
        if touch.reduction and place.fresh:
            self._initialised(access, touch, written)
        if place.region.read is not None:
            read = place.read[touch.index]
            first = int(read.max())
            if first > self._foreign:
                raise _conflict(access, touch, self._of(first), read)
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
                raise _conflict(access, touch, earlier, written)
            together = earlier.agent.cta == touch.agent.cta
            if earlier.kind == STORE and touch.kind not in (STORE, LOAD):
                raise (_other_proxy if together else _conflict)(access, touch, earlier, written)
            if earlier.kind == STORE == touch.kind and together and earlier.agent.warpgroup == touch.agent.warpgroup:
                continue
            if any(known[counter] < value for counter, value in earlier.needs):
                told = _conflict if not together else _unordered if earlier.kind == STORE else _in_transfer
                raise told(access, touch, earlier, written)
        return met

    def _loads(self, access: Access, place: Place, touch: Touch, known: list[int]) -> None:
        """PipelineRace if a TMA load of this CTA, or of its cluster, may still be reading what is written."""
        for load in (load for sm in access.agent.sm.peers for load in sm.memory.loads()):
            assert load.box is not None
            other = self._cuts[load.box.tensor].place
            if other.region is not place.region or not any(known[counter] < value for counter, value in load.needs):
                continue
            index = load.box.elements(load.where)
            if overlap(place, touch.index, other, index):
                raise _in_transfer(access, touch, self._touch(load, index, load.box.tensor.flipped), mbar=load.mbar)

    def _initialised(self, access: Access, touch: Touch, written: Codes) -> None:
        """SimulationError unless all elements have been written."""
        if not written.all():
            raise _found(SimulationError, access, touch, None, "uninitialised-read", (
                f"{touch.describe()} {'changes' if touch.reduction else 'reads'} {touch.where(extent(written == 0, touch.index))}, "
                f"which nobody has written: '{touch.what}' is allocated by the call (out_type) and holds anything"),
                "nothing was stored there before",
                f"pass '{touch.what}' (or out=) with the values it starts from, or write it before it is read")

    # ---- griddepcontrol
    def _too_early(self, access: Access, touch: Touch) -> None:
        """An access that nothing orders after a griddepcontrol.wait: wrong as soon as there is one."""
        if self._awaits:
            raise _before_wait(access, touch)
        self._early = self._early or touch

    def await_grid(self, who: Warpgroup) -> None:
        """griddepcontrol.wait by the executing lanes."""
        who.vectors[:len(who.warps()), who.sm.clocks.grid] = 1
        self._awaits = True
        if self._early is not None:
            raise _before_wait(Access(who, "griddepcontrol.wait", "", ()), self._early)


# ---- what is told ---------------------------------------------------------------------------------------------------
def _conflict(access: Access, touch: Touch, earlier: Touch, codes: Codes) -> SimulationError:
    """Two CTAs meet."""
    if touch.reduction or earlier.reduction:
        mend = ("set the array up before the kernel and read it behind it; in the kernel all CTAs use the same reduction_op, and "
                "no other access")
    elif "reads" in (_VERBS[touch.kind], _VERBS[earlier.kind]):
        mend = "a kernel of its own for what reads the results of other CTAs, or an array of its own for the results"
        if LOAD in (touch.kind, earlier.kind):
            mend += ("; or numpipe.combine, which hands partial sums over: all lanes store, a barrier, one lane signals; one lane "
                     "awaits that, a barrier, all lanes load")
    else:
        mend = ("blocks of its own for each CTA: a ds(start, size), or an index map, that depends on numpipe.program_id; or add "
                "them up: copy_smem_to_gmem(…, reduction_op='add')")
    now, before = _VERBS[touch.kind], _VERBS[earlier.kind]
    return _found(PipelineRace, access, touch, earlier, "cta-conflict", (
        f"{touch.describe()} {now} {_common(touch, earlier, codes)}, which CTA {earlier.agent.cta} {before}"
        + " too" * (now == before)),
        "nothing orders two CTAs: they run at once, and in any order", mend)


def _other_proxy(access: Access, touch: Touch, earlier: Touch, codes: Codes) -> SimulationError:
    """A TMA copy comes after an ordinary store."""
    return _found(PipelineRace, access, touch, earlier, "array-in-transfer", (
        f"{touch.describe()} {_VERBS[touch.kind]} {_common(touch, earlier, codes)}, which {earlier.describe()} of the same CTA "
        "wrote: nothing makes ordinary stores to an array visible to the async proxy"),
        "the fence that kernels have, fence.proxy.async.shared::cta, is of shared memory",
        "store it with copy_smem_to_gmem and wait_smem_to_gmem(0), or use it in the next kernel")


def _unordered(access: Access, touch: Touch, earlier: Touch, codes: Codes | None = None) -> SimulationError:
    """Ordinary accesses, one of which stores."""
    now, before = _VERBS[touch.kind], _VERBS[earlier.kind]
    own = touch.agent.warpgroup == earlier.agent.warpgroup
    return _found(PipelineRace, access, touch, earlier, "unordered-accesses", (
        f"{touch.describe()} {now} {touch.where() if codes is None else _common(touch, earlier, codes)}, which "
        f"{earlier.describe()} of {earlier.agent.name} {before}{' too' * (now == before)}"),
        f"no barrier orders {'its four warps' if own else f'{earlier.agent.name} before {touch.agent.name}'}",
        "a barrier between the two, or " + ("the value that was stored in place of the load" if own else
                                            "rows and columns of its own for each warpgroup"))


def _in_transfer(access: Access, touch: Touch, earlier: Touch, codes: Codes | None = None,
                 mbar: Mbarrier | None = None) -> SimulationError:
    """A copy of this CTA that may not be over: a load, which completes on `mbar`, or a store."""
    cause, mend = f"nothing tells {touch.agent.name} that the store has reached the array", STORES_END
    if mbar is not None:
        cause = f"nothing tells {touch.agent.name} that this copy has landed"
        if mbar.observed:
            mend = f"barrier_wait for {mbar.name}, phase {earlier.phase}, before the array is written there"
    elif _VERBS[touch.kind] == "writes" and earlier.agent.warpgroup != touch.agent.warpgroup:
        mend = "rows of its own for each warpgroup (numpipe.axis_index of the warpgroup axis), or num_compute_wgs=1"
    elif _VERBS[touch.kind] == "writes":
        mend = "wait_smem_to_gmem(0) between the two, which are in no order, or one store to each block"
    return _found(PipelineRace, access, touch, earlier, "array-in-transfer", (
        f"{touch.describe()} {_VERBS[touch.kind]} the array at {touch.where()} while {earlier.describe()} by {earlier.agent.name} "
        f"may still be {'writing' if mbar is None else 'reading'} it"), cause, mend)


def _before_wait(access: Access, touch: Touch) -> SimulationError:
    return _found(PipelineRace, access, touch, None, "read-before-grid-dependency", (
        f"{touch.where()} is {'read' if _VERBS[touch.kind] == 'reads' else 'written'} by {touch.describe()} of {touch.agent.name} "
        "before griddepcontrol.wait: the kernel ahead in the stream may not have ended"),
        f"nothing orders it after a griddepcontrol.wait of {touch.agent.name}, or of a warpgroup that has told it",
        "griddep.wait() by every warpgroup, before it touches an array")


def _common(touch: Touch, earlier: Touch, codes: Codes) -> str:
    """The elements that two accesses have in common."""
    return touch.where(extent(codes == earlier.code, touch.index))


def _found(kind: type[SimulationError], access: Access, touch: Touch, earlier: Touch | None, hazard: str, what: str,
           cause: str, mend: str) -> SimulationError:
    """The error of an access, and of an `earlier` one that it meets."""
    lines = [f"{access.agent.title}: {what}", f"  now:    {touch.tell()}"]
    if earlier is not None:
        lines.append(f"  before: {earlier.tell()}")
    lines += [f"  {cause}", f"  mend:   {mend}"]
    told = Report(hazard, "\n".join(lines), touch.party(), None if earlier is None else earlier.party(), cause=cause, mend=mend,
                  kernel=report.kernel_of(access.agent.sm))
    return report.failed(kind, told, None if touch.site is None else report.line_of(touch.site))
