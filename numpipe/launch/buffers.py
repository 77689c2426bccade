"""GPU memory of numpipe's own, for copies of host arrays: rows padded as TMA wants them.

TMA wants rows at multiples of 16 bytes, which a host array need not have; on the GPU its rows are padded, so host
arrays of any shape and order work. C- and Fortran-ordered arrays keep their major order, others are made C-contiguous:

    host, float16 (3, 5)                     GPU, row pitch 16 bytes
    a0 a1 a2 a3 a4 b0 b1 b2 b3 b4 c0 ...     a0 a1 a2 a3 a4 -- -- --
                                             b0 b1 b2 b3 b4 -- -- --
                                             c0 c1 c2 c3 c4 -- -- --
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np

from . import driver
from .info import ArrayInfo, padded

_Buffer = TypeVar("_Buffer", bound="DeviceBuffer")


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

    @classmethod
    def like(cls: type[_Buffer], info: ArrayInfo, stream: int, device: int) -> _Buffer:
        """GPU memory of the shape, type and major order of `info`, rows padded; contents undefined."""
        self, (strides, nbytes) = cls.__new__(cls), padded(info)
        DeviceBuffer.__init__(self, info.shape, strides, info.dtype, nbytes, stream, device)
        return self

    def info(self) -> ArrayInfo:
        """As an argument of a launch."""
        return ArrayInfo("cuda", self.ptr, self.shape, self.strides, self.dtype, self.device, True, self)

    def free(self) -> None:
        ptr, self.ptr = self.ptr, 0
        cuda = driver.opened()  # which may be called at any moment, by the garbage collector
        if ptr and cuda is not None:
            cuda.free(ptr, self.stream, self.device)

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # at interpreter exit the driver may be gone before us
            self.free()
