"""``python -m numpipe fuzz``: processes that check drawn kernels for some minutes, one that counts, and files of what was found."""

from __future__ import annotations

import hashlib
import importlib.util
import multiprocessing
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from ...compile.build import toolchain
from ...diagnostics.errors import SpecError, TargetError
from ...launch import device
from .counts import Counts
from .drawing import kernels
from .worker import work

TARGETS = {"sim": "simulated", "verify": "verified", "compile": "compiled", "gpu": "gpu"}
LIMITS = {"simulated": 120.0, "verified": 300.0, "compiled": 240.0, "gpu": 40.0, "": 120.0}
"""seconds that a stage may take, and the start of a process; the first run on a GPU makes a context beside others that do"""


@dataclass
class Life:
    """A process, and what it last said."""

    process: BaseProcess
    pipe: Connection
    stage: str = ""
    since: float = field(default_factory=time.time)
    case: tuple[str, tuple[str, ...], str] = ("", (), "")
    over: bool = False


class Campaign:
    """A run of the fuzz."""

    def __init__(self, stages: Sequence[str], seconds: float, counts: Counts, failures: Path, processes: int) -> None:
        self.stages, self.counts, self.failures, self.processes = stages, counts, failures, processes
        self.begun = time.time()
        self.seconds, self.until = seconds, self.begun + seconds
        self.started, self.lives, self.told = 0, [], set[str]()  # type: int, list[Life], set[str]

    def start(self) -> None:
        context = multiprocessing.get_context("spawn")
        mine, other = context.Pipe()
        number = self.counts.seed * 1_000_000 + self.started
        process = context.Process(target=work, args=(other, number, self.stages, self.until, sorted(self.told)), daemon=True)
        process.start()
        other.close()
        self.started += 1
        self.lives.append(Life(process, mine))

    def hear(self, life: Life, message: tuple[Any, ...]) -> None:
        """Count what a process says."""
        life.since = time.time()
        what, *rest = message
        if what == "case":
            life.case = (rest[0], rest[1], rest[2])
        elif what == "bye":
            life.over = True
        elif what == "begin":
            life.stage = rest[0]
        elif what == "passed":
            self.counts.passed(rest[0], life.case[0], rest[1], life.case[1])
        elif what == "again":
            self.counts.found[rest[0]] += 1
        else:
            self.tell(*rest)
            life.over = True  # a process ends behind it: one that has lost its context without a word more

    def tell(self, kind: str, title: str, message: str, source: str) -> None:
        """Count a failure, and keep the first of those that look alike."""
        self.counts.found[kind] += 1
        if title in self.told:
            return
        self.told.add(title)
        self.failures.mkdir(parents=True, exist_ok=True)
        path = self.failures / f"{kind.replace(' ', '_')}_{hashlib.sha1(source.encode()).hexdigest()[:8]}.py"
        path.write_text(source, encoding="utf8")
        print(f"\n{message}\npython {path} shows it again:\n\n{source}", file=sys.stderr, flush=True)

    def end(self, life: Life, kind: str = "", message: str = "") -> None:
        self.lives.remove(life)
        if kind:
            life.process.kill()
            self.tell(kind, f"{kind} {life.stage} {life.case[0]}", f"{kind}: {message}", life.case[2])
        life.process.join(10)
        life.pipe.close()

    def step(self) -> None:
        """Hear what processes say for a moment; end those that hang, and start others while there is time."""
        now = time.time()
        while len(self.lives) < self.processes and now < self.until and self.started < 20 * self.processes + self.seconds:
            self.start()
        by_pipe = {life.pipe: life for life in self.lives}
        for pipe in wait(list(by_pipe), timeout=0.5):
            life = by_pipe[pipe]  # type: ignore[index]
            try:
                while life.pipe.poll():
                    self.hear(life, life.pipe.recv())
            except (EOFError, OSError):
                life.process.join(10)
                ended = life.process.exitcode
                self.end(life, *(("", "") if life.over else ("died", f"its process ended with status {ended}")))
        for life in list(self.lives):
            if time.time() - life.since > LIMITS[life.stage]:
                self.end(life, "hung", f"{life.stage or 'start'}: not done after {LIMITS[life.stage]:g} s")

    def run(self) -> None:
        written = time.time()
        with bar(self.seconds) as shown:
            while self.lives or time.time() < self.until:
                self.step()
                done = ", ".join(f"{len(self.counts.kernels[stage]):,} {stage}" for stage in self.stages)
                shown(time.time() - self.begun, f"{done}; {sum(self.counts.found.values())} found")
                if time.time() > written + 10:
                    self.counts.write()
                    written = time.time()
        self.counts.write()


class bar:
    """How far it is, on stderr: by tqdm where that is installed."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.bar, self.last = seconds, None, 0.0  # type: float, Any, float

    def __enter__(self) -> Any:
        if importlib.util.find_spec("tqdm"):
            from tqdm.auto import tqdm

            self.bar = tqdm(total=round(self.seconds), unit="s", desc="fuzz", mininterval=1.0)
        return self.show

    def show(self, elapsed: float, text: str) -> None:
        if self.bar is not None:
            self.bar.set_postfix_str(text, refresh=False)
            self.bar.update(min(round(elapsed), round(self.seconds)) - self.bar.n)
        elif elapsed > self.last + 30:
            self.last = elapsed
            print(f"[{elapsed:.0f} of {self.seconds:.0f} s] {text}", file=sys.stderr, flush=True)

    def __exit__(self, *error: Any) -> None:
        if self.bar is not None:
            self.bar.close()


def fuzz(targets: Sequence[str], minutes: float, *, seed: int | None = None, counts: Path | None = None,
         failures: Path = Path("fuzz_failures"), processes: int | None = None) -> int:
    """Check drawn kernels for so many minutes, print what was done, and return the exit status: 1 where something was found.

    Raises SpecError without Hypothesis, for no time, and for a seed that is counted already; TargetError for a target that needs a
    GPU, or a compiler, where there is none.
    """
    kernels()  # tells what is missing
    if not minutes > 0:
        raise SpecError(f"--minutes {minutes}: give a time above 0")
    stages = [stage for target, stage in TARGETS.items() if target in targets]
    if "gpu" in targets and device.gpu_state().device is None:
        raise TargetError(f"--target gpu: {device.gpu_state().reason}; {device.gpu_state().mend}")
    if {"gpu", "compile"} & set(targets) and (missing := toolchain()) is not None:
        raise TargetError(f"--target {' '.join(targets)}: no compiler: {missing}")
    os.environ.update({"NUMPIPE_CACHE": "0", "NUMPIPE_COMPILE_CHECK": "0", "OPENBLAS_NUM_THREADS": "1"})  # of the processes
    kept = Counts(counts, seed)
    Campaign(stages, 60 * minutes, kept, failures, processes or os.cpu_count() or 1).run()
    print(kept)
    return int(bool(kept.found))
