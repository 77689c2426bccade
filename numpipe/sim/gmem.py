"""Global memory: which CTA wrote and read what.

CTAs of a grid run one after the other here, on a GPU at once and in any order. So two of them that touch an element conflict, as
soon as one of them writes it; reductions of one kind (`REDUCTIONS`) may meet, because each changes an element at once. Kernels of
a stream run one after the other, so what a kernel wrote is there for the next.

Within a CTA accesses are ordered, or not, by its clocks::

    then \\ first      TMA load                  TMA store, reduction            ordinary store
    TMA load          -                         its group has been waited for   never: see below
    TMA store         the phase is over         its group has been waited for   never
    ordinary store    the phase is over         its group has been waited for   same warpgroup, or a barrier

An ordinary store is of the generic proxy and TMA copies are of the async proxy. What orders the two in global memory is a proxy
fence on it, and the one that kernels have is on shared memory (PTX ISA, "Memory Consistency Model: Proxies").

Elements are told apart by their addresses, so views of one allocation meet where they overlap. Arrays lie in *regions*, ranges of
addresses that overlap. A region that nobody has written keeps a list of the boxes loaded from it, each once: this is what the
inputs of a kernel cost. The first write makes a map of it: for each element the newest write, and the first read.

PTX ISA, "Memory Consistency Model: Data-races", "cp.reduce.async.bulk", "griddepcontrol".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .._machine import TensorMap
from ..errors import PipelineRace, SimulationError
from ..reports import Party, Report
from . import report
from .memory import Access

if TYPE_CHECKING:
    from .barriers import Mbarrier
    from .clocks import Need
    from .port import Warpgroup
    from .tma import Box

Codes = npt.NDArray[np.int32]
Index = tuple[slice, ...]
_FIRST = np.iinfo(np.int32).max
"""code of the first access that is remembered; later ones have smaller codes, 0 is nobody: the maximum is the earliest"""

STORES_END = ("the stores of a pipeline end with the kernel, so load what they write in the next one; copies of your own end at "
              "wait_smem_to_gmem(0)")


class Agent(NamedTuple):
    """A warpgroup, when the CTA that it was of has ended."""

    name: str
    title: str
    warpgroup: int
    role: str
    cta: tuple[int, int, int]


class Touch:
    """An access to global memory, remembered while the grid runs.

    `number` is of the CTA in the order of the run, `needs` what another access of that CTA must know to come after a write.
    """

    __slots__ = ("agent", "code", "flipped", "index", "kind", "needs", "note_", "number", "phase", "reduction", "site", "wait_", "what")

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


class Region:
    """Addresses [lo, hi) that arrays share, in units of `unit` bytes of which every element has whole ones."""

    def __init__(self, lo: int, hi: int, unit: int) -> None:
        self.lo, self.hi, self.unit = lo, hi, unit
        self.places: list[Place] = []
        self.written: Codes | None = None
        """by unit, the code of the newest write; of a reduction that other CTAs share in, of the first of them"""
        self.read: Codes | None = None
        """by unit, the code of the first read"""

    def codes(self) -> Codes:
        return np.zeros((self.hi - self.lo) // self.unit, np.int32)

    def adopt(self, other: Region) -> None:
        """Take the places and maps of a region that lies in this one; its units are multiples of this one's."""
        scale, start = other.unit // self.unit, (other.lo - self.lo) // self.unit
        for name in ("written", "read"):
            codes = getattr(other, name)
            if codes is not None:
                if getattr(self, name) is None:
                    setattr(self, name, self.codes())
                getattr(self, name)[start:start + codes.size * scale] = np.repeat(codes, scale)
        for place in other.places:
            place.join(self)


class Place:
    """An array in its region. Its maps are the region's, with the array's shape (and units of an element behind it)."""

    def __init__(self, array: npt.NDArray[Any]) -> None:
        self.array = array
        self.address = array.ctypes.data
        self.fresh = False
        """whether its elements hold nothing until the kernel writes them"""
        self.cuts: list[Cut] = []

    def join(self, region: Region) -> None:
        self.region = region
        region.places.append(self)
        self.written = self.view(region.written)
        self.read = self.view(region.read)

    def view(self, codes: Codes | None) -> Codes:
        if codes is None:
            return np.empty(0, np.int32)
        array, unit = self.array, self.region.unit
        if not array.size:
            return np.empty(array.shape, np.int32)
        inner = array.dtype.itemsize // unit
        strides = [4 * (stride // unit) if size > 1 else 0 for size, stride in zip(array.shape, array.strides, strict=True)]
        return np.ndarray((*array.shape, *[inner][:inner > 1]), np.int32, codes, 4 * ((self.address - self.region.lo) // unit),
                          (*strides, *[4][:inner > 1]))


class Cut:
    """The boxes of one tensor map: which of them have been loaded, by whom first."""

    __slots__ = ("box", "place", "seen")

    def __init__(self, box: Box, place: Place) -> None:
        self.box, self.place = box, place
        self.seen: dict[tuple[int, ...], Touch] = {}


class GlobalMemory:
    """What the CTAs of a grid did to global memory so far.

    `fresh`: arrays that hold nothing before the kernel writes them. `programmatic`: the kernel may start before those ahead of it
    in the stream have ended, so each access has to come after a ``griddepcontrol.wait`` (known too when one is executed).
    """

    def __init__(self, fresh: Sequence[npt.NDArray[Any]] = (), programmatic: bool = False) -> None:
        self.number = -1
        """of the running CTA"""
        self._fresh = [_bounds(array) for array in fresh]
        self._touches: list[Touch] = []
        self._foreign = _FIRST
        """codes above are of CTAs before the running one"""
        self._regions: list[Region] = []
        self._places: dict[tuple[Any, ...], Place] = {}
        self._cuts: dict[TensorMap, Cut] = {}
        self._awaits = programmatic
        self._early: Touch | None = None
        """an access before a griddepcontrol.wait"""

    def begin(self) -> None:
        """Another CTA runs from here on."""
        self.number += 1
        self._foreign = _FIRST - len(self._touches)

    # ---- arrays
    def place(self, array: npt.NDArray[Any]) -> Place:
        key = array.ctypes.data, array.shape, array.strides, array.dtype.itemsize
        place = self._places.get(key)
        if place is None:
            place = self._places[key] = Place(array)
            lo, hi = _bounds(array)
            place.fresh = any(first <= lo and hi <= last for first, last in self._fresh)
            met = [region for region in self._regions if region.lo < hi and lo < region.hi]
            if len(met) == 1 and met[0].lo <= lo and hi <= met[0].hi and _unit(place, met[0].lo, met[0].unit) == met[0].unit:
                place.join(met[0])
                return place
            lo, hi = min([lo, *(region.lo for region in met)]), max([hi, *(region.hi for region in met)])
            region = Region(lo, hi, _unit(place, lo, math.gcd(*(part for r in met for part in (r.unit, r.lo - lo)))))
            for other in met:
                region.adopt(other)
                self._regions.remove(other)
            self._regions.append(region)
            place.join(region)
            if region.written is not None:
                self._make(region)
        return place

    def _cut(self, box: Box) -> Cut:
        cut = self._cuts[box.tensor] = Cut(box, self.place(box.tensor.array))
        cut.place.cuts.append(cut)
        return cut

    def _remember(self, touch: Touch) -> Touch:
        touch.code = _FIRST - len(self._touches)
        self._touches.append(touch)
        return touch

    def _of(self, code: int) -> Touch:
        return self._touches[_FIRST - code]

    # ---- accesses
    def load(self, access: Access, box: Box, where: tuple[int, ...], known: list[int]) -> None:
        """A TMA load of a box."""
        cut = self._cuts.get(box.tensor) or self._cut(box)
        place = cut.place
        seen = where in cut.seen
        early = not known[access.agent.sm.clocks.grid] and (self._awaits or self._early is None)
        if seen and not early and place.region.written is None and not place.fresh:
            return
        touch = self._touch(access, box.inside(where)[0], box.tensor.flipped)
        if early:
            self._too_early(access, touch)
        if place.region.written is None and not place.fresh:
            if not seen:
                cut.seen[where] = self._remember(touch)
            return
        self._open(place.region)
        written = place.written[touch.index]
        if not written.size:
            return
        self._writes(access, touch, written, known)
        if place.fresh:
            self._initialised(access, touch, written)
        if not seen:
            cut.seen[where] = self._remember(touch)
            self._mark_read(place, touch)

    def store(self, access: Access, box: Box, where: tuple[int, ...], known: list[int], need: Need, reduction: str) -> None:
        """A TMA store of a box, or a reduction; `need`: what says that it has reached global memory."""
        cut = self._cuts.get(box.tensor) or self._cut(box)
        touch = self._touch(access, box.inside(where)[0], box.tensor.flipped, (need,), reduction)
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
        self._loads(access, place, touch, known)
        met = self._writes(access, touch, written, known)
        if touch.reduction and place.fresh:
            self._initialised(access, touch, written)
        if place.region.read is not None:
            read = place.read[touch.index]
            first = int(read.max())
            if first > self._foreign:
                raise self._conflict(access, touch, self._of(first), read)
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

    # ---- maps
    def _open(self, region: Region) -> None:
        """Make the maps of a region that is written, or holds nothing yet."""
        if region.written is None:
            region.written = region.codes()
            self._make(region)

    def _make(self, region: Region) -> None:
        """Give all arrays of a region their views of its maps, and mark what they have read."""
        for place in region.places:
            place.written, place.read = place.view(region.written), place.view(region.read)
        loads = [(touch, place) for place in region.places for cut in place.cuts for touch in cut.seen.values()]
        for touch, place in sorted(loads, key=lambda load: -load[0].code):
            self._mark_read(place, touch)

    def _mark_read(self, place: Place, touch: Touch) -> None:
        region = place.region
        if region.read is None:
            region.read = region.codes()
            for other in region.places:
                other.read = other.view(region.read)
        read = place.read[touch.index]
        np.copyto(read, touch.code, where=read == 0)

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
                raise self._conflict(access, touch, earlier, written)
            if touch.kind == STORE and earlier.kind == STORE and touch.agent.warpgroup == earlier.agent.warpgroup:
                continue
            if earlier.kind == STORE and touch.kind != STORE:
                raise self._race(access, touch, earlier, written, "array-in-transfer", (
                    f"{_VERBS[touch.kind]} {{}}, which {earlier.describe()} of the same CTA wrote: nothing makes ordinary stores "
                    "visible to the async proxy"), (
                    "the fence that kernels have, fence.proxy.async.shared::cta, is of shared memory",
                    "store it with copy_smem_to_gmem and wait_smem_to_gmem(0), or use it in the next kernel"))
            if any(known[counter] < value for counter, value in earlier.needs):
                if earlier.kind == STORE:
                    raise self._race(access, touch, earlier, written, "unordered-accesses", (
                        f"writes {{}}, which {earlier.describe()} of {earlier.agent.name} writes too"), (
                        f"no barrier orders {earlier.agent.name} before {touch.agent.name}",
                        "a barrier between the two, or rows and columns of its own for each warpgroup"))
                raise self._in_transfer(access, touch, earlier, "writing")
        return met

    def _loads(self, access: Access, place: Place, touch: Touch, known: list[int]) -> None:
        """PipelineRace if a TMA load of this CTA may still be reading what is written."""
        for load in access.agent.sm.memory.loads():
            assert load.box is not None
            other = self._cuts[load.box.tensor].place
            if other.region is not place.region or not any(known[counter] < value for counter, value in load.needs):
                continue
            index = load.box.inside(load.where)[0]
            if _overlap(place, touch.index, other, index):
                raise self._in_transfer(access, touch, self._touch(load, index, load.box.tensor.flipped), "reading", load.mbar)

    def _initialised(self, access: Access, touch: Touch, written: Codes) -> None:
        if not written.all():
            raise _failure(SimulationError, access, touch, "uninitialised-read", (
                f"{touch.describe()} {'changes' if touch.reduction else 'reads'} {touch.where(_box(written == 0, touch.index))}, which "
                f"nobody has written: '{touch.what}' is allocated by the call (out_type) and holds anything"), (
                "nothing was stored there before",
                f"pass '{touch.what}' (or out=) with the values it starts from, or write it before it is read"), None)

    def _too_early(self, access: Access, touch: Touch) -> None:
        """An access that nothing orders after a griddepcontrol.wait: wrong as soon as there is one."""
        if self._awaits:
            raise self._before_wait(access, touch)
        self._early = self._early or touch

    def await_grid(self, who: Warpgroup) -> None:
        """griddepcontrol.wait by the executing lanes."""
        who.vectors[:len(who.warps()), who.sm.clocks.grid] = 1
        self._awaits = True
        if self._early is not None:
            raise self._before_wait(Access(who, "griddepcontrol.wait", "", ()), self._early)

    def _before_wait(self, access: Access, touch: Touch) -> SimulationError:
        verb = {"TMA load": "read"}.get(touch.kind, "written")
        return _failure(PipelineRace, access, touch, "read-before-grid-dependency", (
            f"{touch.where()} is {verb} by {touch.describe()} of {touch.agent.name} before griddepcontrol.wait: the kernel ahead in "
            "the stream may not have ended"), (
            f"nothing orders it after a griddepcontrol.wait of {touch.agent.name}, or of a warpgroup that has told it",
            "griddep.wait() by every warpgroup, before it touches an array"), None)

    def _conflict(self, access: Access, touch: Touch, earlier: Touch, codes: Codes) -> SimulationError:
        """Two CTAs meet."""
        if touch.reduction or earlier.reduction:
            mend = ("set the array up before the kernel and read it behind it; in the kernel all CTAs use the same reduction_op, and "
                    "nothing else")
        elif "TMA load" in (touch.kind, earlier.kind):
            mend = "a kernel of its own for what reads the results of other CTAs, or an array of its own for the results"
        else:
            mend = ("blocks of its own for each CTA: a ds(start, size), or an index map, that depends on numpipe.program_id; or add them "
                    "up, copy_smem_to_gmem(…, reduction_op='add')")
        return self._race(access, touch, earlier, codes, "cta-conflict", (
            f"{_VERBS[touch.kind]} {{}}, which CTA {earlier.agent.cta} {_VERBS[earlier.kind]}"
            + " too" * (_VERBS[touch.kind] == _VERBS[earlier.kind])), (
            "nothing orders two CTAs: they run at once, and in any order", mend))

    def _race(self, access: Access, touch: Touch, earlier: Touch, codes: Codes, hazard: str, text: str,
              why: tuple[str, str]) -> SimulationError:
        """`text` has a place for the elements that the two have in common."""
        common = touch.where(_box(codes == earlier.code, touch.index))
        return _failure(PipelineRace, access, touch, hazard, f"{touch.describe()} {text.format(common)}", why, earlier)

    def _in_transfer(self, access: Access, touch: Touch, earlier: Touch, doing: str, mbar: Mbarrier | None = None) -> SimulationError:
        if mbar is None:
            why = f"nothing tells {touch.agent.name} that the store has reached the array", STORES_END
        else:
            why = (f"nothing tells {touch.agent.name} that this copy has landed",
                   f"barrier_wait for {mbar.name}, phase {earlier.phase}, before the array is written there" if mbar.observed else
                   STORES_END)
        return _failure(PipelineRace, access, touch, "array-in-transfer", (
            f"{touch.describe()} {_VERBS[touch.kind]} the array at {touch.where()} while {earlier.describe()} by {earlier.agent.name} "
            f"may still be {doing} it"), why, earlier)


STORE = "store"
_VERBS = {"TMA load": "reads", "TMA store": "writes", STORE: "writes"}


def _failure(kind: type[SimulationError], access: Access, touch: Touch, hazard: str, text: str, why: tuple[str, str],
             earlier: Touch | None) -> SimulationError:
    """The error: who, what, where, why and the mend."""
    cause, mend = why
    sm, site = access.agent.sm, touch.site
    lines = [f"{access.agent.title}: {text}", f"  now:    {touch.tell()}"]
    if earlier is not None:
        lines.append(f"  before: {earlier.tell()}")
    lines += [f"  {cause}", f"  mend:   {mend}"]
    found = Report(hazard, "\n".join(lines), touch.party(), None if earlier is None else earlier.party(), cause=cause, mend=mend,
                   kernel=report.kernel_of(sm))
    return report.failed(kind, found, None if site is None else report.line_of(site))


def _bounds(array: npt.NDArray[Any]) -> tuple[int, int]:
    """The addresses [lo, hi) that an array's elements lie in."""
    lo = hi = int(array.ctypes.data)
    if not array.size:
        return lo, hi
    reach = [(size - 1) * stride for size, stride in zip(array.shape, array.strides, strict=True)]
    return lo + sum(part for part in reach if part < 0), hi + sum(part for part in reach if part > 0) + array.dtype.itemsize


def _unit(place: Place, lo: int, unit: int) -> int:
    """Bytes that divide the array's elements, the distances between them, and `unit`."""
    array = place.array
    return math.gcd(unit, array.dtype.itemsize, place.address - lo,
                    *(stride for size, stride in zip(array.shape, array.strides, strict=True) if size > 1))


def _box(mask: npt.NDArray[np.bool_], index: Index) -> Index:
    """The smallest box around the elements of `index` that a mask has."""
    found = np.argwhere(mask)[:, :len(index)]
    first, last = found.min(axis=0), found.max(axis=0)
    return tuple(slice(part.start + int(lo), part.start + int(hi) + 1) for part, lo, hi in zip(index, first, last, strict=True))


def _overlap(place: Place, index: Index, other: Place, theirs: Index) -> bool:
    """Whether parts of two arrays have bytes in common."""
    if place is other:
        return all(max(a.start, b.start) < min(a.stop, b.stop) for a, b in zip(index, theirs, strict=True))
    return bool(np.shares_memory(place.array[index], other.array[theirs]))
