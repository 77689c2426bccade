"""Synchronization with arrays whose libraries do not know the kernel's stream, before and after the
kernel.

PyTorch, CuPy and objects with ``__cuda_array_interface__`` say which stream their work is on, and
the kernel is queued there. JAX arrays and DLPack exporters do not:

===========  ================================================================  =====================
before       `order`: the kernel starts after the work that produces them      DLPack (`read` has
                                                                               already waited for
                                                                               JAX arrays)
after        `settle`: their memory is not reused before the kernel ends       they are held until
                                                                               an event after the
                                                                               kernel is reached
             new outputs are complete before the caller gets them              JAX: waits for the
                                                                               stream
on return    `deliver`: converts new outputs to their library's type           JAX on the CPU
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
"""DLPack's value for CUDA's legacy default stream; it has no 0"""


def foreign(infos: Sequence[ArrayInfo]) -> bool:
    """Return whether a call on these arrays needs `order` and `settle`, because the library of a
    GPU array among them does not know the kernel's stream."""
    return any(info.kind in _KINDS for info in infos)


def order(infos: Sequence[ArrayInfo], stream: int, user: str) -> None:
    """Make `stream` wait for the work that produces the arrays, before a kernel is queued on it;
    error messages name `user`.

    Raises SpecError if the stream is being captured into a graph, which could contain neither that
    wait nor the arrays.
    """
    if driver.get().capturing(stream, infos[0].device):
        raise SpecError(
            f"{user}: an argument is a JAX array or is known only through DLPack, and the stream "
            f"({stream:#x}) is being captured into a CUDA graph, whose replays would not wait for "
            "the work of its library: pass PyTorch, CuPy or numpipe arrays "
            "(numpipe.ascontiguous makes one)"
        )
    for info in infos:
        if info.kind == "dlpack":
            info.owner.__dlpack__(stream=stream or _DLPACK_DEFAULT)


_kept: dict[int, deque[tuple[Any, Any]]] = {}
"""by GPU: arrays that kernels may still use, each list with the event after its kernel, oldest
first"""
_lock = threading.Lock()


def settle(infos: Sequence[ArrayInfo], stream: int, fresh: int = 0) -> None:
    """Keep the arrays of a kernel that was queued on `stream` alive until it ends; the call
    allocated the last `fresh` of them.

    If there are new JAX arrays, this waits for the stream. Otherwise the arrays of foreign
    libraries are held until a later call finds that their kernel has ended, so the number of held
    lists is the number of kernels that were in flight. Raises DriverError if the kernel, or an
    earlier one, failed.
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
            event = kept.popleft()[0]  # reused below
        with cuda.on(device):
            kept.append((cuda.mark(event, stream), held))


def deliver(like: ArrayInfo, results: Sequence) -> Sequence:
    """Convert the outputs that a call allocated like `like` to their library's own type."""
    if like.kind == "host" and library(type(like.owner)) == "jax":
        return [sys.modules["jax"].device_put(output, like.owner.device) for output in results]
    return results
