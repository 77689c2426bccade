"""The nodes of a syntax tree, as `ast.walk` and `ast.iter_child_nodes` give them, at a third of their time: without operators
and contexts (`ast.Add`, `ast.Load`), which say something only with the expression they belong to.

Rewriting a kernel goes through its tree some hundred times.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

_NO_NODES = frozenset({"id", "attr", "name", "arg", "ctx", "op", "ops", "kind", "type_comment"})
_fields: dict[type, tuple[str, ...]] = {ast.Constant: ()}
"""of a class of nodes: those that hold nodes"""


def _fields_of(kind: type[ast.AST]) -> tuple[str, ...]:
    fields = _fields[kind] = tuple(name for name in kind._fields if name not in _NO_NODES)
    return fields


def children(node: ast.AST) -> list[ast.AST]:
    """The nodes right below `node`, in the order of its fields.

    >>> [child.id for child in children(ast.parse("a + b", mode="eval").body)]
    ['a', 'b']
    """
    kind = node.__class__
    found: list[ast.AST] = []
    for name in _fields[kind] if kind in _fields else _fields_of(kind):
        value = getattr(node, name, None)
        if value.__class__ is list:
            for part in value:
                if isinstance(part, ast.AST):
                    found.append(part)
        elif value is not None and isinstance(value, ast.AST):
            found.append(value)
    return found


def walk(node: ast.AST) -> Iterator[ast.AST]:
    """`node` and all nodes below it, breadth first; what is below a node is looked up before the node is given."""
    todo = [node]
    for one in todo:
        todo += children(one)
        yield one
