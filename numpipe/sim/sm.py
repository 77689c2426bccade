"""The simulated SM: one CTA's memory, barriers, copy port, tensor core and warpgroups, and the loop that runs them."""

from __future__ import annotations

import contextvars
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from greenlet import GreenletExit, getcurrent

from ..core import machine
from ..diagnostics.errors import NumpipeError
from . import barriers, cluster, handover, named, report
from .clocks import Clocks
from .memory import SharedMemory
from .port import Warpgroup
from .schedule import Costs, Scheduler

if TYPE_CHECKING:
    from ..diagnostics.deadlocks import Hint
    from ..traces import Trace
    from .deal import Deal
    from .gmem import GlobalMemory
    from .handover import Handed
    from .mbarrier import Mbarrier
    from .mma import Plan
    from .tma import Box

Body = Callable[[machine.Machine], None]


class SM:
    """One CTA on its SM. Nothing outlives it but GMEM, what `gmem` knows of it, and `plans` and `boxes`, derived geometry.

    `peers` are the SMs of its cluster, by rank, itself among them; they have the scheduler and the clocks in common.
    """

    poll_limit = 10_000
    """failed tests in a row, with nothing else happening, that count as a deadlock"""

    def __init__(self, body: Body, *, cta: tuple[int, int, int], grid: tuple[int, int, int], warpgroups: int,
                 smem_bytes: int, registers: int, unit: Any, scheduler: Scheduler, clocks: Clocks, peers: list[SM], costs: Costs,
                 trace: Trace | None, context: contextvars.Context, boxes: dict[machine.TensorMap, Box], plans: dict[Any, Plan],
                 gmem: GlobalMemory, deal: Deal) -> None:
        self.body = body
        self.context = context
        self.cta = cta
        self.grid = grid
        self.unit = unit
        self.scheduler = scheduler
        self.costs = costs
        self.trace = trace
        self.boxes = boxes
        self.plans = plans
        self.gmem = gmem
        self.deal = deal
        self.hub = getcurrent()
        self.closing = False
        self.progress = 0
        """counts everything that can end somebody's wait"""
        self.polls = 0
        self.polled_at = -1
        self.clocks = clocks
        self.wide = warpgroups
        self.rank, self.peers = len(peers), peers
        peers.append(self)
        self.ended = False
        self.reached: dict[int, tuple[int, Warpgroup, str, report.Site]] = {}
        """what warps of other CTAs did last in its memory, by their counters (`cluster.reach`)"""
        self.agreed: dict[tuple[Any, ...], cluster.Agreed] = {}
        """of the cluster's first CTA"""
        self.meeting = cluster.Meeting(self)
        """of the cluster's first CTA: the use of its barrier that has not come to its end"""
        self.memory = SharedMemory(self, smem_bytes)
        self.mbarriers: dict[int, Mbarrier] = {}
        self.retired: list[Mbarrier] = []
        self.named: dict[int, named.Generation] = {}
        """uses of named barriers that have begun"""
        self.named_over: dict[int, named.Generation] = {}
        """the newest use of each that is over"""
        self.acquired: dict[int, Handed] = {}
        """what flags of other CTAs said, by the counter that stands for having seen them"""
        self._copy_port_free = 0
        self._tensor_core_free = 0
        self.warpgroups: list[Warpgroup] = []
        self.warpgroups += [Warpgroup(self, i) for i in range(warpgroups)]
        self.registers = named.Registers(self, registers)

    # ---- shared units
    def copy_port(self, time: int, nbytes: int) -> tuple[int, int]:
        """(start, end) of a copy asked for at `time`."""
        start = max(time, self._copy_port_free)
        self._copy_port_free = start + -(-nbytes // self.costs.tma_bytes)
        return start, self._copy_port_free

    def tensor_core(self, time: int, cycles: int) -> tuple[int, int]:
        """(start, end) of a batch that may start at `time`."""
        start = max(time, self._tensor_core_free)
        self._tensor_core_free = start + cycles
        return start, self._tensor_core_free

    # ---- vectors
    def add_mbarrier_counter(self) -> int:
        """A counter for a new mbarrier, or for a flag that has been seen; every vector has room for it afterwards."""
        width = self.clocks.width
        index = self.clocks.add_landed()
        if self.clocks.width != width:
            for sm in self.peers:
                sm.widen()
        return index

    def widen(self) -> None:
        for warpgroup in self.warpgroups:
            warpgroup.widen()
        for meeting in (self.meeting, *(warpgroup.met for warpgroup in self.warpgroups)):
            if meeting is not None and len(meeting.vector) < self.clocks.width:
                meeting.vector = self.clocks.widen(meeting.vector)
        for mbar in self.mbarriers.values():
            mbar.current, mbar.done = self.clocks.widen(mbar.current), self.clocks.widen(mbar.done)
        for generation in self.generations():
            generation.vector = self.clocks.widen(generation.vector)

    def generations(self) -> set[named.Generation]:
        """Uses of named barriers that somebody still has to acquire."""
        blocked = {w.blocked for w in self.warpgroups if isinstance(w.blocked, named.Generation)}
        return blocked | set(self.named.values())

    def hints(self) -> list[Hint]:
        """What a deadlock's report says beside the mbarriers."""
        return [*named.hints(self), *self.registers.hints(), *handover.hints(self)]

    # ---- running
    def start(self) -> None:
        for warpgroup in self.warpgroups:
            warpgroup.greenlet.gr_context = self.context.copy()
            warpgroup.wake(0)

    def run_body(self, warpgroup: Warpgroup) -> None:
        """The bottom frame of a warpgroup's greenlet."""
        machine.enter(warpgroup)
        try:
            with np.errstate(over="raise"):  # NumPy integers wrap silently only on the GPU
                self.body(warpgroup)
            warpgroup.products.at_exit()
            warpgroup.bulk.at_exit()
        except NumpipeError:
            raise
        except Exception as error:
            if hasattr(error, "add_note"):  # Python 3.11
                error.add_note(f"raised in {warpgroup.title} of a simulated kernel")
            raise
        self.progress += 1
        if self.trace is not None:
            self.trace.add(warpgroup, warpgroup.time, warpgroup.time, "end")
        warpgroup.over = True
        if len(self.peers) > 1:
            self.peers[0].meeting.settle()
            if all(w.over for w in self.warpgroups):
                cluster.check_reached(self)

    def close(self) -> None:
        """End the warpgroups that are left; their ``finally`` clauses run, but cannot wait any more."""
        self.closing = True
        for warpgroup in self.warpgroups:
            if not warpgroup.greenlet.dead:
                try:
                    warpgroup.greenlet.throw(GreenletExit)
                except Exception:  # the first error is the one that counts
                    continue


def run(peers: list[SM]) -> None:
    """Run the CTAs of a cluster to their ends; raises what a warpgroup raised, a race, a deadlock or another SimulationError."""
    scheduler = peers[0].scheduler
    try:
        for sm in peers:
            sm.start()
        while (task := scheduler.pop()) is not None:
            task[1](task[0])
        if not all(w.over for sm in peers for w in sm.warpgroups):
            raise report.deadlock(next(sm for sm in peers if not all(w.over for w in sm.warpgroups)))
        for sm in peers:
            barriers.unfinished(sm)
            named.unfinished(sm)
    finally:
        for sm in peers:
            sm.close()
