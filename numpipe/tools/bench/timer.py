"""Time GPU work with CUDA events, and measure the SMs' clock while it runs.

A kernel of a few microseconds may end before the host has launched the next one, so that the host
is timed instead. To prevent this, a kernel of one thread holds the stream until the host has queued
all launches, for at most `LIMIT`; work that waits for the host itself is timed with its waits.

The clock that a driver reports is a sample taken at another time than the measured work. So a small
kernel before and after the work stores, for every SM that it reaches, the SM's cycle counter
(``%clock64``) and the GPU's wall clock (``%globaltimer``). The counters keep running between
kernels: cycles over time between two stamps are the mean clock, whatever ran in between.
"""

from __future__ import annotations

import ctypes
import importlib.util
import time
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from ...diagnostics.errors import LaunchError, TargetError
from ...launch.current_gpu import gpu_state

Competitor = Callable[[int], object]
"""A function that launches its work once, asynchronously; its argument is a call count for rotating
buffers.

If it has a method ``many(first, calls)``, that is called for several launches at once, for work
whose launch takes the host longer than the GPU."""


def launch(competitor: Competitor, first: int, calls: int) -> None:
    """Launch a competitor's work `calls` times, with arguments first, first + 1, …"""
    if hasattr(competitor, "many"):
        competitor.many(first, calls)
    else:
        for i in range(first, first + calls):
            competitor(i)


class Timer(Protocol):
    """The clock that the protocols use: `EventTimer`, or a substitute in tests."""

    def measure(self, competitor: Competitor, calls: int, first: int) -> Any:
        """Queue `calls` launches (arguments first, first + 1, …) between two events.

        Return a handle for `seconds` and `megahertz`.
        """

    def seconds(self, handle: Any) -> float:
        """Wait until the handle's work is done, and return the seconds of one call."""

    def megahertz(self, handle: Any) -> float | None:
        """Return the SMs' mean clock during the handle's work, which is done; None if unknown."""

    def synchronize(self) -> None: ...

    def now(self) -> float: ...

    def sleep(self, seconds: float) -> None: ...


def _stream() -> Callable[[], int]:
    """Make a context current, and return a function that returns the stream to time.

    That is PyTorch's current stream if PyTorch is installed, else the legacy default stream.
    """
    if importlib.util.find_spec("torch"):
        import torch

        torch.cuda.synchronize()
        return lambda: int(torch.cuda.current_stream().cuda_stream)
    driver = api()
    call(driver.cuInit(0))
    call(driver.cuCtxSetCurrent(call(driver.cuDevicePrimaryCtxRetain(call(driver.cuDeviceGet(0))))))
    return lambda: 0


class EventTimer:
    """A timer of PyTorch's current stream if PyTorch is installed, else of the legacy default
    stream.

    A measurement starts when all of its launches are queued; stamps around its events measure the
    SMs' clock.
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
    """Raise TargetError if there is no usable GPU."""
    state = gpu_state()
    if state.status != "ok":
        raise TargetError(
            f"numpipe.bench measures on a Hopper GPU: {state.reason}; {state.fix}. Kernels can be "
            "simulated here, but not timed"
        )


# ---- the kernels that are queued around measured work
LIMIT = 10_000_000
"""most nanoseconds that a hold lasts"""
KEPT = 4096
"""number of holds, and of stamps, after which memory is reused"""
SMS = 256
"""entries of a stamp, one for each SM by its number (%smid)"""
STAMP = np.dtype([("nanoseconds", "<u8"), ("cycles", "<u8"), ("serial", "<u8"), ("unused", "<u8")])
"""the entry of an SM; `serial` is the number of the stamp that wrote it"""
HOLD_PTX = """
.version 8.0
.target sm_90
.address_size 64
.visible .entry np_hold(.param .u64 word, .param .u64 limit)
{
    .reg .b32 opened;
    .reg .b64 at, begun, now, most;
    .reg .pred done;
    ld.param.u64 at, [word];
    ld.param.u64 most, [limit];
    mov.u64 begun, %globaltimer;
LOOK:
    ld.relaxed.sys.global.u32 opened, [at];
    setp.ne.u32 done, opened, 0;
    @done ret;
    mov.u64 now, %globaltimer;
    sub.u64 now, now, begun;
    setp.gt.u64 done, now, most;
    @done ret;
    nanosleep.u32 200;
    bra LOOK;
}
"""
STAMP_PTX = """
.version 8.0
.target sm_90
.address_size 64
.visible .entry np_stamp(.param .u64 stamp, .param .u64 serial)
{
    .reg .b32 sm;
    .reg .b64 at, of, time, clock, number;
    ld.param.u64 at, [stamp];
    ld.param.u64 number, [serial];
    mov.u32 sm, %smid;
    mul.wide.u32 of, sm, 32;
    add.u64 at, at, of;
    mov.u64 time, %globaltimer;
    mov.u64 clock, %clock64;
    st.global.v2.u64 [at], {time, clock};
    st.global.u64 [at+16], number;
    ret;
}
"""


class Holds:
    """Holds streams of the current device, whose primary context must be current."""

    def __init__(self) -> None:
        driver = api()
        self._kernel = kernel(HOLD_PTX, "np_hold")
        host = call(driver.cuMemHostAlloc(4 * KEPT, driver.CU_MEMHOSTALLOC_DEVICEMAP))
        self._words = (ctypes.c_uint32 * KEPT).from_address(int(host))
        self._memory = int(call(driver.cuMemHostGetDevicePointer(host, 0)))
        self._serial = 0

    def hold(self, stream: int) -> int:
        """Hold a stream until `open` is called with the returned word."""
        self._serial += 1
        word = self._serial % KEPT
        self._words[word] = 0
        launch_kernel(self._kernel, 1, 1, stream, self._memory + 4 * word, LIMIT)
        return word

    def open(self, word: int) -> None:
        """Release the stream."""
        self._words[word] = 1


class Stamps:
    """Records stamps on the current device, whose primary context must be current."""

    def __init__(self) -> None:
        driver = self._driver = api()
        self._kernel = kernel(STAMP_PTX, "np_stamp")
        self._bytes = SMS * STAMP.itemsize
        self._memory = int(call(driver.cuMemAlloc(KEPT * self._bytes)))
        call(driver.cuMemsetD8(self._memory, 0, KEPT * self._bytes))
        count = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
        self._ctas = 4 * int(
            call(driver.cuDeviceGetAttribute(count, call(driver.cuCtxGetDevice())))
        )
        self._serial = 0

    def stamp(self, stream: int) -> int:
        """Queue a stamp on a stream, and return its number."""
        self._serial += 1
        launch_kernel(
            self._kernel,
            self._ctas,
            32,
            stream,
            self._memory + self._serial % KEPT * self._bytes,
            self._serial,
        )
        return self._serial

    def megahertz(self, first: int, last: int) -> float | None:
        """Return the median SM clock, in MHz, between two timestamps, over the SMs that recorded
        both.

                Return None if no SM recorded both, because a timestamp was overwritten, or if no
                time has
        passed.
        """
        a, b = self._read(first), self._read(last)
        both = (
            (a["serial"] == first) & (b["serial"] == last) & (b["nanoseconds"] > a["nanoseconds"])
        )
        a, b = a[both], b[both]
        if not a.size:
            return None
        clocks = (b["cycles"] - a["cycles"]) / (b["nanoseconds"] - a["nanoseconds"])
        return 1e3 * float(np.median(clocks))

    def _read(self, serial: int) -> np.ndarray:
        stamp = np.zeros(SMS, STAMP)
        call(
            self._driver.cuMemcpyDtoH(
                stamp.ctypes.data, self._memory + serial % KEPT * self._bytes, self._bytes
            )
        )
        return stamp


# ---- calls of the CUDA driver
def api() -> Any:
    """Return cuda.bindings.driver; imported late, because a machine that only reads results may
    lack it."""
    from cuda.bindings import driver

    return driver


def call(result: tuple) -> Any:
    """Return the value of a driver call's ``(code, value)``. Raises LaunchError for an error
    code."""
    if int(result[0]):
        raise LaunchError(
            f"the CUDA driver reported {result[0]!r} while measuring: has an earlier launch failed?"
        )
    return result[1] if len(result) > 1 else None


def kernel(source: str, name: str) -> Any:
    """Load a PTX kernel into the current context."""
    driver = api()
    library = call(driver.cuLibraryLoadData(source.encode() + b"\0", [], [], 0, [], [], 0))
    return call(driver.cuKernelGetFunction(call(driver.cuLibraryGetKernel(library, name.encode()))))


def launch_kernel(function: Any, ctas: int, threads: int, stream: int, *words: int) -> None:
    """Launch a kernel whose parameters are 64-bit words."""
    parameters = words, (ctypes.c_uint64,) * len(words)
    call(api().cuLaunchKernel(function, ctas, 1, 1, threads, 1, 1, 0, stream, parameters, 0))
