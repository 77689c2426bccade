"""Threads that share the copying of host arrays.

One thread copies 6 GB/s of host memory and PCIe 5 takes 54, so a large array is cut into parts, and
the threads of one pool take parts until there are no more. The calling thread takes parts too, so
it never waits for a free thread. NumPy releases the GIL while it copies, and no thread but the
calling one waits for the kernel: none spins while it runs.
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


@functools.cache
def count() -> int:
    """Return how many threads share a copy, the caller's included: NUMPIPE_COPY_THREADS, else half
    the cores, 8 at most."""
    text = os.environ.get(VARIABLE)
    if not text:
        cores = (
            len(os.sched_getaffinity(0))
            if hasattr(os, "sched_getaffinity")
            else os.cpu_count() or 1
        )
        # 8 bring a copy near the speed of PCIe; other cores are left to others
        return max(1, min(8, cores // 2))
    if not text.isdecimal() or len(text) > 3 or int(text) < 1:
        raise SpecError(
            f"{VARIABLE} is {text[:50]!r}; say how many threads share the copy of a host array, 1 "
            "to 999"
        )
    return int(text)


class Parts(Generic[T]):
    """A queue of parts: each goes to one of the threads that iterate over it, until `stop`."""

    def __init__(self, parts: Sequence[T]) -> None:
        self._left = deque(parts)  # of which threads may take parts at the same time

    def __iter__(self) -> Iterator[T]:
        while self._left:
            try:
                part = self._left.popleft()
            except IndexError:  # another thread took the last one
                return
            yield part

    def stop(self) -> None:
        """Hand out no more parts: a thread has failed."""
        self._left.clear()


def share(parts: Sequence[T], work: Callable[[Parts[T]], None], threads: int) -> None:
    """Call ``work(parts)`` in this thread and up to ``threads - 1`` others; all of them take from
    the same parts.

    Returns when none of them works any more. An exception in one ends the others behind their
    present part, and is raised here.
    """
    queue = Parts(parts)

    def guarded() -> None:
        try:
            work(queue)
        except BaseException:
            queue.stop()
            raise

    helpers: list[concurrent.futures.Future[None]] = []
    try:
        for _ in range(min(threads, len(parts)) - 1):
            try:
                helpers.append(_executor(threads).submit(guarded))
            except RuntimeError:  # the interpreter is shutting down: this thread does it alone
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
    """Wait until no helper works, because the caller gives their memory back next. Ctrl-C stops
    them, and is raised then."""
    interrupt: KeyboardInterrupt | None = None
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
    """Return the pool of helper threads for copies by `threads`; they start when they are first
    needed."""
    return concurrent.futures.ThreadPoolExecutor(threads - 1, thread_name_prefix="numpipe-copy")


in_child(_executor.cache_clear)  # threads do not survive a fork
