"""Calls of a function for many cases, spread over processes: to compile ahead of a sweep, or to test hundreds of cases on one GPU.

`numpipe.warmup` compiles kernels that it is given. Which kernels a library function launches, the function alone knows: so it is
called, and what it compiles stays in the disk cache, from where the processes that measure load it.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool

from ...diagnostics.arguments import FUNCTION, MAPPING, NONE, SERIES, each, finite, require, whole
from .workers import Case


def spread(function: Callable[[Case], object], cases: Sequence[Case], *, workers: int | None = None, patience: float = 120
           ) -> list[tuple[Case, str]]:
    """Call a function for each case, in worker processes; returns the cases whose calls failed, in order, with the errors.

    function  at module level of a module that can be imported: a script begins its work under ``if __name__ == "__main__":``
    workers   processes; by default one for each CPU that this process may use
    patience  seconds without any answer after which the rest is given up

    What a call prints is dropped. After a failure the others go on.
    """
    require("spread", locals(), function=FUNCTION, cases=each(MAPPING), workers=whole(1) | NONE, patience=finite(above=0))
    failures: dict[str, str] = {}
    if not cases:
        return []
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with ProcessPoolExecutor(min(workers or cpus, len(cases)), multiprocessing.get_context("spawn")) as pool:
        waiting = {pool.submit(_called, function, case): _key(case) for case in cases}
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
    return [(case, failures[_key(case)]) for case in cases if _key(case) in failures]


def distinct(key: Callable[[Case], object], cases: Iterable[Case]) -> list[Case]:
    """Return the first case of each key: those worth a call ahead, where the key says what they compile."""
    require("distinct", locals(), key=FUNCTION, cases=SERIES)
    found: dict[object, Case] = {}
    for case in cases:
        found.setdefault(key(case), case)
    return list(found.values())


def _key(case: Case) -> str:
    return json.dumps(case, sort_keys=True)


def _called(function: Callable[[Case], object], case: Case) -> str:
    """The error of a call, "" without one."""
    with contextlib.redirect_stdout(None):
        try:
            function(case)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
    return ""
