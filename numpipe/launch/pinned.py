"""Page-locked host memory: a bounded pool of blocks, and NumPy arrays that lie in them.

Locking pages costs as much as copying to them, so the pool keeps locked blocks and uses them again:
for the staging of copies, and for the outputs that calls on host arrays return, which the GPU then
writes in place. The pool locks at most NUMPIPE_PINNED_BYTES (default: 1 GiB, or an eighth of the
machine's memory where that is less; 0: none, every copy is of pageable memory).

A block is ordinary anonymous memory of the process, locked in place, and not memory that the driver
allocates: its pages may be large ones, it lives as long as an array refers to it, and a forked
child has a copy as of any other array. Linux makes that copy at the fork since 5.12; an older one
would take locked pages away from the parent, so there a child does not get them.
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
from typing import Any

import numpy as np

from ..core.process_guards import in_child
from ..diagnostics.errors import SpecError
from . import driver

VARIABLE = "NUMPIPE_PINNED_BYTES"
PAGE = 2 << 20
"""Blocks are multiples of a large page, in bytes."""
STAGING = 256 << 20
"""Bytes of the pool that outputs leave to staging."""


@functools.cache
def limit() -> int:
    """Return how many bytes the pool may lock. Raises SpecError where NUMPIPE_PINNED_BYTES is no
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
            f"{VARIABLE} is {text[:50]!r}; say how many bytes of host memory may be page-locked, "
            "0 for none"
        )
    return int(text)


class Block:
    """Page-locked memory: `nbytes` at `address`. The last array in it frees the memory itself."""

    __slots__ = ("address", "device", "events", "generation", "memory", "nbytes")

    def __init__(self, nbytes: int, device: int, generation: int) -> None:
        try:
            self.memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except OSError as error:
            raise MemoryError(f"the system has no {nbytes} bytes ({error.strerror})") from None
        _advise(self.memory)
        self.nbytes, self.device, self.generation = nbytes, device, generation
        self.events: dict[Any, Any] = {}
        """the driver's events behind copies of this memory, by `transfers`' keys"""
        self.address: int = self.array((nbytes,), np.dtype(np.uint8)).ctypes.data
        driver.get().lock_pages(self.address, nbytes, device)

    def array(
        self,
        shape: Sequence[int],
        dtype: np.dtype[Any],
        strides: Sequence[int] | None = None,
        offset: int = 0,
    ) -> np.ndarray[Any, Any]:
        """Return an array in the block, `offset` bytes behind its start; without `strides` (bytes)
        it is C-contiguous."""
        return np.ndarray(shape, dtype, self.memory, offset, strides)

    def unlock(self) -> None:
        """Make the block ordinary memory again, which it is already in a forked child. A finalizer
        may call this at any moment."""
        cuda = driver.opened()
        if cuda is None or self.generation != POOL.generation:
            return
        # the context is lost: nothing is locked any more
        with contextlib.suppress(driver.DriverError):
            for event in self.events.values():
                cuda.unmark(event, self.device)
            cuda.unlock_pages(self.address, self.device)


def whole_pages(nbytes: int) -> int:
    """Return `nbytes` rounded up to whole pages, at least one."""
    return max(1, -(-nbytes // PAGE)) * PAGE


def _advise(memory: mmap.mmap) -> None:
    # (6, 8) of "6.8.0-45-generic"
    version = tuple(map(int, re.findall(r"\d+", os.uname().release)[:2]))
    old = version < (5, 12)  # a fork takes locked pages away from the parent
    for name in ("MADV_HUGEPAGE", "MADV_DONTFORK")[: 1 + old]:
        # a system without such advice, or without large pages
        with contextlib.suppress(AttributeError, OSError):
            memory.madvise(getattr(mmap, name))


class Pool:
    """Blocks that are locked once and used many times. Safe to use from several threads, and from
    finalizers."""

    def __init__(self) -> None:
        self.nbytes = 0
        """bytes that are locked now: of blocks in use and of idle ones"""
        self.device: int | None = None
        """the GPU that host arrays were copied to last; without one, outputs of host calls are
        ordinary memory"""
        self.generation = 0
        """how many forks lie between this process and the first one"""
        self._idle: list[Block] = []
        self._given_back: deque[Block] = deque()
        self._lock = threading.Lock()

    def take(self, nbytes: int, device: int, *, leave: int = 0) -> Block | None:
        """Return a block of at least `nbytes`, its contents undefined; None where the pool would
        exceed its limit, less `leave`.

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
            if in_use + size > limit() - leave:
                return None
            self._shrink(limit() - leave - size)
            self.nbytes += size  # before the lock is let go: locking pages takes milliseconds
        try:
            return Block(size, device, self.generation)
        except BaseException:
            with self._lock:
                self.nbytes -= size
            raise

    def give(self, block: Block) -> None:
        """Take a block back that no copy uses any more. Finalizers call this too, at any moment, so
        it waits for no lock."""
        # else it belongs to the process that this one was forked from
        if block.generation == self.generation:
            self._given_back.append(block)

    def forget(self, block: Block) -> None:
        """Give a block up that a copy may still be using: its context is lost."""
        with self._lock:
            self.nbytes -= block.nbytes

    def _shrink(self, most: int) -> None:
        """Unlock idle blocks, the longest idle first, until no more than `most` bytes are
        locked."""
        while self.nbytes > most and self._idle:
            block = self._idle.pop(0)
            self.nbytes -= block.nbytes
            block.unlock()

    def after_fork(self) -> None:
        """In a forked child: forget the blocks, which are not locked for it, and the lock, whose
        holder may be gone."""
        self.generation += 1
        self.nbytes, self.device = 0, None
        self._idle, self._given_back, self._lock = [], deque(), threading.Lock()


POOL = Pool()
in_child(POOL.after_fork)


def empty(shape: Sequence[int], dtype: np.dtype[Any], device: int) -> np.ndarray[Any, Any]:
    """Return an uninitialised C-contiguous array in page-locked memory of its own. Raises
    DriverError and MemoryError."""
    nbytes = math.prod(shape) * dtype.itemsize
    if not nbytes:
        return np.empty(shape, dtype)
    block = Block(whole_pages(nbytes), device, POOL.generation)
    return _array(block, shape, dtype, block.unlock)


def empty_output(shape: Sequence[int], dtype: np.dtype[Any], smallest: int) -> np.ndarray[Any, Any]:
    """Return an uninitialised C-contiguous array, page-locked where it has at least `smallest`
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
    block: Block, shape: Sequence[int], dtype: np.dtype[Any], then: Callable[[], None]
) -> np.ndarray[Any, Any]:
    """Return an array in a block. `then` is called when it and all views of it are gone: each of
    them refers to `whole`."""
    whole = np.frombuffer(block.memory, np.uint8, math.prod(shape) * dtype.itemsize)
    weakref.finalize(whole, then).atexit = False
    return whole.view(dtype).reshape(shape)
