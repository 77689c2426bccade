"""Checks of a drawn kernel: its results, its silence under schedules, its machine code."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from numpipe.compile.check import gate
from numpipe.diagnostics.errors import CompileError, NumpipeError, SimulationError, SpecError
from numpipe.tools.verify.verification import verify
from tests.fuzz.case import Case, copied, wrong

REPEATS, SCHEDULES = 2, 3


class Found(Exception):
    """A kernel failed a check: `kind` is "wrong", "false alarm", "refused" or "gate"."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind = kind

    @property
    def title(self) -> str:
        """Return the first line without names and numbers, which is equal for similar failures."""
        line = next(line for line in str(self).splitlines() if line.strip())
        return re.sub(r"\S*fuzzed_\w+\S*|\d+|'\w+'|\b[a-z]+\d+\b", "…", line)[:160]


def _run(call: Callable[[], Any]) -> Any:
    """Return the result of a call; raise Found for an error of numpipe."""
    try:
        return call()
    except NumpipeError as error:
        kinds = (((SpecError, CompileError), "refused"), (SimulationError, "false alarm"))
        kind = next((kind for types, kind in kinds if isinstance(error, types)), "wrong")
        raise Found(kind, f"{type(error).__name__}: {error}") from error


def compared(case: Case, seed: int, call: Callable[..., Any]) -> None:
    """Call a kernel on fresh arguments, and compare every element of every array."""
    given = case.given(seed)
    after = copied(given)
    _run(lambda: call(*after))
    if found := wrong(case.right(given), dict(zip(given, after, strict=True))):
        raise Found("wrong", found)


def simulated(case: Case, seed: int) -> None:
    """Simulate in the virtual-time order for even seeds, in a random order for odd seeds."""
    schedule = seed if seed % 2 else None
    compared(case, seed, lambda *args: case.kernel.simulate(*args, seed=schedule))


def verified(case: Case, seed: int) -> None:
    """Verify in several schedules: no report, and always the same bits."""
    args = list(case.given(seed).values())
    options = {"schedules": SCHEDULES, "seed": seed}
    outputs = case.kernel.outputs
    result = _run(lambda: verify(case.kernel, *args, partial=outputs(*args), **options))
    if not result.ok:
        raise Found("false alarm", str(result))


def compiled(case: Case, seed: int) -> None:
    """Compile for sm_90a, and run the build gate on the machine code."""
    built = _run(lambda: case.kernel.compiled(*case.given(seed).values()))
    excused = [re.compile(pattern) for pattern in case.excused]
    lines = [line for line in gate.findings(built) if not any(e.search(line) for e in excused)]
    if lines:
        raise Found("gate", "\n".join(lines))


def on_gpu(case: Case, seed: int) -> None:
    """Run several times on the GPU."""
    for _ in range(REPEATS):
        compared(case, seed, lambda *args: case.kernel(*args, target="gpu"))


CHECKS = {"sim": simulated, "verify": verified, "compile": compiled, "gpu": on_gpu}
"""by target; each takes a case and the seed of its numbers, and raises Found for a failure"""
