"""Errors of kernels built with ``CompilerParams(debug=True)``: waits that timed out, and indices
and parts outside arrays and tiles.

`arm` fills a kernel's control block when the kernel is first loaded. Every launch begins with
`check`, and every call on host arrays ends with it. `check` reads one word of pinned memory; if a
kernel has reported something, it raises the error and clears the block, and the process can
continue.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import os
import re
import threading
import time
from typing import Any

from ..arch.dimensions import Dim3
from ..core.process_guards import in_child
from ..diagnostics import nan_report
from ..diagnostics.errors import PipelineDeadlock, SimulationError, SpecError, at, reported
from ..diagnostics.reports import Barrier, Line, Party, Report
from ..plan import wait_records
from ..plan.image import Image, Mbarrier
from ..plan.protocol import BARRIERS
from ..traces.deadlocks import Hint, blocked_on, deadlock
from . import driver
from .buffers import clear_flags
from .driver_errors import forked

__all__ = ["last_failure"]

TIMEOUT = "NUMPIPE_DEBUG_TIMEOUT"
_BYTES = wait_records.CAPACITY * wait_records.RECORD_BYTES
_PATIENCE = 8.0
"""seconds within which a kernel whose waits timed out should end"""


def seconds(variable: str, default: float) -> float:
    """Return a number of seconds set by an environment variable."""
    text = os.environ.get(variable, f"{default:g}")
    with contextlib.suppress(ValueError):
        if 0 < float(text) < 1e6:
            return float(text)
    raise SpecError(
        f"{variable}={text!r}: expected a number of seconds, e.g. {variable}={default:g}"
    )


def limit() -> float:
    """Return the time limit of a wait, in seconds."""
    return seconds(TIMEOUT, 2)


@dataclasses.dataclass(eq=False)
class Watched:
    """A kernel on one GPU."""

    compiled: Image | None
    device: int
    number: int
    """number of the kernel on this GPU, as used in its records"""
    block: int
    """address of the control block"""
    event: Any = None
    """event after the latest launch"""
    passed: bytes | None = None
    """when a wait last passed (`wait_records.PASSED`), at the end of the latest launch on host
    arrays"""


STUCK = 10
"""number of time limits without any progress after which the host reports that a kernel hangs where
no wait times out"""


class Watch:
    """The records of this process, and the kernels that may write them."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.kernels: list[Watched] = []
        self.memory: Any = None
        self.records = 0
        self.lost = False
        """whether this process was forked from one that had used a GPU, to which these kernels
        belong"""

    def forget(self) -> None:
        """In a forked child, which cannot use the parent's GPU, make every launch raise an error in
        `check`."""
        self.lock, self.memory = threading.RLock(), None
        self.lost = self.lost or driver.abandoned()
        self.kernels[:] = [Watched(None, 0, 0, 0)] * self.lost

    def arm(self, compiled: Image, kernel: Any, device: int) -> None:
        """Fill the control block of a kernel that was just loaded on a device, whose context is
        current."""
        with self.lock:
            cuda = driver.get()
            if self.memory is None:
                address, self.records = cuda.pinned(_BYTES)
                self.memory = (ctypes.c_char * _BYTES).from_address(address)
                ctypes.memset(address, 0, _BYTES)
            block = cuda.symbol(kernel, wait_records.SYMBOL)
            self.kernels.append(Watched(compiled, device, len(self.kernels), block))
            self._clear(self.kernels[-1])

    def of(self, compiled: Image, device: int) -> Watched:
        """Return the entry of a kernel that was loaded on a device: the newest, if there are
        several."""
        newest = reversed(self.kernels)
        return next(w for w in newest if w.compiled is compiled and w.device == device)

    def launched(self, compiled: Image, _grid: Dim3, stream: int, device: int) -> None:
        """Record an event after a kernel that was queued on a device, whose context is current."""
        with self.lock:
            watched = self.of(compiled, device)
            watched.event = driver.get().mark(watched.event, stream)

    def _clear(self, watched: Watched) -> None:
        block = wait_records.control(self.records, int(1e9 * limit()), watched.number)
        driver.get().poke(watched.block, block, watched.device)

    def records_now(self) -> list[wait_records.Record]:
        """Return the records of timed-out waits written so far; `check` waits until they are
        complete."""
        if self.memory is None or self.memory[0] == b"\0":
            return []
        return wait_records.records(bytes(self.memory))

    def check(self) -> None:
        """Raise the error of a kernel in which a wait timed out or an index was out of bounds. It
        is raised only once."""
        if self.lost:
            raise forked("cuLaunchKernelEx")
        if not self.records_now():
            return
        with self.lock:
            if not self.records_now():
                return
            ended = self._wait_for_the_end()
            records = self.records_now()
            ctypes.memset(self.memory, 0, _BYTES)
            if ended:
                for watched in self.kernels:
                    self._clear(watched)
                    clear_flags(watched.device)
            watched = self.kernels[records[0].kernel]
            assert watched.compiled is not None
            raise failure(
                watched.compiled,
                [record for record in records if record.kernel == watched.number],
                ended,
            )

    def await_end(self, compiled: Image, device: int) -> None:
        """Wait for the latest launch of a kernel on host arrays. Raises PipelineDeadlock if waits
        in it timed out, or if no wait in it passes or times out any more.

        In the latter case the kernel hangs in a wait for a named barrier or for registers, or in a
        loop without waits. These never time out.
        """
        watched = self.of(compiled, device)
        event, old, at = watched.event, watched.passed, watched.block + wait_records.PASSED
        last, since, pause = b"", time.monotonic(), 1e-4
        while event is not None and not driver.get().reached(event, device):
            time.sleep(pause)
            pause = min(2 * pause, 0.2)
            if pause < 0.2:
                continue
            if any(
                record.kernel == watched.number
                and record.kind in (wait_records.MBARRIER, wait_records.FLAG)
                for record in self.records_now()
            ):
                self.check()  # after a time-out the kernel ends now or never
            passed = driver.get().peek(at, 8, device)
            if passed != last or passed == old:  # it makes progress, or has not begun
                last, since = passed, time.monotonic()
            elif time.monotonic() - since > STUCK * limit():
                raise unending(compiled, time.monotonic() - since)
        watched.passed = driver.get().peek(at, 8, device)

    def _wait_for_the_end(self) -> bool:
        """Wait for the kernels, whose waits no longer block. Return whether they ended."""
        begin = time.monotonic()
        while time.monotonic() - begin < _PATIENCE:
            reached = driver.get().reached
            if all(w.event is None or reached(w.event, w.device) for w in self.kernels):
                return True
            time.sleep(0.01)
        return False


WATCH = Watch()
in_child(WATCH.forget)


def last_failure() -> None:
    """Wait for the kernels that were built with ``CompilerParams(debug=True)``, and raise the error
    of one that failed: PipelineDeadlock if a wait timed out, and SimulationError (`out-of-bounds`)
    if an index was outside its array, or outside a tile, slots or barriers.

    The report is like the simulator's: which warpgroup waited for which barrier, phase and step,
    and what the barriers lacked. The error is raised once, by this function or by the next call of
    a kernel. If there is no such kernel or no failure, nothing happens. Raises LaunchError if a
    kernel failed in another way.

    >>> numpipe.last_failure()
    """
    if WATCH.lost:
        return
    for watched in WATCH.kernels:
        if watched.event is not None:
            with driver.get().on(watched.device):
                driver.get().await_mark(watched.event)
    WATCH.check()


# ---- the report ----------------------------------------------------------------------------------
def failure(compiled: Image, records: list[wait_records.Record], ended: bool) -> SimulationError:
    """Return the error for a kernel in which a wait timed out or an index was outside its array."""
    for record in records:
        if record.kind in (wait_records.OUTSIDE, wait_records.SHARED):
            return outside(compiled, record, sum(other.kind == record.kind for other in records))
        if record.kind == wait_records.NAN:
            return nan_stored(
                compiled,
                [
                    other
                    for other in records
                    if (other.kind, other.address) == (wait_records.NAN, record.address)
                ],
            )
    return reported(PipelineDeadlock, report_of(compiled, records, ended))


def unending(compiled: Image, seconds: float) -> PipelineDeadlock:
    """Return the error for a kernel that makes no progress and whose waits do not time out."""
    names = [
        place
        for place in compiled.places
        if place.startswith((wait_records.REGISTERS, wait_records.MEETING))
    ]
    name = names[0] if names else None
    where = (
        f"it waits for {' or '.join(names)}, or"
        if name
        else "it waits for other warpgroups at a named barrier, or"
    )
    text = (
        f"kernel {compiled.name}: it has not ended, and for {seconds:.0f} s none of its waits for "
        f"barriers has passed or timed out ({STUCK} times {TIMEOUT}): {where} is in a loop "
        "without waits; such a kernel never ends: restart the process, and debug it with "
        "target='sim'"
    )
    line = next(iter(lines_of(compiled.name, name)), None) if name else None
    error = PipelineDeadlock(text if line is None else at(line.filename, line.line, text))
    registers = name is not None and name.startswith(wait_records.REGISTERS)
    fix = (
        "let another warpgroup give back registers first, on every path; make loops end"
        if registers
        else (
            "let all warpgroups that meet there use the same turns and barriers, equally often; "
            "make loops end"
        )
    )
    error.report = Report(
        "register-budget" if registers else "named-barrier-mismatch" if name else "livelock",
        str(error),
        fix=fix,
        kernel=compiled.name,
    )
    return error


def outside(compiled: Image, record: wait_records.Record, count: int) -> SimulationError:
    """Return the error for an index outside its array, or a place outside shared memory, which is
    the first of `count` reported ones."""
    place = compiled.places[record.address]
    size = record.state & 0xFFFFFFFF
    axis = record.state >> 32
    if record.kind == wait_records.SHARED:
        allowed, fix = f"0…{size}", f"use one in 0…{size}"
    else:
        place, allowed = f"{place}: index", f"the array's {size}"
        fix = (
            f'use indices in 0…{size - 1}, or mode="zero" or mode="clip" if this is intended '
            "(BlockSpec, numpipe.index)"
        )
    party = Party(
        f"index {record.phase}",
        record.warpgroup,
        compiled.parts[compiled.part(record.warp)],
        record.cta,
    )
    text = (
        f"kernel {compiled.name}, {party.name} of CTA {record.cta}: {place} {record.phase} along "
        f"dimension {axis} is outside {allowed}"
        + (f", and {count - 1} more" if count > 1 else "")
        + f"; the results of the kernel are wrong: {fix}"
    )
    return reported(
        SimulationError, Report("out-of-bounds", text, party, fix=fix, kernel=compiled.name)
    )


def nan_stored(compiled: Image, records: list[wait_records.Record]) -> SimulationError:
    """Return the error for NaNs that a kernel stored at a line; it names the first element of the
    first CTA that stored one."""
    places = {
        (
            record.cta[::-1],
            record.warpgroup,
            (record.phase, record.state & 0xFFFFFFFF)[: record.state >> 32],
        ): record
        for record in records
    }
    (_, _, place), record = min(places.items(), key=lambda item: item[0])
    name = compiled.places[record.address]
    target = name.partition(" @ ")[0]
    party = Party(
        f"stores to {target}",
        record.warpgroup,
        compiled.parts[compiled.part(record.warp)],
        record.cta,
        lines_of(compiled.name, name),
    )
    who = f", in warpgroup {record.warpgroup} of CTA {record.cta}"
    text = f"kernel {compiled.name}: {nan_report.said(target, place, len(places), who)}"
    return reported(
        SimulationError,
        Report("nan-stored", text, party, fix=nan_report.FIX, kernel=compiled.name),
    )


def report_of(compiled: Image, records: list[wait_records.Record], ended: bool = True) -> Report:
    """Return a report on the CTA with the most waiting warpgroups, or the first of several, with
    one party per warpgroup."""
    by_cta: dict[Dim3, dict[int, wait_records.Record]] = {}
    for record in sorted(records, key=lambda r: r.warp):
        by_cta.setdefault(record.cta, {}).setdefault(compiled.part(record.warp), record)
    cta = min(by_cta, key=lambda place: (-len(by_cta[place]), place[::-1]))
    by_address = {barrier.address: barrier for barrier in compiled.barriers}
    waiting: list[Party] = []
    barriers: dict[int, Barrier] = {}
    hints: list[Hint] = []
    for warpgroup, role in enumerate(compiled.parts):
        if warpgroup not in by_cta[cta]:
            waiting.append(Party("not in a wait for an mbarrier", warpgroup, role, cta))
            continue
        record = by_cta[cta][warpgroup]
        if record.kind == wait_records.FLAG:
            name = compiled.places[record.address]
            waiting.append(
                Party(
                    f"blocked on {name}",
                    warpgroup,
                    role,
                    cta,
                    lines_of(compiled.name, name),
                    barrier=name,
                )
            )
            hints.append(
                Hint(
                    "deadlock",
                    f"hint: {name} is not set: the CTA of that part does not hand it over",
                    "hand every part over with numpipe.combine, and wait only for parts of earlier "
                    "CTAs",
                    False,
                )
            )
            continue
        mbar = by_address.get(record.address) or Mbarrier(
            record.address, 0, f"mbarrier at {record.address}", "", None, None, 0
        )
        # the step whose tiles the phase fills or frees; each use of a slot has its own phase
        step = None if mbar.slot is None else record.phase * mbar.slots + mbar.slot
        wanted = step if step is None else step - BARRIERS[mbar.kind].ahead * mbar.slots
        waiting.append(
            Party(
                blocked_on(mbar.name, record.phase, wanted),
                warpgroup,
                role,
                cta,
                lines_of(compiled.name, mbar.name),
                mbar.ring,
                mbar.slot,
                wanted,
                mbar.name,
                record.phase,
            )
        )
        before = barriers.get(record.address)
        here = [r for r in records if (r.cta, r.address) == (cta, record.address) and r.state]
        pending = missing = 0
        if here:  # each record was written after its own arrival, so the first saw the most pending
            first = max(
                [r for r in here if r.parity == record.phase & 1] or here, key=lambda r: r.pending
            )
            pending, missing = first.pending, first.missing_bytes
        barriers[record.address] = Barrier(
            mbar.name,
            record.phase,
            pending,
            mbar.arrivals or pending,
            missing,
            kind=mbar.kind,
            ring=mbar.ring,
            slot=mbar.slot,
            step=step,
            waiters=(*(before.waiters if before else ()), warpgroup),
            known=bool(here),
        )
    others = len(by_cta) - 1
    where = (
        f"kernel {compiled.name}, CTA {cta}"
        + (f" and {others} more" if others else "")
        + (
            f": waits took more than {limit():g} s ({TIMEOUT}) and timed out; the results of the "
            "kernel are wrong"
        )
        + ("" if ended else "; the kernel still has not ended: restart the process")
    )
    return deadlock(
        where, waiting, list(barriers.values()), list(dict.fromkeys(hints)), kernel=compiled.name
    )


def lines_of(kernel: str, name: str) -> tuple[Line, ...]:
    """Return the line of the pipeline or allocation at the end of a barrier's name."""
    place = re.search(r" @ (.+?):(\d+)(?: \(\d+\))?(?:, .*)?$", name)
    return () if place is None else (Line(place[1], int(place[2]), kernel),)
