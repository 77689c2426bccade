"""What lies between a call and the driver: everything that calls of a kernel found out, in one table."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any

from ..core.undisturbed import in_child

MOST = 1024
"""entries of a table: a few for each argument list, and a training step has some hundred of these"""
_lock = threading.Lock()
"""of all tables: it is held for a moment and nothing waits inside"""


class Table(OrderedDict[Any, Any]):
    """What is known by what it depends on. To look something up takes no lock; `keep` forgets the oldest entry when it is full.

    A kernel has one, in which keys of several forms lie beside each other:

    =======================================  ===============================================================================
    marks of arrays, Statics                 a `Repeat`: a call on device arrays that was made before (`kernels.repeats`)
    a `Repeat`, a stream                     what it launches there, a `Launch`
    marks of the inputs alone, Statics       a list of functions that allocate its outputs
    `Statics`                                what stands for them above
    names and ids of Statics                 the same, and their values, which keep their ids
    layouts of arrays, Statics, scalars      a `Plan`: what a call on arrays like these does (`kernels.calls`)
    a `Prepared`, a grid, a stream, arrays   a `Launch`
    a `Function`, a grid, a stream           the driver's launch configuration
    =======================================  ===============================================================================
    """

    __slots__ = ()

    def keep(self, key: Any, value: Any) -> Any:
        """Remember a value; returns it."""
        with _lock:
            if len(self) >= MOST:
                self.popitem(last=False)
            self[key] = value
        return value


@in_child
def _after_fork() -> None:
    """A thread that held the lock is gone."""
    global _lock
    _lock = threading.Lock()
