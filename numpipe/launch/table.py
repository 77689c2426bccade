"""The table between a kernel's calls and the driver: it keeps everything that earlier calls found
out."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any

from ..core.process_guards import in_child

MOST = 1024
"""entries of a table: a few for each argument list, and a training step has some hundred of
these"""
_lock = threading.Lock()
"""of all tables; held for a moment, in which nothing waits"""


class Table(OrderedDict[Any, Any]):
    """Results by what they depend on. To look one up takes no lock; `keep` drops the oldest entry
    of a full table.

    A kernel has one table, with keys of several forms:

    =======================================  =======================================================
    marks of arrays, Statics                 a `Repeat`: a call on device arrays that was made
                                             before (`repeats`)
    a `Repeat`, a stream                     the `Launch` that it launches there, if it was called
                                             on several
    marks of the inputs alone, Statics       a list of functions that allocate its outputs
    `Statics`                                the object that stands for them above
    names and ids of Statics                 the same object, and their values, which keep their ids
    layouts of arrays, Statics, scalars      a `Plan`: what a call on arrays like these does
                                             (`kernels.planned_calls`)
    a `Prepared`, a grid, a stream, arrays   a `Launch`
    a `Prepared`, "config", a grid, stream   the driver's launch configuration
    =======================================  =======================================================
    """

    __slots__ = ()

    def keep(self, key: Any, value: Any) -> Any:
        """Keep a value and return it."""
        with _lock:
            if len(self) >= MOST:
                self.popitem(last=False)
            self[key] = value
        return value


@in_child
def _after_fork() -> None:
    """Renew the lock in a forked child: a thread that held it is gone."""
    global _lock
    _lock = threading.Lock()
