"""Which stream a kernel is queued on: the one the caller names, else the one its arrays are being produced on."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

from ..errors import SpecError
from .arrays import ArrayInfo

LEGACY_DEFAULT = 0


def follow(infos: Sequence[ArrayInfo]) -> Callable[[], int]:
    """A function that says what `current_stream` of these arrays is now, quickly."""
    for info in infos:
        if info.kind == "torch":
            return functools.partial(_torch_getter(), info.device)
    for info in infos:
        if info.kind == "cuda" and type(info.owner).__module__.partition(".")[0] == "cupy":
            current, device = sys.modules["cupy"].cuda.get_current_stream, info.device
            return lambda: int(current(device).ptr)
    handle = current_stream(infos)
    return lambda: handle


def current_stream(infos: Sequence[ArrayInfo]) -> int:
    """PyTorch's current stream when a tensor is among the arrays, else CuPy's, else the arrays' own, else 0.

    "The arrays' own" is the ``stream`` entry of ``__cuda_array_interface__`` (version 3): work queued there needs no
    synchronisation with what produced the array. 0 is the legacy default stream, which waits for all blocking streams.
    """
    for info in infos:
        if info.kind == "torch":
            return _torch_stream(info.device)
    own = LEGACY_DEFAULT
    for info in infos:
        if info.kind == "cuda":
            if type(info.owner).__module__.partition(".")[0] == "cupy":
                return int(sys.modules["cupy"].cuda.get_current_stream(info.device).ptr)
            interface = getattr(info.owner, "__cuda_array_interface__", {})
            own = own or interface.get("stream") or LEGACY_DEFAULT
    return own


def _torch_stream(device: int) -> int:
    return int(_torch_getter()(device))


@functools.cache
def _torch_getter() -> Callable[[int], int]:
    torch = sys.modules["torch"]
    raw = getattr(torch._C, "_cuda_getCurrentRawStream", None)  # a tenth of the public call's time
    return raw or (lambda device: torch.cuda.current_stream(device).cuda_stream)


def as_stream(stream: Any) -> int:
    """The CUstream handle of an int, a PyTorch or CuPy stream, or an object with ``__cuda_stream__``.

    Raises SpecError for anything else.
    """
    if isinstance(stream, int) and not isinstance(stream, bool):
        return stream
    for attribute in ("cuda_stream", "ptr"):
        handle = getattr(stream, attribute, None)
        if isinstance(handle, int):
            return handle
    protocol = getattr(stream, "__cuda_stream__", None)
    if protocol is not None:
        _version, handle = protocol() if callable(protocol) else protocol
        return int(handle)
    raise SpecError(f"stream: a {type(stream).__name__} is not a CUDA stream; pass its handle as an int, a "
                    "torch.cuda.Stream, a cupy.cuda.Stream or an object with __cuda_stream__")
