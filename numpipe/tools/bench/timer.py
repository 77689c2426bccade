"""CUDA events: the time between two points of a stream, seen from the GPU, and the SMs' clock in it."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable
from typing import Any, Protocol

from ...diagnostics.errors import TargetError
from ...launch.device import gpu_state
from .clock import Stamps
from .driver import api, call
from .hold import Holds

Competitor = Callable[[int], object]
"""Launches its work once, asynchronously; the argument counts calls, for rotating buffers. One that has a method
``many(first, calls)`` is asked for several launches at once: where a launch takes the host longer than the GPU."""


def launch(competitor: Competitor, first: int, calls: int) -> None:
    """`calls` launches, with arguments first, first + 1, …"""
    if hasattr(competitor, "many"):
        competitor.many(first, calls)
    else:
        for i in range(first, first + calls):
            competitor(i)


class Timer(Protocol):
    """What the protocols need of a clock. `EventTimer` is the real one; tests bring one of their own."""

    def measure(self, competitor: Competitor, calls: int, first: int) -> Any:
        """Enqueue `calls` launches (arguments first, first + 1, …) between two events -> a handle for `seconds`."""

    def seconds(self, handle: Any) -> float:
        """Wait until the handle's work is done -> seconds per call."""

    def megahertz(self, handle: Any) -> float | None:
        """The SMs' mean clock during the handle's work, which is done; None where it is not known."""

    def synchronize(self) -> None: ...

    def now(self) -> float: ...

    def sleep(self, seconds: float) -> None: ...


class _TorchEvents:
    def __init__(self) -> None:
        import torch

        self._cuda = torch.cuda

    def record(self) -> Any:
        event = self._cuda.Event(enable_timing=True)
        event.record()
        return event

    @property
    def stream(self) -> int:
        return int(self._cuda.current_stream().cuda_stream)

    def milliseconds(self, start: Any, end: Any) -> float:
        end.synchronize()
        return float(start.elapsed_time(end))

    def synchronize(self) -> None:
        self._cuda.synchronize()


class _DriverEvents:
    """The same on the legacy default stream, through cuda.bindings."""

    stream = 0

    def __init__(self) -> None:
        driver = self._driver = api()
        call(driver.cuInit(0))
        call(driver.cuCtxSetCurrent(call(driver.cuDevicePrimaryCtxRetain(call(driver.cuDeviceGet(0))))))

    def record(self) -> Any:
        event = call(self._driver.cuEventCreate(0))
        call(self._driver.cuEventRecord(event, 0))
        return event

    def milliseconds(self, start: Any, end: Any) -> float:
        call(self._driver.cuEventSynchronize(end))
        elapsed = float(call(self._driver.cuEventElapsedTime(start, end)))
        for event in (start, end):
            call(self._driver.cuEventDestroy(event))
        return elapsed

    def synchronize(self) -> None:
        call(self._driver.cuCtxSynchronize())


class EventTimer:
    """Times the current torch stream where torch is installed, else the legacy default stream.

    A measurement begins when all of its launches are queued (`hold.Holds`). Around it, outside its events, two stamps tell the
    SMs' clock (`clock.Stamps`).
    """

    def __init__(self) -> None:
        require_gpu()
        self._events: _TorchEvents | _DriverEvents = _TorchEvents() if importlib.util.find_spec("torch") else _DriverEvents()
        self._events.synchronize()  # makes the context current
        self._stamps, self._holds = Stamps(), Holds()

    def measure(self, competitor: Competitor, calls: int, first: int) -> Any:
        held = self._holds.hold(self._events.stream)
        before = self._stamps.stamp(self._events.stream)
        start = self._events.record()
        launch(competitor, first, calls)
        end = self._events.record()
        after = self._stamps.stamp(self._events.stream)
        self._holds.open(held)
        return start, end, calls, before, after

    def seconds(self, handle: Any) -> float:
        start, end, calls, *_ = handle
        return float(self._events.milliseconds(start, end)) * 1e-3 / int(calls)

    def megahertz(self, handle: Any) -> float | None:
        *_, before, after = handle
        self._events.synchronize()
        return self._stamps.megahertz(before, after)

    def synchronize(self) -> None:
        self._events.synchronize()

    def now(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


def require_gpu() -> None:
    """Raise TargetError where there is nothing to measure."""
    state = gpu_state()
    if state.status != "ok":
        raise TargetError(f"numpipe.bench measures on a Hopper GPU: {state.reason}; {state.mend}. Kernels can be "
                          "simulated here, but not timed")
