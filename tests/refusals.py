"""Kernels that must be refused, in both executions, at the line marked ``# <-``, with the parts a good message has."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import numpipe
from numpipe import CompileError, NumpipeError

A = np.ones((128, 128), np.float16)
B = np.ones((64, 128), np.float16)
C = np.zeros((128, 64), np.float32)

EXECUTIONS: dict[str, Callable[..., Any]] = {
    "simulated": lambda kernel, *args, **named: kernel.simulate(*args, **named),
    "compiled": lambda kernel, *args, **named: kernel.compiled(*args, **named),
}
MARK = "# <-"


@dataclass(frozen=True)
class Case:
    """A kernel that must be refused, the error's kind and the parts of its message."""

    kernel: Any
    args: tuple[Any, ...]
    kind: type[NumpipeError]
    parts: tuple[str, ...]
    executions: tuple[str, ...]

    def check(self, execution: str) -> None:
        with pytest.raises(NumpipeError) as caught:
            EXECUTIONS[execution](self.kernel, *self.args)
        told = str(caught.value)
        assert isinstance(caught.value, self.kind), told
        for part in self.parts:
            assert part in told
        assert told.startswith(f"{marked(self.kernel)}: kernel {self.kernel.name}"), told
        first, line, carets, *calls = told.split("\n")
        assert line.rstrip().endswith(MARK), told
        assert set(carets.strip()) == {"^"} and carets.index("^") < len(carets) <= line.index(MARK), told
        assert all(call.startswith("  called at ") for call in calls), told
        assert len(first) < 1200, told


class Cases(list[Case]):
    """The cases of a test file; its tests are ``@CASES.tests``."""

    def __call__(self, *parts: str, kind: type[NumpipeError] = CompileError, args: tuple[Any, ...] = (A, B, C),
                 executions: tuple[str, ...] = tuple(EXECUTIONS), **options: Any) -> Callable[[Any], Any]:
        """Decorates a kernel function: calls with `args` are refused with an error of `kind` whose message has `parts`."""
        def add(function: Callable[..., Any]) -> Any:
            kernel = numpipe.kernel(**{"num_compute_wgs": 1, **options})(function)
            self.also(kernel, *parts, kind=kind, args=args, executions=executions)
            return kernel

        return add

    def also(self, kernel: Any, *parts: str, kind: type[NumpipeError] = CompileError, args: tuple[Any, ...] = (A, B, C),
             executions: tuple[str, ...] = tuple(EXECUTIONS)) -> None:
        """The same kernel refused for other arguments."""
        self.append(Case(kernel, args, kind, parts, executions))

    @property
    def tests(self) -> Any:
        """Parametrizes a test over (case, execution)."""
        return pytest.mark.parametrize("case, execution", [
            pytest.param(case, execution, id=f"{case.kernel.name}-{execution}") for case in self for execution in case.executions])


def marked(kernel: Any) -> str:
    """``file:line`` of the marked line of a kernel."""
    lines, first = inspect.getsourcelines(kernel.function)
    found = [first + i for i, line in enumerate(lines) if line.rstrip().endswith(MARK)]
    assert len(found) == 1, f"{kernel.name}: {len(found)} marks"
    return f"{inspect.getsourcefile(kernel.function)}:{found[0]}"
