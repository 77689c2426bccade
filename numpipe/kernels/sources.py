"""The text of a user's function of shapes: its source, with captured values as constants.

Statics, globals and captured variables are known when a kernel is exported. Expressions that use
nothing else are evaluated then, and branches on them are decided. What remains depends on arrays
and run-time scalars. User functions that it calls are written before it, with constant arguments,
such as a dataclass or the `self` of a method, substituted."""

from __future__ import annotations

import ast
import builtins
import copy
import enum
import inspect
from collections.abc import Callable, Mapping
from types import FunctionType, MethodType
from typing import Any

from ..compile.lift.function_nodes import lines_of, node_of
from ..compile.lift.nodes import definition, parameters
from ..core.functions import Function, namespace_of
from ..diagnostics import source
from ..diagnostics.errors import Position, SpecError
from .evaluation import ERRORS, NAMES, SPELLED
from .expressions import FIX, Expression, Unsupported, bound_names, check, described

_MISSING = object()
_CONTAINERS = (str, tuple, dict, list, int, float)
"""classes whose methods compute from their arguments and have no side effects"""


def text_of(
    function: Callable,
    statics: Mapping[str, Any],
    what: str,
    instances: bool = False,
    defaults: Mapping[str, Any] = {},
) -> str:
    """Return the text of a function, in the form that `Expression` takes.

    statics    values of the parameters that are constants
    what       prefix of messages, such as "kernel k: grid"
    defaults   values of the parameters that the text leaves out
    instances  whether it may return class instances, for the Statics that `choose` returns

    Raises SpecError at the user's line for anything that no text can hold.
    """
    text = _Text(f"{what} cannot be kept in a file", instances)
    text.add(function, dict(defaults), statics)
    whole = "\n".join(map(ast.unparse, text.functions.values()))
    try:
        _ = Expression(whole, what).__signature__
    except ValueError as error:
        raise SpecError(str(error)) from None
    return whole


class _Text:
    """A text under construction."""

    def __init__(self, what: str, instances: bool) -> None:
        self.what, self.instances = what, instances
        self.functions: dict[str, ast.FunctionDef] = {}
        self._written: dict[Any, tuple[str, Any]] = {}
        """names of functions, with their constants, which are kept alive because keys contain their
        ids"""

    def add(self, function: Any, constants: dict[str, Any], statics: Mapping[str, Any]) -> str:
        """Add a function to the text, without the parameters in `constants`, and return the name it
        has
        there."""
        if isinstance(function, MethodType):
            first = next(iter(inspect.signature(function.__func__).parameters))
            function, constants = function.__func__, {first: function.__self__} | constants
        function = function.function if isinstance(function, Function) else function
        if not isinstance(function, FunctionType):
            raise SpecError(f"{self.what}: {function!r} has no source: write a lambda or a def")
        key = function, *((name, id(value)) for name, value in constants.items())
        if key not in self._written:
            self._written[key] = "", constants
            self._written[key] = self._add(function, constants, statics), constants
        return self._written[key][0]

    def _add(
        self, function: FunctionType, constants: dict[str, Any], statics: Mapping[str, Any]
    ) -> str:
        node = copy.deepcopy(node_of(function))
        if node is None:
            why = source.missing(function)
            raise SpecError(f"{self.what}: its source is not available: {why}")
        try:
            result = _Writer(self, function, constants | dict(statics)).function(node, constants)
            taken = {*self.functions, *NAMES, *bound_names(result)}
            names = [result.name, *(f"{result.name}_{number}" for number in range(99))]
            result.name = next(name for name in names if name not in taken)
            check(result, self.functions)
        except Unsupported as error:
            where = error.node if hasattr(error.node, "lineno") else node
            message = f"{self.what}: {error.what}; fix: {error.fix}"
            raise SpecError(_position(function, where).stamp(message)) from None
        self.functions[result.name] = result
        return result.name


def literal(value: Any, instances: bool = False) -> str:
    """Return the source of a constant. Raises SpecError if the value is not a constant, or for a
    class instance unless `instances`."""

    def of_class(text: str) -> str:
        if not instances:
            raise SpecError("an instance of a class")
        return f"Static({text!r})"

    if isinstance(value, type) and issubclass(value, Exception):
        known: Any = next(each for each in value.__mro__ if ERRORS.get(each.__name__) is each)
        if value.__init__ is known.__init__ and value.__str__ is known.__str__:
            return str(known.__name__)
    return described(int(value) if isinstance(value, enum.IntEnum) else value, "it", of_class)


def _position(function: FunctionType, node: Any) -> Position:
    text = lines_of(function)[node.lineno - 1].rstrip()
    begin, end = (
        len(text.encode()[:column].decode(errors="ignore"))
        for column in (node.col_offset, node.end_col_offset)
    )
    return Position(function.__code__.co_filename, node.lineno, begin, node.end_lineno, end, text)


# ---- what it captured
class _Writer(ast.NodeTransformer):
    """Rewrites one function of a text."""

    def __init__(self, text: _Text, function: FunctionType, constants: dict[str, Any]) -> None:
        self._text, self._constants = text, constants
        self._values = vars(builtins) | namespace_of(function) | constants

    def function(self, node: Any, dropped: Mapping[str, Any]) -> ast.FunctionDef:
        """Return the function as it appears in the text, without the `dropped` parameters."""
        given = node.args
        if given.vararg or given.kwarg:
            raise Unsupported(node, "it takes *args or **kwargs", "list its parameters instead")
        stores = [
            each.id
            for each in ast.walk(node)
            if isinstance(each, ast.Name) and not isinstance(each.ctx, ast.Load)
        ]
        every = [*given.posonlyargs, *given.args, *given.kwonlyargs]
        self._once = {name for name in stores if stores.count(name) == 1} - {
            each.arg for each in every
        }
        self._local = bound_names(node) - self._constants.keys() | {*stores}
        if isinstance(node, ast.Lambda):
            body: list[ast.stmt] = [ast.Return(self.visit(node.body))]
        else:
            body = self._block(node.body) or [ast.Pass()]
        body[:0] = [  # constant parameters that the body assigns to
            self._parsed(f"{name} = {self._literal(value, node)}", node)
            for name, value in self._constants.items()
            if name in stores
        ]
        args = parameters(each.arg for each in every if each.arg not in dropped)
        return ast.copy_location(definition(getattr(node, "name", "function"), args, body), node)

    def _block(self, statements: list[ast.stmt]) -> list[ast.stmt]:
        found = [self.visit(each) for each in statements]
        return [each for one in found for each in (one if isinstance(one, list) else [one])]

    def _parsed(self, text: str, where: ast.AST) -> Any:
        """Parse a statement or an expression and return its node."""
        [node] = ast.parse(text).body
        for each in ast.walk(node):
            ast.copy_location(each, where)
            if (
                isinstance(each, ast.Name)
                and isinstance(each.ctx, ast.Load)
                and each.id in self._local
            ):
                what = f"a variable is called {each.id}, which is a reserved name in a file"
                raise Unsupported(where, what, "rename the variable")
        return node.value if isinstance(node, ast.Expr) else node

    def _literal(self, value: Any, node: ast.AST) -> str:
        try:
            return literal(value, self._text.instances)
        except SpecError:
            text = ast.unparse(node) if isinstance(node, ast.expr) else "a default"
            raise Unsupported(node, f"it reads {text}, a {type(value).__name__}", FIX) from None

    def _constant(self, node: ast.expr) -> Any:
        """Return the value of an expression of constants, or `_MISSING` for any other
        expression."""
        for each in ast.walk(node):
            if isinstance(each, ast.Name) and each.id in self._local:
                return _MISSING
            if isinstance(each, ast.Call) and not self._computes(self._constant(each.func)):
                return _MISSING
        try:
            code = compile(ast.Expression(node), "<a constant>", "eval")
            return eval(code, self._values)
        except Exception:  # the function raises the same when it gets here
            return _MISSING

    def _computes(self, function: Any) -> bool:
        """Return whether a call computes from its arguments without side effects."""
        owner = getattr(function, "__self__", None)
        return (
            isinstance(function, type) or id(function) in SPELLED or isinstance(owner, _CONTAINERS)
        )

    def visit(self, node: ast.AST) -> Any:
        whole = isinstance(node, ast.expr) and not isinstance(
            node, (ast.JoinedStr, ast.FormattedValue)
        )
        if whole and isinstance(getattr(node, "ctx", ast.Load()), ast.Load):
            value = self._constant(node)  # type: ignore[arg-type]
            try:
                text = None if value is _MISSING else self._literal(value, node)
            except Unsupported:
                text = None  # its parts may still be constants
            if text is not None:
                return self._parsed(text, node)
        return super().visit(node)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if node.id not in self._local and isinstance(node.ctx, ast.Load):
            if node.id not in self._values:
                raise Unsupported(node, f"{node.id} is not defined", FIX)
            self._literal(self._values[node.id], node)
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        function = self._constant(node.func)
        method = node.func if isinstance(node.func, ast.Attribute) else None
        if function is _MISSING and method is not None and method.attr == "bit_length":
            return self._call("bit_length", [self.visit(method.value)], node)
        if isinstance(function, (FunctionType, MethodType, Function)):
            return self._helper(function, node)
        if not self._computes(function):
            raise Unsupported(node, f"it calls {ast.unparse(node.func)}", FIX)
        return self.generic_visit(node)

    def _call(self, name: str, args: list[ast.expr], where: ast.AST) -> ast.Call:
        return ast.copy_location(ast.Call(ast.Name(name, ast.Load()), args, []), where)

    def _helper(self, function: Any, node: ast.Call) -> ast.AST:
        """Replace a call of a user's function by a call of its version in the text, without the
        constant arguments."""
        args, constants = [], {}
        try:
            named = {str(each.arg): each.value for each in node.keywords}
            bound = inspect.signature(function).bind(*node.args, **named)
            kinds = {each.kind.description for each in bound.signature.parameters.values()}
            if any(isinstance(each, ast.Starred) for each in node.args) or "None" in named:
                raise TypeError("it passes *arguments to a function of your own")
            if any(kind.startswith("variadic") for kind in kinds):
                raise TypeError("it calls a function that takes *args or **kwargs")
        except TypeError as error:
            raise Unsupported(node, str(error), "pass its arguments one by one") from None
        for name, parameter in bound.signature.parameters.items():
            part: Any = bound.arguments.get(name)
            value = parameter.default if part is None else self._constant(part)
            if value is _MISSING:
                args.append(self.visit(part))
            else:
                constants[name] = value
        name = self._text.add(function, constants, {})
        if not name:
            raise Unsupported(node, "it calls itself", FIX)
        return self._call(name, args, node)

    def visit_If(self, node: ast.If) -> Any:
        test = self._constant(node.test)
        if test is not _MISSING:
            return self._block(node.body if test else node.orelse)
        body, orelse = self._block(node.body) or [ast.Pass()], self._block(node.orelse)
        return ast.copy_location(ast.If(self.visit(node.test), body, orelse), node)

    def visit_IfExp(self, node: ast.IfExp) -> Any:
        test = self._constant(node.test)
        if test is _MISSING:
            return self.generic_visit(node)
        return self.visit(node.body if test else node.orelse)

    def visit_FormattedValue(self, node: ast.FormattedValue) -> Any:
        value = self._constant(ast.copy_location(ast.JoinedStr([node]), node))
        return self.generic_visit(node) if value is _MISSING else ast.Constant(value)

    def visit_Assign(self, node: ast.Assign) -> Any:
        match node.targets:
            case [ast.Name(id=name)] if name in self._once:
                value = self._constant(node.value)
                if value is not _MISSING:
                    self._values[name] = value
                    self._local.discard(name)
                    return []
        return self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> Any:
        if node.value is None:
            return []
        return self.visit(ast.copy_location(ast.Assign([node.target], node.value), node))

    def visit_Expr(self, node: ast.Expr) -> Any:
        return [] if isinstance(node.value, ast.Constant) else self.generic_visit(node)
