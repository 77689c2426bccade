"""Threads that share the copying of host arrays.

One thread copies 6 GB/s of host memory, while PCIe 5 transfers 54 GB/s. A large array is therefore
cut into parts, which the threads of a pool take one by one. The calling thread takes parts too, so
it never waits for a free thread. NumPy releases the GIL while it copies. Only the calling thread
waits for the kernel, so no other thread spins while it runs.
"""

from __future__ import annotations

import concurrent.futures
import functools
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar

from ..core.process_guards import in_child
from ..diagnostics.errors import SpecError

VARIABLE = "NUMPIPE_COPY_THREADS"

T = TypeVar("T")


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@functools.cache
def count() -> int:
    """Return the number of threads that share a copy, including the caller's: NUMPIPE_COPY_THREADS,
    or half the cores, at most 8."""
    text = os.environ.get(VARIABLE)
    if not text:
        # 8 threads nearly reach the speed of PCIe, and some cores should stay free
        return max(1, min(8, cores() // 2))
    if not text.isdecimal() or len(text) > 3 or int(text) < 1:
        raise SpecError(
            f"{VARIABLE} is {text[:50]!r}: set the number of threads that share the copy of a host "
            "array, 1 to 999"
        )
    return int(text)


class Parts(Generic[T]):
    """A queue of parts, each of which goes to one of the threads that iterate over it, until
    `stop`."""

    def __init__(self, parts: Sequence[T]) -> None:
        self._left = deque(parts)  # thread-safe

    def __iter__(self) -> Iterator[T]:
        while self._left:
            try:
                part = self._left.popleft()
            except IndexError:  # another thread took the last one
                return
            yield part

    def stop(self) -> None:
        """Hand out no more parts, because a thread failed."""
        self._left.clear()


def share(parts: Sequence[T], work: Callable[[Parts[T]], None], threads: int) -> None:
    """Call ``work(parts)`` in this thread and up to ``threads - 1`` others, which all take from the
    same parts.

    Returns after all of them have finished. An exception in one thread stops the others after their
    current part, and is raised here.
    """
    queue = Parts(parts)

    def guarded() -> None:
        try:
            work(queue)
        except BaseException:
            queue.stop()
            raise

    helpers = []
    try:
        for _ in range(min(threads, len(parts)) - 1):
            try:
                helpers.append(_executor(threads).submit(guarded))
            except RuntimeError:  # the interpreter is shutting down: this thread does all the work
                break
        guarded()
    except BaseException:
        queue.stop()
        raise
    finally:
        _await(queue, helpers)
    for helper in helpers:
        if not helper.cancelled():
            helper.result()


def _await(queue: Parts[T], helpers: Sequence[concurrent.futures.Future[None]]) -> None:
    """Wait until no helper is working, because the caller will reuse their memory. Ctrl-C stops
    them, and is raised afterwards."""
    interrupt = None
    for helper in helpers:
        while not helper.cancel() and not helper.done():
            try:
                concurrent.futures.wait([helper])
            except KeyboardInterrupt as error:
                queue.stop()
                interrupt = error
    if interrupt is not None:
        raise interrupt


@functools.cache
def _executor(threads: int) -> concurrent.futures.ThreadPoolExecutor:
    """Return the pool of helper threads for copies by `threads` threads; they start when first
    needed."""
    return concurrent.futures.ThreadPoolExecutor(threads - 1, thread_name_prefix="numpipe-copy")


in_child(_executor.cache_clear)  # threads do not survive a fork
