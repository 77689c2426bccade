"""Arrays as a kernel sees them, whichever library owns them.

``describe`` reads the pointer, shape, strides and dtype of a NumPy array, a PyTorch tensor, a CuPy or a JAX array, or
anything with ``__cuda_array_interface__`` or ``__dlpack__``; nothing is copied and the owner is kept alive by the result.
It runs for every argument of every call, so a type is classified once and read by a function of its own from then on.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from ..arch.dtypes import BY_DTYPE
from ..diagnostics.errors import SpecError
from . import dlpack, driver, jax_arrays
from .info import DTYPES, ArrayInfo, argument, dense_strides, known

Reader = Callable[[Any, str, str], ArrayInfo]
READERS: dict[type, Reader] = {}
"""How a type's objects are read: noted when the first one is, of `DeviceArray` from the beginning."""


def describe(obj: Any, name: str, kernel: str = "") -> ArrayInfo:
    """Read an argument; `name` and `kernel` are for the message.

    Raises SpecError for anything that is not an array, and for element types no kernel takes.
    """
    reader = READERS.get(type(obj))
    if reader is None:
        reader = _choose(obj, name, kernel)
        READERS[type(obj)] = reader
    return reader(obj, name, kernel)


_LIBRARIES = {"numpy": "numpy", "torch": "torch", "cupy": "cupy", "jax": "jax", "jaxlib": "jax", "numba": "numba",
              "numba_cuda": "numba"}
_libraries: dict[type, str] = {}


def library(kind: type) -> str:
    """Whose arrays a type's objects are: "numpy", "torch", "cupy", "jax" or "numba", of a subclass its base's; else ""."""
    found = _libraries.get(kind)
    if found is None:
        tops = (base.__module__.partition(".")[0] for base in kind.__mro__)
        found = _libraries[kind] = next((_LIBRARIES[top] for top in tops if top in _LIBRARIES), "")
    return found


def _choose(obj: Any, name: str, kernel: str) -> Reader:
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
        return dlpack.read
    mend = "pass a NumPy array, a PyTorch tensor, a CuPy or JAX array, or an object with __cuda_array_interface__ or __dlpack__"
    if isinstance(obj, (list, tuple)):
        mend += " (np.asarray makes one of a list)"
    raise SpecError(f"{argument(name, kernel)}: a {type(obj).__name__} is not an array; {mend}")


def _numpy(obj: np.ndarray[Any, Any], name: str, kernel: str) -> ArrayInfo:
    dtype = known(obj.dtype, name, kernel)
    return ArrayInfo("host", 0, obj.shape, obj.strides, dtype, -1, obj.flags.writeable, obj, obj)


_torch_dtypes: dict[Any, np.dtype[Any]] = {}


def _torch(obj: Any, name: str, kernel: str) -> ArrayInfo:
    device = obj.get_device()
    if device < 0:
        return _torch_cpu(obj, name, kernel)
    dtype = _torch_dtypes.get(obj.dtype)
    if dtype is None:
        dtype = _torch_dtype(obj, name, kernel)
    size = dtype.itemsize
    return ArrayInfo("torch", obj.data_ptr(), tuple(obj.shape), tuple([s * size for s in obj.stride()]), dtype, device,
                     True, obj)


def _torch_dtype(obj: Any, name: str, kernel: str) -> np.dtype[Any]:
    spelled = str(obj.dtype)
    dtype = DTYPES.get(spelled.rpartition(".")[2])
    if dtype is None:
        raise SpecError(f"{argument(name, kernel)}: element type {spelled} is not supported; convert to one of {', '.join(DTYPES)}")
    return _torch_dtypes.setdefault(obj.dtype, dtype)


def _torch_cpu(obj: Any, name: str, kernel: str) -> ArrayInfo:
    """A CPU tensor: NumPy's view of its memory. NumPy has no bfloat16 or float8, so those go through their bytes."""
    dtype = _torch_dtype(obj, name, kernel)
    where = obj.device.type
    if where != "cpu":
        raise SpecError(f"{argument(name, kernel)}: a tensor on device {where!r}; move it to 'cuda' or 'cpu'")
    flat = obj.detach()
    if not BY_DTYPE[dtype].in_numpy:
        torch = sys.modules["torch"]
        flat = flat.view(torch.int16 if dtype.itemsize == 2 else torch.uint8)
    view = flat.numpy().view(dtype)
    return ArrayInfo("host", 0, view.shape, view.strides, dtype, -1, view.flags.writeable, obj, view)


def _cupy(obj: Any, name: str, kernel: str) -> ArrayInfo:
    dtype = known(obj.dtype, name, kernel)
    memory = obj.data
    return ArrayInfo("cuda", memory.ptr, obj.shape, obj.strides, dtype, memory.device_id, True, obj)


def _interface(obj: Any, name: str, kernel: str) -> ArrayInfo:
    """CUDA Array Interface, versions 2 and 3."""
    try:
        said = obj.__cuda_array_interface__
        ptr, readonly = said["data"]
        shape = tuple(said["shape"])
        strides, typestr = said.get("strides"), said["typestr"]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise SpecError(f"{argument(name, kernel)}: {type(obj).__name__}.__cuda_array_interface__ cannot be read "
                        f"({type(error).__name__}: {error})") from error
    if said.get("mask") is not None:
        raise SpecError(f"{argument(name, kernel)}: masked arrays are not supported; fill the masked elements first")
    dtype = _typestr(obj, typestr, name, kernel)
    if strides is None:
        strides = dense_strides(shape, dtype.itemsize)
    ptr = ptr or 0
    return ArrayInfo("cuda", ptr, shape, tuple(strides), dtype, _device_of(ptr), not readonly, obj)


_typestrs: dict[str, np.dtype[Any]] = {}


def _typestr(obj: Any, typestr: str, name: str, kernel: str) -> np.dtype[Any]:
    """Type strings name NumPy's types; ml_dtypes' are ``<V2`` (bfloat16), ``<V1`` or ``<f1``: the object's own dtype decides."""
    dtype = _typestrs.get(typestr)
    if dtype is not None:
        return dtype
    said, own = _numpys(typestr), _numpys(getattr(obj, "dtype", None))
    if said is not None and said.kind != "V":
        return _typestrs.setdefault(typestr, known(said, name, kernel))
    found = said if own is None else own
    if found is None:
        raise SpecError(f"{argument(name, kernel)}: the __cuda_array_interface__ of this {type(obj).__name__} has typestr "
                        f"{typestr!r}, which NumPy does not know, and no dtype says more; give it one of {', '.join(DTYPES)}")
    return known(found, name, kernel)


def _numpys(dtype: Any) -> np.dtype[Any] | None:
    try:
        return None if dtype is None else np.dtype(dtype)
    except TypeError:
        return None


def _device_of(ptr: int) -> int:
    """The interface does not say which GPU; the driver is asked only where there are several."""
    try:
        cuda = driver.get()
        return cuda.pointer_device(ptr) if ptr and cuda.count > 1 else 0
    except (driver.DriverMissing, driver.DriverError):
        return 0
