"""TMA copies: what the TMA can address, loads that complete on mbarriers, and stores in the bulk
groups of a lane.

A load may write its bytes at any moment until its mbarrier's phase completes. A store may read its
bytes at any moment until ``bulk_wait(read=True)`` covers its group, and reaches GMEM later still.
`gmem` finds conflicts with other accesses to an array.

PTX ISA, "Data Movement and Conversion Instructions: Bulk copy", "Tensor copy".
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..arch.dimensions import Dim3, Ints
from ..arch.dtypes import REDUCTIONS
from ..core.machine import TensorMap
from . import cluster_traffic, mbarriers, race_report, sites
from .boxes import Box
from .clocks import BULK_READ
from .footprints import ARRIVE, AWAIT
from .gmem_accesses import LOAD
from .state import SM, Access, WaitReason, Warpgroup


def _place(
    who: Warpgroup, operation: str, box: Box, coords: Ints, address: int
) -> tuple[Ints, np.ndarray | slice, list[tuple[int, int]]]:
    """Return (coordinates as ints, chunk index, byte intervals). Raises SimulationError for a wrong
    alignment or range."""
    name = box.tensor.name
    if address % 128:
        raise race_report.illegal(
            who,
            f"{operation} of {name} at SMEM[{address}]; the TMA needs a multiple of 128, and a "
            "swizzled tile that wgmma reads one of 8 x swizzle",
        )
    inner = int(coords[-1]) * box.tensor.array.dtype.itemsize
    if inner % 16:  # an H200 reports CUDA_ERROR_ILLEGAL_INSTRUCTION, swizzled or not
        raise race_report.illegal(
            who,
            f"{operation} of {name} at coordinates {tuple(map(int, coords))}: the innermost is "
            f"{inner} bytes into a row; it must be a multiple of 16",
        )
    index, touched = box.footprint(address)
    who.sm.memory.check_range(who, touched[0][0], touched[-1][1], f"{operation} of {name}")
    return tuple(map(int, coords)), index, touched


def _through_port(who: Warpgroup, nbytes: int, array: np.ndarray, stores: bool = False) -> Dim3:
    """Issue a copy. Return the cycles at which it begins, has passed the SM's copy port and the
    ports of the GPUs, and is done."""
    sm, costs = who.sm, who.costs
    who.elapse(costs.tma_issue)
    started, left = sm.occupy("copy port", who.time, -(-nbytes // costs.tma_bytes))
    delay = sm.gmem.link(who, array)
    if delay:
        ends = (sm.gpu, min(sm.gpus.owners(array)))[:: 1 if stores else -1]
        left = max(left, sm.gpus.cross(*ends, started, -(-nbytes // costs.link_bytes)))
    return started, left, left + sm.scheduler.takes(costs.tma_latency + delay)


# ---- loads ---------------------------------------------------------------------------------------
def _bring(
    access: Access,
    to: SM,
    known: list[int],
    touched: list[tuple[int, int]],
    what: str,
    index: Any,
    fetch: Callable[[], np.ndarray],
    done: int,
) -> None:
    """Record a load to a CTA's shared memory, and let its bytes land there at cycle `done`."""
    sm, on = access.agent.sm, access.mbar
    assert on is not None
    for lo, hi in touched:
        to.memory.write(access, lo, hi, known, True)
    sm.scheduler.touch(on.thing, ARRIVE, on.phase)
    on.copies += 1
    on.last = access
    # To another CTA, its end carries that everything before its issue was over.
    sent = None if to is sm else sm.clocks.untold(access.agent.vectors[0])
    landing = functools.partial(
        cluster_traffic.land, to, on, access, what, sent, index, fetch, done
    )
    sm.scheduler.push(done, landing, "load")


def load(
    who: Warpgroup, dst: int, tensor: TensorMap, coords: Ints, mbar: int, ctas: int = 0
) -> None:
    operation = "tma_multicast" if ctas else "tma_load"
    race_report.one_lane(who, operation)
    sm = who.sm
    box = Box(tensor)
    where, index, touched = _place(who, operation, box, coords, int(dst))
    known, what = who.known(), f"{operation} of {tensor.name}"
    started, left, done = _through_port(who, tensor.nbytes, tensor.array)
    if not 0 <= (ctas := int(ctas)) < 1 << len(sm.peers):
        raise race_report.illegal(
            who,
            f"a multicast to the CTAs {ctas:#b}, but the cluster has {len(sm.peers)}",
            fix="set a bit for each rank of the cluster that receives a copy",
        )
    for to in [peer for peer in sm.peers if ctas >> peer.rank & 1] if ctas else [sm]:
        on = mbarriers.find(who, int(mbar), operation, asynchronous=True, of=to)
        access = Access(
            who, "TMA load", tensor.name, ((on.landed, on.phase + 1),), None, on, on.phase
        )
        access.box, access.where = box, where
        sm.gmem.load(access, box, where, known)
        cluster_traffic.reach(to, who, what, (), access.site)
        if to is not sm:
            sm.sent.add(who, f"{what} to CTA {to.cta}", access.needs, access.site)
        fetch = functools.partial(box.fetch, where)
        _bring(access, to, known, touched, what, index, fetch, done)
    who.record(who.time - sm.costs.tma_issue, who.time, "issue", tensor=tensor.name, coords=where)
    who.record(
        started,
        done,
        "load",
        port_until=left,
        tensor=tensor.name,
        coords=where,
        mbar=on.name,
        step=who.last_note[1].get("step"),
    )
    who.breathe()


def load_bytes(who: Warpgroup, dst: int, source: TensorMap, nbytes: int, mbar: int) -> None:
    """Copy the first bytes of a one-dimensional array, which lanes of other roles may read
    meanwhile, and nobody writes."""
    operation = f"bulk_load of {source.name}"
    array = source.array
    dst = int(dst)
    nbytes = int(nbytes)
    race_report.one_lane(who, operation)
    sm, count = who.sm, nbytes // array.dtype.itemsize
    if (
        dst % 16
        or nbytes % 16
        or not 0 < nbytes <= array.nbytes
        or array.ndim != 1
        or not array.flags.c_contiguous
    ):
        raise race_report.illegal(
            who,
            f"{operation}: {nbytes} bytes to SMEM[{dst}] of an array {array.shape} of "
            f"{array.dtype}; a bulk copy needs a multiple of 16 bytes, a destination at a multiple "
            "of 16, and a one-dimensional array with at least that many bytes",
        )
    sm.memory.check_range(who, dst, dst + nbytes, operation)
    on, known = mbarriers.find(who, int(mbar), operation, asynchronous=True), who.known()
    sm.gmem.read(Access(who, LOAD, source.name, who.needs()), array, (slice(0, count),), known)
    access = Access(who, "TMA load", source.name, ((on.landed, on.phase + 1),), None, on, on.phase)
    started, left, done = _through_port(who, nbytes, array)
    _bring(
        access,
        sm,
        known,
        [(dst, dst + nbytes)],
        operation,
        slice(dst // 16, (dst + nbytes) // 16),
        lambda: array[:count].copy().view(np.complex128),
        done,
    )
    who.record(
        started,
        done,
        "load",
        port_until=left,
        tensor=source.name,
        coords=(0,),
        mbar=on.name,
        step=None,
    )
    who.breathe()


# ---- stores --------------------------------------------------------------------------------------
@dataclass(eq=False)
class Store:
    """A TMA store in flight, and the cycles at which it has read its bytes and written them."""

    access: Access
    thing: tuple
    read_at: int | None = None
    written_at: int | None = None


class Groups(WaitReason):
    """The bulk groups of a warpgroup's elected lane, oldest first."""

    def __init__(self, who: Warpgroup) -> None:
        super().__init__("flush")
        self.who = who
        self.uncommitted: list[Store] = []
        self.committed: list[list[Store]] = []
        self.first = 0
        """Number of the oldest group in the list; earlier groups are written."""
        self.until = 0
        self.reading = True
        self.issued = 0
        """The number of stores."""

    def groups_since(self, number: int) -> int | None:
        """Return how many groups were committed after group `number`; None if it is not
        committed."""
        committed = self.first + len(self.committed)
        return None if number > committed else committed - number

    def text(self) -> str:
        return f"bulk_wait(read={self.reading}): groups up to {self.until}"

    def finished(self) -> int | None:
        """Return the cycle at which the awaited groups were read (or written); None if they are not
        yet."""
        last = self.who.time
        for group in self.committed[: self.until - self.first]:
            for store in group:
                at = store.read_at if self.reading else store.written_at
                if at is None:
                    return None
                last = max(last, at)
        return last

    def stepped(self) -> None:
        who = self.who
        who.sm.progress += 1
        if who.blocked is self and (at := self.finished()) is not None:
            who.wake(at)

    def at_exit(self) -> None:
        """Raise PipelineRace if the lane ends while its stores may still read shared memory or
        write GMEM."""
        groups = *self.committed, self.uncommitted
        left = [store.access for group in groups for store in group]
        if left:
            first, open_ = left[0], ", and not committed" * bool(self.uncommitted)
            raise race_report.race(
                self.who,
                f"the warpgroup ends with {len(left)} TMA store{'s' * (len(left) > 1)} not waited "
                f"for, the first {first.describe()} at {sites.place(first.site)}{open_}; "
                "wait_smem_to_gmem(0) after the last group's commit, before it ends "
                "(bulk_commit and bulk_wait(0, read=False) by the lane that stored)",
                first.site,
                hazard="exit-in-flight",
                before=first,
            )


# ---- operations ----------------------------------------------------------------------------------
def store(
    who: Warpgroup,
    tensor: TensorMap,
    coords: Ints,
    src: int,
    reduction: str = "",
    once: bool = False,
) -> None:
    groups, sm = who.bulk_groups, who.sm
    race_report.one_lane(who, "tma_store")
    box = Box(tensor)
    dtype, shape = tensor.array.dtype, tensor.array.shape
    if reduction and dtype.name not in REDUCTIONS.get(reduction, ()):
        allowed = [name for name, types in REDUCTIONS.items() if dtype.name in types]
        raise race_report.illegal(
            who,
            f"tma_store of {tensor.name} with reduction={reduction!r}",
            fix=f"for {dtype} there are {', '.join(allowed) or 'none'}",
        )
    where, index, touched = _place(who, "tma_store", box, coords, int(src))
    end, wrong, fix = shape[-1] * dtype.itemsize, "", ""
    if min(where) < 0:
        # an H200 reports CUDA_ERROR_ILLEGAL_INSTRUCTION; a load may start before the array
        wrong, fix = (
            ": a store must not start at a negative coordinate",
            "start at 0 and store less",
        )
    elif end % 16 and not tensor.padded and where[-1] + tensor.box[-1] > shape[-1]:
        wrong = f" passes the end of rows of {end} bytes"
        fix = (
            "the TMA writes whole 16-byte chunks, so it overwrites what follows: use rows of a "
            "multiple of 16 bytes, or store the edge with ordinary stores"
        )
    if wrong:
        raise race_report.violation(
            who,
            f"tma_store of {tensor.name} at coordinates {where}{wrong}; {fix}",
            hazard="out-of-bounds",
        )
    group = groups.first + len(groups.committed) + 1
    access = Access(
        who, "TMA store", tensor.name, ((sm.clocks.index(BULK_READ, who.first_warp), group),)
    )
    known = who.known()
    for lo, hi in touched:
        sm.memory.read(access, ("store", who.warpgroup), lo, hi, known, True, last=once)
    sm.gmem.store(access, box, where, known, (sm.clocks.written(who.first_warp), group), reduction)
    groups.issued += 1
    store = Store(access, ("store", who.first_warp, groups.issued))
    groups.uncommitted.append(store)
    started, left, done = _through_port(who, tensor.nbytes, tensor.array, stores=True)
    who.record(
        started,
        done,
        "store",
        port_until=left,
        tensor=tensor.name,
        coords=where,
        **({"reduction": reduction} if reduction else {}),
    )

    def read(_: int) -> None:
        chunks = sm.memory.chunks[index].copy()
        store.read_at = left
        sm.scheduler.touch((*store.thing, "read"), ARRIVE)
        groups.stepped()

        def write(_: int) -> None:
            box.put(where, chunks, reduction)
            store.written_at = done
            sm.scheduler.touch((*store.thing, "written"), ARRIVE)
            groups.stepped()

        sm.scheduler.push(done, write, "write")

    sm.scheduler.push(left, read, "read")
    who.breathe()


def commit(who: Warpgroup) -> None:
    who.elapse_issue()
    groups = who.bulk_groups
    groups.committed.append(groups.uncommitted)
    groups.uncommitted = []


def wait(who: Warpgroup, pending: int, *, read: bool) -> None:
    groups, pending = who.bulk_groups, int(pending)
    groups.until = max(groups.first, groups.first + len(groups.committed) - pending)
    groups.reading = read
    who.breathe(lambda: groups.finished() is not None)
    for group in groups.committed[: groups.until - groups.first]:
        for store in group:
            who.scheduler.touch((*store.thing, "read" if read else "written"), AWAIT)
    at = groups.finished()
    if at is None:
        who.block(groups, pending=pending)
    else:
        who.time = at
    who.elapse_wait()
    # only the lane that stored learns this; warps 1 to 3 learn it through a barrier
    lane, clocks = who.vectors[0], who.clocks
    for counter in (
        clocks.index(BULK_READ, who.first_warp),
        *[clocks.written(who.first_warp)][: not read],
    ):
        lane[counter] = max(int(lane[counter]), groups.until)
    if not read:
        del groups.committed[: groups.until - groups.first]
        groups.first = groups.until
