"""Derivatives of functions of tiles, made from their source.

`derivative` rewrites a function statement by statement: before each assignment it computes the
derivative of the value, by the rules of `RULES`. This is forward mode differentiation, so branches
and loops stay as they are.
"""

from __future__ import annotations

import ast
import functools
import re
import textwrap
from typing import Any, NoReturn

import numpy as np

from ..core.functions import Function, generated, namespace_of
from ..diagnostics.errors import SpecError, at
from ..diagnostics.source import lines
from ..language.tiles.mathematics import sigmoid

RULES: dict[Any, tuple[str | None, ...]] = {
    ast.UAdd: ("1.0",),
    ast.USub: ("-1.0",),
    ast.Add: ("1.0", "1.0"),
    ast.Sub: ("1.0", "-1.0"),
    ast.Mult: ("y", "x"),
    ast.Div: ("1.0 / y", "-x / y / y"),
    ast.Mod: ("1.0", None),
    ast.Pow: ("y * x ** (y - 1)", None),
    np.exp: ("np_.exp(x)",),
    np.exp2: ("0.6931471805599453 * np_.exp2(x)",),
    np.log: ("1.0 / x",),
    np.log2: ("1.4426950408889634 / x",),
    np.sqrt: ("0.5 / np_.sqrt(x)",),
    np.square: ("2.0 * x",),
    np.tanh: ("1.0 - np_.tanh(x) * np_.tanh(x)",),
    np.sin: ("np_.cos(x)",),
    np.cos: ("-np_.sin(x)",),
    **dict.fromkeys((abs, np.abs), ("np_.where(x < 0.0, -1.0, 1.0)",)),
    sigmoid: ("sigmoid_(x) * (1.0 - sigmoid_(x))",),
    np.maximum: ("np_.where(x < y, 0.0, 1.0)", "np_.where(x < y, 1.0, 0.0)"),
    np.minimum: ("np_.where(y < x, 0.0, 1.0)", "np_.where(y < x, 1.0, 0.0)"),
    np.where: ("0.0", "np_.where(x, 1.0, 0.0)", "np_.where(x, 0.0, 1.0)"),
    **dict.fromkeys((np.floor, np.ceil, np.trunc, np.round, np.rint, np.sign, round), ("0.0",)),
}
"""operator or function -> its derivative by each argument, where the arguments are x, y and z; None
if it is not known"""
HELPERS = {"np_": np, "sigmoid_": sigmoid}


@functools.cache
def derivative(of: Function) -> Function:
    """Return the function of the same arguments that computes the derivative of a
    `numpipe.function` by its first argument.

    The result of an operation may be a number, if the derivative is the same for all elements.
    Raises SpecError at the line of an operation that has no rule.

    >>> @function
    ... def soft_cap(score, cap):
    ...     return cap * np.tanh(score / cap)
    >>> round(float(derivative(soft_cap)(np.float32(2.0), 2.0)), 3)
    0.42
    """
    return _Derivative(of).made()


class _Derivative:
    def __init__(self, of: Function) -> None:
        self.function = of.function
        text, self.first = lines(self.function)
        (self.definition,) = ast.parse(textwrap.dedent("".join(text))).body
        self.names = namespace_of(self.function)
        self.score: str = self.definition.args.args[0].arg  # type: ignore[attr-defined]
        self.active = {self.score}  # names with a derivative

    def made(self) -> Function:
        node: Any = self.definition
        before = None
        while before != self.active:  # a loop may use what is assigned further down
            before = set(self.active)
            body = self.block(node.body)
        # with `astype`, as the score has
        body = ast.parse(f"{self.score}_derivative = np_.float32(1.0)").body + body
        node = ast.FunctionDef(f"derivative_of_{node.name}", node.args, body, [])
        text = ast.unparse(ast.fix_missing_locations(node)) + "\n"
        what = f"{node.name}, {self.function.__code__.co_filename}:{self.first}"
        return generated(text, what, {**self.names, **HELPERS})

    def fail(self, node: ast.AST) -> NoReturn:
        line = self.first + getattr(node, "lineno", 1) - 1
        message = f"score {self.function.__name__}: the derivative of '{ast.unparse(node)}' is"
        fix = (
            "pass score_gradient=, a numpipe.function of the same arguments that returns the "
            "derivative of the score"
        )
        file = self.function.__code__.co_filename
        raise SpecError(at(file, line, f"{message} not known; fix: {fix}"))

    # ---- statements
    def statement(self, node: ast.stmt) -> list[ast.stmt]:
        """Return a statement, after one that computes the derivative of what it assigns."""
        match node:
            case ast.Return(value=ast.expr() as value):
                return ast.parse(f"return {self.of(value) or 0.0}").body
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=ast.expr() as value)
                | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value)
            ):
                return [*self.assigned(name, value), node]
            case ast.AugAssign(target=ast.Name(id=name), op=op, value=value):
                whole = ast.copy_location(ast.BinOp(ast.Name(name), op, value), node)
                return [*self.assigned(name, whole), node]
            case ast.If(test=test, body=body, orelse=other):
                return [ast.If(test, self.block(body), self.block(other))]
            case ast.For(target=target, iter=steps, body=body, orelse=[]):
                return [ast.For(target, steps, self.block(body), [])]
            case ast.Expr(value=ast.Constant()) | ast.Assert() | ast.Pass():
                return [node]
        self.fail(node)

    def block(self, body: list[ast.stmt]) -> list[ast.stmt]:
        return [made for each in body for made in self.statement(each)]

    def assigned(self, name: str, value: ast.expr) -> list[ast.stmt]:
        found = self.of(value)
        if found is None and name not in self.active:
            return []
        self.active.add(name)
        return ast.parse(f"{name}_derivative = {found or 0.0}").body

    # ---- expressions
    def of(self, node: ast.expr) -> str | None:
        """Return the text of the derivative of an expression; None if it is 0."""
        if not any(isinstance(x, ast.Name) and x.id in self.active for x in ast.walk(node)):
            return None
        match node:
            case ast.Compare() | ast.BoolOp():
                return None
            case ast.Name(id=name):
                return f"{name}_derivative"
            case ast.UnaryOp(op=op, operand=x):
                return self.by_rule(node, type(op), [x])
            case ast.BinOp(left=x, op=op, right=y):
                return self.by_rule(node, type(op), [x, y])
            case ast.IfExp(test=test, body=x, orelse=y):
                one, other = self.of(x), self.of(y)
                text = f"({one or 0.0} if {ast.unparse(test)} else {other or 0.0})"
                return text if one or other else None
            case ast.Call(func=ast.Attribute(value=x, attr="astype"), args=[dtype]):
                return (found := self.of(x)) and f"{found}.astype({ast.unparse(dtype)})"
            case ast.Call(func=name, args=args, keywords=[]):
                try:
                    called = eval(ast.unparse(name), self.names)
                except (NameError, AttributeError):
                    self.fail(node)
                return self.by_rule(node, called, args)
        self.fail(node)

    def by_rule(self, node: ast.expr, operation: Any, args: list[ast.expr]) -> str | None:
        """Return the derivative of an operation or a call."""
        rules = RULES.get(operation, (None,) * len(args))
        if len(rules) != len(args):
            self.fail(node)
        names, terms = {x: ast.unparse(arg) for x, arg in zip("xyz", args, strict=False)}, []
        for rule, arg in zip(rules, args, strict=True):
            if rule == "0.0" or (own := self.of(arg)) is None:
                continue
            if rule is None:
                self.fail(node)
            factor = re.sub(r"\b[xyz]\b", lambda found: f"({names[found[0]]})", rule)
            terms.append(f"{own} * ({factor})")
        return f"({' + '.join(terms)})" if terms else None
