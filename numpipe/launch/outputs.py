"""Outputs that numpipe allocates: of the library and on the GPU of the first array argument."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..diagnostics.errors import SpecError
from . import driver, jax_arrays, pinned, transfers
from .arrays import describe, library
from .device_array import DeviceArray
from .info import ArrayInfo, argument
from .streams import current_stream, refuse_capture_of_output


def empty_like_kind(info: ArrayInfo, shape: Sequence[int], dtype: Any, stream: int | None = None) -> Any:
    """An uninitialised C-contiguous array of the kind of `info`, made by its library's own allocator.

    CPU tensors give CPU tensors, other host arrays NumPy arrays (`handover.deliver` makes JAX's of them): large ones in page-locked
    memory where calls run on a GPU and the pool has room (`pinned`), which the GPU then writes in place. `stream` is the handle
    the kernel will run on where it is not the library's current one: PyTorch must know it to reuse the memory safely. Raises
    SpecError where the library has no such element type.
    """
    shape = tuple(int(dim) for dim in shape)
    dtype = np.dtype(dtype)
    owner = info.owner
    of = "torch" if info.kind == "torch" else library(type(owner))
    if of == "torch":
        return _torch_empty(owner, info, shape, dtype, stream)
    if of == "jax":
        return jax_arrays.empty(info, shape, dtype)
    if info.kind == "host":
        return pinned.empty_output(shape, dtype, transfers.PINNED)
    if of == "cupy":
        return _cupy_empty(info, shape, dtype)
    if of == "numba":
        return _numba_empty(info, shape, dtype)
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
        raise _lacking("PyTorch", dtype, shape)
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
        raise _lacking("this CuPy", dtype, shape, error) from error


def _numba_empty(info: ArrayInfo, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
    """A device array of numba.cuda, on the stream of `info`, which other kernels of Numba will ask it for."""
    cuda = sys.modules["numba"].cuda
    try:
        with cuda.gpus[info.device]:
            return cuda.device_array(shape, dtype, stream=getattr(info.owner, "stream", 0))
    except (TypeError, ValueError, NotImplementedError) as error:
        raise _lacking("this Numba", dtype, shape, error) from error


def _lacking(library: str, dtype: np.dtype[Any], shape: tuple[int, ...], error: Exception | None = None) -> SpecError:
    why = "" if error is None else f" ({error})"
    return SpecError(f"{library} has no element type {dtype.name} for an output of shape {shape}{why}; "
                     "choose another in out_type or pass out=")


def describe_fresh(output: Any, name: str, kernel: str) -> ArrayInfo:
    """An output that `empty_like_kind` made for this call, which may write it: nobody has seen it, also where it is immutable."""
    info = describe(output, name, kernel)
    return info if info.writable else info._replace(writable=True)


def check_writable(info: ArrayInfo, name: str, kernel: str = "") -> None:
    """Raise SpecError for an output that cannot be written."""
    if info.writable:
        return
    where = f"{argument(name, kernel)}: it is an output"
    if library(type(info.owner)) == "jax":
        raise SpecError(f"{where}, and {jax_arrays.IMMUTABLE}")
    raise SpecError(f"{where} and this {type(info.owner).__name__} is read-only; pass a writable array")
