"""Fakes of arrays of libraries that may not be installed: JAX, Numba, CuPy, and a DLPack exporter.

Their memory is NumPy's.
"""

from __future__ import annotations

import contextlib
import ctypes
import types
from typing import Any

import numpy as np


def numbers(*shape: int, dtype: Any = np.float16) -> np.ndarray[Any, Any]:
    return np.arange(np.prod(shape)).reshape(shape).astype(dtype)


# ---- JAX
class Device:
    def __init__(self, platform: str) -> None:
        self.platform, self.local_hardware_id = platform, 0


GPU, CPU = Device("gpu"), Device("cpu")


class Sharding:
    def __init__(self, *devices: Any, memory_kind: str = "device") -> None:
        self.device_set, self.memory_kind = devices, memory_kind


ON_GPU, ON_CPU = Sharding(GPU), Sharding(CPU)


class JaxArray:
    """The attributes of a jax.Array that numpipe reads; `waited` counts the waits for it."""

    def __init__(self, memory: np.ndarray[Any, Any], sharding: Any = ON_GPU) -> None:
        self.memory, self.sharding = memory, sharding
        self.shape, self.dtype = memory.shape, memory.dtype
        self.waited, self.deleted = 0, False

    @property
    def device(self) -> Any:
        return self.sharding.device_set[0]

    @property
    def format(self) -> Any:
        order = tuple(
            int(axis)
            for axis in np.argsort([-stride for stride in self.memory.strides], kind="stable")
        )
        return types.SimpleNamespace(layout=types.SimpleNamespace(major_to_minor=order, tiling=()))

    def is_deleted(self) -> bool:
        return self.deleted

    def block_until_ready(self) -> JaxArray:
        self.waited += 1
        return self

    def unsafe_buffer_pointer(self) -> int:
        return int(self.memory.ctypes.data)

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray[Any, Any]:
        view = self.memory.view()
        view.flags.writeable = False
        return view


class Traced:
    shape, dtype = (4,), np.dtype(np.float32)


JaxArray.__module__ = "jaxlib._jax"
Traced.__module__ = "jax._src.interpreters.partial_eval"


def jax_module() -> Any:
    """Return a fake of the ``jax`` module, with what outputs need."""

    def empty(shape: Any, dtype: Any) -> np.ndarray[Any, Any]:
        if np.dtype(dtype).kind == "b":
            raise TypeError("no such type")
        return np.zeros(shape, dtype)

    def of(device: Any) -> Sharding:
        return ON_GPU if device is GPU else ON_CPU

    return types.SimpleNamespace(
        numpy=types.SimpleNamespace(empty=empty),
        config=types.SimpleNamespace(jax_enable_x64=False),
        sharding=types.SimpleNamespace(SingleDeviceSharding=of),
        jit=lambda make, out_shardings: lambda: JaxArray(make(), out_shardings),
        device_put=lambda array, device: JaxArray(array, of(device)),
    )


# ---- Numba and CuPy
class NumbaArray:
    """A device array of numba.cuda."""

    def __init__(self, shape: Any, strides: Any, dtype: Any, stream: int = 0) -> None:
        self.dtype, self.stream = np.dtype(dtype), stream
        extent = sum((d - 1) * s for d, s in zip(shape, strides, strict=True)) + self.dtype.itemsize
        self.memory = np.full(extent + 16, 0xAB, np.uint8)
        start = -self.memory.ctypes.data % 16
        self.__cuda_array_interface__ = {
            "version": 3,
            "shape": tuple(shape),
            "strides": tuple(strides),
            "typestr": self.dtype.str,
            "data": (self.memory.ctypes.data + start, False),
            "stream": stream or None,
        }


NumbaArray.__module__ = "numba.cuda.cudadrv.devicearray"


def numba_module() -> Any:
    def device_array(
        shape: Any, dtype: Any, strides: Any = None, order: str = "C", stream: int = 0
    ) -> NumbaArray:
        if np.dtype(dtype).kind == "b":
            raise NotImplementedError("no such type")
        return NumbaArray(
            shape, np.empty(shape, dtype).strides if strides is None else strides, dtype, stream
        )

    return types.SimpleNamespace(
        cuda=types.SimpleNamespace(device_array=device_array, gpus=[contextlib.nullcontext()] * 2)
    )


class CupyArray:
    """The attributes and methods of a cupy.ndarray that numpipe reads and copies with."""

    def __init__(self, memory: np.ndarray[Any, Any]) -> None:
        self.memory = memory
        self.shape, self.strides, self.dtype = memory.shape, memory.strides, memory.dtype
        self.data = types.SimpleNamespace(ptr=memory.ctypes.data, device_id=0)

    def transpose(self, axes: Any) -> CupyArray:
        return CupyArray(self.memory.transpose(axes))

    def __getitem__(self, index: Any) -> CupyArray:
        return CupyArray(self.memory[index])

    def __setitem__(self, index: Any, value: CupyArray) -> None:
        self.memory[index] = value.memory


CupyArray.__module__ = "cupy"


def cupy_module() -> Any:
    def ndarray(shape: Any, dtype: Any, memory: Any, strides: Any) -> CupyArray:
        return CupyArray(np.ndarray(shape, dtype, memory, 0, strides))

    return types.SimpleNamespace(
        empty=lambda shape, dtype: CupyArray(np.empty(shape, dtype)),
        ndarray=ndarray,
        cuda=types.SimpleNamespace(Device=contextlib.nullcontext, alloc=bytearray),
    )


# ---- DLPack
class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _Managed(ctypes.Structure):
    """DLManagedTensorVersioned"""

    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    ]


# not the attribute of pythonapi, whose argument types jax.ffi sets for the whole process
_capsule = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
    ("PyCapsule_New", ctypes.pythonapi)
)
BFLOAT, FLOAT8_E4M3FN = 4, 10


class Exporter:
    """An object that has DLPack and nothing else.

    Strides are in elements. `streams` lists the streams that consumers asked for.
    """

    def __init__(
        self,
        address: int,
        shape: tuple[int, ...],
        strides: tuple[int, ...] | None = None,
        *,
        code: int = 2,
        bits: int = 16,
        device: tuple[int, int] = (2, 0),
        readonly: bool = False,
    ) -> None:
        self._device, self.streams, self._alive = device, [], []  # type: ignore[var-annotated]
        self._shape = (ctypes.c_int64 * len(shape))(*shape)
        self._strides = None if strides is None else (ctypes.c_int64 * len(strides))(*strides)
        self._what = address, len(shape), code, bits, int(readonly)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._device

    def __dlpack__(self, *, stream: int | None = None, max_version: Any = None, **_: Any) -> Any:
        address, rank, code, bits, flags = self._what
        strides = (
            None
            if self._strides is None
            else ctypes.cast(self._strides, ctypes.POINTER(ctypes.c_int64))
        )
        tensor = _Tensor(
            address,
            *self._device,
            rank,
            code,
            bits,
            1,
            ctypes.cast(self._shape, ctypes.POINTER(ctypes.c_int64)),
            strides,
            0,
        )
        managed = _Managed(1, 0, None, None, flags, tensor)
        self._alive.append(managed)
        self.streams.append(stream)
        return _capsule(ctypes.addressof(managed), b"dltensor_versioned", None)
