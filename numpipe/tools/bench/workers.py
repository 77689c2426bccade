"""Runs a benchmark script in several processes, one at a time on a GPU, and keeps every row as soon as it is there.

`main` is called by the script itself. In the first process it starts the same command again, once a process of the
plan, with ``NUMPIPE_BENCH_PROCESS`` set; there it measures case after case and prints each result as a line that
begins with the ASCII record separator (RFC 7464). The first process writes the JSON file anew after each of them, so
that a run that is cut off loses at most the rows in progress.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from ...diagnostics.errors import SpecError
from . import device
from .report import Result, Row, summarise, table, title
from .timer import require_gpu

PROCESS = "NUMPIPE_BENCH_PROCESS"
_RECORD = "\x1e"
Case = Mapping[str, Any]
Measure = Callable[[int, Case], dict[str, Any]]
"""Measures a case in the process of this number; returns a `report.run_entry`."""


def main(benchmark: str, cases: Sequence[Case], measure: Measure, *, processes: int = 3, gpus: int = 1, out: Path | None = None,
         method: Mapping[str, Any] | None = None, unit: str = "TFLOPS", tell: Callable[[Sequence[Row]], str] | None = None) -> int:
    """Measure all cases in `processes` processes, print the table, and write `out`; returns the exit status (1 if a run failed).

    gpus  how many GPUs of this machine share the processes; each has one at a time
    tell  makes the text that is printed below the table

    Raises TargetError, before anything is started, on a machine without a GPU; SpecError where it has fewer than `gpus`.
    """
    if PROCESS in os.environ:
        first = len(cases) * int(os.environ[PROCESS]) // processes  # each begins elsewhere: they share what one must look for
        return _worker(int(os.environ[PROCESS]), [*cases[first:], *cases[:first]], measure)
    require_gpu()
    cards = device.cards()
    if not 1 <= gpus <= len(cards):
        raise SpecError(f"gpus={gpus}: this process sees {len(cards)}; ask for 1 to {len(cards)}")
    started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    command = [Path(arg).name if number == 0 or Path(arg).is_absolute() else arg for number, arg in enumerate(sys.argv)]
    machine = {"started": started, "command": command, **device.describe()}
    if gpus > 1:
        del machine["device"]["uuid"]  # each run says which it had
    return collect(Result(benchmark, machine, dict(method or {}), []), processes, out, unit, tell=tell, cards=cards[:gpus],
                   cases=cases)


def collect(result: Result, processes: int, out: Path | None, unit: str = "TFLOPS", command: Sequence[str] | None = None,
            tell: Callable[[Sequence[Row]], str] | None = None, cards: Sequence[str] = (), cases: Sequence[Case] = ()) -> int:
    """Run `command` (this very one by default) `processes` times and gather what the processes report; returns the exit status.

    cards  the UUIDs of the GPUs that run a process each at a time; by default processes run one after another, on the first GPU
    cases  the order of the result's runs, else that in which they come
    """
    command = list(command or [sys.executable, *sys.argv])
    begun, lock = time.monotonic(), threading.Lock()
    order = {json.dumps(case, sort_keys=True): number for number, case in enumerate(cases)}
    free: SimpleQueue[str] = SimpleQueue()
    for card in cards or [""]:
        free.put(card)

    def run(process: int) -> int:
        card = free.get()
        chosen = {} if len(cards) < 2 else {"CUDA_VISIBLE_DEVICES": card}
        worker = subprocess.Popen(command, env=os.environ | chosen | {PROCESS: str(process)}, stdout=subprocess.PIPE, text=True)
        assert worker.stdout is not None
        for line in worker.stdout:
            with lock:
                if not line.startswith(_RECORD):
                    print(line, end="", flush=True)
                    continue
                entry = json.loads(line[len(_RECORD):])
                result.runs.append(entry | ({"gpu": card} if chosen else {}))
                if order:
                    result.runs.sort(key=lambda run: (order.get(json.dumps(run["case"], sort_keys=True), 0), run["process"]))
                brief = f"FAILED: {entry['failed']}" if "failed" in entry else "  ".join(
                    f"{row.protocol} {row.ratio.median:.3f}" for row in summarise([entry]))
                print(f"[{time.monotonic() - begun:4.0f} s] process {process + 1}/{processes}  {title(entry['case'])}  {brief}",
                      flush=True)
                if out is not None:
                    result.write(out)
        if worker.wait():
            print(f"process {process + 1} ended with status {worker.returncode}", flush=True)
        free.put(card)
        return worker.returncode

    with ThreadPoolExecutor(max(len(cards), 1)) as pool:
        status = int(any(pool.map(run, range(processes))))
    print("\n" + table(result.rows, unit))
    if tell is not None:
        print("\n" + tell(result.rows))
    if out is not None:
        result.write(out)
        print(f"written to {out}")
    return status


def _worker(process: int, cases: Sequence[Case], measure: Measure) -> int:
    for case in cases:
        try:
            entry = measure(process, case)
        except Exception as error:
            entry = {"process": process, "case": dict(case), "failed": f"{type(error).__name__}: {error}"}
            traceback.print_exc()
        print(_RECORD + json.dumps(entry), flush=True)
        if "failed" in entry:
            return 1  # a failed launch leaves no usable CUDA context for the cases behind it
    return 0
