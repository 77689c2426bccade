"""Compile-time values in a kernel's source: values known before compilation, and arithmetic on
them.

Names of constants (module globals, captured variables, Statics and their fields, locals assigned
once from constants) and arithmetic on them become literals in the AST, so that ``cfg.tm //
numpipe.axis_size("wg")`` can be a shape. Numba would treat it as a run-time value.
"""

from __future__ import annotations

import ast
import enum
import inspect
import math
import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import EllipsisType, NoneType
from typing import Any

import numpy as np

from ...core import arith
from ...core.functions import Function
from ...core.op import Op
from ...core.static_range import static_range
from ...diagnostics.argument_checks import told
from ...diagnostics.errors import SpecError
from ...plan import context, specs
from .nodes import own, statements, walk

EMPTY = inspect.Parameter.empty
"""A required argument that a call leaves out."""
MISSING = object()

OPERATIONS: dict[type, Op] = {
    ast.Add: arith.add,
    ast.Sub: arith.sub,
    ast.Mult: arith.mul,
    ast.Div: arith.truediv,
    ast.FloorDiv: arith.floordiv,
    ast.Mod: arith.mod,
    ast.Pow: arith.power,
    ast.LShift: arith.lshift,
    ast.RShift: arith.rshift,
    ast.BitAnd: arith.and_,
    ast.BitOr: arith.or_,
    ast.BitXor: arith.xor,
    ast.USub: arith.negative,
    ast.UAdd: arith.positive,
    ast.Invert: arith.invert,
    ast.Lt: arith.lt,
    ast.LtE: arith.le,
    ast.Gt: arith.gt,
    ast.GtE: arith.ge,
    ast.Eq: arith.eq,
    ast.NotEq: arith.ne,
}
"""The operations of `arith` that replace operators on run-time values."""
_PYTHON: dict[type, Callable] = {
    **{kind: arith.OPERATORS[operation].python for kind, operation in OPERATIONS.items()},
    ast.Not: operator.not_,
    ast.Is: lambda a, b: _same(a, b),
    ast.IsNot: lambda a, b: not _same(a, b),
    ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
}
_PURE = {
    min,
    max,
    len,
    abs,
    int,
    float,
    bool,
    round,
    sum,
    pow,
    divmod,
    any,
    all,
    tuple,
    isinstance,
    getattr,
    hasattr,
    callable,
    np.dtype,
    np.prod,
    *(f for f in vars(math).values() if callable(f)),
}
_SEQUENCES = {zip, enumerate, reversed, sorted, static_range}
"""Functions that iterate over constants; their result is a tuple here."""


@dataclass(eq=False)
class StaticArray:
    """An array parameter before compilation: its dtype, its rank, and its size along each dimension
    where that is a constant, else None."""

    dtype: np.dtype
    ndim: int
    sizes: tuple[int | None, ...] = ()


def lookup(table: Mapping, key: Any) -> Any:
    """Return a table's value for a key; None for a key that it lacks or that is not hashable."""
    try:
        return table.get(key)
    except TypeError:
        return None


def one_of(value: Any, choices: Iterable) -> bool:
    """Return whether a value, of any type, is one of these objects. (`in` may compare arrays.)"""
    return any(value is choice for choice in choices)


def is_literal(value: Any) -> bool:
    """Return whether a value can be written in the source as a constant."""
    if type(value) is tuple:
        return all(is_literal(v) for v in value)
    return value is None or isinstance(
        value, (bool, int, float, str, np.integer, np.floating, np.bool_)
    )


def literal_node(value: Any, where: ast.AST) -> ast.expr:
    """Return the AST of a constant."""
    if isinstance(value, tuple):
        node: ast.expr = ast.Tuple([literal_node(v, where) for v in value], ast.Load())
    else:
        plain = value.item() if isinstance(value, (np.integer, np.floating, np.bool_)) else value
        plain = int(plain) if isinstance(plain, enum.IntEnum) else plain
        if (
            type(plain) not in (int, float, complex, bool, str, bytes, NoneType, EllipsisType)
            and plain is not EMPTY
        ):
            raise SpecError(f"expected a number, a string, or a tuple of these, got {told(value)}")
        negative = isinstance(plain, (int, float)) and not isinstance(plain, bool) and plain < 0
        node = (
            ast.UnaryOp(ast.USub(), ast.copy_location(ast.Constant(-plain), where))
            if negative
            else ast.Constant(plain)
        )
    return ast.copy_location(node, where)


def truth(value: Any) -> Any:
    """Return the truth value of a constant; MISSING for one that has none, such as an array, and
    for a value that is not a constant."""
    try:
        return value if value is MISSING else bool(value)
    except Exception:
        return MISSING


class _Unknown(Exception):
    """Raised for a part of an expression that is a run-time value."""


class Constants:
    """The compile-time constants of a function, from which expressions are evaluated.

    `wg_axis` is the warpgroup axis; `sizes` has the axes with known sizes; `failed` has the
    expressions of constants that raised, such as a division by a Static that is 0.
    """

    def __init__(
        self,
        namespace: dict[str, Any],
        known: dict[str, Any],
        wg_axis: str = "",
        sizes: dict[str, int] | None = None,
    ) -> None:
        self.namespace, self.known = namespace, dict(known)
        self.wg_axis, self.sizes = wg_axis, sizes or {}
        self.failed: dict[ast.AST, Exception] = {}

    def name(self, name: str, local: set[str]) -> Any:
        """Return the value of a known name, or of a global that no enclosing function binds;
        otherwise MISSING."""
        if name in self.known:
            return self.known[name]
        if name in local:
            return MISSING
        if name in self.namespace:
            return self.namespace[name]
        builtins = self.namespace.get("__builtins__", {})
        return (builtins if isinstance(builtins, dict) else vars(builtins)).get(name, MISSING)

    def evaluate(self, node: ast.AST, local: set[str]) -> Any:
        """Return the value of an expression, or MISSING for one that is a run-time value or
        fails."""

        def get(child: ast.AST) -> Any:
            value = self.evaluate(child, local)
            if value is MISSING or isinstance(value, StaticArray):
                raise _Unknown
            return value

        try:
            match node:
                case ast.Constant(value=value):
                    return value
                case ast.Name(id=name, ctx=ast.Load()):
                    found = self.name(name, local)
                    return MISSING if of_a_lane(found) else found
                case ast.Attribute(value=value, attr=attr, ctx=ast.Load()):
                    base = self.evaluate(value, local)
                    if base is MISSING or (
                        isinstance(base, StaticArray) and attr not in ("dtype", "ndim")
                    ):
                        return MISSING
                    found = getattr(base, attr, MISSING)
                    return MISSING if of_a_lane(found) else found
                case ast.Tuple(elts=elts, ctx=ast.Load()):
                    return tuple(map(get, elts))
                case ast.Subscript(
                    value=ast.Attribute(value=array, attr="shape"), slice=index, ctx=ast.Load()
                ) if isinstance(of := self.evaluate(array, local), StaticArray):
                    size = of.sizes[get(index)] if of.sizes else None
                    return MISSING if size is None else size
                case ast.Subscript(value=value, slice=index, ctx=ast.Load()):
                    base, at = get(value), get(index)
                    return MISSING if isinstance(base, np.ndarray) else base[at]
                case ast.Slice(lower=lower, upper=upper, step=step):
                    return slice(
                        *(None if part is None else get(part) for part in (lower, upper, step))
                    )
                case ast.BinOp(left=left, op=op, right=right):
                    a, b = get(left), get(right)
                    return _PYTHON[type(op)](a, b) if type(op) in _PYTHON else MISSING
                case ast.UnaryOp(op=op, operand=operand):
                    return _PYTHON[type(op)](get(operand))
                case ast.Compare(left=left, ops=ops, comparators=rights):
                    identity = all(isinstance(o, (ast.Is, ast.IsNot)) for o in ops)
                    values = [
                        self.evaluate(p, local) if identity else get(p) for p in (left, *rights)
                    ]
                    if any(v is MISSING for v in values):
                        return MISSING
                    return all(
                        _PYTHON[type(o)](a, b)
                        for o, a, b in zip(ops, values, values[1:], strict=False)
                    )
                case ast.BoolOp(op=op, values=parts):
                    decides = isinstance(op, ast.Or)
                    # short-circuit as Python does
                    for part in parts:
                        last = get(part)
                        if bool(last) is decides:
                            break
                    return last
                case ast.IfExp(test=test, body=body, orelse=orelse):
                    return get(body if get(test) else orelse)
                case ast.Call(func=func, args=args, keywords=named):
                    return self._call(
                        get(func), [get(a) for a in args], {str(k.arg): get(k.value) for k in named}
                    )
        except _Unknown:
            pass
        except Exception as error:
            self.failed[node] = error
        return MISSING

    def _call(self, function: Any, args: list, named: dict[str, Any]) -> Any:
        """Return the result of a call with constants, if it is a constant; MISSING for calls that
        need a kernel."""
        if _evaluated(function):
            try:
                value = function(*args, **named)
            # an operation of kernels, or an error that is reported at its own line
            except Exception:
                return MISSING
            return (
                value
                if is_literal(value) or isinstance(value, np.dtype) or isinstance(function, type)
                else MISSING
            )
        over_constants = one_of(function, _SEQUENCES)
        if named and not over_constants:
            return MISSING
        if function is context.axis_size and len(args) == 1:
            names = args[0] if isinstance(args[0], tuple) else args
            if all(isinstance(name, str) and name in self.sizes for name in names):
                return math.prod(self.sizes[name] for name in names)
        if function is arith.cdiv:
            return int(arith.cdiv(*args))
        try:
            if over_constants:
                return tuple(function(*args, **named))
            return (
                function(*args) if function in _PURE or isinstance(function, np.ufunc) else MISSING
            )
        except TypeError:
            return MISSING


def _same(a: Any, b: Any) -> bool:
    """Evaluate ``a is b``. Raises TypeError for dtypes, because equal dtypes may be different
    objects."""
    if a is not None and b is not None and (isinstance(a, np.dtype) or isinstance(b, np.dtype)):
        raise TypeError("equal dtypes may be distinct objects; fix: write '=='")
    return a is b


def of_a_lane(value: Any) -> bool:
    """Return whether an object of `numba.cuda` stands for a number that differs between lanes:
    laneid, threadIdx.x."""
    return isinstance(value, property) or (
        isinstance(value, type)
        and (value.__module__, value.__name__) == ("numba.cuda.stubs", "laneid")
    )


def named_tuple(kind: Any) -> bool:
    """Return whether a value is a NamedTuple class."""
    return isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_fields")


def _evaluated(function: Any) -> bool:
    """Return whether calls with constants are evaluated: calls of a `@numpipe.function`, or of a
    user's NamedTuple or frozen dataclass."""
    if function is specs.BlockSpec:
        return False  # an operation of kernels: its index map is compiled with them
    if named_tuple(function):
        return True
    parameters = (
        getattr(function, "__dataclass_params__", None) if isinstance(function, type) else None
    )
    return isinstance(function, Function) or getattr(parameters, "frozen", False)


def stores(function: ast.FunctionDef | ast.Lambda) -> list[tuple[str, ast.AST]]:
    """Return the names that a function binds itself, each with the node that binds it; for nested
    functions only their own names."""
    bound: list[tuple[str, ast.AST]] = [
        (a.arg, a) for a in walk(function.args) if isinstance(a, ast.arg)
    ]
    return bound + bindings(statements(function))


def bindings(body: Iterable[ast.AST]) -> list[tuple[str, ast.AST]]:
    """Return the names that statements bind, each with the node that binds it."""
    bound: list[tuple[str, ast.AST]] = []
    for node in own(body):
        if isinstance(node, ast.FunctionDef):
            bound.append((node.name, node))
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            bound.append((node.id, node))
    return bound
