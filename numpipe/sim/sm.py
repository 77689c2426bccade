"""The simulated SM: one CTA's memory, barriers, copy port, tensor core and warpgroups, and the loop that runs them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np
from greenlet import GreenletExit

from ..core import machine
from ..diagnostics.errors import NumpipeError
from . import barriers, cluster, deadlock, named, state
from .memory import SharedMemory
from .port import Warpgroup

Body = Callable[[machine.Machine], None]


class SM(state.SM):
    """A CTA that runs `body`: what it holds, and the warpgroups that run it."""

    def __init__(self, body: Body, *, warpgroups: int, smem_bytes: int, registers: int, **common: Any) -> None:
        super().__init__(warpgroups=warpgroups, **common)
        self.body = body
        self.meeting = cluster.ClusterMeeting(self)
        self.memory = SharedMemory(self, smem_bytes)
        self.warpgroups += [Warpgroup(self, i, self.run_body) for i in range(warpgroups)]
        self.registers = named.Registers(self, registers)

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


def run(peers: list[state.SM]) -> None:
    """Run the CTAs of a cluster to their ends; raises what a warpgroup raised, a race, a deadlock or another SimulationError."""
    scheduler = peers[0].scheduler
    try:
        for sm in peers:
            for warpgroup in sm.warpgroups:
                warpgroup.greenlet.gr_context = sm.context.copy()
                warpgroup.wake(0)
        while (task := scheduler.pop()) is not None:
            task[1](task[0])
        if not all(w.over for sm in peers for w in sm.warpgroups):
            raise deadlock.deadlock(next(sm for sm in peers if not all(w.over for w in sm.warpgroups)))
        for sm in peers:
            barriers.unfinished(sm)
            named.unfinished(sm)
    finally:  # warpgroups that are left end: their ``finally`` clauses run, but cannot wait any more
        for sm in peers:
            sm.closing = True
            for warpgroup in sm.warpgroups:
                if not warpgroup.greenlet.dead:
                    with contextlib.suppress(Exception):  # the first error is the one that counts
                        warpgroup.greenlet.throw(GreenletExit)
