"""Workspaces of kernels: memory for partial sums and their flags, which numpipe allocates and nobody is given.

Launches of a stream run one after the other, so they share a workspace for each size of slots; two streams have one each. A graph
holds the workspace of the stream that it was captured on, wherever it is replayed: two such graphs, or a replay and calls on that
stream, must not run at the same time.

It is allocated by the first launch that needs it, once, and never freed, for nobody knows what graphs hold it. Where a launch needs
more slots than there are, it gets another one, of twice as many or more, so all of them together are at most twice the largest.

Flags are 0 between launches (`partials`); the rest holds anything. CUDA C++ Programming Guide, "CUDA Graphs".
"""

from __future__ import annotations

import threading

import numpy as np

from ..plan.specs import FLAGS
from . import driver
from .buffers import DeviceBuffer
from .info import ArrayInfo

_FLOAT32 = np.dtype(np.float32)
_LOCK = threading.Lock()
_known: dict[tuple[int, int, int], list[DeviceBuffer]] = {}
"""(device, stream, words of a slot) -> workspaces, the largest last"""


def workspace(slots: int, words: int, stream: int, device: int) -> ArrayInfo:
    """The workspace of a launch on a stream, of at least so many slots. Raises DriverError where there is no memory."""
    with _LOCK:
        known = _known.setdefault((device, stream, words), [])
        if not known or known[-1].shape[0] < slots:
            known.append(_made(max([slots, *(2 * before.shape[0] for before in known[-1:])]), words, device))
        return known[-1].info()


def _made(slots: int, words: int, device: int) -> DeviceBuffer:
    """A new one. What follows on any stream finds its flags cleared; the stream of the launch may be captured."""
    cuda, zeros = driver.get(), np.zeros((slots, FLAGS), np.int32)
    with cuda.aside(device) as own:
        made = DeviceBuffer((slots, words), (4 * words, 4), _FLOAT32, 4 * slots * words, own, device)
        flags = made.ptr + 4 * (words - FLAGS)
        cuda.copy_in(flags, 4 * words, zeros.ctypes.data, zeros.strides[0], zeros.strides[0], slots, own, device)
        cuda.synchronize(own, device)
    return made
