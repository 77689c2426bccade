"""What a drawn kernel must do: nothing else than NumPy, silently, and with machine code that the gate passes."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ...compile.check import gate
from ...diagnostics.errors import CompileError, NumpipeError, SimulationError, SpecError
from ..verify.verification import verify
from .case import Case, copied, wrong

STAGES = "simulated", "verified", "compiled", "gpu"
REPEATS, SCHEDULES = 2, 3


class Found(Exception):
    """A kernel did something else: `kind` is "wrong", "false alarm", "refused" or "gate", and the message says what."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind = kind

    @property
    def title(self) -> str:
        """The same for failures that look alike."""
        line = next((line for line in str(self).splitlines() if line.strip()), "")
        return re.sub(r"\S*fuzzed_\w+\S*|\d+|'\w+'|\b[a-z]+\d+\b", "…", line)[:160]


def _run(call: Callable[[], Any]) -> Any:
    """The result of a call; Found for what numpipe says of a kernel."""
    try:
        return call()
    except (SpecError, CompileError) as error:
        raise Found("refused", str(error)) from error
    except SimulationError as error:
        raise Found("false alarm", f"{type(error).__name__}: {error}") from error
    except NumpipeError as error:
        raise Found("wrong", f"{type(error).__name__}: {error}") from error


def compared(case: Case, seed: int, call: Callable[..., Any], repeats: int = 1) -> int:
    """Call a kernel on fresh arguments, and compare every element of every array; returns how often it ran."""
    given = case.given(seed)
    right = case.right(given)
    for _ in range(repeats):
        after = copied(given)
        _run(lambda: call(*after))
        if found := wrong(right, dict(zip(given, after, strict=True))):
            raise Found("wrong", found)
    return repeats


def simulated(case: Case, seed: int) -> int:
    """In the order of the virtual-time model for even seeds, in a random one for odd seeds."""
    return compared(case, seed, lambda *args: case.kernel.simulate(*args, seed=seed if seed % 2 else None))


def verified(case: Case, seed: int) -> int:
    """Under some schedules: no report, the same bits."""
    args = list(case.given(seed).values())
    result = _run(lambda: verify(case.kernel, *args, schedules=SCHEDULES, seed=seed, partial=case.kernel.outputs(*args)))
    if not result.ok:
        raise Found("false alarm", str(result))
    return int(result.schedules)


def compiled(case: Case, seed: int) -> int:
    """For sm_90a, and looked at by the build gate."""
    args = list(case.given(seed).values())
    built = _run(lambda: case.kernel.compiled(*args))
    lines = [line for line in gate.findings(built) if not any(re.search(pattern, line) for pattern in case.excused)]
    if lines:
        raise Found("gate", "\n".join(lines))
    return 1


def on_gpu(case: Case, seed: int) -> int:
    """On the GPU, some times."""
    return compared(case, seed, lambda *args: case.kernel(*args, target="gpu"), REPEATS)


CHECKS: dict[str, Callable[[Case, int], int]] = dict(zip(STAGES, (simulated, verified, compiled, on_gpu), strict=True))
"""each takes a case and the seed of its numbers and returns how often the kernel ran; Found if something is wrong"""


def replay(file: str, name: str, arguments: Sequence[tuple[str, str]], targets: Sequence[str], *, seed: int, ctas: int,
           wgs: int, cluster: int) -> None:
    """Check the kernel of a file that the fuzz wrote, as ``python file.py`` does: "sim", "compile" or "gpu"."""
    text = Path(file).read_text(encoding="utf8").partition("\n\nARGUMENTS = ")[0]
    case = Case(text, tuple(arguments), name=name, ctas=ctas, wgs=wgs, cluster=cluster)
    for stage in {"sim": ("simulated", "verified"), "compile": ("compiled",), "gpu": ("gpu",)}[targets[0]]:
        print(f"{stage}: {CHECKS[stage](case, seed)} times, as it should be")
