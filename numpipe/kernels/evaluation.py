"""Evaluation of a function from a file, within a budget of steps.

`expressions` has already checked the function's syntax. Python evaluates it without builtins, after
`_Budgeted` makes two changes. Each value is counted, and operations that could take long, create
large values or read attributes are replaced by calls of the functions in this module, which raise
before doing so. `NAMES` maps the functions and classes that a text may use."""

from __future__ import annotations

import ast
import copy
import math
import operator
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import CodeType
from typing import Any

import numpy as np

from ..arch.dtypes import ELEMENTS
from ..compile.lift import nodes
from ..core.arith import cdiv
from ..diagnostics import errors
from ..plan.specs import ArrayType, Workspace
from .call_results import HostView

MOST_STEPS = 20_000
"""budget of a call: evaluated nodes plus items of their values"""
MOST_BITS = 1 << 13
"""size limit of an integer; no shape needs more"""

_BUILTIN: tuple[type[Exception], ...] = (
    *(ArithmeticError, AssertionError, AttributeError, Exception, IndexError, KeyError),
    *(LookupError, NameError, NotImplementedError, OverflowError, RuntimeError, TypeError),
    *(ValueError, ZeroDivisionError),
)
ERRORS: dict[str, type[Exception]] = {kind.__name__: kind for kind in _BUILTIN} | {
    name: getattr(errors, name) for name in errors.__all__
}
"""exceptions that a text may raise, by name"""


class TooMuch(Exception):
    """Raised when an evaluation exceeds its budget."""


@dataclass(frozen=True)
class Described:
    """A class instance passed as a Static, as text: the value that calls get if they leave the
    Static out."""

    text: str

    def __repr__(self) -> str:
        return self.text


# ---- operations and names
_WHOLE = (int, np.integer)


def _power(base: Any, exponent: Any) -> Any:
    whole = isinstance(base, _WHOLE) and isinstance(exponent, _WHOLE)
    if whole and abs(base) > 1 and int(base).bit_length() * int(exponent) > 2 * MOST_BITS:
        raise TooMuch
    return base**exponent


def _product(a: Any, b: Any) -> Any:
    for sequence, count in ((a, b), (b, a)):
        repeats = isinstance(sequence, (str, bytes, tuple, list)) and isinstance(count, _WHOLE)
        if repeats and len(sequence) * int(count) > MOST_STEPS:
            raise TooMuch
    result = a * b
    if isinstance(result, int) and result.bit_length() > MOST_BITS:
        raise TooMuch
    return result


def _prod(values: Any, *, start: Any = 1) -> Any:
    for value in values:
        start = _product(start, value)
    return start


def _remainder(a: Any, b: Any) -> Any:
    if isinstance(a, (str, bytes)):
        raise TypeError("% does not format text in a function of shapes: use an f-string")
    return a % b


def _shifted(value: Any, bits: Any) -> Any:
    if bits > MOST_BITS:
        raise TooMuch
    return value << bits


def _round(number: Any, ndigits: Any = None) -> Any:
    if ndigits is not None and abs(ndigits) > MOST_BITS:
        raise TooMuch
    return round(number, ndigits)


_OPERATIONS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Mult: _product,
    ast.Mod: _remainder,
    ast.Pow: _power,
    ast.LShift: _shifted,
}
"""operations that need a size limit"""
_SAME: tuple = (
    *(abs, all, any, bool, dict, divmod, enumerate, float, int, isinstance, len, list, max, min),
    *(range, repr, reversed, sorted, str, sum, tuple, zip, np.dtype, np.integer, np.floating),
    *(math.ceil, math.floor, math.gcd, math.isqrt, math.log2, math.sqrt, math.trunc, cdiv),
    *(ArrayType, Workspace, *ERRORS.values()),
)
_BOUNDED: dict = {
    math.prod: _prod,
    pow: _power,
    round: _round,
    int.bit_length: operator.methodcaller("bit_length"),
}
"""functions that user code may call, mapped to their replacements"""
SPELLED: dict[int, str] = {id(each): each.__name__ for each in (*_SAME, *_BOUNDED)}
"""id of an object that user code may name, mapped to its name in a text"""
NAMES: dict[str, Any] = {each.__name__: each for each in _SAME} | {
    each.__name__: bounded for each, bounded in _BOUNDED.items()
}
"""names in a text, mapped to their values"""
for _element in ELEMENTS.values():
    _name = "bool_" if _element.name == "bool" else _element.name
    SPELLED |= {id(_element.dtype.type): _name}
    NAMES[_name] = _element.dtype
NAMES["Static"] = Described
ATTRIBUTES: dict[str, tuple[type, ...]] = {
    **{"shape": (HostView, ArrayType), "dtype": (HostView, ArrayType), "ndim": (HostView,)},
    **dict.fromkeys(("itemsize", "kind", "name"), (np.dtype,)),
}
"""attributes that a text may read, and the types that have them"""
_SEQUENCES = (tuple, list, dict, str, bytes, range)
_LARGE = (int, *_SEQUENCES)
"""types whose values count as more than one step"""
_CONVERSIONS: dict[int, Callable[[Any], str]] = {ord("s"): str, ord("r"): repr, ord("a"): ascii}
_FORMAT = re.compile(r"([^\d{}]?[<>=^])?[-+ ]?#?0?\d{0,2}[,_]?(\.\d{1,2})?[a-zA-Z%]?")
"""format specification of an f-string, with a width of at most 99"""


# ---- the value
def _attribute(value: Any, name: str) -> Any:
    if not isinstance(value, ATTRIBUTES[name]):
        raise AttributeError(f"a {type(value).__name__} has no {name!r} here")
    return getattr(value, name)


def _called(function: Any, *values: Any, **named: Any) -> Any:
    """Call a function, or convert a number to an element type if `function` is a dtype."""
    if not isinstance(function, np.dtype):
        return function(*values, **named)
    [number] = values
    if not isinstance(number, (int, float, np.generic)):
        raise TypeError(f"{function.name} of a {type(number).__name__}")
    return function.type(number)


def _formatted(value: Any, conversion: int, form: str) -> str:
    if _FORMAT.fullmatch(form) is None:
        raise ValueError(f"the format {form!r} is too long")
    return format(_CONVERSIONS.get(conversion, lambda value: value)(value), form)


class _Budget:
    """The remaining steps of a call."""

    def __init__(self) -> None:
        self.left = MOST_STEPS

    def spent(self, value: Any) -> Any:
        """Count a value and its items, because comparing or copying it takes time proportional to
        them."""
        self.left -= 1
        parts = [value] if isinstance(value, _LARGE) else []
        while parts:
            part = parts.pop()
            if isinstance(part, int):
                self.left -= part.bit_length() // 64
                if part.bit_length() > MOST_BITS:
                    raise TooMuch
            elif isinstance(part, _SEQUENCES):
                self.left -= len(part)
                if self.left < 0:
                    raise TooMuch
                if isinstance(part, (tuple, list)):
                    parts += part
                elif isinstance(part, dict):
                    parts += [*part.keys(), *part.values()]
        if self.left < 0:
            raise TooMuch
        return value


class _Budgeted(ast.NodeTransformer):
    """Inserts calls of this module's functions into the functions of a text.

    The names of these functions start with a space, so that no text can contain them."""

    def visit(self, node: ast.AST) -> Any:
        node = super().visit(node)
        if (
            not isinstance(node, ast.expr)
            or isinstance(node, (ast.Starred, ast.Slice, ast.FormattedValue))
            or isinstance(getattr(node, "ctx", None), ast.Store)
        ):
            return node
        return _call("spent", node)

    def visit_AugAssign(self, node: ast.AugAssign) -> Any:
        before = ast.Name(node.target.id, ast.Load())  # type: ignore[union-attr]
        changed = ast.BinOp(before, node.op, node.value)
        return self.visit(ast.Assign([node.target], changed))

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        self.generic_visit(node)
        if type(node.op) not in _OPERATIONS:
            return node
        return _call(type(node.op).__name__, node.left, node.right)

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        return _call("attribute", self.visit(node.value), ast.Constant(node.attr))

    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        node.args = [node.func, *node.args]
        node.func = ast.Name(" called", ast.Load())
        return node

    def visit_FormattedValue(self, node: ast.FormattedValue) -> ast.expr:
        form = ast.Constant("") if node.format_spec is None else self.visit(node.format_spec)
        text = _call("formatted", self.visit(node.value), ast.Constant(node.conversion), form)
        return ast.FormattedValue(text, -1, None)


def _call(name: str, *args: ast.expr) -> ast.Call:
    return ast.Call(ast.Name(f" {name}", ast.Load()), list(args), [])


_GLOBALS: dict[str, Any] = {
    **NAMES,
    **{f" {kind.__name__}": function for kind, function in _OPERATIONS.items()},
    " attribute": _attribute,
    " called": _called,
    " formatted": _formatted,
    "__builtins__": {},
}


def parameters(function: ast.FunctionDef) -> list[str]:
    """Return the parameter names of a function in a text."""
    return [each.arg for each in function.args.args]


def compiled(functions: Iterable[ast.FunctionDef]) -> CodeType:
    """Compile functions that `expressions.check` has accepted. Only their parameters and bodies are
    used. Raises SyntaxError and ValueError."""
    plain: list[ast.stmt] = []
    for function in functions:
        body = [_Budgeted().visit(copy.deepcopy(each)) for each in function.body]
        plain.append(nodes.definition(function.name, nodes.parameters(parameters(function)), body))
    module = ast.fix_missing_locations(ast.Module(plain, []))
    return compile(module, "<a file>", "exec", dont_inherit=True)


def evaluate(code: CodeType, name: str, values: Iterable) -> Any:
    """Call a function of a text. Raises TooMuch, and whatever the function raises."""
    functions = _GLOBALS | {" spent": _Budget().spent}
    exec(code, functions)
    return functions[name](*values)
