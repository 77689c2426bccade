"""Allocation of outputs, in the library and on the GPU of the first array argument."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..arch.dimensions import Ints
from ..diagnostics.errors import SpecError, TargetError
from . import driver, jax_arrays, pinned, transfers
from .array_info import ArrayInfo, argument, major_order
from .arrays import describe, library
from .device_array import DeviceArray
from .streams import current_stream


def empty_like_kind(
    info: ArrayInfo, shape: Sequence[int], dtype: Any, stream: int | None = None
) -> Any:
    """Return an uninitialized C-contiguous array of the same kind as `info`, from its library's own
    allocator.

    For a CPU tensor this is a CPU tensor, and for other host arrays a NumPy array (which
    `stream_handover.deliver` converts for JAX). If calls run on a GPU and the pool has room
    (`pinned`), a large host array is in page-locked memory, which the GPU writes directly. `stream`
    is the handle of the kernel's stream if it is not the library's current one; PyTorch must know
    it to reuse the memory safely. Raises SpecError if the library does not have the element type.
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
        try:
            return pinned.empty_output(shape, dtype, transfers.PINNED)
        except (MemoryError, ValueError) as error:  # ValueError: NumPy cannot address so many bytes
            raise TargetError(
                f"there is no memory for an output of type {dtype.name} and shape {shape} "
                f"({error}); fix: pass smaller arrays, or memory of your own as out="
            ) from error
    try:
        if of == "cupy":
            with sys.modules["cupy"].cuda.Device(info.device):
                return sys.modules["cupy"].empty(shape, dtype)
        if of == "numba":
            cuda = sys.modules["numba"].cuda
            # on the stream of `info`, on which other Numba kernels will expect the output
            with cuda.gpus[info.device]:
                return cuda.device_array(shape, dtype, stream=getattr(owner, "stream", 0))
    except (TypeError, ValueError, NotImplementedError) as error:
        raise _lacking(
            {"cupy": "this CuPy", "numba": "this Numba"}[of], dtype, shape, f" ({error})"
        ) from error
    stream = current_stream([info]) if stream is None else stream
    if driver.get().capturing(stream, info.device):  # the graph frees its memory
        raise SpecError(
            f"out: the stream ({stream:#x}) is being captured into a CUDA graph, and the output "
            "would be memory of the graph: allocate the array before the capture and pass it as "
            "out=, or pass PyTorch tensors, whose allocator supports graphs"
        )
    return DeviceArray(shape, dtype, stream, info.device)


def output_like_kind(info: ArrayInfo, output: ArrayInfo, stream: int | None) -> Any:
    """Return an uninitialized array of the same kind as `info`, as `output` describes it. Raises
    SpecError for a column-major JAX array."""
    if major_order(output) == "row":
        return empty_like_kind(info, output.shape, output.dtype, stream)
    if library(type(info.owner)) == "jax":
        raise SpecError(
            "ArrayType(…, order='F'): JAX arrays are row-major; fix: leave order out, or pass "
            "arrays of another library"
        )
    array = empty_like_kind(info, output.shape[::-1], output.dtype, stream)
    return array.permute(*range(array.ndim)[::-1]) if hasattr(array, "permute") else array.T


def maker(output: ArrayInfo) -> Callable[[], Any] | None:
    """Return a function that makes arrays like `output` as fast as its library can, or None if
    there is none."""
    if major_order(output) == "col":
        return None
    if output.kind == "torch":
        torch = sys.modules["torch"]
        pattern = _element(output.owner.dtype, output.device).expand(output.shape)
        return functools.partial(torch.empty_like, pattern, memory_format=torch.contiguous_format)
    if library(type(output.owner)) == "cupy" and driver.get().count == 1:
        return functools.partial(sys.modules["cupy"].empty, output.shape, output.dtype)
    return None


@functools.cache
def _element(dtype: Any, device: int) -> Any:
    """Return a tensor without dimensions, which is cached.

    Its memory is numpipe's own. When `torch.compile` records CUDA graphs, all memory from PyTorch's
    allocator must be freed, or be an output, by the end of the graph.
    """
    torch, cuda = sys.modules["torch"], driver.get()
    with cuda.aside(device) as aside:  # the current stream may be captured
        memory = DeviceArray((16,), np.dtype(np.uint8), aside, device)
        cuda.synchronize(aside, device)
    return torch.as_tensor(memory, device=torch.device("cuda", device)).view(dtype)[0]


def _torch_empty(
    owner: Any, info: ArrayInfo, shape: Ints, dtype: np.dtype, stream: int | None
) -> Any:
    torch = sys.modules["torch"]
    kind = getattr(torch, dtype.name, None)
    if kind is None:
        raise _lacking("PyTorch", dtype, shape)
    if info.kind == "torch" and stream is not None and stream != current_stream([info]):
        with torch.cuda.stream(torch.cuda.ExternalStream(stream, device=owner.device)):
            return torch.empty(shape, dtype=kind, device=owner.device)
    return torch.empty(shape, dtype=kind, device=owner.device)


def _lacking(library: str, dtype: np.dtype, shape: Ints, why: str = "") -> SpecError:
    return SpecError(
        f"{library} has no element type {dtype.name} for an output of shape {shape}{why}; "
        "choose another one in out_type, or pass out="
    )


def describe_fresh(output: Any, name: str, kernel: str) -> ArrayInfo:
    """Describe an output that `empty_like_kind` created for a call. The call may write it even if
    its type is immutable, because it is new."""
    info = describe(output, name, kernel)
    return info if info.writable else info._replace(writable=True)


def check_writable(info: ArrayInfo, name: str, kernel: str = "") -> None:
    """Raise SpecError for an output that cannot be written."""
    if info.writable:
        return
    where = f"{argument(name, kernel)}: it is an output"
    if library(type(info.owner)) == "jax":
        raise SpecError(
            f"{where}, and JAX arrays are immutable, so they cannot be outputs: leave it out if "
            "the kernel has an out_type, and the call returns a new array; otherwise pass a "
            "PyTorch, CuPy or NumPy array"
        )
    raise SpecError(
        f"{where} and this {type(info.owner).__name__} is read-only; pass a writable array"
    )
