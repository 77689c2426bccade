"""The hand-over of arrays whose libraries do not know the kernel's stream: to the kernel, and back,
in order.

PyTorch, CuPy and what has ``__cuda_array_interface__`` say on which stream their work is, and the
kernel is queued there. JAX and exporters of DLPack do not:

===========  ================================================================  =====================
before       `order`: what they queued is done before the kernel starts        DLPack (a JAX array
                                                                               was waited for when
                                                                               it was read)
after        `settle`: their memory is not used again before the kernel ends   they are held until
                                                                               an event behind it is
                                                                               reached
             new outputs are complete before anybody sees them                 JAX: the stream is
                                                                               waited for
on return    `deliver`: the new outputs, in their library's own kind           JAX on the CPU
===========  ================================================================  =====================
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Sequence
from typing import Any

from ..diagnostics.errors import SpecError
from . import driver
from .array_info import ArrayInfo
from .arrays import library

_KINDS = ("jax", "dlpack")
_DLPACK_DEFAULT = 1
"""how DLPack spells CUDA's legacy default stream; it has no 0"""


def foreign(infos: Sequence[ArrayInfo]) -> bool:
    """Whether a call on these arrays needs `order` and `settle`: the library of one on a GPU does
    not know the kernel's stream."""
    return any(info.kind in _KINDS for info in infos)


def order(infos: Sequence[ArrayInfo], stream: int, user: str) -> None:
    """Make `stream` wait for the work that produces the arrays, before a kernel is queued on it;
    error messages name `user`.

    Raises SpecError for a stream that is captured into a graph, which would hold neither that wait
    nor the arrays.
    """
    if driver.get().capturing(stream, infos[0].device):
        raise SpecError(
            f"{user}: an argument is an array of JAX or one known by DLPack only, and the stream "
            f"({stream:#x}) is being captured into a CUDA graph, whose replays nothing orders "
            "behind the work of its library: pass PyTorch, CuPy or numpipe arrays "
            "(numpipe.ascontiguous makes one)"
        )
    for info in infos:
        if info.kind == "dlpack":
            info.owner.__dlpack__(stream=stream or _DLPACK_DEFAULT)


_kept: dict[int, deque[tuple[Any, Any]]] = {}
"""by GPU: arrays that kernels may still use, each list behind the event that follows its kernel,
oldest first"""
_lock = threading.Lock()


def settle(infos: Sequence[ArrayInfo], stream: int, fresh: int = 0) -> None:
    """Keep the arrays of a kernel that was queued on `stream` alive until it ends; the call
    allocated the last `fresh` of them.

    New JAX arrays are waited for. Else the arrays of foreign libraries are held until a later call
    finds that their kernel has ended, so as many lists are held as kernels were in flight. Raises
    DriverError when the kernel, or one before it, failed.
    """
    device = infos[0].device
    if fresh and infos[-1].kind == "jax":
        driver.get().synchronize(stream, device)
        return
    held = [(info.owner, info.held) for info in infos if info.kind in _KINDS]
    cuda, event = driver.get(), None
    with _lock:
        kept = _kept.setdefault(device, deque())
        while kept and cuda.reached(kept[0][0], device):
            if event is not None:
                cuda.unmark(event, device)
            event = kept.popleft()[0]  # used again
        with cuda.on(device):
            kept.append((cuda.mark(event, stream), held))


def deliver(like: ArrayInfo, results: Sequence[Any]) -> Sequence[Any]:
    """Return the complete outputs, which a call allocated in the kind of `like`, in their library's
    own kind."""
    if like.kind == "host" and library(type(like.owner)) == "jax":
        return [sys.modules["jax"].device_put(output, like.owner.device) for output in results]
    return results
