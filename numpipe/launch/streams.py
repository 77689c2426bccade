"""Choice of the stream that a kernel is queued on: the one that the caller passes, or the one that
its arrays are produced on.

A stream is represented by its driver handle, an int: 0 and 1 are the legacy default stream, 2 is
the per-thread default stream. A call on GPU arrays is one launch, which a CUDA graph can capture.
Calls that a graph cannot capture are refused before they begin, because an error from the driver
would end the capture. CUDA driver API, "Stream Management" and "Graph Management".
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

from ..diagnostics.errors import SpecError
from . import driver
from .array_info import ArrayInfo
from .driver_errors import STREAMS
from .table import Table

LEGACY_DEFAULT = 0
_PER_THREAD = 2
_device_of = Table()
"""stream -> the GPU that it belongs to"""


def follow(infos: Sequence[ArrayInfo]) -> Callable[[], int]:
    """Return a fast function that returns the current stream for these arrays: PyTorch's if one of
    them is a tensor, otherwise CuPy's, otherwise the arrays' own stream, otherwise 0.

    The arrays' own stream is the ``stream`` entry of ``__cuda_array_interface__`` (version 3); work
    queued there needs no synchronization with what produced the array. 0 is the legacy default
    stream, which waits for all blocking streams.
    """
    for info in infos:
        if info.kind == "torch":
            return functools.partial(_torch_getter(), info.device)
    handle = LEGACY_DEFAULT
    for info in infos:
        if info.kind == "cuda":
            if type(info.owner).__module__.partition(".")[0] == "cupy":
                current, device = sys.modules["cupy"].cuda.get_current_stream, info.device
                return lambda: current(device).ptr
            interface = getattr(info.owner, "__cuda_array_interface__", {})
            handle = handle or interface.get("stream") or LEGACY_DEFAULT
    return lambda: handle


def current_stream(infos: Sequence[ArrayInfo]) -> int:
    """Return the current stream for these arrays (see `follow`)."""
    return int(follow(infos)())


@functools.cache
def _torch_getter() -> Callable[[int], int]:
    torch = sys.modules["torch"]
    # takes a tenth of the public call's time
    raw = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    return raw or (lambda device: torch.cuda.current_stream(device).cuda_stream)


def as_stream(stream: Any) -> int:
    """Return the CUstream handle of an int, a stream of PyTorch, CuPy, Numba or cuda-core, or any
    object with ``__cuda_stream__``.

    Raises SpecError for anything else, and for a closed stream.
    """
    if isinstance(stream, int) and not isinstance(stream, bool):
        if stream < 0:
            raise SpecError(
                f"stream: {stream} is not a handle of a CUDA stream: pass a stream object"
            )
        return stream
    for attribute in ("cuda_stream", "ptr"):
        handle = getattr(stream, attribute, None)
        if isinstance(handle, int):
            return handle
    protocol = getattr(stream, "__cuda_stream__", None)
    try:
        if protocol is not None:
            _version, handle = protocol() if callable(protocol) else protocol
            return int(handle)
    except RuntimeError as error:
        raise SpecError(
            f"stream: this {type(stream).__name__} cannot be used ({error}): pass one that is open"
        ) from error
    if type(stream).__name__ in ("CUstream", "cudaStream_t"):  # of cuda.bindings
        return int(stream)
    raise SpecError(
        f"stream: a {type(stream).__name__} is not a CUDA stream; pass its handle as an int, a "
        "torch.cuda.Stream, a cupy.cuda.Stream or an object with __cuda_stream__"
    )


def check(stream: int, device: int, kernel: str) -> None:
    """Raise SpecError for a stream that belongs to another GPU than the arrays of a call.

    If there are several GPUs, the driver is queried once per stream, but not for streams that are
    being captured into a graph, because the query would end the capture.
    """
    cuda = driver.get()
    if stream <= _PER_THREAD or cuda.count == 1 or _device_of.get(stream) == device:
        return
    try:
        if cuda.capturing(stream, device):
            return
        gpu = cuda.stream_device(stream)
    except driver.DriverError as error:
        raise SpecError(
            f"kernel {kernel}: the driver does not know stream {stream:#x} "
            f"({error.name}): it was destroyed, or is not a stream handle: pass an existing stream"
        ) from error
    if gpu != device:
        raise SpecError(
            f"kernel {kernel}: the stream {stream:#x} belongs to GPU {gpu}, but the arrays are on "
            f"GPU {device}: pass a stream of GPU {device}, or leave stream= out"
        )
    _device_of.keep(stream, gpu)


def explained(error: driver.DriverError, stream: int, device: int) -> driver.DriverError:
    """Return the error of a launch, with an explanation if its stream may be the cause."""
    if error.code not in STREAMS or stream <= _PER_THREAD:
        return error
    _device_of.pop(stream, None)
    return driver.DriverError(
        error.call,
        error.code,
        error.name,
        f"the stream {stream:#x} was destroyed, or belongs to another context than the primary one "
        f"of GPU {device}, or that context was reset: keep the stream object alive as long as it "
        "is used, and use streams of PyTorch, CuPy, Numba or cuda-core, which use the primary "
        "context",
    )


# ---- CUDA graphs
def check_host_call(stream: int, device: int, kernel: str) -> None:
    """Raise SpecError for a call on host arrays if its stream belongs to another GPU, or if the
    stream or a library's current stream is being captured into a graph.

    Such a call copies and waits. The driver would refuse it too, and discard everything captured so
    far.
    """
    check(stream, device, kernel)
    streams = [(stream, "its stream")]
    torch = sys.modules.get("torch")
    cupy = sys.modules.get("cupy")
    if torch is not None and torch.cuda.is_initialized():
        streams.append((int(_torch_getter()(device)), "PyTorch's current stream"))
    if cupy is not None:
        streams.append((int(cupy.cuda.get_current_stream(device).ptr), "CuPy's current stream"))
    for handle, whose in streams:
        if driver.get().capturing(handle, device):
            raise SpecError(
                f"kernel {kernel}: its arrays are on the host and {whose} ({handle:#x}) is being "
                "captured into a CUDA graph, which cannot hold the copies to the GPU and back: "
                "pass arrays on the GPU, or call it before or after the capture"
            )
