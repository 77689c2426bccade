"""Uniform descriptions of arrays of any library.

`describe` reads the pointer, shape, strides and dtype of a NumPy array, a PyTorch tensor, a CuPy or
JAX array, or any object with ``__cuda_array_interface__`` or ``__dlpack__``. It copies nothing, and
the result keeps the owner alive. Because it runs for every argument of every call, it classifies
each type only once."""

from __future__ import annotations

import array
import functools
import sys
from collections.abc import Callable
from operator import index
from typing import Any

import numpy as np

from ..arch.dtypes import BY_DTYPE
from ..diagnostics.errors import SpecError
from . import driver, jax_arrays
from .array_info import DTYPES, ArrayInfo, argument, dense_strides, element_type, unsupported

Reader = Callable[[Any], ArrayInfo]
READERS: dict[type, Reader] = {ArrayInfo: lambda info: info}
"""function that describes objects of a type, added when the first object of the type is seen;
`DeviceArray`'s is present from the start. An ArrayInfo describes itself, so that callers which
already have one, for example of a window (`windows`), can pass it"""
_CPU, _CUDA, _CUDA_HOST, _CUDA_MANAGED = 1, 2, 3, 13
"""DLPack device types"""
_UNORDERED = -1
"""DLPack stream value that requests no synchronization"""


def describe(obj: Any, name: str, kernel: str = "") -> ArrayInfo:
    """Return the description of an argument that a launch needs; error messages name `name` and
    `kernel`.

    Raises SpecError for anything that is not an array, and for unsupported element types.
    """
    reader: Any = READERS.get(type(obj))
    try:
        reader = reader or _choose(obj)
        info: ArrayInfo = reader(obj)
    except SpecError as error:
        text = str(error).replace("{name}", name)
        cause = error.__cause__
    except Exception as error:  # an object that only resembles an array
        if reader is jax_arrays.read:
            raise  # the error of a computation
        way = {_interface: ".__cuda_array_interface__", _dlpack: ".__dlpack__"}.get(reader, "")
        text = (
            f"{type(obj).__name__}{way} cannot be read as an array ({type(error).__name__}: "
            f"{error}); fix: pass a NumPy array, a PyTorch tensor, or a CuPy or JAX array"
        )
        cause = error
    else:
        READERS[type(obj)] = reader
        return info
    raise SpecError(f"{argument(name, kernel)}: {text}") from cause


_LIBRARIES = {
    "numpy": "numpy",
    "torch": "torch",
    "cupy": "cupy",
    "jax": "jax",
    "jaxlib": "jax",
    "numba": "numba",
    "numba_cuda": "numba",
}
_libraries: dict[type, str] = {}


def library(kind: type) -> str:
    """Return the library of a type or of its bases: "numpy", "torch", "cupy", "jax", "numba", or ""
    for others."""
    if kind not in _libraries:
        tops = (base.__module__.partition(".")[0] for base in kind.__mro__)
        _libraries[kind] = next((_LIBRARIES[top] for top in tops if top in _LIBRARIES), "")
    return _libraries[kind]


def _choose(obj: Any) -> Reader:
    if isinstance(obj, type):
        raise SpecError(f"the class {obj.__name__} is not an array; fix: pass an instance of it")
    if isinstance(obj, np.ma.MaskedArray):
        raise SpecError(
            "masked arrays are not supported, because kernels do not read masks: pass "
            "{name}.filled(0), or {name}.data and the mask as a separate array"
        )
    if isinstance(obj, np.ndarray):
        return _numpy
    if hasattr(obj, "data_ptr") and hasattr(obj, "get_device") and hasattr(obj, "stride"):
        return _torch
    if library(type(obj)) == "cupy" and hasattr(obj, "data"):
        return _cupy
    if library(type(obj)) == "jax" and hasattr(obj, "shape"):
        return jax_arrays.read
    if hasattr(type(obj), "__cuda_array_interface__") or hasattr(obj, "__cuda_array_interface__"):
        return _interface
    if hasattr(obj, "__dlpack__") and hasattr(obj, "__dlpack_device__"):
        return _dlpack
    fix = (
        "a NumPy array, a PyTorch tensor, a CuPy or JAX array, or an object with "
        "__cuda_array_interface__ or __dlpack__"
    )
    if isinstance(obj, (list, tuple, array.array, memoryview)):
        fix = "np.asarray({name})"
    raise SpecError(f"a {type(obj).__name__} is not an array; fix: pass {fix}")


def _numpy(obj: np.ndarray) -> ArrayInfo:
    dtype = element_type(obj.dtype)
    return ArrayInfo("host", 0, obj.shape, obj.strides, dtype, -1, obj.flags.writeable, obj, obj)


def _torch(obj: Any) -> ArrayInfo:
    if obj.is_neg():
        raise SpecError("the memory of this tensor holds -x; fix: pass {name}.resolve_neg()")
    device = obj.get_device()
    if device < 0:
        return _torch_cpu(obj)
    dtype = _torch_dtype(obj.dtype)
    size = dtype.itemsize
    return ArrayInfo(
        "torch",
        obj.data_ptr(),
        tuple(obj.shape),
        tuple([s * size for s in obj.stride()]),
        dtype,
        device,
        True,
        obj,
    )


@functools.cache
def _torch_dtype(dtype: Any) -> np.dtype:
    name = str(dtype).rpartition(".")[2]
    if name not in DTYPES:
        raise unsupported(str(dtype))
    return DTYPES[name]


def _torch_cpu(obj: Any) -> ArrayInfo:
    """Describe a CPU tensor through a NumPy view of its memory. It is first viewed as integers if
    NumPy lacks its type (bfloat16, float8)."""
    dtype = _torch_dtype(obj.dtype)
    where = obj.device.type
    if where != "cpu":
        raise SpecError(f"a tensor on device {where!r}; move it to 'cuda' or 'cpu'")
    flat = obj.detach()
    if not BY_DTYPE[dtype].in_numpy:
        torch = sys.modules["torch"]
        flat = flat.view(torch.int16 if dtype.itemsize == 2 else torch.uint8)
    return _numpy(flat.numpy().view(dtype))._replace(owner=obj)


def _cupy(obj: Any) -> ArrayInfo:
    dtype = element_type(obj.dtype)
    memory = obj.data
    return ArrayInfo("cuda", memory.ptr, obj.shape, obj.strides, dtype, memory.device_id, True, obj)


def _interface(obj: Any) -> ArrayInfo:
    """Describe an object by its CUDA Array Interface, version 2 or 3."""
    interface = obj.__cuda_array_interface__
    if interface.get("mask") is not None:
        raise SpecError("masked arrays are not supported; fill the masked elements first")
    ptr, readonly = interface["data"]
    ptr, shape = index(ptr or 0), tuple(map(index, interface["shape"]))
    dtype, strides = _typestr(obj, interface["typestr"]), interface.get("strides")
    if strides is None:
        strides = dense_strides(shape, dtype.itemsize)
    strides = tuple(map(index, strides))
    return ArrayInfo("cuda", ptr, shape, strides, dtype, _device_of(ptr), not readonly, obj)


def _typestr(obj: Any, typestr: str) -> np.dtype:
    """Return the element type of a type string, or of the object if the string is ambiguous:
    ml_dtypes types have ``<V2`` (bfloat16), ``<V1`` or ``<f1``."""
    own = getattr(obj, "dtype", None)
    try:
        dtype = np.dtype(str(typestr))
    except TypeError:
        if own is None:
            raise unsupported(f"{typestr!r} of an object without a dtype attribute") from None
        dtype = np.dtype(own)
    # NumPy takes None as float64
    return element_type(dtype if own is None or dtype.kind != "V" else np.dtype(own))


def _device_of(ptr: int) -> int:
    """Return the GPU of an address. The interface does not include it, so if there are several GPUs
    the driver is asked."""
    try:
        cuda = driver.get()
        return cuda.pointer_device(ptr) if ptr and cuda.count > 1 else 0
    except (driver.DriverMissing, driver.DriverError):
        return 0


def _dlpack(obj: Any) -> ArrayInfo:
    """Describe an exporter of DLPack, using ``numpy.from_dlpack`` for host memory and cuda-core's
    StridedMemoryView for GPU memory.

    Raises SpecError for devices and element types that CUDA does not have, and if cuda-core is
    missing."""
    device, ordinal = (int(number) for number in obj.__dlpack_device__())
    if device in (_CPU, _CUDA_HOST):
        return _numpy(np.from_dlpack(obj))._replace(owner=obj)
    if device not in (_CUDA, _CUDA_MANAGED):
        raise SpecError(
            f"a {type(obj).__name__} on DLPack device type {device}; fix: move it to a CUDA GPU or "
            "to the CPU"
        )
    try:
        from cuda.core.utils import StridedMemoryView
    except ImportError as error:
        raise SpecError(
            f"a {type(obj).__name__} on a GPU requires the package cuda-core, which cannot be "
            f"imported ({error}); fix: install it, or pass the result of torch.from_dlpack or "
            "cupy.from_dlpack"
        ) from error
    view = StridedMemoryView.from_dlpack(obj, stream_ptr=_UNORDERED)
    dtype = element_type(view.dtype)
    shape = tuple(view.shape)
    strides = (
        dense_strides(shape, dtype.itemsize)
        if view.strides is None
        else tuple(s * dtype.itemsize for s in view.strides)
    )
    return ArrayInfo(
        "dlpack", view.ptr, shape, strides, dtype, ordinal, not view.readonly, obj, held=view
    )
