"""Arrays on the GPU of numpipe's own kind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..diagnostics.errors import SpecError
from . import driver
from .arrays import READERS, describe
from .buffers import BufferView, DeviceBuffer
from .info import ArrayInfo, dense_strides, known, major_order
from .transfers import download, upload


class DeviceArray:
    """An array on the GPU that other libraries read through ``__cuda_array_interface__``; C-contiguous when made by shape.

    numpipe returns one when the first input is of a library it knows no allocator of. ``numpipe.to_device`` makes one of a NumPy
    array, ``copy_to_host()`` or ``np.asarray`` gives one back; the memory goes with the last reference.
    """

    def __init__(self, shape: Sequence[int], dtype: Any, stream: int = 0, device: int = 0) -> None:
        dtype = np.dtype(dtype)
        strides = dense_strides(shape, dtype.itemsize)
        nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        self.buffer = DeviceBuffer(shape, strides, dtype, nbytes, stream, device)
        """its memory; ``ptr`` is 0 when that was freed"""

    @classmethod
    def from_host(cls, array: Any, stream: int = 0, device: int = 0) -> DeviceArray:
        """A copy of a host array, its major order kept and its rows padded for TMA; returns when it is there."""
        buffer = upload(describe(array, "array"), stream, device)
        driver.get().synchronize(stream, device)
        return cls.of(buffer)

    @classmethod
    def of(cls, buffer: DeviceBuffer) -> DeviceArray:
        """The array in memory that is its own from now on."""
        self = cls.__new__(cls)
        self.buffer = buffer
        return self

    @property
    def shape(self) -> tuple[int, ...]:
        return self.buffer.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.buffer.dtype

    @property
    def T(self) -> DeviceArray:
        """The transpose, in the same memory: of a row-major matrix a column-major one, as NumPy has it."""
        base = self.buffer
        return DeviceArray.of(base.base if isinstance(base, BufferView) else BufferView(base))

    @property
    def ndim(self) -> int:
        return len(self.buffer.shape)

    @property
    def device(self) -> int:
        """CUDA ordinal"""
        return self.buffer.device

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        dense = self.buffer.strides == dense_strides(self.shape, self.dtype.itemsize)
        return {
            "version": 3,
            "shape": self.shape,
            "strides": None if dense else self.buffer.strides,
            "typestr": f"|V{self.dtype.itemsize}" if self.dtype.isbuiltin == 2 else self.dtype.str,  # 2: not NumPy's own
            "data": (self.buffer.ptr, False),
            "stream": self.buffer.stream or 1,  # the interface spells the legacy default stream 1
        }

    def info(self) -> ArrayInfo:
        """As an argument of a launch."""
        return self.buffer.info()._replace(owner=self)

    def mark(self) -> tuple[Any, ...]:
        """What a launch depends on (`marks`)."""
        buffer = self.buffer
        return buffer.ptr, buffer.shape, buffer.strides, buffer.dtype, buffer.device, buffer.stream

    def copy_to_host(self) -> np.ndarray[Any, Any]:
        """Wait for the work that writes this array and copy it into a new NumPy array of the same major order."""
        if isinstance(self.buffer, BufferView):
            return self.T.copy_to_host().T
        out = np.empty(self.shape, self.dtype, "F" if major_order(self.buffer.info()) == "col" else "C")
        download(self.buffer, out, self.buffer.stream)
        return out

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        """For ``np.asarray``: the array on the host. Raises SpecError for ``copy=False``."""
        if copy is False:
            raise SpecError(f"np.asarray({self!r}, copy=False): the host only gets a copy of what is on the GPU; leave copy out")
        host = self.copy_to_host()
        return host if dtype is None else host.astype(dtype, copy=False)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of a DeviceArray without dimensions")
        return self.shape[0]

    def __repr__(self) -> str:
        return f"DeviceArray(shape={self.shape}, dtype={self.dtype.name}, device={self.device})"


def _read(array: DeviceArray, name: str, kernel: str) -> ArrayInfo:
    """What `describe` says of these arrays: they know their device and element type, the interface does not."""
    known(array.dtype, name, kernel)
    return array.info()


READERS[DeviceArray] = _read
