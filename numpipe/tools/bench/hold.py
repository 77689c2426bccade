"""Holds the GPU until the host has queued what is measured.

A kernel of some microseconds is over before the host has launched the next one, if the host is slow for a moment: what is timed
then is the host. So before each measurement a kernel of one thread waits until the host says that all of its launches are queued.
It stands before the first event, and no longer than `LIMIT`: work that waits for itself is measured as it is.
"""

from __future__ import annotations

import ctypes

from .driver import api, call, kernel

LIMIT = 10_000_000
"""nanoseconds"""
KEPT = 4096
"""holds until the first one's word is used again"""
SOURCE = """
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


class Holds:
    """Holds of the current device, whose primary context must be current."""

    def __init__(self) -> None:
        driver = self._driver = api()
        self._kernel = kernel(SOURCE, "np_hold")
        host = call(driver.cuMemHostAlloc(4 * KEPT, driver.CU_MEMHOSTALLOC_DEVICEMAP))
        self._words = (ctypes.c_uint32 * KEPT).from_address(int(host))
        self._memory = int(call(driver.cuMemHostGetDevicePointer(host, 0)))
        self._serial = 0

    def hold(self, stream: int) -> int:
        """Hold a stream -> what `open` takes."""
        self._serial += 1
        word = self._serial % KEPT
        self._words[word] = 0
        parameters = (self._memory + 4 * word, LIMIT), (ctypes.c_uint64, ctypes.c_uint64)
        call(self._driver.cuLaunchKernel(self._kernel, 1, 1, 1, 1, 1, 1, 0, stream, parameters, 0))
        return word

    def open(self, word: int) -> None:
        """Let it go on."""
        self._words[word] = 1
