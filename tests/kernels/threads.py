"""Calls from several threads at once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any


def in_threads(count: int, work: Callable[[int], Any]) -> None:
    """Call `work` with 0 … `count` - 1, each in its own thread, all at once.

    Raises the exception of the first call that failed.
    """
    ready = threading.Barrier(count)

    def run(number: int) -> None:
        ready.wait()
        work(number)

    with ThreadPoolExecutor(count) as pool:
        list(pool.map(run, range(count)))
