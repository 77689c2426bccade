"""Kernels built with ``CompilerParams(profile_space=n, profile_dir=path)``: what they recorded becomes a trace and a file.

A launch only remembers that there is something to fetch. It is fetched at the end of a call on host arrays, when `last_profile`
asks, or when the process ends: the newest launch of each kernel, since a launch writes over the one before.
"""

from __future__ import annotations

import atexit
import contextlib
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..core.symbols import symbol
from ..core.undisturbed import in_child
from ..plan import profiling as profile
from ..traces import Event, Trace
from ..traces.protocol import BARRIERS, MOMENTS
from . import driver
from .attributes import Grid
from .image import Image, Recording

__all__ = ["last_profile"]


@dataclass(eq=False)
class Recorded:
    """A kernel on a GPU, with the buffer it writes to."""

    compiled: Image
    device: int
    buffer: int
    nbytes: int
    launches: int = 0
    pending: tuple[Grid, int] | None = None
    """grid and stream of a launch that was not fetched"""


class Profiles:
    """The kernels of this process that record."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.kernels: list[Recorded] = []
        self.newest: Trace | None = None

    def forget(self) -> None:
        """In a forked child: the kernels that record are the parent's."""
        self.lock, self.kernels, self.newest = threading.RLock(), [], None

    def arm(self, compiled: Image, kernel: Any, device: int) -> None:
        """Give a kernel that was just loaded on a device, whose context is current, its buffer."""
        assert compiled.recording is not None
        space = compiled.recording.space
        nbytes = profile.buffer_bytes(compiled.warpgroups, space)
        with self.lock:
            cuda = driver.get()
            with cuda.aside(device) as stream:  # another stream may be captured
                buffer = cuda.allocate(nbytes, stream, device)
                cuda.synchronize(stream, device)
            cuda.poke(cuda.symbol(kernel, profile.SYMBOL), profile.control(buffer, profile.SAMPLED, space), device)
            if not self.kernels:
                atexit.register(self._at_exit)
            self.kernels.append(Recorded(compiled, device, buffer, nbytes))

    def launched(self, compiled: Image, grid: Grid, stream: int, device: int) -> None:
        with self.lock:
            recorded = next(r for r in self.kernels if r.compiled is compiled and r.device == device)
            recorded.launches += 1
            recorded.pending = grid, stream

    def fetch(self) -> None:
        """Wait for the launches that were not fetched, and write a file for each."""
        with self.lock:
            for recorded in self.kernels:
                if recorded.pending is not None:
                    self.newest = _fetched(recorded)

    def _at_exit(self) -> None:
        with contextlib.suppress(Exception):  # the process ends, and perhaps the driver has gone before
            self.fetch()


PROFILES = Profiles()
in_child(PROFILES.forget)


def last_profile() -> Trace | None:
    """The trace of the newest launch of a kernel with ``CompilerParams(profile_space=n, profile_dir=path)``, or None.

    Waits for the launch, and writes ``path/kernel_n.json``, in the format that Perfetto opens, n its number; for the other kernels
    that record likewise. Times are nanoseconds. Raises LaunchError where a kernel failed.

    >>> numpipe.last_profile()
    """
    PROFILES.fetch()
    return PROFILES.newest


def _fetched(recorded: Recorded) -> Trace:
    assert recorded.pending is not None
    (grid, stream), recorded.pending = recorded.pending, None
    cuda = driver.get()
    memory = np.empty(recorded.nbytes, np.uint8)
    cuda.synchronize(stream, recorded.device)
    cuda.copy_out(memory.ctypes.data, 0, recorded.buffer, 0, recorded.nbytes, 1, 0, recorded.device)
    cuda.synchronize(0, recorded.device)
    trace = told(recorded.compiled, memory.tobytes(), grid)
    assert recorded.compiled.recording is not None
    directory = Path(recorded.compiled.recording.directory)
    directory.mkdir(parents=True, exist_ok=True)
    trace.save(directory / f"{symbol(recorded.compiled.name)}_{recorded.launches - 1}.json")
    return trace


# ---- what the buffer says -----------------------------------------------------------------------------------------------
def told(compiled: Image, memory: bytes, grid: Grid) -> Trace:
    """The trace of a launch, in the events that the simulated SM has; time 0 is when its first warpgroup began."""
    trace = Trace(clock="ns")
    recording = compiled.recording
    assert recording is not None
    parts = profile.parts(memory, compiled.warpgroups, recording.space, grid[0] * grid[1] * grid[2])
    if not parts:
        return trace
    trace.tell_rings(recording.traced)
    zero = min(part.begin for part in parts)
    for part in parts:
        cta = (part.cta % grid[0], part.cta // grid[0] % grid[1], part.cta // (grid[0] * grid[1]))
        role = compiled.role(part.warpgroup)
        trace.lost += part.lost
        trace.events += [Event(cta, part.warpgroup, role, round(start - zero), round(end - zero), kind, details)
                         for start, end, kind, details in _events(recording, part)]
        trace.sms[cta] = part.sm
    return trace


def _events(recording: Recording, part: profile.Part) -> list[tuple[float, float, str, dict[str, Any]]]:
    """(start, end, kind, details) of what a warpgroup did, as `traces.Event` has them."""
    rings = {ring.index: ring for ring in recording.rings}
    found: list[tuple[float, float, str, dict[str, Any]]] = []
    since: dict[str, float] = {}
    """when a wait for a barrier, or what takes time, began"""
    for moment in part.moments:
        kind, time, row = moment.kind, moment.time, MOMENTS[moment.kind]
        where: dict[str, Any] = {}
        if row.of:
            ring = rings[moment.ring]
            slot, use = moment.step % ring.slots, moment.step // ring.slots
            where = {"ring": ring.name, "slot": slot, "step": moment.step}
            if kind in ring.one_by_one:
                where["operand"] = moment.operand
        elif row.noted:
            where = {"number": moment.step} if kind == "tile begin" else {"region": recording.regions[moment.step]}
        if row.waited:
            mbar = f"{row.waited}[{slot}]{ring.whose[list(BARRIERS).index(row.waited)][moment.operand]}"
            found.append((since.pop(row.waited, time), time, "wait",
                          {"mbar": mbar, "phase": use + BARRIERS[row.waited].ahead, "step": moment.step}))
        if row.noted:
            found.append((time, time, "note", {"event": kind, **where}))
        if row.closes:
            what = {"tensor": ", ".join(ring.arrays), **where} if row.of else {"what": "store"}
            found.append((since.pop(row.closes, time), time, row.closes, what))
        if row.arrives:
            found.append((time, time, "arrive", {"mbar": f"{row.arrives}[{slot}] of {ring.name}"}))
        since.update(dict.fromkeys((row.waits, row.opens), time))
    found.append((part.end, part.end, "end", {"lost": part.lost} if part.lost else {}))
    return found
