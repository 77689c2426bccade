"""GPU memory owned by numpipe: copies of host arrays with rows padded for TMA, and workspaces for
partial sums.

TMA requires rows that start at multiples of 16 bytes. Rows are padded on the GPU, so that host
arrays of any shape and order can be used. C- and Fortran-ordered arrays keep their major order,
others become C-contiguous:

    host, float16 (3, 5)                     GPU, row pitch 16 bytes
    a0 a1 a2 a3 a4 b0 b1 b2 b3 b4 c0 ...     a0 a1 a2 a3 a4 -- -- --
                                             b0 b1 b2 b3 b4 -- -- --
                                             c0 c1 c2 c3 c4 -- -- --

Launches on a stream run one after another, so they share one workspace per slot size; each stream
has its own. A graph uses the workspace of the stream it was captured on, wherever it is replayed.
Two such graphs, or a replay and calls on that stream, must therefore not run at the same time. CUDA
C++ Programming Guide, "CUDA Graphs".
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from typing import TypeVar

import numpy as np

from ..arch.dimensions import Dim3
from ..plan.specs import FLAGS
from . import driver
from .array_info import ArrayInfo, padded

_LOCK = threading.Lock()
_workspaces: dict[Dim3, list[DeviceBuffer]] = {}
"""(device, stream, words per slot) -> workspaces, largest last"""
_Buffer = TypeVar("_Buffer", bound="DeviceBuffer")


class DeviceBuffer:
    """An array in GPU memory owned by numpipe; `shape` and `strides` (in bytes) are as a kernel
    sees them.

    The memory is freed by `free`, or with the object. Freeing is queued on `stream`, after the work
    that is already queued there.
    """

    __slots__ = ("device", "dtype", "nbytes", "ptr", "shape", "stream", "strides")

    def __init__(
        self,
        shape: Sequence[int],
        strides: Sequence[int],
        dtype: np.dtype,
        nbytes: int,
        stream: int,
        device: int,
    ) -> None:
        self.ptr = 0  # __del__ runs even if the allocation raises
        self.shape, self.strides = tuple(shape), tuple(strides)
        self.dtype, self.nbytes = dtype, nbytes
        self.stream, self.device = stream, device
        if nbytes:
            self.ptr = driver.get().allocate(nbytes, stream, device)

    @classmethod
    def like(cls: type[_Buffer], info: ArrayInfo, stream: int, device: int) -> _Buffer:
        """Allocate memory for an array with the shape, type and major order of `info` and padded
        rows; its contents are undefined."""
        self, (strides, nbytes) = cls.__new__(cls), padded(info)
        DeviceBuffer.__init__(self, info.shape, strides, info.dtype, nbytes, stream, device)
        return self

    def info(self) -> ArrayInfo:
        """Describe the array as an argument of a launch."""
        return ArrayInfo(
            "cuda", self.ptr, self.shape, self.strides, self.dtype, self.device, True, self
        )

    def free(self) -> None:
        ptr, self.ptr = self.ptr, 0
        cuda = driver.opened()  # takes no lock: the garbage collector may call this at any moment
        if ptr and cuda is not None:
            cuda.free(ptr, self.stream, self.device)

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # at interpreter exit the driver may be gone already
            self.free()


def clear_flags(device: int) -> None:
    """Set the flags of all workspaces on a GPU to 0, after a kernel that gave up waiting left flags
    set."""
    with _LOCK:
        for kept in _workspaces.values():
            for each in kept:
                if each.device == device:
                    _clear(each)


def _clear(workspace: DeviceBuffer) -> None:
    """Set the flags at the end of each slot to 0. This uses a separate stream, because the stream
    of a launch may be captured."""
    (slots, words), device, cuda = workspace.shape, workspace.device, driver.get()
    with cuda.aside(device) as aside:
        cuda.clear(workspace.ptr + 4 * (words - FLAGS), 4 * words, FLAGS, slots, aside, device)
        cuda.synchronize(aside, device)


def workspace(slots: int, words: int, stream: int, device: int) -> ArrayInfo:
    """Return the workspace for launches on a stream, with at least `slots` slots. Raises
    DriverError if there is not enough memory.

    The first launch that needs a workspace allocates it, and it is never freed, because graphs may
    use it. A launch that needs more slots gets a new workspace with at least twice as many, so that
    all of them together are at most twice as large as the largest. Flags are 0 between launches
    (`partials`); other contents are undefined.
    """
    with _LOCK:
        kept = _workspaces.setdefault((device, stream, words), [])
        if not kept or kept[-1].shape[0] < slots:
            slots = max([slots, *(2 * before.shape[0] for before in kept[-1:])])
            with driver.get().aside(device) as aside:
                shape, dtype = (slots, words), np.dtype(np.float32)
                new = DeviceBuffer(shape, (4 * words, 4), dtype, 4 * slots * words, aside, device)
            _clear(new)
            kept.append(new)
        return kept[-1].info()
