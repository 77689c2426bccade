"""The cache of a kernel's calls, which holds everything that earlier calls computed."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any

from ..core.process_guards import in_child

MOST = 1024
"""maximum number of entries: each argument list needs a few, and a training step has some hundred
argument lists"""
_lock = threading.Lock()
"""shared by all tables, and held only briefly"""


class Table(OrderedDict[Any, Any]):
    """Results by what they depend on. Look-ups take no lock; `keep` drops the oldest entry of a
    full table.

    A kernel has one table, with keys of several forms:

    =======================================  =======================================================
    marks of arrays, Statics                 a `Repeat`: a repeated call on device arrays
                                             (`repeats`)
    a `Repeat`, a stream                     the `Launch` for this stream, if it was called on
                                             several
    marks of the inputs alone, Statics       a list of functions that allocate its outputs
    `Statics`                                the object that represents them in the keys above
    names and ids of Statics                 that object, and the values, to keep their ids valid
    layouts of arrays, Statics, scalars      a `Plan`: what calls on such arrays share
                                             (`kernels.planned_calls`)
    a `Prepared`, a grid, a stream, arrays   a `Launch`
    a `Prepared`, "config", a grid, stream   the driver's launch configuration
    =======================================  =======================================================
    """

    __slots__ = ()

    def keep(self, key: Any, value: Any) -> Any:
        """Store a value and return it."""
        with _lock:
            if len(self) >= MOST:
                self.popitem(last=False)
            self[key] = value
        return value


@in_child
def _after_fork() -> None:
    """Replace the lock in a forked child, where a thread that held it does not exist."""
    global _lock
    _lock = threading.Lock()
