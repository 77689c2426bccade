"""Copies between host arrays and GPU memory, at up to the speed of PCIe and host memory.

The GPU copies at the speed of PCIe only to and from page-locked memory. There are three methods:

==========  ===========================  ===========================================================
in place    page-locked arrays           one copy by the GPU
plain       arrays below `PLAIN` bytes   one copy by the driver, whose single thread copies 7 GB/s
                                         to the GPU and 12 GB/s back: faster than starting threads
staged      all others                   chunks, through page-locked staging memory, by several
                                         threads
==========  ===========================  ===========================================================

Each thread uses the slots of one block of the pool, and queues its copies on the call's stream,
which orders everything else:

    to the GPU     fill slot 0, queue its copy | fill slot 1, queue its copy | … | await the first
                   half's copies, fill slot 0 | …
    to the host    queue a copy to slot 0 | queue one to slot 1; await that of slot 0, empty it | …

Python limits this: only one thread at a time can call the driver or take a chunk, and a thread that
waited for its turn wakes up late. Chunks are therefore large, and copies to the GPU have only one
event for half of the slots.

Chunks have the layout that the array has on the GPU, so the same copy pads rows and gathers strided
elements, without a temporary array. Staging memory is returned to the pool after the stream has
been waited for, and never if that fails.
"""

from __future__ import annotations

import contextlib
import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from ..arch.dimensions import Ints
from . import copy_threads, driver, pinned
from .array_info import ArrayInfo, dense_strides, major_order
from .buffers import DeviceBuffer

PLAIN = 16 << 20
"""Arrays with fewer bytes are copied by the driver."""
PINNED = 1 << 20
"""Outputs with fewer bytes are not worth page-locked memory."""
CHUNK = 4 << 20
"""Maximum number of bytes that a thread copies at a time."""
SLOTS = 8
"""Number of chunks that a thread has staging memory for; must be even."""
_SMALLEST_CHUNK = 256 << 10
_NARROW = 512
"""Padded rows with fewer bytes are too slow for the GPU to copy one by one."""

Job = tuple[ArrayInfo, DeviceBuffer]
Piece = tuple[np.ndarray, DeviceBuffer]


class Part(NamedTuple):
    """One copy: a piece of a host array, and contiguous rows on the GPU that start at `address`,
    `pitch` bytes apart."""

    host: np.ndarray
    address: int
    pitch: int

    @property
    def strides(self) -> Ints:
        """Byte strides on the GPU and in staging memory."""
        return *dense_strides(self.host.shape[:-1], self.pitch), self.host.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes from the part's first to its last element on the GPU."""
        return int(
            (math.prod(self.host.shape[:-1]) - 1) * self.pitch
            + self.host.shape[-1] * self.host.itemsize
        )


def cut(array: np.ndarray, address: int, pitch: int, most: int) -> Iterator[Part]:
    """Yield parts of at most `most` bytes, in memory order. The array has at least 1 dimension, the
    contiguous one last."""
    if array.ndim == 1:
        apart = array.itemsize
    else:
        apart = math.prod(array.shape[1:-1]) * pitch
        if apart > most:
            for i in range(len(array)):
                yield from cut(array[i], address + i * apart, pitch, most)
            return
    step = max(1, most // apart)
    for i in range(0, len(array), step):
        yield Part(array[i : i + step], address + i * apart, pitch)


class _Worker:
    """One of the copying threads: its staging memory (the slots of a block), and the events after
    copies of them on a stream."""

    def __init__(self, block: pinned.Block, stream: int, device: int) -> None:
        self.block, self.stream, self.device = block, stream, device
        self.cuda = driver.get()
        self.queued: set[int] = set()
        """slots with an event after their latest copy"""

    def view(self, slot: int, part: Part) -> np.ndarray:
        return self.block.array(part.host.shape, part.host.dtype, part.strides, slot * CHUNK)

    def wait(self, slot: int) -> None:
        """Wait until the latest copy of this slot, and all copies that this thread queued before
        it, have finished."""
        if slot in self.queued:
            self.cuda.await_mark(self.block.events[self.device, slot])

    def copy(self, slot: int, part: Part, inwards: bool, awaited: bool = True) -> None:
        """Queue a copy of this slot, to or from the GPU."""
        self.cuda.queue_chunk(
            self.block.address + slot * CHUNK, part.address, part.nbytes, inwards, self.stream
        )
        if awaited:
            self.mark(slot)

    def mark(self, slot: int) -> None:
        """Record this slot's event after everything queued so far."""
        events, key = self.block.events, (self.device, slot)
        events[key] = self.cuda.mark(events.get(key), self.stream)
        self.queued.add(slot)

    def fill(self, parts: copy_threads.Parts[Part]) -> None:
        """Copy parts to the GPU. The last copies may still be in progress on return."""
        half, slot = SLOTS // 2, -1
        for turn, part in enumerate(parts):
            slot = turn % SLOTS
            if slot % half == 0:
                self.wait(slot + half - 1)
            np.copyto(self.view(slot, part), part.host)
            self.copy(slot, part, True, slot % half == half - 1)
        if slot >= 0 and slot % half < half - 1:
            # the half is not full, but this worker may fill it again later
            self.mark(slot - slot % half + half - 1)

    def empty(self, parts: copy_threads.Parts[Part]) -> None:
        """Copy parts to the host. Returns after the copies have finished."""
        queued: deque[tuple[int, Part]] = deque()

        def land() -> None:
            slot, part = queued.popleft()
            self.wait(slot)
            np.copyto(part.host, self.view(slot, part))

        for turn, part in enumerate(parts):
            self.copy(turn % 2, part, False)
            queued.append((turn % 2, part))
            if turn:
                land()
        if queued:
            land()


class Transfers:
    """The copies of one call on one stream. At the end of the with block, staging memory is
    returned after the last copy has finished."""

    def __init__(self, stream: int, device: int) -> None:
        self.stream, self.device = stream, device
        self._workers: list[_Worker] | None = None
        self._kept: list[np.ndarray] = []
        """contiguous copies of arrays that the GPU may still be reading"""

    def __enter__(self) -> Transfers:
        return self

    def __exit__(self, kind: object, *_exc: object) -> None:
        workers, self._workers = self._workers or [], None
        if not workers and not self._kept:
            return
        try:
            driver.get().synchronize(self.stream, self.device)
        except driver.DriverError:  # the context is lost, and copies may still use this memory
            for worker in workers:
                pinned.POOL.forget(worker.block)
            if kind is None:
                raise
        else:
            for worker in workers:
                pinned.POOL.give(worker.block)
        finally:
            self._kept.clear()

    def upload(self, jobs: Sequence[Job]) -> None:
        """Queue copies of host arrays to the GPU. The caller must keep the arrays until it has
        waited for the stream."""
        staged, plain = self._ways(jobs)
        for array, buffer in plain:
            rows = array
            if not _equal_rows(array):
                rows = np.ascontiguousarray(array)
                self._kept.append(rows)
            width, height, pitch, device_pitch = _extent(rows, buffer)
            driver.get().copy_in(
                buffer.ptr,
                device_pitch,
                rows.ctypes.data,
                pitch,
                width,
                height,
                self.stream,
                self.device,
            )
        self._share(staged, _Worker.fill)

    def download(self, jobs: Sequence[Job]) -> None:
        """Copy GPU memory into host arrays of the same shape, type and major order. Returns after
        the copies have finished.

        Raises DriverError if an earlier kernel on this stream failed.
        """
        cuda, scattered = driver.get(), []
        staged, plain = self._ways(jobs)
        for array, buffer in plain:
            rows = array
            if not _equal_rows(array):
                rows = np.empty(array.shape, array.dtype)
                scattered.append((array, rows))
            width, height, pitch, device_pitch = _extent(rows, buffer)
            cuda.copy_out(
                rows.ctypes.data,
                pitch,
                buffer.ptr,
                device_pitch,
                width,
                height,
                self.stream,
                self.device,
            )
        # only one thread waits for the kernel, and reports its failure
        cuda.synchronize(self.stream, self.device)
        for array, rows in scattered:
            array[...] = rows
        self._share(staged, _Worker.empty)

    def _ways(self, jobs: Sequence[Job]) -> tuple[list[Piece], list[Piece]]:
        """Return what is copied in chunks, and what the driver copies."""
        ways: tuple[list[Piece], list[Piece]] = [], []
        for info, buffer in jobs:
            if buffer.nbytes:
                assert info.array is not None, "a host array"
                # the contiguous dimension last
                array = info.array.T if major_order(info) == "col" else info.array
                ways[not self._staged(array, buffer)].append((array, buffer))
        return ways

    def _staged(self, array: np.ndarray, buffer: DeviceBuffer) -> bool:
        if buffer.nbytes < PLAIN:
            return False
        if _equal_rows(array):
            width, height, pitch, device_pitch = _extent(array, buffer)
            narrow = width < _NARROW and pitch != device_pitch
            if not narrow and driver.get().page_locked(
                array.ctypes.data, pitch * (height - 1) + width, self.device
            ):
                return False
        return bool(self._staging())

    def _staging(self) -> list[_Worker]:
        """Return the workers, as many as the pool has room for, or none if there is only one
        thread."""
        if self._workers is None:
            self._workers = []
            threads = copy_threads.count()
            # if memory cannot be locked, the driver copies everything
            with contextlib.suppress(driver.DriverError, MemoryError):
                while 1 < threads > len(self._workers):
                    block = pinned.POOL.take(SLOTS * CHUNK, self.device)
                    if block is None:
                        break
                    self._workers.append(_Worker(block, self.stream, self.device))
                pinned.POOL.device = self.device
        return self._workers

    def _share(
        self, jobs: Sequence[Piece], work: Callable[[_Worker, copy_threads.Parts[Part]], None]
    ) -> None:
        if not jobs:
            return
        workers = deque(self._staging())
        most = min(
            CHUNK,
            max(_SMALLEST_CHUNK, sum(buffer.nbytes for _, buffer in jobs) // (4 * len(workers))),
        )
        parts = [
            part
            for array, buffer in jobs
            for part in cut(
                array.view(f"u{array.itemsize}"), buffer.ptr, _pitch(buffer, array), most
            )
        ]

        def in_a_thread(queue: copy_threads.Parts[Part]) -> None:
            with driver.get().on(self.device):
                work(workers.pop(), queue)

        copy_threads.share(parts, in_a_thread, len(workers))


def _equal_rows(array: np.ndarray) -> bool:
    """Return whether an array in memory order consists of equally spaced rows of contiguous
    elements."""
    if array.flags.c_contiguous:
        return True
    return (
        array.ndim == 2
        and array.strides[1] == array.itemsize
        and array.strides[0] >= array.shape[1] * array.itemsize
    )


def _pitch(buffer: DeviceBuffer, array: np.ndarray) -> int:
    """Return the number of bytes between rows on the GPU."""
    return buffer.nbytes // int(math.prod(array.shape[:-1]))


def _extent(rows: np.ndarray, buffer: DeviceBuffer) -> tuple[int, int, int, int]:
    """Return (bytes per row, number of rows, host pitch, device pitch) of a copy between equally
    spaced rows and a buffer."""
    if rows.ndim < 2:
        return rows.nbytes, 1, rows.nbytes, rows.nbytes
    width = rows.shape[-1] * rows.itemsize
    height = math.prod(rows.shape[:-1])
    return width, height, rows.strides[0] if rows.ndim == 2 else width, _pitch(buffer, rows)
