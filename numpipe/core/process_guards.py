"""Guards for work that must not be interrupted by a signal, or split by a fork.

If an import is interrupted, Python forgets the module but keeps the modules that it had imported,
so repeating the import registers everything from them a second time. A forked child has only one
thread, but also the locks held by its parent's other threads, and what they had half done: modules
that they were importing, values of cached properties that they were computing. `in_child` registers
what makes up for it; `_let_go` does so for imports and cached properties.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, TypeVar

from ..diagnostics.errors import TargetError

_Fix = TypeVar("_Fix", bound=Callable[[], Any])


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Compile without garbage collection. Numba creates very many objects, and collecting took up
    to a third of the time."""
    enabled = COMPILES.uncollected = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        COMPILES.uncollected = False
        if enabled:
            gc.enable()


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Delay signals: Python's handlers, including the one for Ctrl-C, are called at the end of the
    block.

    Python only calls handlers in the main thread, so in other threads this does nothing.
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
    """Register a function that a forked child calls first, to replace locks that other threads held
    and anything else that a fork does not preserve."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=fix)
    return fix


class Compiles:
    """The compiles that are running in this process."""

    def __init__(self) -> None:
        self._running: Counter[int] = Counter()
        """depth of nested compiles of each thread, by thread ident"""
        self.seconds = 0.0
        """time that all compiles so far have taken"""
        self.cut = False
        """whether this process was forked during another thread's compile"""
        self.uncollected = False
        """whether a compile disabled garbage collection"""

    @contextlib.contextmanager
    def one(self, what: str) -> Iterator[None]:
        """Count a compile, from the import of the compiler to the machine code.

        Raises TargetError in a forked child that has only a part of the compiler.
        """
        if self.cut:
            raise TargetError(
                f"{what}: this process was forked during another thread's compile, and has only a "
                "part of the compiler; fix: fork earlier, or start processes with "
                "multiprocessing.get_context('spawn')"
            )
        thread, begun = threading.get_ident(), time.perf_counter()
        self._running[thread] += 1
        try:
            yield
        finally:
            self._running[thread] -= 1
            self.seconds += time.perf_counter() - begun

    def in_child(self) -> None:
        """In a forked child, where only the forking thread exists, record whether other threads
        were compiling."""
        thread = threading.get_ident()
        own = self._running.pop(thread, 0)
        self.cut = self.cut or any(self._running.values())
        self._running = Counter({thread: own})
        if self.uncollected and not own:
            gc.enable()


COMPILES = Compiles()
in_child(COMPILES.in_child)


@in_child
def _let_go() -> None:
    """In a forked child, free the locks of imports and of cached properties that other threads
    held. Modules that they had imported in part are imported again when they are needed."""
    locks = getattr(importlib._bootstrap, "_module_locks", {})
    for name, reference in list(locks.items()):
        if getattr(reference(), "owner", None) not in (None, threading.get_ident()):
            del locks[name]
            if getattr(getattr(sys.modules.get(name), "__spec__", None), "_initializing", False):
                del sys.modules[name]
    kinds = (
        kind
        for name, module in list(sys.modules.items())
        if name.startswith("numpipe.")
        for kind in list(vars(module).values())
        if isinstance(kind, type)
    )
    for kind in kinds if sys.version_info < (3, 12) else ():
        for value in vars(kind).values():
            if isinstance(value, functools.cached_property):
                value.lock = threading.RLock()  # type: ignore[attr-defined]
