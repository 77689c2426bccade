"""Workspaces of kernels: memory for partial sums and their flags, which numpipe allocates and nobody is given.

A launch holds the workspace of its stream, and launches of a stream run one after the other, so all of them that want one of the
same size share it: repeated calls allocate nothing, and two streams have a workspace each. It is freed with the last launch that is
remembered.

What a CUDA graph holds is not known, and its replays run on any stream. So launches that are captured have a workspace apart from
the others, one for each stream that they were captured on, which is never freed: graphs that were captured on one stream must not
run at the same time.

Flags are 0 between launches (`partials`); the rest holds anything. CUDA driver API, "Stream Ordered Memory Allocator", "Graph
Management".
"""

from __future__ import annotations

import threading
import weakref

import numpy as np

from ..specs import FLAGS
from . import driver
from .arrays import ArrayInfo
from .buffers import DeviceBuffer

_FLOAT32 = np.dtype(np.float32)
_LOCK = threading.Lock()


class Workspace:
    """One stream's, of so many slots of so many words."""

    def __init__(self, shape: tuple[int, int], stream: int, device: int) -> None:
        words = shape[1]
        self.buffer = DeviceBuffer(shape, (4 * words, 4), _FLOAT32, 4 * shape[0] * words, stream, device)
        self._zeros = np.zeros((shape[0], FLAGS), np.int32)  # kept: the copy may be under way
        flags = self.buffer.ptr + 4 * (words - FLAGS)
        driver.get().copy_in(flags, 4 * words, self._zeros.ctypes.data, 4 * FLAGS, 4 * FLAGS, shape[0], stream, device)

    def info(self) -> ArrayInfo:
        """As an argument of a launch, which keeps it alive."""
        return self.buffer.info()._replace(owner=self)


_of_streams: weakref.WeakValueDictionary[tuple[int, ...], Workspace] = weakref.WeakValueDictionary()
_of_graphs: dict[tuple[int, ...], Workspace] = {}


def workspace(shape: tuple[int, int], stream: int, device: int) -> ArrayInfo:
    """The workspace of a launch on a stream. Raises DriverError where there is no memory."""
    cuda, key = driver.get(), (device, stream, *shape)
    with _LOCK:
        if not cuda.capturing(stream, device):
            found = _of_streams.get(key)
            if found is None:
                found = _of_streams[key] = Workspace(shape, stream, device)
            return found.info()
        if key not in _of_graphs:
            with cuda.aside(device) as own:
                made = Workspace(shape, own, device)
                cuda.synchronize(own, device)
            _of_graphs[key] = made
        return _of_graphs[key].info()
