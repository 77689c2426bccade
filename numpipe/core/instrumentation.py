"""Code that a compile adds to operations: time limits on waits (`debug`) and random sleeps
(`jitter`).

Numba shares the code of helpers between kernels. An operation therefore has one Numba type per
`Instrumentation`, so that instrumented code is never used in a kernel compiled without it.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(frozen=True)
class Instrumentation:
    """The two options of `CompilerParams` for one compile; by default, nothing is added."""

    debug: bool = False
    jitter: int | None = None
    """seed of the sleeps"""


NOTHING = Instrumentation()
INSTRUMENTATION: ContextVar[Instrumentation] = ContextVar("instrumentation", default=NOTHING)
"""the options of the current compile"""
