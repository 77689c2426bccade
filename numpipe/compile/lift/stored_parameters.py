"""A search of a kernel's source for its outputs, the parameters that it stores to.

A store may be in a nested function or in a `@numpipe.function` that gets the array, or go through
another name. A pipeline stores to the arrays passed for its out_specs; copies and atomics store to
their destination. A store that the search does not find is rejected when the kernel is compiled or
simulated (`Unit.check_output`).
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeGuard

from ...core.functions import Function
from ...diagnostics.errors import CompileError
from ...language.memory import copies, peer_arrays
from ...language.pipeline import pipelines
from ...language.tiles import atomics
from .constants import Constants, named_tuple, one_of, stores
from .lift import read
from .loops import BUILDERS
from .nodes import Function as Node
from .nodes import argument, own, parameters_of, statements
from .positions import Source

TO_VIEWS: tuple[tuple, ...] = tuple(atomics.ATOMICS.values()), (copies.copy_smem_to_gmem,)
"""Functions that change a view of an array, by the position of their argument `dst`."""
MAKERS = pipelines.pipeline, *BUILDERS


def stored(
    source: Source, known: Mapping[str, Any] | None = None, *, surely: bool = False
) -> set[str]:
    """Return the names that a function stores to, directly or through the functions that it calls,
    given the parameters with `known` values.

    A function that was passed to it may store to all arguments that it gets; `surely`: return only
    names whose stores were found.
    """
    constants = Constants(source.namespace, dict(known or {}))
    return _Stores(source.tree, constants, {}, (), surely).names  # type: ignore[arg-type]


def _bound(node: ast.Assign) -> Iterator[tuple[str, ast.expr]]:
    """Yield the names that an assignment binds, each with its value: ``a, b = x, y`` yields two."""
    for target in node.targets:
        several = (
            isinstance(target, ast.Tuple)
            and isinstance(node.value, ast.Tuple)
            and len(target.elts) == len(node.value.elts)
        )
        pairs = (
            zip(target.elts, node.value.elts, strict=True) if several else [(target, node.value)]  # type: ignore[attr-defined]
        )
        yield from ((one.id, value) for one, value in pairs if isinstance(one, ast.Name))


class _Stores:
    """The `names` that one function stores to, including names that it binds itself.

    outer   the functions that it can access, by name
    active  the functions whose stores are being searched
    """

    def __init__(
        self,
        function: Node,
        constants: Constants,
        outer: dict[str, Any],
        active: tuple,
        surely: bool,
    ) -> None:
        self.active, self.surely = active, surely
        bound = Counter(name for name, _ in stores(function))
        self.local = set(bound)
        # the values that `stored` got are of parameters of the outermost function
        own_values = {arg.arg for arg in function.args.kwonlyargs} if not active else set()
        self.constants = Constants(
            constants.namespace,
            {
                name: value
                for name, value in constants.known.items()
                if name not in bound or (name in own_values and bound[name] == 1)
            },
        )
        every = list(own(statements(function)))
        inner = [node for node in every if isinstance(node, Node)]
        nodes = [node for node in every if not isinstance(node, Node)]
        nested = {name: f for name, f in outer.items() if name not in bound}
        nested |= {f.name: f for f in inner if isinstance(f, ast.FunctionDef)}
        aliases: list[tuple[str, set[str]]] = []
        for node in reversed(nodes):
            for name, given in _bound(node) if isinstance(node, ast.Assign) else ():
                aliases.append((name, self._names(given)))
                value = given if isinstance(given, ast.Lambda) else self._value(given)
                if isinstance(value, (ast.Lambda, Function)):
                    nested[name] = value
                elif callable(value) and bound[name] == 1:  # ``emit = numpipe.emit_pipeline``
                    self.constants.known[name] = value
                elif self._makes_pipeline(given) or isinstance(given, ast.Tuple):
                    nested[name] = given
            if isinstance(node, ast.For):
                aliases += self._handed_on(node)
        self.names = {
            self._root(node)
            for node in nodes
            if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store)
        }
        for f in inner:
            self.names |= _Stores(f, self.constants, nested, active, surely).names - {
                name for name, _ in stores(f)
            }
        self.nested = dict.fromkeys(parameters_of(function)) | nested
        """The functions that it can access, by name; None for one that is passed to it."""
        for node in nodes:
            if isinstance(node, ast.Call):
                self.names |= self._copied(node) | self._through(node)
        while (
            more := {name for target, names in aliases if target in self.names for name in names}
            - self.names
        ):
            self.names |= more

    def _value(self, node: ast.AST) -> Any:
        return self.constants.evaluate(node, self.local)

    def _copied(self, call: ast.Call) -> set[str]:
        """Return the destinations of a copy, or a reduction, to global memory."""
        function = self._value(call.func)
        first = next((n for n, known in enumerate(TO_VIEWS) if one_of(function, known)), None)
        if first is None:
            return set()
        return self._names(argument(call, "dst", first))

    def _through(self, call: ast.Call) -> set[str]:
        """Return the names among a call's arguments that the function it calls stores to."""
        args = [*enumerate(call.args), *((keyword.arg, keyword.value) for keyword in call.keywords)]
        passed = {where: names for where, value in args if (names := self._names(value))}
        made = self.nested.get(call.func.id) if isinstance(call.func, ast.Name) else call.func
        if self._makes_pipeline(made):
            return self._outputs(made, call)
        here = isinstance(call.func, ast.Name) and call.func.id in self.nested
        callee: Any = self.nested[self._root(call.func)] if here else self._value(call.func)
        if not passed or callee in self.active:
            return set()
        if callee is None and here:  # a function that was passed as an argument
            return set() if self.surely else {name for names in passed.values() for name in names}
        parameters, found = self._callee(callee)
        return {
            name
            for where, names in passed.items()
            for name in names
            if (parameters[where] if isinstance(where, int) and where < len(parameters) else where)
            in found
        }

    def _makes_pipeline(self, made: ast.AST | None) -> TypeGuard[ast.Call]:
        return isinstance(made, ast.Call) and one_of(self._value(made.func), MAKERS)

    def _outputs(self, made: ast.Call, call: ast.Call) -> set[str]:
        """Return the names among the arrays passed to a pipeline, `made`, for its out_specs (after
        the arrays for its in_specs), or that its body gets in global memory and stores to. (The
        targets of a loop are names for them.)"""
        ins, outs = (self._count(made, name) for name in ("in_specs", "out_specs"))
        if outs is None:  # unknown: it may be any of them
            arrays = [] if self.surely else call.args
        else:
            first = len(call.args) - outs if ins is None else ins
            arrays = call.args[first : first + outs]
        body: Any = argument(made, "body", 0)
        here = isinstance(body, ast.Name) and body.id in self.nested
        parameters, found = self._callee(self.nested[body.id] if here else self._value(body))
        return {name for value in arrays for name in self._names(value, calls=True)} | {
            name
            for arg, parameter in zip(call.args, parameters[1:], strict=False)
            if parameter in found
            for name in self._names(arg)
        }

    def _count(self, made: ast.Call, option: str) -> int | None:
        """Return how many specs a pipeline has; None if unknown."""
        specs: Any = argument(made, option)
        if isinstance(specs, ast.Name):
            specs = self.nested.get(specs.id) or specs
        match specs:
            case None:
                return 0
            case ast.Tuple(elts=elts):
                return len(elts)
            case ast.Call(func=func, args=args, keywords=keywords) if named_tuple(
                self._value(func)
            ):
                return len(args) + len(keywords)
        value = self._value(specs) if isinstance(specs, ast.AST) else None
        return len(value) if isinstance(value, tuple) else None

    def _callee(self, function: Any) -> tuple[list[str], set[str]]:
        """Return the parameters of a called function, and the names that it stores to; empty for an
        unknown function."""
        constants, seen, node = self.constants, self.nested, function
        if function in self.active:
            return [], set()
        if isinstance(function, Function):
            try:
                source = read(function.function)
            except CompileError:
                return [], set()  # rewriting the function raises this error
            node, constants, seen = source.tree, Constants(source.namespace, {}), {}
        if not isinstance(node, Node):
            return [], set()
        return parameters_of(node), _Stores(
            node, constants, seen, (*self.active, function), self.surely
        ).names

    def _handed_on(self, loop: ast.For) -> list[tuple[str, set[str]]]:
        """Return the names that a pipeline's loop gives its arrays, with the arrays' own names: a
        store to one may be a store to the other."""
        match loop:
            case ast.For(
                target=ast.Tuple(elts=[_, ast.Tuple(elts=targets), *_]), iter=ast.Call(args=args)
            ):
                pairs = zip(targets, args, strict=False)
                return [
                    (target.id, self._names(value))
                    for target, value in pairs
                    if isinstance(target, ast.Name)
                ]
        return []

    def _root(self, node: ast.AST) -> str:
        """Return the name at the beginning of ``name.at[…][…]``; "" for other expressions."""
        while isinstance(node, (ast.Attribute, ast.Subscript, ast.Call)):
            node = self._of_peer(node) if isinstance(node, ast.Call) else node.value
        return node.id if isinstance(node, ast.Name) else ""

    def _of_peer(self, call: ast.Call) -> ast.AST:
        """Return the array argument of a call that returns another GPU's array; a constant for any
        other call."""
        array = argument(call, "array", 0)
        return array if array and self._value(call.func) is peer_arrays.peer else ast.Constant(None)

    def _names(self, value: ast.AST | None, calls: bool = False) -> set[str]:
        """Return the names of the arrays that a value may be or, with `calls`, may contain in a
        NamedTuple that is made here."""
        parts: Sequence[ast.AST] = ()
        if isinstance(value, ast.Call) and isinstance(array := self._of_peer(value), ast.Name):
            return {array.id}
        match value:
            case ast.Name(id=name):
                return {name}
            case ast.IfExp(body=body, orelse=orelse):
                parts = body, orelse
            case ast.Tuple(elts=elts):
                parts = elts
            case ast.Call(args=args, keywords=keywords) if calls:
                parts = *args, *(keyword.value for keyword in keywords)
            case ast.Subscript(value=ast.Attribute(value=array, attr="at")):  # a view of an array
                parts = (array,)
        return {name for part in parts for name in self._names(part, calls)}
