"""The clock that the SMs really had while something was measured.

What a driver reports is a sample, and is not the clock in the middle of a matrix product. So the GPU is asked: before and after
a measurement a small kernel notes, on every SM that it reaches, the SM's cycle counter (``%clock64``) and the GPU's wall clock
(``%globaltimer``). The counters run on between kernels, so the difference of the one over that of the other is the mean clock of
the time between, whatever ran in it, cuBLAS too. Nothing of it lies between the two events that time the work.
"""

from __future__ import annotations

import ctypes
import statistics

import numpy as np

from .driver import api, call, kernel

SMS = 256
"""places in a stamp: one for each SM, by its number (%smid)"""
KEPT = 4096
"""stamps until the first one is written over"""
STAMP = np.dtype([("nanoseconds", "<u8"), ("cycles", "<u8"), ("serial", "<u8"), ("unused", "<u8")])
"""what a stamp holds of an SM; `serial` says which stamp wrote it"""
SOURCE = """
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


def megahertz(first: np.ndarray, last: np.ndarray, serials: tuple[int, int]) -> float | None:
    """The SMs' clock between two stamps, arrays of `STAMP`: the median over the SMs that both of them reached.

    None where there is no such SM: a stamp was written over since, or no time has passed.
    """
    both = (first["serial"] == serials[0]) & (last["serial"] == serials[1]) & (last["nanoseconds"] > first["nanoseconds"])
    rates = [(int(b["cycles"]) - int(a["cycles"])) / (int(b["nanoseconds"]) - int(a["nanoseconds"]))
             for a, b in zip(first[both], last[both], strict=True)]
    return 1e3 * statistics.median(rates) if rates else None


class Stamps:
    """Stamps of the current device, whose primary context must be current."""

    def __init__(self) -> None:
        driver = self._driver = api()
        self._kernel = kernel(SOURCE, "np_stamp")
        self._bytes = SMS * STAMP.itemsize
        self._memory = int(call(driver.cuMemAlloc(KEPT * self._bytes)))
        call(driver.cuMemsetD8(self._memory, 0, KEPT * self._bytes))
        count = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
        self._ctas = 4 * int(call(driver.cuDeviceGetAttribute(count, call(driver.cuCtxGetDevice()))))
        self._serial = 0

    def stamp(self, stream: int) -> int:
        """Queue one on a stream -> its number."""
        self._serial += 1
        parameters = (self._memory + self._serial % KEPT * self._bytes, self._serial), (ctypes.c_uint64, ctypes.c_uint64)
        call(self._driver.cuLaunchKernel(self._kernel, self._ctas, 1, 1, 32, 1, 1, 0, stream, parameters, 0))
        return self._serial

    def megahertz(self, first: int, last: int) -> float | None:
        """The clock between two stamps that have run."""
        return megahertz(self._read(first), self._read(last), (first, last))

    def _read(self, serial: int) -> np.ndarray:
        found = np.zeros(SMS, STAMP)
        call(self._driver.cuMemcpyDtoH(found.ctypes.data, self._memory + serial % KEPT * self._bytes, self._bytes))
        return found
