"""CUDA events: the time between two points of a stream, seen from the GPU."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable
from typing import Any, Protocol

from ..errors import LaunchError, TargetError
from ..launch.device import gpu_state

Competitor = Callable[[int], object]
"""Launches its work once, asynchronously; the argument counts calls, for rotating buffers."""


class Timer(Protocol):
    """What the protocols need of a clock. `EventTimer` is the real one; tests bring one of their own."""

    def measure(self, competitor: Competitor, calls: int, first: int) -> Any:
        """Enqueue `calls` launches (arguments first, first + 1, …) between two events -> a handle for `seconds`."""

    def seconds(self, handle: Any) -> float:
        """Wait until the handle's work is done -> seconds per call."""

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

    def milliseconds(self, start: Any, end: Any) -> float:
        end.synchronize()
        return float(start.elapsed_time(end))

    def synchronize(self) -> None:
        self._cuda.synchronize()


class _DriverEvents:
    """The same on the legacy default stream, through cuda.bindings."""

    def __init__(self) -> None:
        from cuda.bindings import driver

        self._driver = driver
        self._call(driver.cuInit(0))
        device = self._call(driver.cuDeviceGet(0))
        self._call(driver.cuCtxSetCurrent(self._call(driver.cuDevicePrimaryCtxRetain(device))))

    @staticmethod
    def _call(result: tuple[Any, ...]) -> Any:
        if int(result[0]):
            raise LaunchError(f"the CUDA driver reported {result[0]!r} while measuring: has an earlier launch failed?")
        return result[1] if len(result) > 1 else None

    def record(self) -> Any:
        event = self._call(self._driver.cuEventCreate(0))
        self._call(self._driver.cuEventRecord(event, 0))
        return event

    def milliseconds(self, start: Any, end: Any) -> float:
        self._call(self._driver.cuEventSynchronize(end))
        elapsed = float(self._call(self._driver.cuEventElapsedTime(start, end)))
        for event in (start, end):
            self._call(self._driver.cuEventDestroy(event))
        return elapsed

    def synchronize(self) -> None:
        self._call(self._driver.cuCtxSynchronize())


class EventTimer:
    """Times the current torch stream where torch is installed, else the legacy default stream."""

    def __init__(self) -> None:
        require_gpu()
        self._events = _TorchEvents() if importlib.util.find_spec("torch") else _DriverEvents()

    def measure(self, competitor: Competitor, calls: int, first: int) -> Any:
        start = self._events.record()
        for i in range(first, first + calls):
            competitor(i)
        return start, self._events.record(), calls

    def seconds(self, handle: Any) -> float:
        start, end, calls = handle
        return float(self._events.milliseconds(start, end)) * 1e-3 / int(calls)

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
