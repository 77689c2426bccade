"""Runs a benchmark script in several processes, one at a time on a GPU, and keeps every row as soon as it is there.

`main` is called by the script itself. In the first process it starts the same command again, once a process of the
plan, with ``NUMPIPE_BENCH_PROCESS`` set; there it measures case after case and prints each result as a line that
begins with the ASCII record separator (RFC 7464). The first process writes the JSON file before it starts any, and anew after
each result, so that a run that is cut off loses at most the rows in progress, or of a large file those of some seconds.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from ...diagnostics.errors import SpecError
from . import device
from .files import merge
from .report import Result, Row, case_key, read, summarise, table, title
from .timer import require_gpu

PROCESS, UNTIL = "NUMPIPE_BENCH_PROCESS", "NUMPIPE_BENCH_UNTIL"
_RECORD = "\x1e"
QUICK = 0.1
"""seconds of a write of the file; slower ones, of files of thousands of figures, take a tenth of the time at most"""
Case = Mapping[str, Any]
Measure = Callable[[int, Case], dict[str, Any]]
"""Measures a case in the process of this number; returns a `report.run_entry`. An exception ends the process: a failed launch
leaves no usable CUDA context. After an entry that says itself why it `failed` the next case follows."""


def main(benchmark: str, cases: Sequence[Case], measure: Measure, *, processes: int = 3, gpus: int = 1, out: Path | None = None,
         method: Mapping[str, Any] | None = None, unit: str = "TFLOPS", tell: Callable[[Sequence[Row]], str] | None = None,
         seconds: float | None = None, begun: float | None = None, resume: bool = False, patience: float | None = None) -> int:
    """Measure all cases in `processes` processes, print the table, and write `out`; returns the exit status (1 if a run failed).

    gpus      how many GPUs of this machine share the processes; each has one at a time
    tell      makes the text that is printed below the table
    seconds   of the whole run: when a process has had its share, it begins no more cases
    begun     when the seconds began to count (`time.time()`): now, by default
    resume    go on with the file `out`, where there is one: its runs stay, and cases of the fewest runs come first
    patience  seconds that a case may take; then its process is ended

    Raises TargetError, before anything is started, on a machine without a GPU; SpecError where it has fewer than `gpus`, and for a
    file to resume that is of another benchmark or model of GPU.
    """
    if PROCESS in os.environ:
        if not os.environ[PROCESS].isdecimal():
            raise SpecError(f"{PROCESS} is {os.environ[PROCESS]!r}: numpipe sets it for the processes that measure; unset it")
        first = len(cases) * (int(os.environ[PROCESS]) % processes) // processes  # others begin elsewhere: they share its search
        known = [] if out is None else read(out).runs  # as the first process has it by now
        return _worker(int(os.environ[PROCESS]), fewest_first([*cases[first:], *cases[:first]], known), measure)
    require_gpu()
    cards = device.cards()
    if not 1 <= gpus <= len(cards):
        raise SpecError(f"gpus={gpus}: this process sees {len(cards)}; ask for 1 to {len(cards)}")
    started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    command = [Path(arg).name if number == 0 or Path(arg).is_absolute() else arg for number, arg in enumerate(sys.argv)]
    machine = {"started": started, "command": command, **device.describe()}
    if gpus > 1:
        del machine["device"]["uuid"]  # each run says which it had
    result = Result(benchmark, machine, dict(method or {}), [])
    if resume and out is not None and out.exists():
        result = merge([(out.name, read(out)), ("this run", result)])
    until = None if seconds is None else (begun or time.time()) + seconds
    return collect(result, processes, out, unit, tell=tell, cards=cards[:gpus], cases=cases, until=until,
                   patience=patience)


def fewest_first(cases: Sequence[Case], runs: Sequence[Mapping[str, Any]]) -> list[Case]:
    """Return the cases in the order of how often they were measured; those that failed, which may end a process, last."""
    counts = Counter(case_key(run) for run in runs)
    failed = {case_key(run) for run in runs if "failed" in run}
    return sorted(cases, key=lambda case: ((key := json.dumps(case, sort_keys=True)) in failed, counts[key]))


def collect(result: Result, processes: int, out: Path | None, unit: str = "TFLOPS", command: Sequence[str] | None = None,
            tell: Callable[[Sequence[Row]], str] | None = None, cards: Sequence[str] = (), cases: Sequence[Case] = (),
            until: float | None = None, patience: float | None = None) -> int:
    """Run `command` (this very one by default) `processes` times and gather what the processes report; returns the exit status.

    cards     the UUIDs of the GPUs that run a process each at a time; by default processes run one after another, on the first GPU
    cases     the order of the result's runs, else that in which they come
    until     the time (`time.time()`) by which the last process begins no more cases; the ones before have equal shares of the rest
    patience  seconds that a case may take; then its process is ended
    """
    command = list(command or [sys.executable, *sys.argv])
    begun, lock, numbered = time.monotonic(), threading.Lock(), 1 + max((run["process"] for run in result.runs), default=-1)
    order = {json.dumps(case, sort_keys=True): number for number, case in enumerate(cases)}
    free: SimpleQueue[str] = SimpleQueue()
    for card in cards or [""]:
        free.put(card)

    due = [0.0]

    def keep(process: int, entry: dict[str, Any]) -> None:
        result.runs.append(entry)
        if order:
            result.runs.sort(key=lambda run: (order.get(case_key(run), 0), run["process"]))
        brief = f"FAILED: {entry['failed']}" if "failed" in entry else "  ".join(
            f"{row.protocol} {row.ratio.median:.3f}" for row in summarise([entry]))
        print(f"[{time.monotonic() - begun:4.0f} s] process {process + 1}/{processes}  {title(entry['case'])}  {brief}", flush=True)
        if out is not None and time.monotonic() >= due[0]:
            start = time.monotonic()
            result.write(out)
            took = time.monotonic() - start
            due[0] = start + (10 * took if took > QUICK else 0)

    def run(process: int) -> int:
        card, now = free.get(), time.time()
        chosen = {} if len(cards) < 2 else {"CUDA_VISIBLE_DEVICES": card}
        share = {} if until is None else {UNTIL: str(now + (until - now) / math.ceil((processes - process) / max(len(cards), 1)))}
        worker = subprocess.Popen(command, env=os.environ | chosen | share | {PROCESS: str(process + numbered)},
                                  stdout=subprocess.PIPE, text=True)
        assert worker.stdout is not None
        begins: dict[str, Any] | None = None
        late = threading.Event()
        watch = threading.Timer(0, late.set)

        def end() -> None:
            late.set()
            worker.kill()

        try:
            for line in worker.stdout:
                if not line.startswith(_RECORD):
                    with lock:
                        print(line, end="", flush=True)
                    continue
                watch.cancel()
                entry = json.loads(line[len(_RECORD):]) | ({"gpu": card} if chosen else {})
                begins = entry if entry.pop("begins", False) else None
                if begins is None:
                    with lock:
                        keep(process, entry)
                elif patience is not None:
                    watch = threading.Timer(patience, end)
                    watch.daemon = True
                    watch.start()
            status = worker.wait()
            if begins is not None:
                why = f"not done after {patience:g} s" if late.is_set() else f"the process ended with status {status}"
                with lock:
                    keep(process, {**begins, "failed": why})
        finally:
            watch.cancel()
            free.put(card)
        if status:
            print(f"process {process + 1} ended with status {status}", flush=True)
        return status

    if out is not None:
        result.write(out)
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
    failed, until = False, float(os.environ.get(UNTIL, "inf"))
    for number, case in enumerate(cases):
        if time.time() >= until:
            print(f"its share of the time is over: {len(cases) - number} of {len(cases)} cases are left", flush=True)
            break
        lost = False
        print(_RECORD + json.dumps({"process": process, "case": dict(case), "begins": True}), flush=True)
        try:
            entry = measure(process, case)
        except Exception as error:
            entry, lost = {"process": process, "case": dict(case), "failed": f"{type(error).__name__}: {error}"}, True
            traceback.print_exc()
        print(_RECORD + json.dumps(entry), flush=True)
        failed |= "failed" in entry
        if lost:
            break
    return int(failed)
