"""Which parameters a kernel stores to: its outputs.

A store may be in a nested function, in a `@numpipe.function` that the array is passed to, or go through another name. A pipeline
stores to the arrays that it is called on for its out_specs; copies and atomics to their destination.
"""

from __future__ import annotations

import ast
from typing import Any, TypeGuard

from ...core.functions import Function
from ...diagnostics.errors import CompileError
from ...language.memory import copies
from ...language.pipeline import emit, pipelines
from ...language.tiles import atomics
from .fold import Constants, named_tuple, stores
from .lift import read
from .nodes import Function as Node
from .nodes import own, parameters_of, statements
from .positions import Source


def stored(source: Source, *, surely: bool = False) -> set[str]:
    """Names that a function stores to, by itself or through the functions that it calls.

    A function that was passed to it may store to all that it gets; `surely`: names whose stores were seen only.
    """
    return _Stores(source, surely).of(source.tree, {}, ())  # type: ignore[arg-type]


TO_VIEWS: tuple[tuple[Any, ...], ...] = tuple(atomics.ATOMICS.values()), (copies.copy_smem_to_gmem,)
"""functions that change a view of an array, by the place of the argument `dst`"""
MAKERS = pipelines.pipeline, emit.emit_pipeline_warp_specialized, emit.emit_pipeline


class _Stores:
    """The stores of one source."""

    def __init__(self, source: Source, surely: bool) -> None:
        self.surely = surely
        self.constants = Constants(source.namespace, {})

    def of(self, function: Node, outer: dict[str, Any], active: tuple[Any, ...]) -> set[str]:
        """Names that `function` stores to, those that it binds itself included.

        `outer` are the functions that it sees, by name (None: one that is passed to it); `active` those
        whose stores are being looked for.
        """
        every = list(own(statements(function)))
        inner = [node for node in every if isinstance(node, Node)]
        nodes = [node for node in every if not isinstance(node, Node)]
        local = {name for name, _ in stores(function)}
        nested = {name: f for name, f in outer.items() if name not in local}
        nested |= {f.name: f for f in inner if isinstance(f, ast.FunctionDef)}
        aliases: list[tuple[str, set[str]]] = []
        for node in nodes:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                aliases.append((node.targets[0].id, _names(node.value)))
                value = node.value if isinstance(node.value, ast.Lambda) else self.constants.evaluate(node.value, local)
                if isinstance(value, (ast.Lambda, Function)):
                    nested[node.targets[0].id] = value
                elif self._makes_pipeline(node.value, local) or isinstance(node.value, ast.Tuple):
                    nested[node.targets[0].id] = node.value
            if isinstance(node, ast.For):
                aliases += _handed_on(node)
        found = {_root(node) for node in nodes if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store)}
        for f in inner:
            found |= self.of(f, nested, active) - {name for name, _ in stores(f)}
        parameters = {name: None for name in parameters_of(function)}
        for node in nodes:
            if isinstance(node, ast.Call):
                found |= self._copied(node, local)
                found |= self._through(node, parameters | nested, local, active)
        while more := {name for target, names in aliases if target in found for name in names} - found:
            found |= more
        return found

    def _copied(self, call: ast.Call, local: set[str]) -> set[str]:
        """The names that a copy, or a reduction, to global memory goes to."""
        function = self.constants.evaluate(call.func, local)
        first = next((n for n, known in enumerate(TO_VIEWS) if any(function is one for one in known)), None)
        if first is None:
            return set()
        given = [*call.args[first:first + 1], *(keyword.value for keyword in call.keywords if keyword.arg == "dst")]
        return {name for value in given for name in _names(value)}

    def _through(self, call: ast.Call, nested: dict[str, Any], local: set[str], active: tuple[Any, ...]) -> set[str]:
        """Names among a call's arguments that the function it calls stores to."""
        given = [*enumerate(call.args), *((keyword.arg, keyword.value) for keyword in call.keywords)]
        passed = {where: names for where, value in given if (names := _names(value))}
        made = nested.get(call.func.id) if isinstance(call.func, ast.Name) else call.func
        if self._makes_pipeline(made, local):
            return self._outputs(made, call, nested, local, active)
        here = isinstance(call.func, ast.Name) and call.func.id in nested
        callee: Any = nested[_root(call.func)] if here else self.constants.evaluate(call.func, local)
        if not passed or callee in active:
            return set()
        if callee is None and here:  # a function that was passed on
            return set() if self.surely else {name for names in passed.values() for name in names}
        parameters, found = self._callee(callee, nested, active)
        return {name for where, names in passed.items() for name in names
                if (parameters[where] if isinstance(where, int) and where < len(parameters) else where) in found}

    def _makes_pipeline(self, made: ast.AST | None, local: set[str]) -> TypeGuard[ast.Call]:
        return isinstance(made, ast.Call) and any(self.constants.evaluate(made.func, local) is maker for maker in MAKERS)

    def _outputs(self, made: ast.Call, call: ast.Call, nested: dict[str, Any], local: set[str],
                 active: tuple[Any, ...]) -> set[str]:
        """Names among the arrays that a pipeline, `made`, is called on for its out_specs, behind those for its in_specs."""
        ins, outs = (self._count(made, name, nested, local) for name in ("in_specs", "out_specs"))
        if outs is None:  # any of them, for all that is seen
            arrays = [] if self.surely else call.args
        else:
            first = len(call.args) - outs if ins is None else ins
            arrays = call.args[first:first + outs]
        return {name for value in arrays for name in _array_names(value)} | self._in_place(made, call, nested, local, active)

    def _count(self, made: ast.Call, option: str, nested: dict[str, Any], local: set[str]) -> int | None:
        """How many specs a pipeline has; None if that is not seen."""
        specs: Any = next((keyword.value for keyword in made.keywords if keyword.arg == option), None)
        if isinstance(specs, ast.Name):
            specs = nested.get(specs.id) or specs
        match specs:
            case None:
                return 0
            case ast.Tuple(elts=elts):
                return len(elts)
            case ast.Call(func=func, args=args, keywords=keywords) if named_tuple(self.constants.evaluate(func, local)):
                return len(args) + len(keywords)
        value = self.constants.evaluate(specs, local) if isinstance(specs, ast.AST) else None
        return len(value) if isinstance(value, tuple) else None

    def _in_place(self, made: ast.Call, call: ast.Call, nested: dict[str, Any], local: set[str],
                  active: tuple[Any, ...]) -> set[str]:
        """Names among the arrays that a body gets in global memory, and stores to. (The targets of a loop are names for them.)"""
        body = made.args[0] if made.args else None
        name = body.id if isinstance(body, ast.Name) else ""
        function = nested.get(name) if name in nested else self.constants.evaluate(body, local) if body is not None else None
        parameters, found = self._callee(function, nested, active)
        return {name for value, parameter in zip(call.args, parameters[1:], strict=False) if parameter in found
                for name in _names(value)}

    def _callee(self, function: Any, nested: dict[str, Any], active: tuple[Any, ...]) -> tuple[list[str], set[str]]:
        """The parameters of a function that is called, and the names that it stores to; none of one that is not seen."""
        if function in active:
            return [], set()
        stores, seen = self, nested
        node = function
        if isinstance(function, Function):
            try:
                source = read(function.function)
            except CompileError:
                return [], set()  # said where it is rewritten
            node, stores, seen = source.tree, _Stores(source, self.surely), {}
        return (parameters_of(node), stores.of(node, seen, (*active, function))) if isinstance(node, Node) else ([], set())


def _handed_on(loop: ast.For) -> list[tuple[str, set[str]]]:
    """Names that a pipeline's loop has for its arrays: where the array is in global memory, a store goes to it."""
    match loop:
        case ast.For(target=ast.Tuple(elts=[_, ast.Tuple(elts=targets), *_]), iter=ast.Call(args=args)):
            pairs = zip(targets, args, strict=False)
            return [(target.id, _names(value)) for target, value in pairs if isinstance(target, ast.Name)]
    return []


def _array_names(value: ast.AST) -> set[str]:
    """The names in an array, or in a tuple or NamedTuple of them."""
    if isinstance(value, ast.Call):
        return {name for part in (*value.args, *(k.value for k in value.keywords)) for name in _array_names(part)}
    if isinstance(value, ast.Tuple):
        return {name for part in value.elts for name in _array_names(part)}
    return _names(value)


def _root(node: ast.AST) -> str:
    """The name that ``name.at[…][…]`` starts from; "" for none."""
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _names(value: ast.AST) -> set[str]:
    """The names whose array a value may be."""
    match value:
        case ast.Name(id=name):
            return {name}
        case ast.IfExp(body=body, orelse=orelse):
            return _names(body) | _names(orelse)
        case ast.Tuple(elts=elts):
            return {name for part in elts for name in _names(part)}
        case ast.Subscript(value=ast.Attribute(value=value, attr="at")):  # a view of it
            return _names(value)
    return set()
