"""A bounded pool of page-locked host memory, and NumPy arrays in it.

Locking pages takes as long as copying them, so the pool reuses locked blocks, for the staging of
copies and for the outputs that calls on host arrays return, which the GPU then writes directly. The
pool locks at most NUMPIPE_PINNED_BYTES (default: 1 GiB, or an eighth of the machine's memory if
that is less; 0: none, so that all copies use pageable memory).

A block is ordinary anonymous memory of the process that is locked in place, not memory allocated by
the driver. Its pages may be large pages, it exists as long as an array refers to it, and a forked
child gets a copy of it like of any other array. Linux makes this copy at the fork since version
5.12. Older versions would take locked pages away from the parent, so there a child does not get
them.
"""

from __future__ import annotations

import contextlib
import functools
import math
import mmap
import os
import re
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence

import numpy as np

from ..arch.dimensions import round_up
from ..core.process_guards import in_child
from ..diagnostics.errors import SpecError
from . import driver

VARIABLE = "NUMPIPE_PINNED_BYTES"
PAGE = 2 << 20
"""Size of a large page in bytes; blocks are multiples of it."""
STAGING = 256 << 20
"""Bytes of the pool that are reserved for staging and not used for outputs."""


@functools.cache
def limit() -> int:
    """Return how many bytes the pool may lock. Raises SpecError if NUMPIPE_PINNED_BYTES is not a
    number."""
    text = os.environ.get(VARIABLE)
    if not text:
        memory = (
            os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
            if hasattr(os, "sysconf")
            else 0
        )
        return min(1 << 30, memory // 8)
    if not text.isdecimal() or len(text) > 15:
        raise SpecError(
            f"{VARIABLE} is {text[:50]!r}: set the number of bytes of host memory that may be "
            "page-locked, 0 for none"
        )
    return int(text)


class Block:
    """Page-locked memory, `nbytes` at `address`. It is freed with the last array in it."""

    __slots__ = ("address", "device", "events", "generation", "memory", "nbytes")

    def __init__(self, nbytes: int, device: int, generation: int) -> None:
        try:
            self.memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except OSError as error:
            raise MemoryError(
                f"the system cannot provide {nbytes} bytes ({error.strerror})"
            ) from None
        _advise(self.memory)
        self.nbytes, self.device, self.generation = nbytes, device, generation
        self.events: dict = {}
        """the driver's events after copies of this memory, by the keys of `transfers`"""
        self.address: int = self.array((nbytes,), np.dtype(np.uint8)).ctypes.data
        driver.get().lock_pages(self.address, nbytes, device)

    def array(
        self,
        shape: Sequence[int],
        dtype: np.dtype,
        strides: Sequence[int] | None = None,
        offset: int = 0,
    ) -> np.ndarray:
        """Return an array in the block that begins at `offset` bytes; it is C-contiguous unless
        `strides` (in bytes) are given."""
        return np.ndarray(shape, dtype, self.memory, offset, strides)

    def unlock(self) -> None:
        """Unlock the block, unless this is a forked child, in which it is not locked. A finalizer
        may call this at any moment."""
        cuda = driver.opened()
        if cuda is None or self.generation != POOL.generation:
            return
        # if the context is lost, the memory is no longer locked
        with contextlib.suppress(driver.DriverError):
            for event in self.events.values():
                cuda.unmark(event, self.device)
            cuda.unlock_pages(self.address, self.device)


def whole_pages(nbytes: int) -> int:
    """Return `nbytes` rounded up to whole large pages, at least one."""
    return round_up(max(nbytes, 1), PAGE)


def _advise(memory: mmap.mmap) -> None:
    # (6, 8) of "6.8.0-45-generic"
    version = tuple(map(int, re.findall(r"\d+", os.uname().release)[:2]))
    old = version < (5, 12)  # there, a fork would take locked pages away from the parent
    for name in ("MADV_HUGEPAGE", "MADV_DONTFORK")[: 1 + old]:
        # the system may not support this advice, or large pages
        with contextlib.suppress(AttributeError, OSError):
            memory.madvise(getattr(mmap, name))


class Pool:
    """Blocks that are locked once and reused. It can be used by several threads and by
    finalizers."""

    def __init__(self) -> None:
        self.nbytes = 0
        """bytes that are currently locked, in use or idle"""
        self.device: int | None = None
        """the GPU that host arrays were last copied to; None: outputs of host calls use ordinary
        memory"""
        self.generation = 0
        """number of forks between the first process and this one"""
        self._idle: list[Block] = []
        self._given_back: deque[Block] = deque()
        self._lock = threading.Lock()

    def take(self, nbytes: int, device: int, *, leave: int = 0) -> Block | None:
        """Return a block of at least `nbytes` with undefined contents, or None if the pool would
        exceed its limit less `leave`.

        Raises DriverError and MemoryError.
        """
        size = whole_pages(nbytes)
        with self._lock:
            while self._given_back:
                self._idle.append(self._given_back.popleft())
            fits = [block for block in self._idle if size <= block.nbytes <= size + size // 4]
            if fits:
                block = min(fits, key=lambda block: block.nbytes)
                self._idle.remove(block)
                return block
            in_use = self.nbytes - sum(block.nbytes for block in self._idle)
            most = limit() - leave - size
            if in_use > most:
                return None
            while self.nbytes > most and self._idle:  # unlock what was idle longest first
                block = self._idle.pop(0)
                self.nbytes -= block.nbytes
                block.unlock()
            self.nbytes += size  # counted here, because pages are locked outside the lock
        try:
            return Block(size, device, self.generation)
        except BaseException:
            with self._lock:
                self.nbytes -= size
            raise

    def give(self, block: Block) -> None:
        """Take back a block that no copy uses any more. It waits for no lock, because finalizers
        may call it at any moment."""
        # otherwise the block belongs to the parent process
        if block.generation == self.generation:
            self._given_back.append(block)

    def forget(self, block: Block) -> None:
        """Give up a block that a copy may still be using after its context was lost."""
        with self._lock:
            self.nbytes -= block.nbytes

    def after_fork(self) -> None:
        """In a forked child, forget the blocks, which are not locked there, and replace the lock,
        whose holder may not exist there."""
        self.generation += 1
        self.nbytes, self.device = 0, None
        self._idle, self._given_back, self._lock = [], deque(), threading.Lock()


POOL = Pool()
in_child(POOL.after_fork)


def empty(shape: Sequence[int], dtype: np.dtype, device: int) -> np.ndarray:
    """Return an uninitialized C-contiguous array in its own page-locked memory. Raises DriverError
    and MemoryError."""
    nbytes = math.prod(shape) * dtype.itemsize
    if not nbytes:
        return np.empty(shape, dtype)
    block = Block(whole_pages(nbytes), device, POOL.generation)
    return _array(block, shape, dtype, block.unlock)


def empty_output(shape: Sequence[int], dtype: np.dtype, smallest: int) -> np.ndarray:
    """Return an uninitialized C-contiguous array. It is page-locked if it has at least `smallest`
    bytes and the pool has room."""
    nbytes = math.prod(shape) * dtype.itemsize
    device = POOL.device
    if device is not None and nbytes >= smallest:
        with contextlib.suppress(driver.DriverError, driver.DriverMissing, MemoryError):
            block = POOL.take(nbytes, device, leave=STAGING)
            if block is not None:
                return _array(block, shape, dtype, functools.partial(POOL.give, block))
    return np.empty(shape, dtype)


def _array(
    block: Block, shape: Sequence[int], dtype: np.dtype, then: Callable[[], None]
) -> np.ndarray:
    """Return an array in a block. `then` is called when the array and all its views, which all
    refer to `whole`, are gone."""
    whole = np.frombuffer(block.memory, np.uint8, math.prod(shape) * dtype.itemsize)
    weakref.finalize(whole, then).atexit = False
    return whole.view(dtype).reshape(shape)
