"""Rewriting of calls of `@numpipe.function`s: each function is rewritten once per kernel and set of
compile-time arguments."""

from __future__ import annotations

import ast
import inspect
from dataclasses import dataclass
from types import FunctionType
from typing import Any

from ...core.functions import Facts, Function
from ...core.op import Op
from ...diagnostics.errors import NumpipeError
from ...plan.specs import BlockSpec
from .calls_and_slices import plain
from .constants import MISSING, StaticArray
from .nested import Nested
from .nodes import tuple_of
from .rewriter import NOT_MINE


@dataclass(frozen=True)
class Bound:
    """A function, rewritten for some compile-time arguments."""

    binder: Op
    """``binder((context,)) -> callable``"""
    parameters: tuple[str, ...]
    """The names of the parameters that remain at run time."""
    facts: Facts


class Functions(Nested):
    """Calls of `@numpipe.function`s, and such functions as values."""

    def lift_function(self, function: Function, known: dict[str, Any]) -> Bound:
        """Rewrite a function of any module."""
        raise NotImplementedError

    def function_value(self, node: ast.AST) -> Any:
        """Rewrite a function that is passed on, alone or in a tuple, as a value; other functions,
        and BlockSpecs, are rejected."""
        if isinstance(node, (ast.Name, ast.Attribute, ast.Subscript)) and isinstance(
            node.ctx, ast.Load
        ):
            value = self.value(node)
            parts = value if isinstance(value, tuple) else (value,)
            if any(isinstance(part, Function) for part in parts):
                new = [
                    self._bind(self._lifted(part, {}, node))
                    if isinstance(part, Function)
                    else self.visit(ast.copy_location(ast.Constant(part), node))
                    for part in parts
                ]
                return tuple_of(new, node) if isinstance(value, tuple) else new[0]
            if isinstance(value, FunctionType) and not str(value.__module__).startswith(
                ("numpy", "numba", "numpipe.")
            ):
                self.error(plain(value))
            if any(isinstance(part, BlockSpec) for part in parts):
                self.error(
                    f"{ast.unparse(node)} is a BlockSpec made outside the kernel, whose index map "
                    "is not compiled with the kernel; fix: make it in the kernel",
                )
        return NOT_MINE

    def function_call(self, node: ast.Call, function: Any) -> Any:
        """Rewrite a call of a `@numpipe.function` as a call of its form for the compile-time
        arguments, with the remaining arguments."""
        if not isinstance(function, Function):
            return NOT_MINE
        names = list(inspect.signature(function.function).parameters)
        args = dict(zip(names, self.bind(function, node), strict=True))
        values = {name: self.value(arg) for name, arg in args.items()}
        known = {name: value for name, value in values.items() if value is not MISSING}
        place = self.source.position(node)
        # reported at the call, not in a line of the function's own source
        if why := function.refusal(known, place != self.session.calls.setdefault(function, place)):
            self.error(why)
        bound = self._lifted(function, known, node)
        left = [self._settled(self.visit(args[name])) for name in bound.parameters]
        call = ast.copy_location(ast.Call(self._bind(bound), left, []), node)
        call.facts = bound.facts  # type: ignore[attr-defined]
        return call

    def facts_of(self, function: ast.expr) -> tuple[ast.expr, Facts | None]:
        """Return a function that is passed on, rewritten, and its facts, if known."""
        value, new = self.value(function), self.visit(function)
        if isinstance(value, Function):
            return new, self._lifted(value, {}, function).facts
        if isinstance(function, ast.Lambda):
            return new, self.binders[new.func.id.removeprefix("__np_bind_")]
        return new, self._nested_facts(function.id) if isinstance(function, ast.Name) else None

    def _bind(self, bound: Bound) -> ast.Call:
        """Return a function as a value of the kernel."""
        return self.call(bound.binder, [tuple_of([self.context_name(self.node)], self.node)])

    def _lifted(self, function: Function, known: dict[str, Any], node: ast.AST) -> Bound:
        key = (function, *[(name, *_key(value)) for name, value in known.items()])
        bound: Bound | None = self.session.functions.get(key)
        if bound is None:
            active = self.session.active
            if function in active:
                chain = " -> ".join(
                    f.__name__ for f in (*active[active.index(function) :], function)
                )
                self.error(
                    f"function '{function.__name__}' calls itself ({chain}): recursion cannot be "  # type: ignore[attr-defined]
                    "compiled, except in a call whose arguments are all constants or Statics; fix: "
                    "write a loop, or pass constants",
                    node,
                )
            active.append(function)
            try:
                bound = self.session.functions[key] = self.lift_function(function, known)
            except NumpipeError as error:
                place = self.source.position(node)
                error.args = (f"{error}\n  called at {place.filename}:{place.line}",)
                raise
            finally:
                active.pop()
        return bound


def _key(value: Any) -> tuple:
    """Return a key that distinguishes compile-time arguments that compare equal, such as 1, True
    and 1.0."""
    if isinstance(value, StaticArray):
        return ("array", value.dtype, value.ndim)
    try:
        hash(value)
    except TypeError:
        return (type(value), id(value))
    return (type(value), repr(value), value)
