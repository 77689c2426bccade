"""GPU memory of numpipe's own: copies of host arrays, with rows padded as TMA wants them, and
workspaces for partial sums.

TMA wants rows at multiples of 16 bytes, which a host array need not have; on the GPU its rows are
padded, so host arrays of any shape and order work. C- and Fortran-ordered arrays keep their major
order, others become C-contiguous:

    host, float16 (3, 5)                     GPU, row pitch 16 bytes
    a0 a1 a2 a3 a4 b0 b1 b2 b3 b4 c0 ...     a0 a1 a2 a3 a4 -- -- --
                                             b0 b1 b2 b3 b4 -- -- --
                                             c0 c1 c2 c3 c4 -- -- --

Launches of a stream run one after the other, so they share a workspace for each size of slots; two
streams have one each. A graph holds the workspace of the stream that it was captured on, wherever
it is replayed: two such graphs, or a replay and calls on that stream, must not run at the same
time. CUDA C++ Programming Guide, "CUDA Graphs".
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np

from ..plan.specs import FLAGS
from . import driver
from .array_info import ArrayInfo, padded

_LOCK = threading.Lock()
_workspaces: dict[tuple[int, int, int], list[DeviceBuffer]] = {}
"""(device, stream, words of a slot) -> workspaces, the largest last"""
_Buffer = TypeVar("_Buffer", bound="DeviceBuffer")


class DeviceBuffer:
    """An array in GPU memory of numpipe's own; `shape` and byte `strides` are those that a kernel
    sees.

    `free` frees it, or the object's end does. Freeing is queued on `stream`: work queued there
    before still finds the memory.
    """

    __slots__ = ("device", "dtype", "nbytes", "ptr", "shape", "stream", "strides")

    def __init__(
        self,
        shape: Sequence[int],
        strides: Sequence[int],
        dtype: np.dtype[Any],
        nbytes: int,
        stream: int,
        device: int,
    ) -> None:
        self.ptr = 0  # __del__ runs even when the allocation raises
        self.shape, self.strides = tuple(shape), tuple(strides)
        self.dtype, self.nbytes = dtype, nbytes
        self.stream, self.device = stream, device
        if nbytes:
            self.ptr = driver.get().allocate(nbytes, stream, device)

    @classmethod
    def like(cls: type[_Buffer], info: ArrayInfo, stream: int, device: int) -> _Buffer:
        """Allocate memory for an array of the shape, type and major order of `info`, rows padded;
        its contents are undefined."""
        self, (strides, nbytes) = cls.__new__(cls), padded(info)
        DeviceBuffer.__init__(self, info.shape, strides, info.dtype, nbytes, stream, device)
        return self

    def info(self) -> ArrayInfo:
        """Describe it as an argument of a launch."""
        return ArrayInfo(
            "cuda", self.ptr, self.shape, self.strides, self.dtype, self.device, True, self
        )

    def free(self) -> None:
        ptr, self.ptr = self.ptr, 0
        cuda = driver.opened()  # which may be called at any moment, by the garbage collector
        if ptr and cuda is not None:
            cuda.free(ptr, self.stream, self.device)

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # at interpreter exit the driver may be gone before us
            self.free()


def clear_flags(device: int) -> None:
    """Set the flags of all workspaces on a GPU to 0, behind a kernel that gave up its waits: it
    left what nobody took."""
    with _LOCK:
        for (of, _, words), kept in _workspaces.items():
            for each in kept if of == device else ():
                cuda = driver.get()
                with cuda.aside(device) as aside:
                    cuda.clear(
                        each.ptr + 4 * (words - FLAGS),
                        4 * words,
                        FLAGS,
                        each.shape[0],
                        aside,
                        device,
                    )
                    cuda.synchronize(aside, device)


def workspace(slots: int, words: int, stream: int, device: int) -> ArrayInfo:
    """Return the workspace of launches on a stream, with at least `slots` slots. Raises DriverError
    where there is no memory.

    The first launch that needs one allocates it, and nothing frees it: nobody knows which graphs
    hold it. A launch that needs more slots gets another one, with twice as many or more, so all of
    them together have at most twice the largest. Flags are 0 between launches (`partials`); the
    rest holds anything.
    """
    with _LOCK:
        kept = _workspaces.setdefault((device, stream, words), [])
        if not kept or kept[-1].shape[0] < slots:
            slots = max([slots, *(2 * before.shape[0] for before in kept[-1:])])
            cuda, zeros = driver.get(), np.zeros((slots, FLAGS), np.int32)
            # the launch's stream may be captured; what follows on any stream finds cleared flags
            with cuda.aside(device) as aside:
                new = DeviceBuffer(
                    (slots, words),
                    (4 * words, 4),
                    np.dtype(np.float32),
                    4 * slots * words,
                    aside,
                    device,
                )
                flags = new.ptr + 4 * (words - FLAGS)
                cuda.copy_in(
                    flags,
                    4 * words,
                    zeros.ctypes.data,
                    zeros.strides[0],
                    zeros.strides[0],
                    slots,
                    aside,
                    device,
                )
                cuda.synchronize(aside, device)
            kept.append(new)
        return kept[-1].info()
