"""What a compile adds to the code of operations: bounds on waits (`CompilerParams.debug`) and random sleeps (`jitter`).

Numba shares the code of helpers between kernels. So an operation has a Numba type for each `Instrumentation`: code with bounds or
sleeps never reaches a kernel that is compiled without them.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(frozen=True)
class Instrumentation:
    """The options of one compile; the default adds nothing."""

    debug: bool = False
    jitter: int | None = None
    """the seed of the sleeps"""


NOTHING = Instrumentation()
INSTRUMENTATION: ContextVar[Instrumentation] = ContextVar("instrumentation", default=NOTHING)
"""that of the running compile"""
