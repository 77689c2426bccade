'''Kernels that must be rejected, each with the exact first line of the error, the line it shows and
its carets.

An entry has a kernel's name, its lines with carets below the part that the error underlines, and
the error::

    refused(
        "zeros_of_float16",
        """
        acc = numpipe.zeros((64, 64), np.float16)
        #     ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
    """,
        "zeros: accumulators are float32, got float16: use .astype afterwards",
        kind=SpecError,
    )

The kernel is ``def zeros_of_float16(a, b, c):`` with these lines, or whatever the lines define if
they begin with ``def``. Its globals are numpipe's public names, ``np``, ``numpipe``, ``ml_dtypes``
and the arguments of `Cases`. If an entry uses a name of `GIVEN` without assigning it first (a block
spec, an accumulator, a pipeline, a body), the lines of `GIVEN` that define the name are inserted
before its own.

The error text is the part after ``file:line: kernel name: ``. In it, ``{line}`` and ``{line-2}``
are line numbers relative to the underlined line, ``{file}`` is the file name and ``{path}`` the
full path. Further lines of the text are those below the carets. If the executions differ,
``simulated=…, compiled=…`` give both texts, or one if only one of them detects the mistake. Lines
that end in ``# called`` are the calls that the error lists on the way to the mistake.

If the error names a fix that can be written into the kernel, the entry has it: ``fix={"np.float16":
"np.float32"}`` gives pieces of the kernel's source and their replacements in the fixed kernel,
which runs. ``fixed_options`` gives other kernel options.
'''

from __future__ import annotations

import ast
import inspect
import linecache
import os
import re
import sys
import textwrap
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
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
GIVEN = {
    "spec": "spec = BlockSpec((64, 64), lambda k: (0, k))\n",
    "rows": "rows = BlockSpec((64, 64), lambda k: (k, 0))\n",
    "acc": "acc = numpipe.zeros((64, 64), np.float32)\n",
    "body": "def body(indices, x):\n    pass\n\n",
    "pipe": "pipe = numpipe.pipeline(grid=(2,), in_specs=(spec,))\n",
    "pairs": "pairs = numpipe.pipeline(grid=(2,), in_specs=(spec, spec))\n",
}
"""source lines, by the name that they define"""
COLUMNS = sys.version_info >= (3, 11)
"""Python 3.11 tracebacks have columns; before, a simulated error underlines the whole statement"""
MARK = "# <-"
needs_columns = pytest.mark.skipif(
    not COLUMNS, reason="Python 3.10 knows no columns of a running line"
)
_CARETS = re.compile(r" *# *(\^+)$")


@dataclass(frozen=True)
class Case:
    """A kernel that is rejected, the type of the error, and its text after the kernel's name, per
    execution."""

    kernel: Any
    args: tuple[Any, ...]
    kind: type[NumpipeError]
    texts: dict[str, str]
    fix: dict[str, str] = field(default_factory=dict)
    options: dict[str, Any] | None = None
    """options of the fixed kernel; None if there is no fix"""

    def fixed(self) -> Any:
        """Return the kernel with its fix."""
        name, source = self.kernel.name, inspect.getsource(self.kernel.function)
        for wrong, right in self.fix.items():
            assert wrong in source, f"{name} has no {wrong!r}"
            source = source.replace(wrong, right)
        function = _function(name, source, f"<{name}, fixed>", self.kernel.function.__globals__)
        return numpipe.kernel(**self.options)(function)

    def check(self, execution: str) -> None:
        with pytest.raises(NumpipeError) as caught:
            EXECUTIONS[execution](self.kernel, *self.args)
        told = str(caught.value)
        filename, line, underlined, calls = self.marks()
        text = re.sub(
            r"\{line([+-]\d+)?\}",
            lambda found: str(line + int(found[1] or 0)),
            self.texts[execution],
        )
        text = text.replace("{file}", os.path.basename(filename)).replace("{path}", filename)
        text, *table = text.split("\n")
        first, shown, carets, *called = told.split("\n")
        # without columns, the line is the first one of a statement that spans several
        if not COLUMNS and execution == "simulated":
            assert (
                first.partition(" kernel ")[2]
                == f"{self.kernel.name}{'' if text.startswith(',') else ': '}{text}"
            )
            assert first.startswith(f"{filename}:") and not carets.strip(" ^")
            return
        assert first == (
            f"{filename}:{line}: kernel "
            f"{self.kernel.name}{'' if text.startswith(',') else ': '}{text}"
        )
        assert type(caught.value) is self.kind
        source = linecache.getline(filename, line).rstrip()
        indentation = len(source) - len(source.lstrip())
        assert shown == "    " + source[indentation:]
        found = (len(carets) - carets.count("^") - 4 + indentation, len(carets) - 4 + indentation)
        condition = (
            sys.version_info >= (3, 12) and underlined[0] <= found[0] < found[1] <= underlined[1]
        )
        # Python 3.12 underlines only the condition of a branch or loop
        assert not carets.strip(" ^") and (found == underlined or condition), told
        assert called[: len(table)] == [f"  {row}" for row in table]
        assert sorted(called[len(table) :]) == sorted(
            f"  called at {filename}:{call}" for call in calls
        )

    def marks(self) -> tuple[str, int, tuple[int, int], list[int]]:
        """Return the underlined (file, line, columns), and the lines of calls."""
        filename, lines, first = _source(self.kernel)
        found = [
            (number, carets.span(1))
            for number, line in enumerate(lines, first - 1)
            if (carets := _CARETS.match(line))
        ]
        assert len(found) == 1, f"{self.kernel.name}: {len(found)} lines of carets"
        return (
            filename,
            *found[0],
            [number for number, line in enumerate(lines, first) if line.endswith("# called")],
        )


class Cases(list[Case]):
    """A table of cases whose kernels can use numpipe's names and `names`."""

    def __init__(self, cases: Iterable[Case] = (), **names: Any) -> None:
        super().__init__(cases)
        public = {name: getattr(numpipe, name) for name in numpipe.__all__}
        self.names = {
            "__name__": __name__,
            "np": np,
            "numpipe": numpipe,
            "ml_dtypes": ml_dtypes,
            **public,
            **names,
        }

    def __call__(
        self,
        name: str,
        lines: str,
        text: str | None = None,
        *,
        kind: type[NumpipeError] = CompileError,
        args: tuple[Any, ...] = (A, B, C),
        simulated: str | None = None,
        compiled: str | None = None,
        fix: dict[str, str] | None = None,
        fixed_options: dict[str, Any] | None = None,
        **options: Any,
    ) -> Any:
        """Add and return a kernel with these `options`, which is rejected when called with
        `args`."""
        kernel = numpipe.kernel(**options)(
            _function(name, _kernel_source(name, lines), f"<{name}>", self.names)
        )
        self.names[name] = kernel
        self.also(
            kernel,
            text,
            kind=kind,
            args=args,
            simulated=simulated,
            compiled=compiled,
            fix=fix or {},
            options={**options, **(fixed_options or {})} if fix or fixed_options else None,
        )
        return kernel

    def also(
        self,
        kernel: Any,
        text: str | None = None,
        *,
        kind: type[NumpipeError] = CompileError,
        args: tuple[Any, ...] = (A, B, C),
        simulated: str | None = None,
        compiled: str | None = None,
        **fix: Any,
    ) -> None:
        """Add a case for the same kernel with other arguments, or with another type of error."""
        texts = {"simulated": simulated or text, "compiled": compiled or text}
        self.append(
            Case(
                kernel,
                args,
                kind,
                {name: said for name, said in texts.items() if said is not None},
                **fix,
            )
        )

    @property
    def tests(self) -> Any:
        """Return a mark that parametrizes a test over (case, execution)."""
        return pytest.mark.parametrize(
            "case, execution",
            [
                pytest.param(case, execution, id=f"{case.kernel.name}-{execution}")
                for case in self
                for execution in case.texts
            ],
        )

    @property
    def fixed(self) -> Any:
        """Return a mark that parametrizes a test over the cases that have a fix."""
        return pytest.mark.parametrize(
            "case",
            [pytest.param(case, id=case.kernel.name) for case in self if case.options is not None],
        )


def _kernel_source(name: str, lines: str) -> str:
    """Return the source of the kernel `name` with these lines, after the lines of `GIVEN` that it
    uses."""
    lines = lines.strip("\n") + "\n"
    if lines.startswith("def "):
        return lines
    loads, stores = dict[str, int](), dict[str, int]()
    for node in ast.walk(ast.parse("if True:\n" + lines)):
        if isinstance(node, ast.arg):
            stores[node.arg] = min(node.lineno, stores.get(node.arg, node.lineno))
        elif isinstance(node, ast.Name):
            first = loads if isinstance(node.ctx, ast.Load) else stores
            first[node.id] = min(node.lineno, first.get(node.id, node.lineno))
        elif isinstance(node, ast.FunctionDef):
            stores[node.name] = min(node.lineno, stores.get(node.name, node.lineno))
    needed = {name for name, line in loads.items() if line <= stores.get(name, line)}
    if needed & {"pipe", "pairs"}:
        needed.add("spec")
    given = "".join(line for name, line in GIVEN.items() if name in needed)
    return f"def {name}(a, b, c):\n" + textwrap.indent(given, "    ") + lines


def _function(name: str, source: str, filename: str, names: dict[str, Any]) -> Any:
    """Return the function `name` of `source`, whose lines inspect and tracebacks can find."""
    linecache.cache[filename] = len(source), None, source.splitlines(True), filename
    namespace = dict[str, Any]()
    exec(compile(source, filename, "exec", dont_inherit=True), names, namespace)
    return namespace[name]


def _source(kernel: Any) -> tuple[str, list[str], int]:
    """Return (file, lines, first line) of a kernel, including a comment below it."""
    lines, first = inspect.getsourcelines(kernel.function)
    filename = inspect.getsourcefile(kernel.function)
    assert filename is not None
    return (
        filename,
        [
            linecache.getline(filename, number).rstrip()
            for number in range(first, first + len(lines) + 1)
        ],
        first,
    )


def marked(kernel: Any) -> str:
    """Return ``file:line`` of the line of a kernel that ends in ``# <-``."""
    filename, lines, first = _source(kernel)
    found = [number for number, line in enumerate(lines, first) if line.endswith(MARK)]
    assert len(found) == 1, f"{kernel.name}: {len(found)} marks"
    return f"{filename}:{found[0]}"
