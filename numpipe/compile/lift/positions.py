"""Positions of errors in the user's source, to the column, although Numba knows only line numbers.

Every expression and statement of the source that Numba compiles gets its own line number, beyond
the lines of any file. So a line number in a Numba error identifies a single expression, and a table
maps it to a position in one of the kernel's files. The source that the simulator runs keeps its
lines, for tracebacks and debuggers.
"""

from __future__ import annotations

import ast
import functools
from dataclasses import dataclass
from typing import Any

from ...arch.dimensions import Ints, Names
from ...diagnostics.errors import Position
from .nodes import walk

FIRST = 1_000_000
"""The first line number that stands for an expression."""


class Positions:
    """The table of one kernel, including its helpers from other files: line number -> Position."""

    def __init__(self) -> None:
        self._found: list[tuple[Source, Ints | None]] = []

    def renumber(self, module: ast.Module, source: Source) -> ast.Module:
        """Give each node of `module`, in place, a line number of its own; `source` is the origin of
        the nodes."""
        nodes = {
            id(node): node
            for node in walk(module)
            if isinstance(node, (ast.expr, ast.stmt, ast.arg, ast.keyword))
        }
        inner_first = list(reversed(nodes.values()))
        places = [
            (source, _span(node) if hasattr(node, "lineno") else None) for node in inner_first
        ]
        for line, node in enumerate(inner_first, FIRST + len(self._found)):
            node.lineno = node.end_lineno = line
            node.col_offset = node.end_col_offset = 0
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                node.func.end_lineno = line  # where CPython says that the call of a method is
        self._found += places
        return module

    def find(self, line: int) -> Position | None:
        """Return the position that a line number stands for; None for a line of a file."""
        index = line - FIRST
        if not 0 <= index < len(self._found):
            return None
        source, span = self._found[index]
        return source.definition if span is None else source.span(*span)

    def place(self, line: int) -> tuple[str, int] | None:
        """Return the file and the line that a line number stands for, as a line table names them;
        None for a line of a file."""
        found = self.find(line)
        return None if found is None else found.place


@dataclass(frozen=True)
class Source:
    """The source of a function of a kernel: its text, its place, and its namespace."""

    name: str
    filename: str
    first: int
    """The line number of the first of `lines`, which is a decorator or the `def`."""
    lines: Names
    namespace: dict[str, Any]

    def parse(self) -> ast.stmt:
        """Return the function's AST, with the lines and columns of its file; SyntaxError where the
        lines are no statement."""
        inside = self.lines[0][:1].isspace()
        # within a block it stays as it is: removing the indentation would move the columns, and
        # strings may start at column 0
        above = self.first - 1 - inside
        tree = ast.parse("\n" * above + "if 1:\n" * inside + "".join(self.lines))
        if above < 0:
            ast.increment_lineno(tree, above)
        return tree.body[0].body[0] if inside else tree.body[0]  # type: ignore[attr-defined]

    @functools.cached_property
    def tree(self) -> ast.stmt:
        """The AST, for callers that only read it."""
        return self.parse()

    def covers(self, filename: str, line: int) -> bool:
        """Return whether a line of a file belongs to this function."""
        return filename == self.filename and self.first <= line < self.first + len(self.lines)

    @functools.cached_property
    def _telling(self) -> dict[Ints, Ints]:
        """The part of a long statement or expression to underline, by the span of the whole.

        It is the header of a compound statement, or the name of an attribute, or of its call, if
        the name is on a later line than its value, as in Python's tracebacks.
        """
        parts: dict[Ints, Ints] = {}
        for node in walk(self.tree):
            line, column, *_ = whole = _span(node) if hasattr(node, "lineno") else (0, 0)
            match node:
                case ast.For(iter=last) | ast.While(test=last) | ast.If(test=last):
                    parts[whole] = (line, column, *_span(last)[2:])
                case ast.stmt() if hasattr(node, "body"):
                    parts[whole] = (line, column, 0, 0)
                case ast.Call(func=ast.Attribute() as named) | (ast.Attribute() as named) if (
                    named.end_lineno != line
                ):
                    parts[whole] = (
                        named.end_lineno or 0,
                        (named.end_col_offset or 0) - len(named.attr.encode()),
                        *whole[2:],
                    )
        return parts

    def position(self, node: ast.AST) -> Position:
        """Return the position of a node of this function; of the `def` for a node without one."""
        return self.span(*_span(node)) if hasattr(node, "lineno") else self.definition

    @property
    def definition(self) -> Position:
        """The position of the `def`."""
        return self.position(self.tree)

    def statement(self, line: int) -> Position:
        """Return the position of the innermost statement that `line` belongs to."""
        found: Position | None = None
        for node in walk(self.tree):  # breadth first: the innermost comes last
            if isinstance(node, ast.stmt) and node.lineno <= line <= (
                node.end_lineno or node.lineno
            ):
                found = self.position(node)
        return found or self.span(line, 0, 0, 0)

    def span(self, line: int, column: int, end_line: int, end_column: int) -> Position:
        """Return the position of these lines and columns; columns count bytes of UTF-8, as Python's
        parser does."""
        whole = line, column, end_line, end_column
        line, column, end_line, end_column = self._telling.get(whole, whole)
        if not self.covers(self.filename, line):
            return Position(self.filename, line)
        text = self.lines[line - self.first].rstrip("\r\n\f")

        def characters(offset: int) -> int:
            return offset if text.isascii() else len(text.encode()[:offset].decode(errors="ignore"))

        return Position(
            self.filename, line, characters(column), end_line, characters(end_column), text
        )


def _span(node: Any) -> Ints:
    return node.lineno, node.col_offset, node.end_lineno or 0, node.end_col_offset or 0
