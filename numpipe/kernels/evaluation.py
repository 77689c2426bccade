"""The value of a function of a file: nodes of Python's syntax tree, evaluated within a budget.

`NAMES` are the functions and classes that a text may use, and `Evaluation` knows what each node
means. What Python would compute for long, or make large, is refused before it is computed.
"""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..arch.dtypes import ELEMENTS
from ..core.arith import cdiv
from ..diagnostics import errors
from ..plan.specs import ArrayType, Workspace
from .call_results import HostView

MOST_STEPS = 20_000
"""nodes that a call evaluates, and items of their values"""
MOST_BITS = 1 << 13
"""of an integer: no shape needs more"""

_BUILTIN: tuple[type[Exception], ...] = (
    *(ArithmeticError, AssertionError, AttributeError, Exception, IndexError, KeyError),
    *(LookupError, NameError, NotImplementedError, OverflowError, RuntimeError, TypeError),
    *(ValueError, ZeroDivisionError),
)
ERRORS: dict[str, type[Exception]] = {kind.__name__: kind for kind in _BUILTIN} | {
    name: getattr(errors, name) for name in errors.__all__
}
"""the exceptions that a text may raise, by name"""


class TooMuch(Exception):
    """An evaluation used up its budget."""


@dataclass(frozen=True)
class Described:
    """A Static as a file describes it: the value of calls that leave the Static out."""

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
        raise TypeError("% formats no text in a function of shapes: use an f-string")
    return a % b


def _shifted(value: Any, bits: Any) -> Any:
    if bits > MOST_BITS:
        raise TooMuch
    return value << bits


def _round(number: Any, ndigits: Any = None) -> Any:
    if ndigits is not None and abs(ndigits) > MOST_BITS:
        raise TooMuch
    return round(number, ndigits)


_BINARY: dict[type, Callable[[Any, Any], Any]] = {
    **{ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: _product, ast.Div: operator.truediv},
    **{ast.FloorDiv: operator.floordiv, ast.Mod: _remainder, ast.Pow: _power},
    **{ast.LShift: _shifted, ast.RShift: operator.rshift, ast.BitAnd: operator.and_},
    **{ast.BitOr: operator.or_, ast.BitXor: operator.xor},
    **{ast.Lt: operator.lt, ast.LtE: operator.le},
    **{ast.Gt: operator.gt, ast.GtE: operator.ge, ast.Eq: operator.eq, ast.NotEq: operator.ne},
    **{ast.Is: operator.is_, ast.IsNot: operator.is_not},
    ast.In: lambda item, items: item in items,
    ast.NotIn: lambda item, items: item not in items,
}
_UNARY: dict[type, Callable[[Any], Any]] = {
    **{ast.USub: operator.neg, ast.UAdd: operator.pos, ast.Invert: operator.invert},
    ast.Not: operator.not_,
}
_SAME: tuple[Any, ...] = (
    *(abs, all, any, bool, dict, divmod, enumerate, float, int, isinstance, len, list, max, min),
    *(range, repr, reversed, sorted, str, sum, tuple, zip, np.dtype, np.integer, np.floating),
    *(math.ceil, math.floor, math.gcd, math.isqrt, math.log2, math.sqrt, math.trunc, cdiv),
    *(ArrayType, Workspace, *ERRORS.values()),
)
_BOUNDED: dict[Any, Any] = {
    math.prod: _prod,
    pow: _power,
    round: _round,
    int.bit_length: operator.methodcaller("bit_length"),
}
"""functions of the user, and what is called in their place"""
SPELLED: dict[int, str] = {id(each): each.__name__ for each in (*_SAME, *_BOUNDED)}
"""what a text calls an object of the user's, by the object's id"""
NAMES: dict[str, Any] = {each.__name__: each for each in _SAME} | {
    each.__name__: bounded for each, bounded in _BOUNDED.items()
}
"""what the names in a text are"""
for _element in ELEMENTS.values():
    _name = "bool_" if _element.name == "bool" else _element.name
    SPELLED |= {id(_element.dtype.type): _name}
    NAMES[_name] = _element.dtype
NAMES["Static"] = Described
ATTRIBUTES: dict[str, tuple[type, ...]] = {
    **{"shape": (HostView, ArrayType), "dtype": (HostView, ArrayType), "ndim": (HostView,)},
    **dict.fromkeys(("itemsize", "kind", "name"), (np.dtype,)),
}
"""the attributes that a text may read, and of what"""
_SEQUENCES = (tuple, list, dict, str, bytes, range)
_LARGE = (int, *_SEQUENCES)
"""the types of values that count more than one"""
_SMALL = 1 << 63
_CONVERSIONS: dict[int, Callable[[Any], str]] = {ord("s"): str, ord("r"): repr, ord("a"): ascii}
_FORMAT = re.compile(r"([^\d{}]?[<>=^])?[-+ ]?#?0?\d{0,2}[,_]?(\.\d{1,2})?[a-zA-Z%]?")
"""a format of a value in a message, of a width of at most 99"""


# ---- the value
def parameters(function: ast.FunctionDef) -> list[str]:
    """Return the parameters of a function of a text."""
    return [each.arg for each in function.args.args]


class Evaluation:
    """A call of a function of a text, within a budget."""

    def __init__(self, functions: dict[str, ast.FunctionDef]) -> None:
        self.functions, self._left = functions, MOST_STEPS

    def call(self, name: str, values: list[Any]) -> Any:
        """Call a function of the text. Raises what it raises, and TooMuch."""
        function = self.functions[name]
        names = dict(zip(parameters(function), values, strict=True))
        end = self._run(function.body, names)
        return None if end is None else end[0]

    def _run(self, body: list[ast.stmt], names: dict[str, Any]) -> tuple[Any] | None:
        """Run statements; returns their value in a tuple, None where they come to their end."""
        for statement in body:
            match statement:
                case ast.Return(value=value):
                    return (None if value is None else self.value(value, names),)
                case ast.If(test=test, body=yes, orelse=no):
                    end = self._run(yes if self.value(test, names) else no, names)
                    if end is not None:
                        return end
                case ast.Assign(targets=targets, value=value):
                    found = self.value(value, names)
                    for target in targets:
                        self._store(target, found, names)
                case ast.AugAssign(target=ast.Name(id=name), op=operation, value=value):
                    changed = ast.BinOp(ast.Name(name), operation, value)
                    names[name] = self.value(changed, names)
                case ast.Raise(exc=error):
                    raise self.value(error, names)  # type: ignore[arg-type]
                case ast.Assert(test=test, msg=message):
                    if not self.value(test, names):
                        raise AssertionError(
                            *(self.value(each, names) for each in (message,) if each)
                        )
        return None

    def _store(self, target: ast.expr, value: Any, names: dict[str, Any]) -> None:
        if isinstance(target, ast.Name):
            names[target.id] = value
            return
        parts, targets = list(value), target.elts  # type: ignore[attr-defined]
        if len(parts) != len(targets):
            few = "too many" if len(parts) > len(targets) else "not enough"
            raise ValueError(f"{few} values to unpack (expected {len(targets)})")
        for each, part in zip(targets, parts, strict=True):
            self._store(each, part, names)

    def value(self, node: ast.expr, names: dict[str, Any]) -> Any:
        """Return the value of an expression."""
        value = self._value(node, names)
        self._left -= 1
        if self._left < 0:
            raise TooMuch
        if isinstance(value, _LARGE) and not (isinstance(value, int) and -_SMALL < value < _SMALL):
            self._spend([value])
        return value

    def _spend(self, parts: list[Any]) -> None:
        """Count the items of values, inner ones too: a comparison or a copy takes as long."""
        while parts:
            part = parts.pop()
            if isinstance(part, int):
                self._left -= part.bit_length() // 64
                if part.bit_length() > MOST_BITS:
                    raise TooMuch
            elif isinstance(part, _SEQUENCES):
                self._left -= len(part)
                if self._left < 0:
                    raise TooMuch
                if isinstance(part, (tuple, list)):
                    parts += part
                elif isinstance(part, dict):
                    parts += [*part.keys(), *part.values()]

    def _value(self, node: ast.expr, names: dict[str, Any]) -> Any:
        def get(part: ast.expr) -> Any:
            return self.value(part, names)

        match node:
            case ast.Constant(value=value):
                return value
            case ast.Name(id=name):
                if name not in names and name not in NAMES:
                    raise NameError(f"name {name!r} is not defined")
                return names[name] if name in names else NAMES[name]
            case ast.Attribute(value=base, attr=name):
                found = get(base)
                if not isinstance(found, ATTRIBUTES.get(name, ())):
                    raise AttributeError(f"a {type(found).__name__} has no {name!r} here")
                return getattr(found, name)
            case ast.Call(func=ast.Name(id=name), args=args, keywords=keywords):
                values = list(self._items(args, names))
                if name in self.functions:
                    return self.call(name, values)
                named = {str(each.arg): get(each.value) for each in keywords}
                function = NAMES[name]
                if not isinstance(function, np.dtype):
                    return function(*values, **named)
                [number] = values
                if not isinstance(number, (int, float, np.generic)):
                    raise TypeError(f"{name} of a {type(number).__name__}")
                return function.type(number)
            case ast.Subscript(value=base, slice=index):
                found = get(base)
                if not isinstance(found, _SEQUENCES):
                    raise TypeError(f"a {type(found).__name__} has no items")
                return found[get(index)]
            case ast.Slice(lower=lower, upper=upper, step=step):
                return slice(
                    *(None if part is None else get(part) for part in (lower, upper, step))
                )
            case ast.BinOp(left=left, op=operation, right=right):
                return _BINARY[type(operation)](get(left), get(right))
            case ast.UnaryOp(op=operation, operand=operand):
                return _UNARY[type(operation)](get(operand))
            case ast.BoolOp():
                for each in node.values:
                    found = get(each)
                    if bool(found) is isinstance(node.op, ast.Or):
                        break
                return found
            case ast.Compare():
                found = get(node.left)
                for compare, each in zip(node.ops, node.comparators, strict=True):
                    before, found = found, get(each)
                    result = _BINARY[type(compare)](before, found)
                    if not result:
                        break
                return result
            case ast.IfExp(test=test, body=yes, orelse=no):
                return get(yes if get(test) else no)
            case ast.Tuple(elts=elts):
                return tuple(self._items(elts, names))
            case ast.List(elts=elts):
                return list(self._items(elts, names))
            case ast.Dict(keys=keys, values=values):
                return dict(zip(map(get, keys), map(get, values), strict=True))  # type: ignore
            case ast.ListComp():
                return list(self._comprehended(node.elt, node.generators, names))
            case ast.GeneratorExp():
                return self._comprehended(node.elt, node.generators, names)
            case ast.JoinedStr(values=parts):
                return "".join(get(part) for part in parts)
            case ast.FormattedValue(value=part, conversion=conversion, format_spec=form):
                text = "" if form is None else get(form)
                if _FORMAT.fullmatch(text) is None:
                    raise ValueError(f"the format {text!r} is too long")
                found = get(part)
                convert = _CONVERSIONS.get(conversion)
                return format(found if convert is None else convert(found), text)
        raise TypeError(f"{type(node).__name__} has no value")

    def _items(self, nodes: list[ast.expr], names: dict[str, Any]) -> Iterator[Any]:
        for node in nodes:
            if isinstance(node, ast.Starred):
                yield from self.value(node.value, names)
            else:
                yield self.value(node, names)

    def _comprehended(
        self, item: ast.expr, loops: list[ast.comprehension], names: dict[str, Any]
    ) -> Iterator[Any]:
        if not loops:
            yield self.value(item, names)
            return
        for each in self.value(loops[0].iter, names):
            self._store(loops[0].target, each, inner := dict(names))
            if all(self.value(test, inner) for test in loops[0].ifs):
                yield from self._comprehended(item, loops[1:], inner)
