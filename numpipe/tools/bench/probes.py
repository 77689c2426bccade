"""The probes that a timer queues around measured work, outside its events: a hold in front, on either side a stamp of the clocks.

A kernel of some microseconds is over before the host has launched the next one, if the host is slow for a moment: what is timed
then is the host. So a kernel of one thread holds the GPU until the host says that all launches are queued, and no longer than
`LIMIT`: work that waits for itself is measured as it is.

What a driver reports as the clock is a sample, and not the clock in the middle of a matrix product. So a small kernel notes, on
every SM that it reaches, the SM's cycle counter (``%clock64``) and the GPU's wall clock (``%globaltimer``). The counters run on
between kernels: the one's difference between two stamps over the other's is the mean clock in between, whatever ran, cuBLAS too.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from ...diagnostics.errors import LaunchError

LIMIT = 10_000_000
"""nanoseconds"""
KEPT = 4096
"""holds, and stamps, until the memory of the first one is used again"""
SMS = 256
"""places in a stamp: one for each SM, by its number (%smid)"""
STAMP = np.dtype([("nanoseconds", "<u8"), ("cycles", "<u8"), ("serial", "<u8"), ("unused", "<u8")])
"""what a stamp holds of an SM; `serial` says which stamp wrote it"""
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
    """Holds of the current device, whose primary context must be current."""

    def __init__(self) -> None:
        driver = api()
        self._kernel = kernel(HOLD_PTX, "np_hold")
        host = call(driver.cuMemHostAlloc(4 * KEPT, driver.CU_MEMHOSTALLOC_DEVICEMAP))
        self._words = (ctypes.c_uint32 * KEPT).from_address(int(host))
        self._memory = int(call(driver.cuMemHostGetDevicePointer(host, 0)))
        self._serial = 0

    def hold(self, stream: int) -> int:
        """Hold a stream; returns what `open` takes."""
        self._serial += 1
        word = self._serial % KEPT
        self._words[word] = 0
        launch(self._kernel, 1, 1, stream, self._memory + 4 * word, LIMIT)
        return word

    def open(self, word: int) -> None:
        """Let the stream go on."""
        self._words[word] = 1


class Stamps:
    """Stamps of the current device, whose primary context must be current."""

    def __init__(self) -> None:
        driver = self._driver = api()
        self._kernel = kernel(STAMP_PTX, "np_stamp")
        self._bytes = SMS * STAMP.itemsize
        self._memory = int(call(driver.cuMemAlloc(KEPT * self._bytes)))
        call(driver.cuMemsetD8(self._memory, 0, KEPT * self._bytes))
        count = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
        self._ctas = 4 * int(call(driver.cuDeviceGetAttribute(count, call(driver.cuCtxGetDevice()))))
        self._serial = 0

    def stamp(self, stream: int) -> int:
        """Queue a stamp on a stream; returns its number."""
        self._serial += 1
        launch(self._kernel, self._ctas, 32, stream, self._memory + self._serial % KEPT * self._bytes, self._serial)
        return self._serial

    def megahertz(self, first: int, last: int) -> float | None:
        """Return the SMs' clock between two stamps that have run: the median over the SMs that both of them reached.

        None where there is no such SM: a stamp was written over since, or no time has passed.
        """
        a, b = self._read(first), self._read(last)
        both = (a["serial"] == first) & (b["serial"] == last) & (b["nanoseconds"] > a["nanoseconds"])
        a, b = a[both], b[both]
        return 1e3 * float(np.median((b["cycles"] - a["cycles"]) / (b["nanoseconds"] - a["nanoseconds"]))) if a.size else None

    def _read(self, serial: int) -> np.ndarray:
        stamp = np.zeros(SMS, STAMP)
        call(self._driver.cuMemcpyDtoH(stamp.ctypes.data, self._memory + serial % KEPT * self._bytes, self._bytes))
        return stamp


# ---- the CUDA driver, as far as a measurement calls it itself
def api() -> Any:
    """Return cuda.bindings.driver, which is not on every machine that reads results."""
    from cuda.bindings import driver

    return driver


def call(result: tuple[Any, ...]) -> Any:
    """Return the value in a driver call's ``(code, value)``; raise LaunchError if the code is an error."""
    if int(result[0]):
        raise LaunchError(f"the CUDA driver reported {result[0]!r} while measuring: has an earlier launch failed?")
    return result[1] if len(result) > 1 else None


def kernel(source: str, name: str) -> Any:
    """Load a kernel that is written in PTX into the current context."""
    driver = api()
    library = call(driver.cuLibraryLoadData(source.encode() + b"\0", [], [], 0, [], [], 0))
    return call(driver.cuKernelGetFunction(call(driver.cuLibraryGetKernel(library, name.encode()))))


def launch(function: Any, ctas: int, threads: int, stream: int, *words: int) -> None:
    """Launch a kernel whose parameters are 64-bit words."""
    parameters = words, (ctypes.c_uint64,) * len(words)
    call(api().cuLaunchKernel(function, ctas, 1, 1, threads, 1, 1, 0, stream, parameters, 0))
