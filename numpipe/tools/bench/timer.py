"""CUDA events: the time between two points of a stream, seen from the GPU, and the SMs' clock in it."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable
from typing import Any, Protocol

from ...diagnostics.errors import TargetError
from ...launch.device import gpu_state
from .probes import Holds, Stamps, api, call

Competitor = Callable[[int], object]
"""Launches its work once, asynchronously; the argument counts calls, for rotating buffers. One that has a method
``many(first, calls)`` is asked for several launches at once: where a launch takes the host longer than the GPU."""


def launch(competitor: Competitor, first: int, calls: int) -> None:
    """Launch a competitor's work `calls` times, with arguments first, first + 1, …"""
    if hasattr(competitor, "many"):
        competitor.many(first, calls)
    else:
        for i in range(first, first + calls):
            competitor(i)


class Timer(Protocol):
    """The clock that the protocols measure by. `EventTimer` is the real one; tests bring their own."""

    def measure(self, competitor: Competitor, calls: int, first: int) -> Any:
        """Enqueue `calls` launches (arguments first, first + 1, …) between two events; returns a handle for `seconds`."""

    def seconds(self, handle: Any) -> float:
        """Wait until the handle's work is done; returns the seconds of one call."""

    def megahertz(self, handle: Any) -> float | None:
        """Return the SMs' mean clock during the handle's work, which is done; None where it is not known."""

    def synchronize(self) -> None: ...

    def now(self) -> float: ...

    def sleep(self, seconds: float) -> None: ...


def _stream() -> Callable[[], int]:
    """Make a context current; returns a function of the stream to time: torch's current one, else the legacy default stream."""
    if importlib.util.find_spec("torch"):
        import torch

        torch.cuda.synchronize()
        return lambda: int(torch.cuda.current_stream().cuda_stream)
    driver = api()
    call(driver.cuInit(0))
    call(driver.cuCtxSetCurrent(call(driver.cuDevicePrimaryCtxRetain(call(driver.cuDeviceGet(0))))))
    return lambda: 0


class EventTimer:
    """Times the current torch stream where torch is installed, else the legacy default stream.

    A measurement begins when all of its launches are queued, and stamps around its events tell the SMs' clock (`probes`).
    """

    now = staticmethod(time.monotonic)
    sleep = staticmethod(time.sleep)

    def __init__(self) -> None:
        require_gpu()
        self._stream, self._driver = _stream(), api()
        self._stamps, self._holds = Stamps(), Holds()

    def _record(self, stream: int) -> Any:
        event = call(self._driver.cuEventCreate(0))
        call(self._driver.cuEventRecord(event, stream))
        return event

    def measure(self, competitor: Competitor, calls: int, first: int) -> Any:
        stream = self._stream()
        held = self._holds.hold(stream)
        before = self._stamps.stamp(stream)
        start = self._record(stream)
        launch(competitor, first, calls)
        end = self._record(stream)
        after = self._stamps.stamp(stream)
        self._holds.open(held)
        return start, end, calls, before, after

    def seconds(self, handle: Any) -> float:
        start, end, calls, *_ = handle
        call(self._driver.cuEventSynchronize(end))
        milliseconds = float(call(self._driver.cuEventElapsedTime(start, end)))
        for event in (start, end):
            call(self._driver.cuEventDestroy(event))
        return milliseconds * 1e-3 / int(calls)

    def megahertz(self, handle: Any) -> float | None:
        *_, before, after = handle
        self.synchronize()
        return self._stamps.megahertz(before, after)

    def synchronize(self) -> None:
        call(self._driver.cuCtxSynchronize())


def require_gpu() -> None:
    """Raise TargetError where there is no usable GPU."""
    state = gpu_state()
    if state.status != "ok":
        raise TargetError(f"numpipe.bench measures on a Hopper GPU: {state.reason}; {state.mend}. Kernels can be "
                          "simulated here, but not timed")
