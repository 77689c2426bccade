"""Run a benchmark script in several processes, one at a time per GPU, and save each run at once.

The script calls `main`. The first process starts the same command again for each process of the
plan, with ``NUMPIPE_BENCH_PROCESS`` set. Such a process measures case after case and prints each
result as a line that starts with the ASCII record separator (RFC 7464). The first process writes
the result file before it starts any other, and again after each result, so that an interrupted run
loses at most the cases in progress, or for a large file those of the last seconds.
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from numpipe.bench.environment import describe, uuid_text
from numpipe.bench.report import Result, Row, case_key, read, summarise, table, title
from numpipe.bench.timer import api, require_gpu
from numpipe.errors import SpecError

from .files import Case, merge

PROCESS, UNTIL = "NUMPIPE_BENCH_PROCESS", "NUMPIPE_BENCH_UNTIL"
_RECORD = "\x1e"
QUICK = 0.1
"""seconds; if writing the file takes longer, at most a tenth of the time is spent on it"""
Measure = Callable[[int, Case], dict[str, Any]]
"""Measures a case in the process of this number, and returns a `bench.run_entry`.

An exception ends the process, because a failed launch leaves no usable CUDA context. After an entry
with ``failed``, the next case follows.
"""


def main(
    benchmark: str,
    cases: Sequence[Case],
    measure: Measure,
    *,
    processes: int = 3,
    gpus: int = 1,
    out: Path | None = None,
    method: Mapping[str, Any] | None = None,
    unit: str = "TFLOPS",
    tell: Callable[[Sequence[Row]], str] | None = None,
    seconds: float | None = None,
    resume: bool = False,
    patience: float | None = None,
    ahead: Callable[[], object] | None = None,
    command: Sequence[str] | None = None,
) -> int:
    """Measure all cases in `processes` processes, print the table, and write `out`.

    gpus      number of GPUs that share the processes; each runs one process at a time
    tell      returns the text that is printed below the table
    seconds   limit of the whole run: a process whose share is over starts no more cases
    resume    continue the file `out` if it exists; the cases with the fewest runs come first
    patience  seconds that a case may take before its process is killed
    ahead     called once, before any process starts, e.g. to compile to the disk cache
    command   command that starts a process; default: this command

    Returns the exit status, 1 if a run failed. Raises TargetError without a GPU, and SpecError with
    fewer than `gpus` GPUs or if the file to resume is of another benchmark or GPU model.
    """
    if PROCESS in os.environ:
        if not os.environ[PROCESS].isdecimal():
            raise SpecError(
                f"{PROCESS} is {os.environ[PROCESS]!r}: the benchmarks set it for the processes "
                "that measure; unset it"
            )
        process = int(os.environ[PROCESS])
        first = len(cases) * (process % processes) // processes  # each starts at another case
        known = [] if out is None else read(out).runs
        return _worker(process, fewest_first([*cases[first:], *cases[:first]], known), measure)
    require_gpu()
    until = None if seconds is None else time.time() + seconds
    visible = cards()
    if not 1 <= gpus <= len(visible):
        raise SpecError(
            f"gpus={gpus}: this process sees {len(visible)}; ask for 1 to {len(visible)}"
        )
    if ahead is not None:
        ahead()
    script, *arguments = sys.argv
    given = [Path(arg).name if Path(arg).is_absolute() else arg for arg in arguments]
    started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    machine = {"started": started, "command": [Path(script).name, *given], **describe()}
    if gpus > 1:
        del machine["device"]["uuid"]  # each run has its own
    result = Result(benchmark, machine, dict(method or {}), [])
    if resume and out is not None and out.exists():
        result = merge([(out.name, read(out)), ("this run", result)])
    status = collect(
        result,
        processes,
        out,
        command=command,
        cards=visible[:gpus],
        cases=cases,
        until=until,
        patience=patience,
    )
    print("\n" + table(result.rows, unit))
    if tell is not None:
        print("\n" + tell(result.rows))
    if out is not None:
        print(f"written to {out}")
    return status


def cards() -> list[str]:
    """Return the UUIDs of all GPUs that this process sees, in CUDA's order."""
    driver = api()
    count = 0 if int(driver.cuInit(0)[0]) else driver.cuDeviceGetCount()[1]
    return [uuid_text(driver.cuDeviceGetUuid(number)[1].bytes) for number in range(count)]


def fewest_first(cases: Sequence[Case], runs: Sequence[Mapping[str, Any]]) -> list[Case]:
    """Return the cases sorted by how often they were measured; those that failed come last."""
    counts = Counter(case_key(run) for run in runs)
    failed = {case_key(run) for run in runs if "failed" in run}

    def place(case: Case) -> tuple[bool, int]:
        key = case_key({"case": case})
        return key in failed, counts[key]

    return sorted(cases, key=place)


def collect(
    result: Result,
    processes: int,
    out: Path | None,
    *,
    command: Sequence[str] | None = None,
    cards: Sequence[str] = (),
    cases: Sequence[Case] = (),
    until: float | None = None,
    patience: float | None = None,
) -> int:
    """Run `command` `processes` times, and append what the processes report to `result`.

    cards     UUIDs of the GPUs, each of which runs one process at a time; default: the first GPU
    cases     the order of the result's runs; default: the order in which they are reported
    until     the time (`time.time()`) after which the last process starts no case; the processes
              before it have equal shares of the remaining time
    patience  seconds that a case may take before its process is killed

    Returns the exit status.
    """
    command = list(command or [sys.executable, *sys.argv])
    begun, due, lock = time.monotonic(), 0.0, threading.Lock()
    first = 1 + max((run["process"] for run in result.runs), default=-1)
    order = {case_key({"case": case}): number for number, case in enumerate(cases)}
    lanes = max(len(cards), 1)
    free: SimpleQueue[str] = SimpleQueue()
    for card in cards or [""]:
        free.put(card)

    def keep(process: int, entry: dict[str, Any]) -> None:
        nonlocal due
        result.runs.append(entry)
        if order:
            result.runs.sort(key=lambda run: (order.get(case_key(run), 0), run["process"]))
        brief = (
            f"FAILED: {entry['failed']}"
            if "failed" in entry
            else "  ".join(f"{r.protocol} {r.ratio.median:.3f}" for r in summarise([entry]))
        )
        start = time.monotonic()
        print(
            f"[{start - begun:4.0f} s] process {process + 1}/{processes}  "
            f"{title(entry['case'])}  {brief}",
            flush=True,
        )
        if out is not None and start >= due:
            result.write(out)
            took = time.monotonic() - start
            due = start + (10 * took if took > QUICK else 0)

    def run(process: int) -> int:
        card, environment = free.get(), os.environ | {PROCESS: str(process + first)}
        if len(cards) > 1:
            environment["CUDA_VISIBLE_DEVICES"] = card
        if until is not None:
            now = time.time()
            turns = math.ceil((processes - process) / lanes)
            environment[UNTIL] = str(now + (until - now) / turns)
        worker = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        try:
            for report in _reports(worker, patience):
                with lock:
                    if isinstance(report, str):
                        print(report, end="", flush=True)
                    else:
                        keep(process, report | ({"gpu": card} if len(cards) > 1 else {}))
        finally:
            free.put(card)
        if worker.returncode:
            print(f"process {process + 1} ended with status {worker.returncode}", flush=True)
        return worker.returncode

    if out is not None:
        result.write(out)
    with ThreadPoolExecutor(lanes) as pool:
        status = int(any(pool.map(run, range(processes))))
    if out is not None:
        result.write(out)
    return status


def _reports(
    worker: subprocess.Popen[str], patience: float | None
) -> Iterator[str | dict[str, Any]]:
    """Yield a process' results, and the other lines that it prints, until it ends.

    If the process ends during a case, or is killed after `patience` seconds, the case has
    ``failed``.
    """
    assert worker.stdout is not None
    begun: dict[str, Any] | None = None
    late = threading.Event()
    watch = threading.Timer(0, late.set)

    def end() -> None:
        late.set()
        worker.kill()

    for line in worker.stdout:
        if not line.startswith(_RECORD):
            yield line
            continue
        watch.cancel()
        entry = json.loads(line[len(_RECORD) :])
        begun = entry if entry.pop("begins", False) else None
        if begun is None:
            yield entry
        elif patience is not None:
            watch = threading.Timer(patience, end)
            watch.daemon = True
            watch.start()
    status = worker.wait()
    watch.cancel()
    if begun is not None:
        how = f"the process ended with status {status}"
        yield {**begun, "failed": f"not done after {patience:g} s" if late.is_set() else how}


def _worker(process: int, cases: Sequence[Case], measure: Measure) -> int:
    failed, until = False, float(os.environ.get(UNTIL, "inf"))
    for number, case in enumerate(cases):
        if time.time() >= until:
            left = len(cases) - number
            print(f"its share of the time is over: {left} of {len(cases)} cases are left")
            break
        lost, entry = False, {"process": process, "case": dict(case)}
        print(_RECORD + json.dumps(entry | {"begins": True}), flush=True)
        try:
            entry = measure(process, case)
        except Exception as error:
            entry["failed"], lost = f"{type(error).__name__}: {error}", True
            traceback.print_exc()
        print(_RECORD + json.dumps(entry), flush=True)
        failed |= "failed" in entry
        if lost:
            break
    return int(failed)
