"""Traces of kernels built with ``CompilerParams(profile_space=n, profile_dir=path)``, made from
their records.

A launch only marks that there is something to fetch. `fetch` runs at the end of a call on host
arrays, in `last_profile`, and when the process ends. It reads the latest launch of each kernel,
since each launch overwrites the records of the previous one.
"""

from __future__ import annotations

import atexit
import contextlib
import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.process_guards import in_child
from ..core.symbols import symbol
from ..plan.image import Image, Recording
from ..plan.protocol import BARRIERS, MOMENTS
from . import driver
from .attributes import Grid

if TYPE_CHECKING:
    from ..plan.profiling import Part
    from ..traces.trace import Trace

__all__ = ["last_profile"]


@dataclass(eq=False)
class Recorded:
    """A kernel on a GPU, and the buffer that it writes to."""

    compiled: Image
    device: int
    buffer: int
    nbytes: int
    launches: int = 0
    pending: tuple[Grid, int] | None = None
    """grid and stream of a launch that has not been fetched"""


class Profiles:
    """The kernels of this process that record events."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.kernels: list[Recorded] = []
        self.newest: Trace | None = None

    def forget(self) -> None:
        """In a forked child, forget the kernels, which belong to the parent."""
        self.lock, self.kernels, self.newest = threading.RLock(), [], None

    def arm(self, compiled: Image, kernel: Any, device: int) -> None:
        """Allocate the buffer of a kernel that was just loaded on a device, whose context is
        current."""
        from ..plan import profiling as profile

        assert compiled.recording is not None
        space = compiled.recording.space
        nbytes = profile.buffer_bytes(len(compiled.parts), space)
        with self.lock:
            cuda = driver.get()
            buffer = cuda.kept(bytes(nbytes), device)
            cuda.poke(
                cuda.symbol(kernel, profile.SYMBOL),
                profile.control(buffer, profile.SAMPLED, space),
                device,
            )
            if not self.kernels:
                atexit.register(self._at_exit)
            self.kernels.append(Recorded(compiled, device, buffer, nbytes))

    def launched(self, compiled: Image, grid: Grid, stream: int, device: int) -> None:
        with self.lock:
            recorded = next(
                r for r in self.kernels if r.compiled is compiled and r.device == device
            )
            recorded.launches += 1
            recorded.pending = grid, stream

    def fetch(self) -> None:
        """Wait for the launches that have not been fetched, and write a file for each."""
        with self.lock:
            for recorded in self.kernels:
                if recorded.pending is not None:
                    self.newest = _fetch(recorded, *recorded.pending)

    def _at_exit(self) -> None:
        # the driver may be gone already when the process ends
        with contextlib.suppress(Exception):
            self.fetch()


PROFILES = Profiles()
in_child(PROFILES.forget)


def last_profile() -> Trace | None:
    """Return the trace of the latest launch of a kernel with
    ``CompilerParams(profile_space=n, profile_dir=path)``, or None.

    Waits for the launch, and writes ``path/kernel_n.json`` in the format that Perfetto opens, where
    n is the number of the launch (for a kernel of several GPUs one file per GPU,
    ``path/kernel_gpu1_n.json``). Files are also written for the other recording kernels. Times are
    in nanoseconds. Raises LaunchError if a kernel failed.

    >>> numpipe.last_profile()
    """
    PROFILES.fetch()
    return PROFILES.newest


def _fetch(recorded: Recorded, grid: Grid, stream: int) -> Trace:
    recording, cuda = recorded.compiled.recording, driver.get()
    assert recording is not None
    recorded.pending = None
    cuda.synchronize(stream, recorded.device)
    memory = cuda.peek(recorded.buffer, recorded.nbytes, recorded.device)
    trace = trace_of(recorded.compiled, memory, grid)
    directory = Path(recording.directory)
    directory.mkdir(parents=True, exist_ok=True)
    gpu = f"_gpu{recorded.device}" * bool(recorded.compiled.gpus)
    trace.save(directory / f"{symbol(recorded.compiled.name)}{gpu}_{recorded.launches - 1}.json")
    return trace


# ---- the trace -----------------------------------------------------------------------------------
def trace_of(compiled: Image, memory: bytes, grid: Grid) -> Trace:
    """Return the trace of a launch, in the same events as on the simulated SM; time 0 is when its
    first warpgroup began."""
    from ..plan import profiling as profile
    from ..traces.events import Event
    from ..traces.trace import Trace

    trace = Trace(clock="ns")
    recording = compiled.recording
    assert recording is not None
    parts = profile.parts(memory, len(compiled.parts), recording.space, math.prod(grid))
    if not parts:
        return trace
    trace.tell_rings(recording.traced)
    zero = min(part.begin for part in parts)
    width, height, _ = grid
    for part in parts:
        cta = part.cta % width, part.cta // width % height, part.cta // (width * height)
        role = compiled.parts[part.warpgroup]
        trace.lost += part.lost
        trace.events += [
            Event(cta, part.warpgroup, role, round(start - zero), round(end - zero), kind, details)
            for start, end, kind, details in _events(recording, part, compiled.arrays)
        ]
        trace.sms[cta] = part.sm
    return trace


def _events(
    recording: Recording, part: Part, arrays: Sequence[str]
) -> list[tuple[float, float, str, dict[str, Any]]]:
    """Return (start, end, kind, details) of each event of a warpgroup, as in `traces.Event`."""
    rings = {ring.index: ring for ring in recording.rings}
    events: list[tuple[float, float, str, dict[str, Any]]] = []
    since: dict[str, float] = {}
    """when a wait for a barrier, or an event with a duration, began"""
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
            where = (
                {"number": moment.step}
                if kind == "tile begin"
                else {"region": recording.regions[moment.step]}
            )
        if row.waited:
            whose = ring.whose[list(BARRIERS).index(row.waited)][moment.operand]
            mbar = f"{row.waited}[{slot}]{whose}"
            events.append(
                (
                    since.pop(row.waited, time),
                    time,
                    "wait",
                    {"mbar": mbar, "phase": use + BARRIERS[row.waited].ahead, "step": moment.step},
                )
            )
        if row.noted:
            events.append((time, time, "note", {"event": kind, **where}))
        if row.closes:
            details = {"tensor": ", ".join(ring.arrays), **where} if row.of else {"what": "store"}
            if row.closes == "semaphore":  # semaphores are the kernel's last array
                details = {"semaphore": f"{arrays[-1]}[{moment.step}]"}
            events.append((since.pop(row.closes, time), time, row.closes, details))
        if row.arrives:
            events.append((time, time, "arrive", {"mbar": f"{row.arrives}[{slot}] of {ring.name}"}))
        since.update(dict.fromkeys((row.waits, row.opens), time))
    events.append((part.end, part.end, "end", {"lost": part.lost} if part.lost else {}))
    return events
