"""The checks of puzzles: `Puzzle.check` says what is wrong with a kernel, and gives a hint.

``python -m numpipe puzzles`` calls `play`. Each puzzle's file can also be run by itself.
"""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import inspect
import os
import re
import shutil
import signal
import textwrap
import threading
import traceback
from _thread import interrupt_main
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import numpipe
from numpipe import (
    Kernel,
    Mesh,
    NumpipeError,
    PipelineDeadlock,
    SimulationError,
    SpecError,
    Trace,
)

FOLDER = Path(__file__).parent
PATTERN = "p[0-9][0-9]_*.py"
SECONDS = 60.0
"""after which a check is stopped"""


@dataclass(frozen=True)
class Result:
    """What is wrong with a kernel, or that it solves its puzzle; it prints as text.

    state     "solved", "not filled in", "error", "too long", "deadlock", "hazard", "wrong result"
              or "too slow"
    text      what happened: a report, an error, or numbers
    hint      what to try, or what the solution shows
    timeline  of the first CTA; if there is a hazard, of the CTA that it is in, up to it
    hazard    the name of the hazard, or ""
    """

    state: str
    text: str = ""
    hint: str = ""
    timeline: str = ""
    hazard: str = ""

    def __str__(self) -> str:
        label = "Note" if self.state == "solved" else "Hint"
        hint = f"{label}: {self.hint}" if self.hint else ""
        parts = (f"{self.state}{': ' if self.text else ''}{self.text}", self.timeline, hint)
        return "\n\n".join(part.rstrip() for part in parts if part)


@dataclass(frozen=True)
class Puzzle:
    """A kernel to complete, and how to check it.

    kernel     the kernel
    arguments  the arguments of a call, the output last; lists of arrays if there is a mesh
    expected   what the output has to be
    cycles     how long a simulated run may take at most; None: as long as it wants
    mesh       the simulated GPUs of a kernel with semaphores
    hints      a hint for each state or hazard that is likely
    """

    kernel: Kernel
    arguments: tuple[Any, ...]
    expected: Any
    cycles: float | None = None
    mesh: Mesh | None = None
    hints: Mapping[str, str] = field(default_factory=dict)

    def check(self, seconds: float = SECONDS) -> Result:
        """Simulate the kernel, compare its output with NumPy's, verify it under some schedules, and
        compare its time with the limit. The first thing that is wrong is the result."""
        if lines := _unfilled(self.kernel):
            where = ", ".join(f"line {line}" for line in lines)
            return self._result("not filled in", f"replace each ... ({where})")
        trace = Trace()
        try:
            with time_limit(seconds):
                output = self._simulate(trace)
                found = numpipe.verify(self.kernel, *self.arguments, mesh=self.mesh, schedules=7)
        except SimulationError as error:
            hazard = error.report.hazard if error.report else ""
            state = "deadlock" if isinstance(error, PipelineDeadlock) else "hazard"
            if hazard == "livelock":  # a loop that does not end, noticed before the time limit
                state = "too long"
            cta = next((event.cta for event in trace.events if "now" in event.details), None)
            return self._result(state, str(error), hazard, trace.timeline(72, cta))
        except Exception as error:
            return self._result(*_failed(error, inspect.getfile(self.kernel.function)))
        timeline = trace.timeline(72)
        for got, expected in zip(_arrays(output), _arrays(self.expected), strict=True):
            if len(wrong := np.argwhere(~np.isclose(got, expected, 1e-3, 1e-3))):
                at = tuple(map(int, wrong[0]))
                text = (
                    f"{len(wrong)} of {expected.size} elements; element {at} is {got[at]:g} "
                    f"instead of {expected[at]:g}"
                )
                return self._result("wrong result", text, timeline=timeline)
        if not found:
            hazard = found.failures[0].hazard if found.failures else ""
            return self._result("hazard", str(found), hazard, timeline)
        cycles = max(trace.summary(cta).total for cta in trace.summary().ctas)
        if self.cycles is not None and cycles > self.cycles:
            text = f"{cycles:.0f} cycles; the limit is {self.cycles:.0f}"
            return self._result("too slow", text, timeline=timeline)
        return self._result("solved", f"{cycles:.0f} cycles", timeline=timeline)

    def _simulate(self, trace: Trace) -> Any:
        """Return the output of one run, whose elements are NaN before it."""
        *operands, output = self.arguments
        copies = [np.full_like(each, np.nan) for each in _arrays(output)]
        output = copies if isinstance(output, list) else copies[0]
        self.kernel.simulate(*operands, output, trace=trace, mesh=self.mesh)
        return output

    def _result(self, state: str, text: str, hazard: str = "", timeline: str = "") -> Result:
        hint = self.hints.get(hazard) or self.hints.get(state, "")
        text = text.replace(f"{Path(inspect.getfile(self.kernel.function)).parent}{os.sep}", "")
        return Result(state, text, hint, timeline, hazard)


def find(folder: Path) -> list[Path]:
    """Return the files of the puzzles in `folder`, in order, after copying those that it does not
    have."""
    if folder != FOLDER:
        folder.mkdir(parents=True, exist_ok=True)
        for file in (Path(__file__), *FOLDER.glob(PATTERN)):
            if not (folder / file.name).exists():
                shutil.copy(file, folder)
    return sorted(folder.glob(PATTERN))


def load(file: Path) -> Puzzle:
    """Return the `PUZZLE` of a file, which is executed."""
    spec = importlib.util.spec_from_file_location(f"puzzle_{file.stem}", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    puzzle: Puzzle = module.PUZZLE
    return puzzle


def check_file(file: Path, seconds: float = SECONDS) -> Result:
    """Check the puzzle in a file, which may be wrong in any way."""
    try:
        with time_limit(seconds):
            puzzle = load(file)
    except (Exception, SystemExit) as error:
        return Result(*_failed(error, str(file)))
    return puzzle.check(seconds)


def task(file: Path) -> str:
    """Return the text of a puzzle, which begins with its title: the string at the beginning of its
    file, or the file's name if that string is damaged."""
    text = file.read_text(encoding="utf8", errors="replace")
    found = re.match(r'\s*"""\s*(\S.*?)\s*"""', text, re.DOTALL)
    return found[1] if found else file.stem


def play(folder: Path, number: int | None) -> int:
    """Check a puzzle, or all of them and print which are solved; then show the puzzle, or the first
    one that is not solved. Return the exit status: 1 if one is not solved.
    """
    files = find(folder)
    if number is not None and not 1 <= number <= len(files):
        raise SpecError(f"puzzle {number}: there are puzzles 1 to {len(files)}")
    if number is None:
        states = []
        for i, file in enumerate(files, 1):
            states.append(check_file(file).state)
            print(f"{i:2}  {task(file).splitlines()[0]:<24}  {states[-1]}", flush=True)
        unsolved = [i for i, state in enumerate(states, 1) if state != "solved"]
        print(f"\n{len(files) - len(unsolved)} of {len(files)} solved")
        if not unsolved:
            return 0
        number = unsolved[0]
    file = files[number - 1]
    result = check_file(file)
    print(f"\n{number}  {task(file)}\n\n{file}: {result}")
    return int(result.state != "solved")


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise TimeoutError in the main thread after some seconds, in whatever Python code it is."""
    expired = threading.Event()

    def stop() -> None:
        expired.set()
        interrupt_main()

    timer = threading.Timer(seconds, stop)
    timer.daemon = True
    # a process that a shell started in the background ignores interrupts
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    timer.start()
    try:
        yield
    except KeyboardInterrupt as interrupt:
        if not expired.is_set():  # the user's own Ctrl-C
            raise
        raise TimeoutError(f"{seconds:g} s").with_traceback(interrupt.__traceback__) from None
    finally:
        timer.cancel()
        signal.signal(signal.SIGINT, before)


def _arrays(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _unfilled(kernel: Kernel) -> list[int]:
    """Return the lines of a kernel's file (or cell) that have a ``...`` which is no index."""
    source, first = inspect.getsourcelines(kernel.function)
    tree = ast.parse(textwrap.dedent("".join(source)))
    indices = {id(node.slice) for node in ast.walk(tree) if isinstance(node, ast.Subscript)}
    return sorted(
        node.lineno + first - 1
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and node.value is ... and id(node) not in indices
    )


def _failed(error: BaseException, file: str) -> tuple[str, str]:
    """Return the state and text of an exception, with the last line of the user's file."""
    steps = traceback.extract_tb(error.__traceback__)
    lines = [step.lineno for step in steps if step.filename == file]
    where = f" at {Path(file).name}:{lines[-1]}" if lines else ""
    if isinstance(error, TimeoutError):
        return "too long", f"stopped after {error}{where}: is there a loop that does not end?"
    if isinstance(error, NumpipeError):  # says where
        return "error", str(error)
    return "error", f"{type(error).__name__}{where}: {error}"
