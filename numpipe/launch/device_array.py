"""`DeviceArray`, numpipe's own array on the GPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..diagnostics.errors import SpecError
from . import driver
from .array_info import ArrayInfo, dense_strides, element_type, major_order
from .arrays import READERS, describe
from .buffers import DeviceBuffer
from .transfers import Transfers


class DeviceArray(DeviceBuffer):
    """An array on the GPU, which other libraries can read through ``__cuda_array_interface__``. It
    is C-contiguous if created from a shape.

    A call returns a DeviceArray if its first input belongs to a library whose allocator numpipe
    does not know. ``numpipe.to_device`` creates one from a NumPy array; ``copy_to_host()`` or
    ``np.asarray`` converts it back. The memory is freed with the last reference.
    """

    base: DeviceArray | None = None
    """the array that owns the memory, of which this one is the transpose; None: it owns its
    memory"""

    def __init__(self, shape: Sequence[int], dtype: Any, stream: int = 0, device: int = 0) -> None:
        dtype = np.dtype(dtype)
        nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        super().__init__(shape, dense_strides(shape, dtype.itemsize), dtype, nbytes, stream, device)

    @classmethod
    def from_host(cls, array: Any, stream: int = 0, device: int = 0) -> DeviceArray:
        """Copy a host array, keeping its major order and padding rows for TMA. Returns after the
        copy has finished."""
        info = describe(array, "array")
        self = cls.like(info, stream, device)
        with Transfers(stream, device) as transfers:
            transfers.upload([(info, self)])
            driver.get().synchronize(stream, device)
        return self

    @property
    def T(self) -> DeviceArray:
        """The transpose, in the same memory as in NumPy; the transpose of a row-major matrix is
        column-major."""
        if self.base is not None:
            return self.base
        transposed = DeviceArray.__new__(DeviceArray)
        DeviceBuffer.__init__(
            transposed,
            self.shape[::-1],
            self.strides[::-1],
            self.dtype,
            0,
            self.stream,
            self.device,
        )
        transposed.base, transposed.ptr, transposed.nbytes = self, self.ptr, self.nbytes
        return transposed

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def free(self) -> None:
        if self.base is not None:
            self.ptr = 0  # the base will free it
        super().free()

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        dense = self.strides == dense_strides(self.shape, self.dtype.itemsize)
        return {
            "version": 3,
            "shape": self.shape,
            "strides": None if dense else self.strides,
            # isbuiltin is 2 for types that are not NumPy's own
            "typestr": f"|V{self.dtype.itemsize}" if self.dtype.isbuiltin == 2 else self.dtype.str,
            "data": (self.ptr, False),
            "stream": self.stream or 1,  # the interface uses 1 for the legacy default stream
        }

    def mark(self) -> tuple:
        """Return the properties that a launch depends on (see `repeats.MARKS`)."""
        return self.ptr, self.shape, self.strides, self.dtype, self.device, self.stream

    def copy_to_host(self) -> np.ndarray:
        """Wait for the work that writes this array, and copy it to a new NumPy array of the same
        major order."""
        if self.base is not None:
            return self.base.copy_to_host().T
        out = np.empty(self.shape, self.dtype, "F" if major_order(self.info()) == "col" else "C")
        if self.nbytes:
            with Transfers(self.stream, self.device) as transfers:
                transfers.download([(describe(out, "out"), self)])
        return out

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """Copy the array to the host, for ``np.asarray``. Raises SpecError for ``copy=False``."""
        if copy is False:
            raise SpecError(
                f"np.asarray({self!r}, copy=False): an array on the GPU can only be copied to the "
                "host; leave copy out"
            )
        host = self.copy_to_host()
        return host if dtype is None else host.astype(dtype, copy=False)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of a DeviceArray without dimensions")
        return self.shape[0]

    def __repr__(self) -> str:
        return f"DeviceArray(shape={self.shape}, dtype={self.dtype.name}, device={self.device})"


def _read(array: DeviceArray) -> ArrayInfo:
    element_type(array.dtype)
    return array.info()


READERS[DeviceArray] = _read  # __cuda_array_interface__ lacks the device and the element type
