"""Spread calls of a function over processes: to compile before a sweep, or to test many cases.

`numpipe.warmup` compiles the kernels that it is given. But which kernels a library function
launches is known only to that function: so it is called, and what it compiles is stored in the disk
cache, from which the measuring processes load it.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool

from .files import Case

PRELOADED = ["__main__", "torch"]
"""modules that are imported once, for all workers, if they exist"""
CALLS = 4
"""calls for which another worker is worth its start"""


def spread(
    function: Callable[[Case], object],
    cases: Sequence[Case],
    *,
    workers: int | None = None,
    patience: float = 120,
) -> list[tuple[Case, str]]:
    """Call a function for each case in worker processes. Return the cases that failed, with errors.

    function  a function of an importable module; a script must start its work under
              ``if __name__ == "__main__":``
    workers   number of processes; default: the CPUs that this process may use
    patience  seconds without any result after which the remaining calls are abandoned

    The output of calls is discarded.
    """
    if not cases:
        return []
    failures: dict[int, str] = {}
    limited = hasattr(os, "sched_getaffinity")
    cpus = len(os.sched_getaffinity(0)) if limited else os.cpu_count() or 1
    count = min(workers or cpus, -(-len(cases) // CALLS))
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    with ProcessPoolExecutor(count, context) as pool:
        waiting = {pool.submit(_called, function, case): at for at, case in enumerate(cases)}
        try:
            while waiting:
                done, _ = wait(waiting, patience, FIRST_COMPLETED)
                if not done:
                    raise TimeoutError(f"no answer for {patience:g} s")
                for future in done:
                    if failure := future.result():
                        failures[waiting[future]] = failure
                    del waiting[future]
        except (TimeoutError, BrokenProcessPool) as error:
            failures |= dict.fromkeys(waiting.values(), f"{type(error).__name__}: {error}")
            for worker in multiprocessing.active_children():
                worker.kill()
            pool.shutdown(wait=False, cancel_futures=True)
    return [(cases[at], failures[at]) for at in sorted(failures)]


def distinct(key: Callable[[Case], object], cases: Iterable[Case]) -> list[Case]:
    """Return the first case of each key, e.g. of each kernel that cases compile."""
    found: dict[object, Case] = {}
    for case in cases:
        found.setdefault(key(case), case)
    return list(found.values())


def _called(function: Callable[[Case], object], case: Case) -> str:
    """Return the error of a call, or ""."""
    with contextlib.redirect_stdout(None):
        try:
            function(case)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
    return ""
