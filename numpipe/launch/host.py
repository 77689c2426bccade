"""Host arrays: onto the GPU with padded rows, and back.

TMA wants rows at multiples of 16 bytes, which a host array need not have; on the GPU its rows are padded, so host
arrays of any shape and order work. C- and Fortran-ordered arrays keep their major order, others are made C-contiguous:

    host, float16 (3, 5)                     GPU, row pitch 16 bytes
    a0 a1 a2 a3 a4 b0 b1 b2 b3 b4 c0 ...     a0 a1 a2 a3 a4 -- -- --
                                             b0 b1 b2 b3 b4 -- -- --
                                             c0 c1 c2 c3 c4 -- -- --

A call with host arrays returns after its results are back; the copies, the kernel and the release of the GPU memory are
all queued on the call's stream, so no buffer is reused before the kernel that reads it is done.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from . import driver
from .arrays import ArrayInfo, major_order, padded


class DeviceBuffer:
    """GPU memory of numpipe's own; `shape` and byte `strides` as a kernel sees them.

    It is freed by `free`, or with the object. Freeing is queued on `stream`: work queued there before still finds the
    memory.
    """

    __slots__ = ("device", "dtype", "nbytes", "ptr", "shape", "stream", "strides")

    def __init__(self, shape: Sequence[int], strides: Sequence[int], dtype: np.dtype[Any], nbytes: int, stream: int,
                 device: int) -> None:
        self.ptr = 0  # __del__ runs even when the allocation raises
        self.shape = tuple(shape)
        self.strides = tuple(strides)
        self.dtype = dtype
        self.nbytes = nbytes
        self.stream = stream
        self.device = device
        if nbytes:
            self.ptr = driver.get().allocate(nbytes, stream, device)

    def info(self) -> ArrayInfo:
        """As an argument of a launch."""
        return ArrayInfo("cuda", self.ptr, self.shape, self.strides, self.dtype, self.device, True, self)

    def free(self) -> None:
        ptr, self.ptr = self.ptr, 0
        if ptr:
            driver.get().free(ptr, self.stream, self.device)

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # at interpreter exit the driver may be gone before us
            self.free()


def allocate(info: ArrayInfo, stream: int, device: int) -> DeviceBuffer:
    """GPU memory of the shape, type and major order of `info`, rows padded; contents undefined."""
    strides, nbytes = padded(info)
    return DeviceBuffer(info.shape, strides, info.dtype, nbytes, stream, device)


def to_device(info: ArrayInfo, stream: int, device: int = 0) -> DeviceBuffer:
    """Copy a host array. The copy is queued on `stream`: keep `info` until that is synchronised."""
    buffer = allocate(info, stream, device)
    if buffer.nbytes:
        source = _rows(info)
        width, height, pitch, device_pitch = _extent(source, buffer)
        driver.get().copy_in(buffer.ptr, device_pitch, source.ctypes.data, pitch, width, height, stream, device)
        if source is not info.array and not np.may_share_memory(source, info.array):
            driver.get().synchronize(stream, device)  # `source` is a temporary copy, gone when this returns
    return buffer


def to_host(buffer: DeviceBuffer, out: np.ndarray[Any, Any], stream: int) -> None:
    """Copy a buffer back into `out` (same shape, type and major order); returns when `out` holds it.

    A kernel that failed before on this stream is reported here, as DriverError.
    """
    cuda = driver.get()
    if not buffer.nbytes:
        return
    info = ArrayInfo("host", 0, out.shape, out.strides, buffer.dtype, -1, True, out, out)
    target = _rows(info)
    width, height, pitch, device_pitch = _extent(target, buffer)
    cuda.copy_out(target.ctypes.data, pitch, buffer.ptr, device_pitch, width, height, stream, buffer.device)
    cuda.synchronize(stream, buffer.device)
    if not np.may_share_memory(target, out):
        out[...] = target if major_order(info) == "row" else target.T


def _rows(info: ArrayInfo) -> np.ndarray[Any, Any]:
    """The host array in memory order as equally spaced rows of contiguous elements; a copy only where it has none."""
    array = info.array
    assert array is not None, "a host array"
    if major_order(info) == "col":
        array = array.T
    if array.ndim == 2 and array.strides[1] == array.itemsize and array.strides[0] >= array.shape[1] * array.itemsize:
        return array
    return np.ascontiguousarray(array)


def _extent(rows: np.ndarray[Any, Any], buffer: DeviceBuffer) -> tuple[int, int, int, int]:
    """(bytes in a row, rows, host pitch, device pitch) of a copy between `rows` and `buffer`."""
    size = rows.itemsize
    if rows.ndim < 2:
        return rows.nbytes, 1, rows.nbytes, rows.nbytes
    width = rows.shape[-1] * size
    height = math.prod(rows.shape[:-1])
    return width, height, rows.strides[0] if rows.ndim == 2 else width, buffer.nbytes // height


class Staging:
    """The host arrays of one call on the GPU: upload, launch, download; leaving it frees the copies.

    An array passed twice (input and output of an in-place kernel) is one buffer, as it is on the device.
    """

    def __init__(self, stream: int, device: int) -> None:
        self.stream = stream
        self.device = device
        self._buffers: dict[tuple[Any, ...], DeviceBuffer] = {}

    def __enter__(self) -> Staging:
        return self

    def __exit__(self, *_exc: object) -> None:
        for buffer in self._buffers.values():
            with contextlib.suppress(driver.DriverError):  # after a failed kernel nothing can be freed; keep its error
                buffer.free()

    def _key(self, info: ArrayInfo) -> tuple[Any, ...]:
        assert info.array is not None, "a host array"
        return info.array.ctypes.data, info.shape, info.strides, info.dtype

    def upload(self, info: ArrayInfo) -> DeviceBuffer:
        """The array on the GPU with its contents."""
        key = self._key(info)
        if key not in self._buffers:
            self._buffers[key] = to_device(info, self.stream, self.device)
        return self._buffers[key]

    def reserve(self, info: ArrayInfo) -> DeviceBuffer:
        """Room for an output whose present contents do not matter."""
        key = self._key(info)
        if key not in self._buffers:
            self._buffers[key] = allocate(info, self.stream, self.device)
        return self._buffers[key]

    def download(self, info: ArrayInfo) -> None:
        """Bring an uploaded or reserved array back to the host."""
        assert info.array is not None, "a host array"
        to_host(self._buffers[self._key(info)], info.array, self.stream)
