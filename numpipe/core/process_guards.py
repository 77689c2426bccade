"""Work that is done as a whole: no signal ends it half way, and a forked child knows if it has a
part.

Python forgets a module whose import was interrupted, and keeps the modules that it had imported: an
import that begins again registers a second time what they have registered. A forked child has one
thread, and the locks that its parent's other threads held.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, TypeVar

from ..diagnostics.errors import TargetError

_Fix = TypeVar("_Fix", bound=Callable[[], Any])
_FIRST = 4
"""how many compiles of a process turn their objects into old ones"""
_compiles = itertools.count()


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Compile without garbage collection: Numba makes very many objects; collecting took up to a
    third of the time.

    The objects of the first compiles of a process are turned into old ones: the collector would
    look through young ones at once, and again soon after. Those of later compiles are not, or
    garbage would stay: full collections do not know how much there is. Where a program has frozen
    objects nothing is done: they would be unfrozen with ours.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            if next(_compiles) < _FIRST and not gc.get_freeze_count():
                gc.freeze()
                gc.unfreeze()
            gc.enable()


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Keep signals waiting: Python's handlers for them, Ctrl-C's among them, are called at the end.

    Python calls handlers in the main thread only, so there is nothing to do in others.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    waiting: list[tuple[int, FrameType | None]] = []
    handlers = {
        int(number): handler
        for number in signal.valid_signals()
        if callable(handler := signal.getsignal(number))
    }
    try:
        for number in handlers:
            signal.signal(number, lambda number, frame: waiting.append((number, frame)))
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for number, frame in waiting:
            handlers[number](number, frame)


def in_child(fix: _Fix) -> _Fix:
    """Have a forked child call this first: it renews locks that other threads held, and what a fork
    does not carry over."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=fix)
    return fix


class Compiles:
    """The compiles that run in this process."""

    def __init__(self) -> None:
        self._running: Counter[int] = Counter()
        """how many compiles, one inside another, each thread is in; by its ident"""
        self.cut = False
        """whether this process was forked in the middle of another thread's compile"""

    @contextlib.contextmanager
    def one(self, what: str) -> Iterator[None]:
        """Count a compile, from the import of the compiler to the machine code.

        Raises TargetError in a forked child that has only a part of the compiler.
        """
        if self.cut:
            raise TargetError(
                f"{what}: this process was forked in the middle of another thread's compile, and "
                "has a part of the compiler only; fix: fork before, or start processes with "
                "multiprocessing.get_context('spawn')"
            )
        thread = threading.get_ident()
        self._running[thread] += 1
        try:
            yield
        finally:
            self._running[thread] -= 1

    def in_child(self) -> None:
        """Note in a forked child, where only the thread that forked is left, what others did."""
        thread = threading.get_ident()
        own = self._running.pop(thread, 0)
        self.cut = self.cut or any(self._running.values())
        self._running = Counter({thread: own})


COMPILES = Compiles()
in_child(COMPILES.in_child)
