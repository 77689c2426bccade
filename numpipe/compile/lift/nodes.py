"""Nodes of a syntax tree, and new ones.

`walk` and `children` give nodes as `ast.walk` and `ast.iter_child_nodes` do, at a third of their time: without operators and
contexts (`ast.Add`, `ast.Load`), which say something only with the expression they belong to. Rewriting a kernel goes through its
tree some hundred times.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

Function = ast.FunctionDef | ast.Lambda
_Node = TypeVar("_Node", bound=ast.AST)
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


def statements(function: Function) -> Sequence[ast.AST]:
    """What a function runs; of a lambda its expression."""
    return function.body if isinstance(function, ast.FunctionDef) else [function.body]


def own(body: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """The nodes of a function's body: of functions in it themselves, and not what is in them."""
    todo = list(body)
    while todo:
        node = todo.pop()
        yield node
        if not isinstance(node, Function):
            todo += children(node)


def parameters_of(function: Function) -> list[str]:
    """The names that a function gives its arguments."""
    return [argument.arg for argument in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)]


def reads(function: Function) -> tuple[bool, ...]:
    """Which of its arguments a function reads."""
    read = {node.id for part in statements(function) for node in walk(part)
            if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Store)}
    return tuple(name in read for name in parameters_of(function))


def operation(node: ast.AST) -> Any:
    """The operation that the AST pass has written a call of; None for all other nodes."""
    return getattr(node, "operation", None)


# ---- new ones
def load(name: str) -> ast.Name:
    return ast.Name(name, ast.Load())


def assign(name: str, value: ast.expr) -> ast.Assign:
    return ast.Assign([ast.Name(name, ast.Store())], value)


def parameters(names: Iterable[str]) -> ast.arguments:
    """Plain positional parameters."""
    return ast.arguments([], [ast.arg(name) for name in names], None, [], [], None, [])


def definition(name: str, arguments: ast.arguments, body: list[ast.stmt]) -> ast.FunctionDef:
    """``def name(arguments): body``"""
    made = ast.FunctionDef(name, arguments, body, [], None)
    if "type_params" in ast.FunctionDef._fields:  # Python 3.12
        setattr(made, "type_params", [])  # noqa: B010
    return made


def located(new: _Node, where: ast.AST) -> _Node:
    """A new node; what of it stands nowhere stands where `where` does."""
    for part in walk(new):
        if not hasattr(part, "lineno"):
            ast.copy_location(part, where)
    return new
