"""What a sweep compiles, compiled before it is measured, in several processes.

`numpipe.warmup` compiles kernels that it is given. Which kernels a library function launches, the function alone knows: so it is
called, in worker processes, and what it compiles stays in the disk cache, from where the processes that measure load it.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool

from .workers import Case


def call_ahead(function: Callable[[Case], object], cases: Sequence[Case], *, workers: int | None = None, patience: float = 120
               ) -> dict[str, str]:
    """Call a function for each case, in worker processes; returns the failures: case as JSON -> error.

    function  at module level of a module that can be imported: a script begins its work under ``if __name__ == "__main__":``
    workers   processes; by default one for each CPU that this process may use
    patience  seconds without any answer after which the rest is given up

    A failure ends nothing: the process that measures the case meets it again.
    """
    if not cases:
        return {}
    begun, failures, done = time.monotonic(), {}, 0
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with ProcessPoolExecutor(min(workers or cpus, len(cases)), multiprocessing.get_context("spawn")) as pool:
        waiting = {pool.submit(_called, function, case): json.dumps(case, sort_keys=True) for case in cases}
        try:
            while waiting:
                future = next(as_completed(waiting, timeout=patience))
                case, failure = waiting.pop(future), future.result()
                done += failure is None
                if failure is not None:
                    failures[case] = failure
        except (TimeoutError, BrokenProcessPool) as error:
            failures |= dict.fromkeys(waiting.values(), f"{type(error).__name__}: {error or f'no answer for {patience:.0f} s'}")
            for worker in multiprocessing.active_children():
                worker.kill()
        finally:
            pool.shutdown(cancel_futures=True)
    print(f"called ahead: {done} of {len(cases)} in {time.monotonic() - begun:.0f} s", flush=True)
    for case, failure in failures.items():
        print(f"not called ahead: {case}: {failure}", flush=True)
    return failures


def distinct(key: Callable[[Case], object], cases: Iterable[Case]) -> list[Case]:
    """Return the first case of each key: those worth a call ahead, where the key says what they compile."""
    found: dict[object, Case] = {}
    for case in cases:
        found.setdefault(key(case), case)
    return list(found.values())


def _called(function: Callable[[Case], object], case: Case) -> str | None:
    with contextlib.redirect_stdout(None):
        try:
            function(case)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
    return None
