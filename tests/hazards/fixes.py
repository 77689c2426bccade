"""The differences between a catalogue entry and its twin as text, and entries made from edited
source."""

from __future__ import annotations

import ast
import difflib
import inspect
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.hazards import catalogue
from tests.hazards.catalogue import Entry


class _Chosen(ast.NodeTransformer):
    """A transformer that decides every test of `fixed`."""

    def __init__(self, fixed: bool) -> None:
        self.fixed = fixed

    def _holds(self, test: ast.expr) -> bool | ast.expr:
        """Return whether a test holds, or the undecided rest of it."""
        if isinstance(test, ast.Name) and test.id == "fixed":
            return self.fixed
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            inner = self._holds(test.operand)
            return not inner if isinstance(inner, bool) else test
        if isinstance(test, ast.BoolOp):
            whole = isinstance(test.op, ast.Or)  # the value with which one part decides the whole
            parts = [self._holds(part) for part in test.values]
            left = [part for part in parts if not isinstance(part, bool)]
            if whole in [part for part in parts if isinstance(part, bool)]:
                return whole
            return (
                not whole if not left else left[0] if len(left) == 1 else ast.BoolOp(test.op, left)
            )
        return test

    def visit_If(self, node: ast.If) -> Any:
        self.generic_visit(node)
        holds = self._holds(node.test)
        if isinstance(holds, bool):
            return node.body if holds else node.orelse
        node.test = holds
        return node

    def visit_IfExp(self, node: ast.IfExp) -> Any:
        self.generic_visit(node)
        holds = self._holds(node.test)
        return node if not isinstance(holds, bool) else node.body if holds else node.orelse


def changes(entry: Entry) -> str:
    """Return the lines that only the twin has (+) or lacks (-), with the options that only it
    has."""
    texts = []
    for fixed in (False, True):
        tree = _Chosen(fixed).visit(ast.parse(textwrap.dedent(inspect.getsource(entry.function))))
        for node in ast.walk(tree):
            for field in ("body", "orelse"):
                if field == "body" and getattr(node, field, None) == []:
                    setattr(node, field, [ast.Pass()])
        (function,) = tree.body
        options = [
            ast.unparse(keyword)
            for call in function.decorator_list
            for keyword in call.keywords
            if fixed and keyword.arg in ("fix",)
        ]
        function.decorator_list = []
        texts.append([*options, *ast.unparse(tree).split("\n")])
    return "\n".join(
        line
        for line in difflib.unified_diff(*texts, n=0, lineterm="")
        if line[:3] not in ("---", "+++", "@@ ")
    )


def edited(
    entry: Entry, edits: Sequence[tuple[str, str]], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> Entry:
    """Return the entry of a source in which texts are replaced, each once."""
    source = textwrap.dedent(inspect.getsource(entry.function))
    for old, new in edits:
        assert source.count(old) == 1, f"{old!r} is {source.count(old)} times in\n{source}"
        source = source.replace(old, new)
    file = folder / f"{entry.function.__name__}.py"
    file.write_text(source, encoding="utf8")
    made: list[Entry] = []
    monkeypatch.setattr(catalogue, "_add", made.append)
    exec(compile(source, str(file), "exec"), dict(entry.function.__globals__))
    return made[0]
