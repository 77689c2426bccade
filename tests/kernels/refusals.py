"""Kernels that must be refused: the exact first line of the error, the source line below it, and what is underlined.

A case is a kernel function with a decorator that says the error, and carets below what the error underlines::

    @refused("zeros: accumulators are float32, got float16: use .astype afterwards", kind=SpecError)
    def zeros_of_float16(a, b, c):
        acc = numpipe.zeros((64, 64), np.float16)
        #     ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^

The text is what follows ``file:line: kernel name: ``; in it ``{line}`` and ``{line-2}`` are lines counted from the underlined
one, ``{file}`` is the name of the file, ``{path}`` all of it. Its further lines are those below the carets. Where the executions
differ it is said for each, ``simulated=…, compiled=…``, and where only one of them can see the mistake, for that one. Lines that
end in ``# called`` are those that the error lists as calls on the way to it.

Where the error names a mend that can be written into the kernel, the case has it, ``mend={"np.float16": "np.float32"}``: pieces of
the kernel's source, and what stands there in the mended kernel, which runs; or ``mended_options``, other options of the kernel.
"""

from __future__ import annotations

import inspect
import linecache
import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
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
COLUMNS = sys.version_info >= (3, 11)
"""tracebacks know columns; before, a simulated error underlines its whole statement"""
MARK = "# <-"
needs_columns = pytest.mark.skipif(not COLUMNS, reason="Python 3.10 knows no columns of a running line")
_CARETS = re.compile(r" *# *(\^+)$")


@dataclass(frozen=True)
class Case:
    """A kernel that is refused, the error's kind, and its first line behind the kernel's name, by execution."""

    kernel: Any
    args: tuple[Any, ...]
    kind: type[NumpipeError]
    texts: dict[str, str]
    mend: dict[str, str] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    """of the mended kernel"""

    def mended(self) -> Any:
        """The kernel with its mend."""
        name, (_, lines, _) = self.kernel.name, _source(self.kernel)
        source = "\n".join(lines[next(i for i, line in enumerate(lines) if line.startswith("def ")):]) + "\n"
        for wrong, right in self.mend.items():
            assert wrong in source, f"{name} has no {wrong!r}"
            source = source.replace(wrong, right)
        filename, namespace = f"<{name}, mended>", dict[str, Any]()
        linecache.cache[filename] = len(source), None, source.splitlines(True), filename
        exec(compile(source, filename, "exec", dont_inherit=True), self.kernel.function.__globals__, namespace)
        return numpipe.kernel(**self.options)(namespace[name])

    def check(self, execution: str) -> None:
        with pytest.raises(NumpipeError) as caught:
            EXECUTIONS[execution](self.kernel, *self.args)
        told = str(caught.value)
        filename, line, underlined, calls = self.marks()
        text = re.sub(r"\{line([+-]\d+)?\}", lambda found: str(line + int(found[1] or 0)), self.texts[execution])
        text = text.replace("{file}", os.path.basename(filename)).replace("{path}", filename)
        text, *table = text.split("\n")
        first, shown, carets, *called = told.split("\n")
        if not COLUMNS and execution == "simulated":  # the line is the statement's, where that has several
            assert first.partition(" kernel ")[2] == f"{self.kernel.name}{'' if text.startswith(',') else ': '}{text}"
            assert first.startswith(f"{filename}:") and not carets.strip(" ^")
            return
        assert first == f"{filename}:{line}: kernel {self.kernel.name}{'' if text.startswith(',') else ': '}{text}"
        assert type(caught.value) is self.kind
        source = linecache.getline(filename, line).rstrip()
        indentation = len(source) - len(source.lstrip())
        assert shown == "    " + source[indentation:]
        found = (len(carets) - carets.count("^") - 4 + indentation, len(carets) - 4 + indentation)
        condition = sys.version_info >= (3, 12) and underlined[0] <= found[0] < found[1] <= underlined[1]
        assert not carets.strip(" ^") and (found == underlined or condition), told  # 3.12: of a branch, a loop its condition
        assert called[:len(table)] == [f"  {row}" for row in table]
        assert sorted(called[len(table):]) == sorted(f"  called at {filename}:{call}" for call in calls)

    def marks(self) -> tuple[str, int, tuple[int, int], list[int]]:
        """(file, line, columns) that is underlined, and the lines of calls."""
        filename, lines, first = _source(self.kernel)
        found = [(number, carets.span(1)) for number, line in enumerate(lines, first - 1) if (carets := _CARETS.match(line))]
        assert len(found) == 1, f"{self.kernel.name}: {len(found)} lines of carets"
        return filename, *found[0], [number for number, line in enumerate(lines, first) if line.endswith("# called")]


class Cases(list[Case]):
    """A table of cases."""

    def __call__(self, text: str | None = None, *, kind: type[NumpipeError] = CompileError, args: tuple[Any, ...] = (A, B, C),
                 simulated: str | None = None, compiled: str | None = None, mend: dict[str, str] | None = None,
                 mended_options: dict[str, Any] | None = None, **options: Any) -> Callable[[Any], Any]:
        """Decorates a kernel function: calls of a kernel with these `options` on `args` are refused."""
        def add(function: Callable[..., Any]) -> Any:
            given = {"num_compute_wgs": 1, **options}
            kernel = numpipe.kernel(**given)(function)
            self.also(kernel, text, kind=kind, args=args, simulated=simulated, compiled=compiled, mend=mend or {},
                      options={**given, **mended_options} if mended_options else given if mend else {})
            return kernel

        return add

    def also(self, kernel: Any, text: str | None = None, *, kind: type[NumpipeError] = CompileError,
             args: tuple[Any, ...] = (A, B, C), simulated: str | None = None, compiled: str | None = None, **mend: Any) -> None:
        """The same kernel refused for other arguments, or with another kind of error."""
        texts = {"simulated": simulated or text, "compiled": compiled or text}
        self.append(Case(kernel, args, kind, {name: said for name, said in texts.items() if said is not None}, **mend))

    @property
    def tests(self) -> Any:
        """Parametrizes a test over (case, execution)."""
        return pytest.mark.parametrize("case, execution", [
            pytest.param(case, execution, id=f"{case.kernel.name}-{execution}") for case in self for execution in case.texts])

    @property
    def mended(self) -> Any:
        """Parametrizes a test over the cases that have a mend."""
        return pytest.mark.parametrize("case", [pytest.param(case, id=case.kernel.name) for case in self if case.options])


def _source(kernel: Any) -> tuple[str, list[str], int]:
    """(file, lines, first line) of a kernel, and a comment below it."""
    lines, first = inspect.getsourcelines(kernel.function)
    filename = inspect.getsourcefile(kernel.function)
    assert filename is not None
    return filename, [linecache.getline(filename, number).rstrip() for number in range(first, first + len(lines) + 1)], first


def marked(kernel: Any) -> str:
    """``file:line`` of the line of a kernel that ends in ``# <-``."""
    filename, lines, first = _source(kernel)
    found = [number for number, line in enumerate(lines, first) if line.endswith(MARK)]
    assert len(found) == 1, f"{kernel.name}: {len(found)} marks"
    return f"{filename}:{found[0]}"
