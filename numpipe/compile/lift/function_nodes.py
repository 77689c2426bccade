"""The syntax tree of a function that was made on the host: an index map, a function of shapes.

A function's code names a line of its file, and a line may hold several lambdas. The file is parsed
and compiled, and the function's node is the one whose bytecode is the function's.
"""

from __future__ import annotations

import ast
import functools
import linecache
from types import CodeType, FunctionType
from typing import Any

from ..reading import codes

_FIRST = 1_000_000
"""The first line number while a file is compiled so that each function has its own line."""


def lines_of(function: FunctionType) -> list[str]:
    """Return the lines of the file that contains a function; none if Python finds no file."""
    return linecache.getlines(function.__code__.co_filename, function.__globals__)


def node_of(function: FunctionType) -> ast.Lambda | ast.FunctionDef | None:
    """Return the node of a function; None if its file does not contain it, or no longer does.

    The node is shared by all callers: copy it before changing it.
    """
    code = function.__code__
    try:
        functions = _functions("".join(lines_of(function)))
    except SyntaxError:
        return None
    for node, other in functions:
        first = min(part.lineno for part in (node, *getattr(node, "decorator_list", ())))
        if first == code.co_firstlineno and _content(other) == _content(code):
            return node
    return None


@functools.lru_cache(maxsize=16)
def _functions(text: str) -> list[tuple[ast.Lambda | ast.FunctionDef, CodeType]]:
    """Return the functions of a file with their bytecode."""
    nodes: dict[int, Any] = {}
    places = []
    tree: Any = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, (ast.Lambda, ast.FunctionDef)):
            number = _FIRST + len(nodes)
            nodes[number] = node
            # a body that is alone on another line would start with a NOP (Python 3.12)
            body = [node.body] if isinstance(node, ast.Lambda) else []
            same_line = [part for part in body if part.lineno == node.lineno]
            for part in (node, *same_line, *getattr(node, "decorator_list", ())):
                places.append((part, part.lineno, part.end_lineno, part.col_offset))
                part.lineno, part.end_lineno, part.col_offset = number, number, 0
    found = list(codes(compile(tree, "<functions>", "exec", dont_inherit=True)))
    for part, *place in reversed(places):
        part.lineno, part.end_lineno, part.col_offset = place
    return [(nodes[code.co_firstlineno], code) for code in found if code.co_firstlineno in nodes]


def _content(code: CodeType) -> list:
    """Return a function's code without its line numbers."""
    parts = []
    for each in codes(code):
        plain = [repr(value) for value in each.co_consts if not isinstance(value, CodeType)]
        parts.append((each.co_code, each.co_names, each.co_varnames, each.co_freevars, plain))
    return parts
