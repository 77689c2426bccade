"""The log that ``NUMPIPE_LOG=compile,launch`` prints on stderr, which shows where the time of calls
goes.

===========  =======================================================================================
``compile``  a compiled kernel: milliseconds of each part, registers, spills, machine code
``launch``   a loaded kernel, a plan for new shapes, an encoded tensor map, a launch: time on the
             host
``all``      both
===========  =======================================================================================

The variable is read when an object that later calls reuse is created (a compile, a plan, a launch
of new arrays). Objects created while it was not set never print, and have no overhead."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any

from .errors import SpecError

VARIABLE = "NUMPIPE_LOG"
WORDS = ("compile", "launch")


def on(word: str) -> bool:
    """Return whether the environment enables lines of this kind. Raises SpecError for an unknown
    word."""
    setting = os.environ.get(VARIABLE)
    if not setting:
        return False
    words = {part.strip().lower() for part in setting.split(",") if part.strip()}
    unknown = sorted(words - {*WORDS, "all"})
    if unknown:
        raise SpecError(
            f"{VARIABLE}={setting!r}: {unknown[0]!r} is not known; use one or more of "
            f"{', '.join(WORDS)}, separated by commas, or all"
        )
    return word in words or "all" in words


def say(word: str, text: str) -> None:
    print(f"numpipe {word}: {text}", file=sys.stderr, flush=True)


class Timed:
    """A stopwatch for lines of the kind "launch", which is true if the environment enables them.

    >>> timed = Timed()
    >>> if timed:
    ...     timed.say("loaded")
    """

    def __init__(self) -> None:
        self._on = on("launch")
        self._begin = time.perf_counter() if self._on else 0.0

    def __bool__(self) -> bool:
        return self._on

    def say(self, text: str) -> None:
        """Print the text, and the time since the stopwatch was created."""
        say("launch", f"{text}: {spell(time.perf_counter() - self._begin)}")


def spell(seconds: float) -> str:
    """Format a time as "12.3 ms" or "4.5 µs"."""
    return f"{seconds * 1e3:.1f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.1f} µs"


def launches(function: Callable, what: str) -> Callable:
    """Wrap a function that launches a kernel so that each call prints a line."""

    def launch(*arguments: Any) -> Any:
        begin = time.perf_counter()
        result = function(*arguments)
        say("launch", f"{what}: {spell(time.perf_counter() - begin)}")
        return result

    return launch
