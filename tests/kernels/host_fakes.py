"""A fake driver whose copies run as late as a GPU's may: when they are waited for."""

from __future__ import annotations

import ctypes
import threading
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from numpipe import launch
from numpipe.launch import copy_threads, driver, pinned, transfers
from tests.kernels.launch_fakes import FakeDriver, view


class QueuedDriver(FakeDriver):
    """A driver whose copies of page-locked memory, kernels and frees are queued.

    They run when the stream, or an event recorded after them, is waited for. Staging memory that is
    reused or read too early therefore always gives wrong data. As with the CUDA driver, pageable
    memory is read when the copy is queued and written when the call returns.
    """

    def __init__(self, locks: bool = True) -> None:
        super().__init__()
        self.locked: dict[int, int] = {}
        self.locks = locks
        self.queues: dict[int, list[Callable[[], None]]] = {}
        self.events: dict[int, tuple[int, Any]] = {}
        self.before: Callable[[str], None] = lambda call: None
        """called with the name of each requested copy; may raise"""
        self.most_locked = 0
        self._one = threading.RLock()

    # ---- pages
    def lock_pages(self, address: int, nbytes: int, ordinal: int) -> None:
        if not self.locks:
            raise driver.DriverError("cuMemHostRegister", 801, "CUDA_ERROR_NOT_SUPPORTED")
        with self._one:
            self.locked[address] = nbytes
            self.most_locked = max(self.most_locked, sum(self.locked.values()))
            self.calls.append(("lock_pages", nbytes))

    def unlock_pages(self, address: int, ordinal: int) -> None:
        with self._one:
            if address in self.locked:  # otherwise an array of another test, collected late
                self.calls.append(("unlock_pages", self.locked.pop(address)))

    def page_locked(self, address: int, nbytes: int, ordinal: int) -> bool:
        with self._one:
            return any(
                start <= address and address + nbytes <= start + size
                for start, size in self.locked.items()
            )

    # ---- streams
    def _queue(self, stream: int, work: Callable[[], None]) -> None:
        self.queues.setdefault(stream, []).append(work)

    def _run(self, stream: int, until: Any = None) -> None:
        queue = self.queues.setdefault(stream, [])
        while queue and (until is None or until in queue):
            queue.pop(0)()

    def mark(self, event: Any, stream: int) -> Any:
        with self._one:
            event = len(self.events) + 1 if event is None else event

            def reached() -> None:
                pass

            self._queue(stream, reached)
            self.events[event] = stream, reached
            self.calls.append(("mark", event))
            return event

    def await_mark(self, event: Any) -> None:
        with self._one:
            self.calls.append(("await_mark", event))
            stream, reached = self.events[event]
            if reached in self.queues[stream]:
                self._run(stream, reached)

    def queue_chunk(self, host: int, device: int, nbytes: int, inwards: bool, stream: int) -> None:
        assert self.page_locked(host, nbytes, 0)
        ends = (device, nbytes, host) if inwards else (host, nbytes, device)
        (self.copy_in if inwards else self.copy_out)(*ends, nbytes, nbytes, 1, stream, 0)

    def unmark(self, event: Any, ordinal: int) -> None:
        with self._one:
            del self.events[event]

    def synchronize(self, stream: int, ordinal: int) -> None:
        with self._one:
            self._run(stream)
            super().synchronize(stream, ordinal)

    # ---- queued work
    def launch(self, config: Any, kernel: Any, params: int, ordinal: int) -> int:
        with self._one:
            self.calls.append(("launch", config.hStream))
            slots = [slot or 0 for slot in (ctypes.c_void_p * len(self.sizes)).from_address(params)]
            self._queue(config.hStream, lambda: self.kernel(slots))
            return self.code

    def free(self, address: int, stream: int, ordinal: int) -> None:
        with self._one:
            self._queue(stream, lambda: FakeDriver.free(self, address, stream, ordinal))

    def allocate(self, nbytes: int, stream: int, ordinal: int) -> int:
        with self._one:
            return super().allocate(nbytes, stream, ordinal)

    def copy_in(
        self,
        dst: int,
        dst_pitch: int,
        src: int,
        src_pitch: int,
        width: int,
        height: int,
        stream: int,
        ordinal: int,
    ) -> None:
        self.before("copy_in")
        with self._one:
            self.calls.append(("copy_in", dst_pitch, src_pitch, width, height, stream))
            extent, kept = (height - 1) * src_pitch + width, None
            if not self.page_locked(src, extent, ordinal):
                kept = ctypes.create_string_buffer(ctypes.string_at(src, extent), extent)
            self._queue(
                stream,
                lambda: rows(
                    dst,
                    dst_pitch,
                    ctypes.addressof(kept) if kept else src,
                    src_pitch,
                    width,
                    height,
                ),
            )

    def copy_out(
        self,
        dst: int,
        dst_pitch: int,
        src: int,
        src_pitch: int,
        width: int,
        height: int,
        stream: int,
        ordinal: int,
    ) -> None:
        self.before("copy_out")
        with self._one:
            self.calls.append(("copy_out", dst_pitch, src_pitch, width, height, stream))
            self._queue(stream, lambda: rows(dst, dst_pitch, src, src_pitch, width, height))
            if not self.page_locked(dst, (height - 1) * dst_pitch + width, ordinal):
                self._run(stream)


def rows(dst: int, dst_pitch: int, src: int, src_pitch: int, width: int, height: int) -> None:
    for row in range(height):
        ctypes.memmove(dst + row * dst_pitch, src + row * src_pitch, width)


def doubling(
    cuda: FakeDriver, a: np.ndarray[Any, Any], c: np.ndarray[Any, Any]
) -> tuple[launch.Prepared, list[launch.ArrayInfo]]:
    """Compute c = 2 a on the arrays that the parameters name, both of one shape."""
    infos = [launch.describe(a, "a"), launch.describe(c, "c")]
    kernel = types.SimpleNamespace(
        name="scale",
        cubin=b"",
        entry="scale",
        threads=128,
        smem_bytes=0,
        debug=False,
        recording=None,
        cluster=(1, 1, 1),
        dynamic=False,
        gpus=0,
        arrays=("a", "c"),
        maps=(),
        majors=tuple(map(launch.major_order, infos)),
    )
    cuda.sizes = [128] + [8] * (2 + 4 * a.ndim)

    def work(parameters: list[int]) -> None:
        words = [ctypes.c_int64.from_address(p).value for p in parameters[1:]]
        half = 1 + 2 * a.ndim
        there = []
        for at in (0, half):
            shape, strides = words[at + 1 : at + 1 + a.ndim], words[at + 1 + a.ndim : at + half]
            there.append(
                view(words[at], tuple(shape), tuple(s * a.itemsize for s in strides), a.dtype)
            )
        there[1][...] = 2 * there[0]

    cuda.kernel = work
    return launch.Prepared(kernel, infos), infos


def install(
    patch: pytest.MonkeyPatch,
    cuda: QueuedDriver,
    *,
    threads: int = 3,
    limit: int = 1 << 30,
    chunk: int = 64,
) -> QueuedDriver:
    """Install this driver, with chunks so small that little arrays take many."""
    patch.setattr(driver, "_opened", cuda)
    patch.setattr(pinned, "POOL", pinned.Pool())
    patch.setattr(pinned, "limit", lambda: limit)
    patch.setattr(copy_threads, "count", lambda: threads)
    patch.setattr(transfers, "PLAIN", 1)
    patch.setattr(transfers, "PINNED", 1)
    patch.setattr(transfers, "CHUNK", chunk)
    patch.setattr(transfers, "_SMALLEST_CHUNK", 16)
    return cuda
