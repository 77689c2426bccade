"""Which stream a kernel is queued on: the one that the caller names, else the one that its arrays
are produced on.

A stream is an int here, the driver's handle: 0 and 1 are the legacy default stream, 2 the one of
each thread. A call on arrays of a GPU is one launch, which a CUDA graph can capture; what a graph
cannot capture is refused before it begins, because the driver's own refusal ends the capture. CUDA
driver API, "Stream Management" and "Graph Management".
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
"""stream -> the GPU it is one of"""


def follow(infos: Sequence[ArrayInfo]) -> Callable[[], int]:
    """Return a quick function that returns PyTorch's current stream when a tensor is among the
    arrays, else CuPy's, else the arrays' own, else 0.

    "The arrays' own" is the ``stream`` entry of ``__cuda_array_interface__`` (version 3): work
    queued there needs no synchronisation with what produced the array. 0 is the legacy default
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
    """Return the stream that `follow` finds for these arrays now."""
    return int(follow(infos)())


@functools.cache
def _torch_getter() -> Callable[[int], int]:
    torch = sys.modules["torch"]
    raw = getattr(torch._C, "_cuda_getCurrentRawStream", None)  # a tenth of the public call's time
    return raw or (lambda device: torch.cuda.current_stream(device).cuda_stream)


def as_stream(stream: Any) -> int:
    """Return the CUstream handle of an int, a stream of PyTorch, CuPy, Numba or cuda-core, or any
    object with ``__cuda_stream__``.

    Raises SpecError for anything else, and for a stream that was closed.
    """
    if isinstance(stream, int) and not isinstance(stream, bool):
        if stream < 0:
            raise SpecError(f"stream: {stream} is not a handle of a CUDA stream")
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
    """Raise SpecError for a stream of another GPU than that of a call's arrays.

    Where there are several GPUs the driver is asked, once for each stream; never for one that is
    captured into a graph, because the question ends the capture.
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
            f"kernel {kernel}: stream {stream:#x} is not one that the driver knows "
            f"({error.name}): it was destroyed, or is no handle of a stream"
        ) from error
    if gpu != device:
        raise SpecError(
            f"kernel {kernel}: the stream {stream:#x} is one of GPU {gpu}, and the arrays are on "
            f"GPU {device}: pass a stream of GPU {device}, or leave stream= out"
        )
    _device_of.keep(stream, gpu)


def explained(error: driver.DriverError, stream: int, device: int) -> driver.DriverError:
    """Return the error of a launch, with an explanation where its stream may be the cause."""
    if error.code not in STREAMS or stream <= _PER_THREAD:
        return error
    _device_of.pop(stream, None)
    return driver.DriverError(
        error.call,
        error.code,
        error.name,
        f"the stream {stream:#x} was destroyed, or is of another context than the primary one of "
        f"GPU {device}, or that context was reset: keep the stream's object alive as long as it "
        "is used, and take streams of PyTorch, CuPy, Numba or cuda-core, which use the primary "
        "context",
    )


# ---- CUDA graphs
def check_host_call(stream: int, device: int, kernel: str) -> None:
    """Raise SpecError for a call on host arrays whose stream is one of another GPU, or is captured
    into a graph, as a library's current one may be.

    Such a call copies and waits: the driver would refuse that too, and drop all that was captured
    so far.
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
