"""Arrays that numpipe allocates: outputs of the library and on the GPU of the first array argument, and its own kind."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..errors import SpecError
from . import driver
from .arrays import ArrayInfo, argument, dense_strides, describe, major_order
from .host import DeviceBuffer, to_device, to_host
from .streams import current_stream, refuse_capture_of_output


class DeviceArray:
    """An array on the GPU that other libraries read through ``__cuda_array_interface__``; C-contiguous when made by shape.

    numpipe returns one when the inputs are neither NumPy, PyTorch nor CuPy arrays. ``from_host`` makes one of a NumPy
    array, ``copy_to_host()`` gives one back; the memory goes with the last reference.
    """

    def __init__(self, shape: Sequence[int], dtype: Any, stream: int = 0, device: int = 0) -> None:
        dtype = np.dtype(dtype)
        strides = dense_strides(shape, dtype.itemsize)
        nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        self._buffer = DeviceBuffer(shape, strides, dtype, nbytes, stream, device)

    @classmethod
    def from_host(cls, array: Any, stream: int = 0, device: int = 0) -> DeviceArray:
        """A copy of a host array, its major order kept and its rows padded for TMA; returns when it is there."""
        self = cls.__new__(cls)
        self._buffer = to_device(describe(array, "array"), stream, device)
        driver.get().synchronize(stream, device)
        return self

    @property
    def shape(self) -> tuple[int, ...]:
        return self._buffer.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._buffer.dtype

    @property
    def device(self) -> int:
        """CUDA ordinal"""
        return self._buffer.device

    @property
    def _dense(self) -> bool:
        return self._buffer.strides == dense_strides(self.shape, self.dtype.itemsize)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "version": 3,
            "shape": self.shape,
            "strides": None if self._dense else self._buffer.strides,
            "typestr": self.dtype.str,
            "data": (self._buffer.ptr, False),
            "stream": self._buffer.stream or 1,  # the interface spells the legacy default stream 1
        }

    def address(self) -> int:
        """Where its data is; 0 when that was freed."""
        return self._buffer.ptr

    def mark(self) -> tuple[Any, ...]:
        """What a launch depends on (`marks`)."""
        buffer = self._buffer
        return buffer.ptr, buffer.shape, buffer.strides, buffer.dtype, buffer.device, buffer.stream

    def copy_to_host(self) -> np.ndarray[Any, Any]:
        """Wait for the work that writes this array and copy it into a new NumPy array of the same major order."""
        out = np.empty(self.shape, self.dtype, "F" if major_order(self._buffer.info()) == "col" else "C")
        to_host(self._buffer, out, self._buffer.stream)
        return out

    def __repr__(self) -> str:
        return f"DeviceArray(shape={self.shape}, dtype={self.dtype.name}, device={self.device})"


def empty_like_kind(info: ArrayInfo, shape: Sequence[int], dtype: Any, stream: int | None = None) -> Any:
    """An uninitialised C-contiguous array of the kind of `info`.

    CPU tensors give CPU tensors, NumPy arrays NumPy arrays. `stream` is the handle the kernel will run on where it is
    not the library's current one: PyTorch must know it to reuse the memory safely. Raises SpecError where the library
    has no such element type.
    """
    shape = tuple(int(dim) for dim in shape)
    dtype = np.dtype(dtype)
    owner = info.owner
    if info.kind == "torch" or (info.kind == "host" and not isinstance(owner, np.ndarray)):
        return _torch_empty(owner, info, shape, dtype, stream)
    if info.kind == "host":
        return np.empty(shape, dtype)
    if type(owner).__module__.partition(".")[0] == "cupy":
        return _cupy_empty(info, shape, dtype)
    stream = current_stream([info]) if stream is None else stream
    refuse_capture_of_output(stream, info.device)
    return DeviceArray(shape, dtype, stream, info.device)


def maker(made: ArrayInfo) -> Callable[[], Any] | None:
    """A function that makes arrays like `made`, as quickly as the library that made it can; or None."""
    if made.kind == "torch" and made.shape:
        torch = sys.modules["torch"]
        pattern = made.owner.new_empty(1).expand(made.shape)  # of one element
        return functools.partial(torch.empty_like, pattern, memory_format=torch.contiguous_format)
    if type(made.owner).__module__.partition(".")[0] == "cupy" and driver.get().count == 1:
        return functools.partial(sys.modules["cupy"].empty, made.shape, made.dtype)
    return None


def _torch_empty(owner: Any, info: ArrayInfo, shape: tuple[int, ...], dtype: np.dtype[Any], stream: int | None) -> Any:
    torch = sys.modules["torch"]
    kind = getattr(torch, dtype.name, None)
    if kind is None:
        raise SpecError(f"PyTorch has no element type {dtype.name} for an output of shape {shape}; "
                        "choose another in out_type or pass out=")
    if info.kind == "torch" and stream is not None and stream != current_stream([info]):
        with torch.cuda.stream(torch.cuda.ExternalStream(stream, device=owner.device)):
            return torch.empty(shape, dtype=kind, device=owner.device)
    return torch.empty(shape, dtype=kind, device=owner.device)


def _cupy_empty(info: ArrayInfo, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
    cupy = sys.modules["cupy"]
    try:
        with cupy.cuda.Device(info.device):
            return cupy.empty(shape, dtype)
    except (TypeError, ValueError) as error:
        raise SpecError(f"this CuPy has no element type {dtype.name} for an output of shape {shape} ({error}); "
                        "choose another in out_type or pass out=") from error


def check_writable(info: ArrayInfo, name: str, kernel: str = "") -> None:
    """Raise SpecError for an output that cannot be written."""
    if not info.writable:
        raise SpecError(f"{argument(name, kernel)}: it is an output and this {type(info.owner).__name__} is read-only; "
                        "pass a writable array")
