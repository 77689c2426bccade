"""Kernels built with ``CompilerParams(debug=True)``: on the host, who waited in vain becomes a PipelineDeadlock.

A kernel's control block is filled when it is first loaded (`arm`). Every launch begins with `check`, and every call on host arrays
ends with it; it looks at one word of pinned memory. What it finds it reports once: the block is cleared, and the process goes on.
"""

from __future__ import annotations

import ctypes
import dataclasses
import os
import re
import threading
import time
from typing import Any

from ..core.undisturbed import in_child
from ..diagnostics.errors import PipelineDeadlock, SpecError, at
from ..diagnostics.reports import Barrier, Line, Party, Report
from ..plan import watch
from ..traces.deadlocks import blocked_on, deadlock
from ..traces.protocol import BARRIERS
from . import driver
from .faults import forked
from .image import Image, Mbarrier

__all__ = ["last_failure"]

TIMEOUT = "NUMPIPE_DEBUG_TIMEOUT"
_BYTES = watch.CAPACITY * watch.RECORD_BYTES
_PATIENCE = 8.0
"""seconds in which a kernel whose waits fall through should have ended"""


def limit() -> float:
    """Seconds that a wait may take."""
    given = os.environ.get(TIMEOUT, "2")
    try:
        seconds = float(given)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e6:
        raise SpecError(f"{TIMEOUT}={given!r}: it must be a number of seconds, e.g. 2")
    return seconds


@dataclasses.dataclass(eq=False)
class Watched:
    """A kernel in the driver with a control block on each GPU that it runs on."""

    compiled: Any
    number: int
    blocks: dict[int, int] = dataclasses.field(default_factory=dict)
    """device -> address of the control block there"""
    events: dict[int, Any] = dataclasses.field(default_factory=dict)
    """device -> behind its newest launch there"""


class Watch:
    """The process's records, and the kernels that may write them."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.kernels: list[Watched] = []
        self.memory: Any = None
        self.records = 0
        self.lost = False
        """in a child that was forked from a process with a GPU: what there is here is the parent's"""

    def forget(self) -> None:
        """In a forked child: nothing of the parent's GPU can be used, and every launch, which begins with `check`, says so."""
        self.lock, self.memory = threading.RLock(), None
        self.lost = self.lost or driver.abandoned()
        self.kernels[:] = [Watched(None, 0)] * self.lost

    def arm(self, compiled: Image, kernel: Any, device: int) -> None:
        """Fill the control block of a kernel that was just loaded on a device, whose context is current."""
        with self.lock:
            cuda = driver.get()
            if self.memory is None:
                address, self.records = cuda.pinned(_BYTES)
                self.memory = (ctypes.c_char * _BYTES).from_address(address)
                ctypes.memset(address, 0, _BYTES)
            watched = next((w for w in self.kernels if w.compiled is compiled), None)
            if watched is None:
                watched = Watched(compiled, len(self.kernels))
                self.kernels.append(watched)
            watched.blocks[device] = cuda.symbol(kernel, watch.SYMBOL)
            self._clear(watched, device)

    def launched(self, compiled: Image, _grid: tuple[int, int, int], stream: int, device: int) -> None:
        """A kernel was queued: remember where, to know when it has ended."""
        with self.lock:
            watched = next(w for w in self.kernels if w.compiled is compiled)
            watched.events[device] = driver.get().mark(watched.events.get(device), stream, device)

    def events(self) -> list[tuple[Any, int]]:
        return [(event, device) for watched in self.kernels for device, event in watched.events.items()]

    def _clear(self, watched: Watched, device: int) -> None:
        block = watch.control(self.records, int(1e9 * limit()), watched.number)
        driver.get().poke(watched.blocks[device], block, device)

    def found(self) -> list[watch.Record]:
        """Records of kernels that were given up; any is reason enough to wait for all of them."""
        if self.memory is None or self.memory[0] == b"\0":
            return []
        return watch.records(bytes(self.memory))

    def check(self) -> None:
        """PipelineDeadlock if a kernel gave up a wait; the next call finds nothing."""
        if self.lost:
            raise forked("cuLaunchKernelEx")
        if not self.found():
            return
        with self.lock:
            records = self.found()
            if not records:
                return
            ended = self._wait_for_the_end()
            records = self.found()
            ctypes.memset(self.memory, 0, _BYTES)
            if ended:
                for watched in self.kernels:
                    for device in watched.blocks:
                        self._clear(watched, device)
            watched = self.kernels[records[0].kernel]
            mine = [record for record in records if record.kernel == watched.number]
            raise failure(watched.compiled, mine, ended)

    def _wait_for_the_end(self) -> bool:
        """Let the kernel end, its waits fall through; whether it did."""
        begin = time.monotonic()
        while time.monotonic() - begin < _PATIENCE:
            if all(driver.get().reached(event, device) for event, device in self.events()):
                return True
            time.sleep(0.01)
        return False


WATCH = Watch()
in_child(WATCH.forget)


def last_failure() -> None:
    """Wait for the kernels that were built with ``CompilerParams(debug=True)``; PipelineDeadlock if one of them gave up a wait.

    The report says what that of the simulator says: which warpgroup waited for which barrier, phase and step, and what the barriers
    lacked. It is raised once, by this or by the next call of a kernel, whichever comes first. Without such a kernel, or a failure,
    nothing happens. LaunchError where a kernel failed in another way.

    >>> numpipe.last_failure()
    """
    if WATCH.lost:
        return
    for event, device in WATCH.events():
        driver.get().await_mark(event, device)
    WATCH.check()


# ---- what the records say -----------------------------------------------------------------------------------------------
def failure(compiled: Image, records: list[watch.Record], ended: bool) -> PipelineDeadlock:
    """The error for a kernel that gave up."""
    report = told(compiled, records, ended)
    line = next((line for party in report.waiting for line in party.lines), None)
    error = PipelineDeadlock(report.text if line is None else at(line.filename, line.line, report.text))
    error.report = dataclasses.replace(report, text=str(error))
    return error


def told(compiled: Image, records: list[watch.Record], ended: bool = True) -> Report:
    """The report of the first CTA that has most to say: a party for each of its warpgroups that waited."""
    by_cta: dict[tuple[int, int, int], dict[int, watch.Record]] = {}
    for record in sorted(records, key=lambda r: r.warp):
        by_cta.setdefault(record.cta, {}).setdefault(record.warpgroup, record)
    cta = min(by_cta, key=lambda found: (-len(by_cta[found]), found[::-1]))
    known = {barrier.address: barrier for barrier in compiled.barriers}
    waiting: list[Party] = []
    barriers: dict[int, Barrier] = {}
    for warpgroup in range(compiled.warpgroups):
        role = compiled.role(warpgroup)
        if warpgroup not in by_cta[cta]:
            waiting.append(Party("not in a wait for an mbarrier", warpgroup, role, cta))
            continue
        record = by_cta[cta][warpgroup]
        of = known.get(record.address) or Mbarrier(record.address, 0, f"mbarrier at {record.address}", "", None, None, 0)
        # the step whose tiles the phase brings or frees: each use of a slot is a phase
        step = None if of.slot is None else record.phase * of.slots + of.slot
        wanted = step if step is None else step - BARRIERS[of.kind].ahead * of.slots
        waiting.append(Party(blocked_on(of.name, record.phase, wanted), warpgroup, role, cta, lines_of(compiled.name, of.name),
                             of.ring, of.slot, wanted, of.name, record.phase))
        before = barriers.get(record.address)
        asked = [r for r in records if (r.cta, r.address) == (cta, record.address) and r.state]
        pending, missing = _lacks(asked, record.phase) if asked else (0, 0)
        barriers[record.address] = Barrier(
            of.name, record.phase, pending, of.arrivals or pending, missing, kind=of.kind, ring=of.ring, slot=of.slot, step=step,
            waiters=(*(before.waiters if before else ()), warpgroup), known=bool(asked))
    others = len(by_cta) - 1
    where = (f"kernel {compiled.name}, CTA {cta}" + (f" and {others} more" if others else "")
             + f": waits for mbarriers took more than {limit():g} s ({TIMEOUT}) and were given up; what the kernel has computed is "
             "wrong" + ("" if ended else "; it has not ended since: restart the process"))
    return deadlock(where, waiting, list(barriers.values()), kernel=compiled.name)


def _lacks(records: list[watch.Record], phase: int) -> tuple[int, int]:
    """(arrivals, bytes) that a phase missed: each record arrived itself, so the first of them saw most."""
    before = [record for record in records if record.parity == phase & 1]
    first = max(before or records, key=lambda record: record.pending)
    return first.pending, first.missing_bytes


def lines_of(kernel: str, name: str) -> tuple[Line, ...]:
    """The line of the pipeline or allocation that a barrier's name ends in."""
    found = re.search(r" @ (.+?):(\d+)(?: \(\d+\))?(?:, .*)?$", name)
    return () if found is None else (Line(found[1], int(found[2]), kernel),)
