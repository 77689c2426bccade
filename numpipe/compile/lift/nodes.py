"""Syntax tree nodes: traversal and construction.

`walk` and `children` yield nodes like `ast.walk` and `ast.iter_child_nodes`, in a third of the
time: they skip operators and contexts (`ast.Add`, `ast.Load`), which have a meaning only together
with their expression. Rewriting a kernel traverses its tree some hundred times.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

Function = ast.FunctionDef | ast.Lambda
Block = list[ast.stmt]
"""the statements of a body"""
Keywords = dict[str | None, ast.expr]
"""the keyword arguments of a call by name, None for ``**``"""
_Node = TypeVar("_Node", bound=ast.AST)
_NO_NODES = frozenset({"id", "attr", "name", "arg", "ctx", "op", "ops", "kind", "type_comment"})


@functools.cache
def _fields(kind: type[ast.AST]) -> tuple[str, ...]:
    """The fields of a class of nodes that hold nodes."""
    return (
        ()
        if kind is ast.Constant
        else tuple(name for name in kind._fields if name not in _NO_NODES)
    )


def children(node: ast.AST) -> list[ast.AST]:
    """Return the nodes right below `node`, in the order of its fields.

    >>> [child.id for child in children(ast.parse("a + b", mode="eval").body)]
    ['a', 'b']
    """
    below: list[ast.AST] = []
    kind: Any = type(node)
    for name in _fields(kind):
        value = getattr(node, name, None)
        if value.__class__ is list:
            for part in value:
                if isinstance(part, ast.AST):
                    below.append(part)
        elif value is not None and isinstance(value, ast.AST):
            below.append(value)
    return below


def walk(*nodes: ast.AST) -> Iterator[ast.AST]:
    """Yield `nodes` and all nodes below them, breadth first; the children of a node are looked up
    before it is yielded."""
    todo = list(nodes)
    for one in todo:
        todo += children(one)
        yield one


def statements(function: Function) -> Sequence[ast.AST]:
    """Return the statements of a function, or the expression of a lambda."""
    return function.body if isinstance(function, ast.FunctionDef) else [function.body]


def own(body: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Yield the nodes of a function's body; a function that is nested in it is yielded itself, but
    nothing inside it."""
    todo = list(body)
    while todo:
        node = todo.pop()
        yield node
        if not isinstance(node, Function):
            todo += children(node)


def surely(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes that are always evaluated, once, when a statement runs or an expression is
    evaluated."""
    match node:
        case ast.For() | ast.While() | ast.If() | ast.FunctionDef() | ast.Lambda():
            return
        case ast.IfExp(test=first) | ast.BoolOp(values=[first, *_]):
            yield from surely(first)
            return
    yield node
    for child in children(node):
        yield from surely(child)


def parameters_of(function: Function) -> list[str]:
    """Return the names of a function's parameters."""
    return [
        argument.arg
        for argument in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)
    ]


def argument(call: ast.Call, name: str, position: int | None = None) -> ast.expr | None:
    """Return the argument that a call passes at this position, or by this name, if any."""
    if position is not None and position < len(call.args):
        return call.args[position]
    return next((keyword.value for keyword in call.keywords if keyword.arg == name), None)


def reads(function: Function) -> tuple[bool, ...]:
    """Return for each parameter whether the function reads it."""
    read = names(ast.Load, *statements(function))
    return tuple(name in read for name in parameters_of(function))


def names(context: type[ast.expr_context], *nodes: ast.AST) -> set[str]:
    """Return the names that `nodes`, and all below them, read (`ast.Load`) or bind
    (`ast.Store`)."""
    return {
        node.id
        for node in walk(*nodes)
        if isinstance(node, ast.Name) and isinstance(node.ctx, context)
    }


def operation(node: ast.AST) -> Any:
    """Return the operation of a call that the AST pass inserted; None for all other nodes."""
    return getattr(node, "operation", None)


def running(operations: Sequence, fact: str, *nodes: ast.AST) -> Iterator[ast.AST]:
    """Yield what is below `nodes`, already rewritten, and calls one of `operations`, or a function
    whose `Facts` say `fact`."""
    for node in walk(*nodes):
        facts = getattr(node, "facts", None)
        if operation(node) in operations if facts is None else getattr(facts, fact):
            yield node


# ---- new nodes
def load(name: str) -> ast.Name:
    return ast.Name(name, ast.Load())


def tuple_of(parts: list[ast.expr], where: ast.AST) -> ast.Tuple:
    """Return the tuple of these expressions, at the position of `where`."""
    return ast.copy_location(ast.Tuple(parts, ast.Load()), where)


def item(value: ast.expr, number: int) -> ast.Subscript:
    return ast.Subscript(value, ast.Constant(number), ast.Load())


def assign(name: str, value: ast.expr) -> ast.Assign:
    return ast.Assign([ast.Name(name, ast.Store())], value)


def parameters(names: Iterable[str]) -> ast.arguments:
    return ast.arguments([], [ast.arg(name) for name in names], None, [], [], None, [])


def parsed(text: str, where: ast.AST) -> list[Any]:
    """Return the statements of a text, with all their parts at the position of `where`."""
    statements = ast.parse(text).body
    for part in walk(*statements):
        ast.copy_location(part, where)
    return statements


def definition(name: str, arguments: ast.arguments, body: Block) -> ast.FunctionDef:
    """Return the statement ``def name(arguments): body``."""
    function = ast.FunctionDef(name, arguments, body, [], None)
    if "type_params" in ast.FunctionDef._fields:  # Python 3.12
        setattr(function, "type_params", [])  # noqa: B010
    return function


def located(new: _Node, where: ast.AST) -> _Node:
    """Give each part of a new node that has no position the one of `where`."""
    for part in walk(new):
        if not hasattr(part, "lineno"):
            ast.copy_location(part, where)
    return new
