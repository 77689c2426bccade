"""TMA copies in flight: loads that complete on mbarriers, stores in the bulk groups of a lane.

A load may write its bytes at any moment until its mbarrier's phase completes; a store may read them at any moment until
``bulk_wait(read=True)`` covers its group, and reaches GMEM later still. PTX ISA, "Data Movement and Conversion Instructions:
Bulk copy", "Tensor copy".

Where they meet with other accesses to an array is looked after by `gmem`.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..core.machine import TensorMap
from . import barriers, cluster, mbarrier, report, sites, tma
from .clocks import BULK_READ
from .schedule import Task
from .state import SM, Access, Blocked, Mbarrier, Warpgroup


def load(who: Warpgroup, dst: int, tensor: TensorMap, coords: tuple[int, ...], address: int, ctas: int = 0) -> None:
    """A load, to the CTAs of the cluster whose ranks are bits of `ctas`; 0: to the warpgroup's own."""
    operation = "tma_multicast" if ctas else "tma_load"
    report.one_lane(who, operation)
    sm = who.sm
    box = tma.checked(who, tensor)
    where, index, touched = tma.place(who, operation, box, coords, dst)
    nbytes, known = box.nbytes, who.known()
    landings: list[tuple[SM, Mbarrier, Access]] = []
    for to in cluster.members(who, ctas) if ctas else (sm,):
        mbar = barriers.find(who, address, operation, asynchronous=True, of=to)
        access = Access(who, "TMA load", tensor.name, ((mbar.landed, mbar.phase + 1),), None, mbar, mbar.phase)
        access.box, access.where = box, where
        if not landings:
            sm.gmem.load(access, box, where, known)
        cluster.reach(to, who, f"{operation} of {tensor.name}", (), access.site)
        for lo, hi in touched:
            to.memory.write(access, lo, hi, known, True)
        mbar.copies += 1
        mbar.last = access
        landings.append((to, mbar, access))
    who.elapse(sm.costs.tma_issue)
    started, left = sm.copy_port(who.time, nbytes)
    done = left + sm.scheduler.takes(sm.costs.tma_latency)
    if sm.trace is not None:
        sm.trace.add(who, who.time - sm.costs.tma_issue, who.time, "issue", tensor=tensor.name, coords=where)
        sm.trace.add(who, started, done, "load", port_until=left, tensor=tensor.name, coords=where, mbar=mbar.name,
                     step=None if who.note_ is None else who.note_[1].get("step"))

    def landing(to: SM, mbar: Mbarrier, access: Access) -> Task:
        told = None if to is sm else who.vectors[0].copy()  # its end says that all before its issue was over

        def land(_: int) -> None:
            if told is not None:
                cluster.reach(to, who, f"{operation} of {tensor.name}", (), access.site)
                mbarrier.learn(mbar, told)
            to.memory.chunks[index] = box.fetch(where)
            mbarrier.land(mbar, access, nbytes, done)

        return land

    for landed in landings:
        sm.scheduler.push(done, landing(*landed), "load")
    who.breathe()


@dataclass(eq=False)
class Store:
    """A TMA store that nobody has waited for to its end."""

    access: Access
    read_at: int | None = None
    written_at: int | None = None


class Groups(Blocked):
    """The bulk groups of a warpgroup's elected lane, oldest first."""

    def __init__(self, who: Warpgroup) -> None:
        super().__init__("flush")
        self.who = who
        self._open: list[Store] = []
        self._groups: list[list[Store]] = []
        self._first = 0
        """number of the oldest group in the list; those before are written"""
        self._until = 0
        self._reading = True

    def store(self, tensor: TensorMap, coords: tuple[int, ...], src: int, reduction: str, once: bool = False) -> None:
        who, sm = self.who, self.who.sm
        report.one_lane(who, "tma_store")
        box = tma.checked(who, tensor)
        if reduction:
            tma.reducible(who, box, reduction)
        where, index, touched = tma.place(who, "tma_store", box, coords, src)
        if min(where) < 0:  # an H200 answers with CUDA_ERROR_ILLEGAL_INSTRUCTION; a load may start before the array
            raise report.violation(who, f"tma_store of {tensor.name} at coordinates {where}: a store starts at no negative one; "
                                   "start at 0 and store less", hazard="out-of-bounds")
        tma.whole_chunks(who, box, where)
        group = self._first + len(self._groups) + 1
        access = Access(who, "TMA store", tensor.name, ((sm.clocks.index(BULK_READ, who.first_warp), group),))
        known = who.known()
        for lo, hi in touched:
            sm.memory.read(access, ("store", who.warpgroup), lo, hi, known, True, last=once)
        sm.gmem.store(access, box, where, known, (sm.clocks.written(who.first_warp), group), reduction)
        store = Store(access)
        self._open.append(store)
        who.elapse(sm.costs.tma_issue)
        started, left = sm.copy_port(who.time, box.nbytes)
        done = left + sm.scheduler.takes(sm.costs.tma_latency)
        if sm.trace is not None:
            sm.trace.add(who, started, done, "store", port_until=left, tensor=tensor.name, coords=where,
                         **({"reduction": reduction} if reduction else {}))

        def read(_: int) -> None:
            chunks = sm.memory.chunks[index].copy()
            store.read_at = left
            self._wake()

            def write(_: int) -> None:
                box.put(where, chunks, reduction)
                store.written_at = done
                self._wake()

            sm.scheduler.push(done, write, "write")

        sm.scheduler.push(left, read, "read")
        who.breathe()

    def commit(self) -> None:
        self.who.elapse(self.who.sm.costs.issue)
        self._groups.append(self._open)
        self._open = []

    def groups_since(self, number: int) -> int | None:
        """Groups committed behind group `number`; None: that one is not committed."""
        committed = self._first + len(self._groups)
        return None if number > committed else committed - number

    def text(self) -> str:
        return f"bulk_wait(read={self._reading}): groups up to {self._until}"

    def _finished(self) -> int | None:
        """Cycle at which the groups waited for were read (or written), None if they are not."""
        last = self.who.time
        for group in self._groups[:self._until - self._first]:
            for store in group:
                at = store.read_at if self._reading else store.written_at
                if at is None:
                    return None
                last = max(last, at)
        return last

    def _wake(self) -> None:
        who = self.who
        who.sm.progress += 1
        if who.blocked is self:
            at = self._finished()
            if at is not None:
                who.wake(at)

    def wait(self, pending: int, read: bool) -> None:
        who = self.who
        if who.lanes == "warps":
            raise report.violation(who, "bulk_wait with lanes='warps': bulk groups belong to the elected lane; call "
                                        "it under one_lane", hazard="divergent-aligned")
        if pending < 0:
            raise report.illegal(who, f"bulk_wait({pending}): the number of groups that may stay unfinished is 0 or more; wait "
                                 "with one of these")
        who.breathe()
        self._until = max(self._first, self._first + len(self._groups) - pending)
        self._reading = read
        at = self._finished()
        if at is None:
            who.block(self, pending=pending)
        else:
            who.time = at
        who.elapse(who.sm.costs.wait)
        # only the lane that stored learns it: warps 1 to 3 hear of it through a barrier
        lane, clocks = who.vectors[0], who.sm.clocks
        for counter in (clocks.index(BULK_READ, who.first_warp), *[clocks.written(who.first_warp)][:not read]):
            lane[counter] = max(int(lane[counter]), self._until)
        if not read:
            del self._groups[:self._until - self._first]
            self._first = self._until

    def at_exit(self) -> None:
        """PipelineRace if the lane ends while its stores may still read shared memory or write GMEM."""
        left = [store for group in self._groups for store in group] + self._open
        if left:
            raise report.race(self.who, f"the warpgroup ends with {len(left)} TMA store{'s' * (len(left) > 1)} not "
                                        "waited for, the first "
                              f"{left[0].access.describe()} at {sites.place(left[0].access.site)}"
                              + (", and not committed" if self._open else "")
                              + "; wait_smem_to_gmem(0) behind the last group's commit, before it ends (bulk_commit and "
                                "bulk_wait(0, read=False) by the lane that stored)", left[0].access.site,
                              hazard="exit-in-flight", before=left[0].access)
