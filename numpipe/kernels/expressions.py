"""Functions of shapes as text, which a file can hold: a small part of Python, evaluated node by node.

`sources` writes the text of a user's out_type, grid, workspace or choose. What the function captured
is a constant in it, and user functions that it calls stand before it::

    def blocks(n, side=64):
        return cdiv(n, side)
    def grid(x, cfg):
        if x.ndim > 2:
            raise ValueError(f'two dimensions are expected, got {x.shape}')
        return (blocks(x.shape[0]), blocks(x.shape[1], side=128))

A text of a file is never compiled or executed. `ast` parses it, `check` accepts the nodes in `_NODES`
and the names in `NAMES`, and an `Evaluation` computes the value within a budget: numbers, strings,
tuples, lists, dictionaries, `ArrayType` and `Workspace`. There are no loops but comprehensions, and a
function calls earlier ones only, so an evaluation ends.
"""

from __future__ import annotations

import ast
import dataclasses
import enum
import inspect
import math
import operator
import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ..arch.dtypes import BY_DTYPE, ELEMENTS
from ..core.arith import cdiv
from ..core.functions import Function
from ..diagnostics import errors
from ..diagnostics.arguments import told
from ..diagnostics.errors import ImageError, SpecError
from ..plan.specs import ArrayType, Workspace
from .results import HostView

MOST_TEXT = 1 << 14
"""characters of a text: Python's parser takes stack for each"""
MOST_DEPTH = 60
"""nodes inside each other"""
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


class Unsupported(Exception):
    """A node that a text cannot hold: `what` the function does there, and the `fix`."""

    def __init__(self, node: ast.AST, what: str, fix: str) -> None:
        super().__init__(what)
        self.node, self.what, self.fix = node, what, fix


class TooMuch(Exception):
    """An evaluation used up its budget."""


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
    int.bit_length: int.bit_length,
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
NAMES["Static"] = lambda text: Described(text)
_ATTRIBUTES: dict[type, tuple[str, ...]] = {
    HostView: ("shape", "dtype", "ndim"),
    ArrayType: ("shape", "dtype"),
    np.dtype: ("itemsize", "kind", "name"),
}
_SEQUENCES = (tuple, list, dict, str, bytes, range)
_CONVERSIONS: dict[int, Callable[[Any], str]] = {ord("s"): str, ord("r"): repr, ord("a"): ascii}
_FORMAT = re.compile(r"([^\d{}]?[<>=^])?[-+ ]?#?0?\d{0,2}[,_]?(\.\d{1,2})?[a-zA-Z%]?")
"""a format of a value in a message, of a width of at most 99"""


# ---- what a text may hold
_NODES = (
    *(ast.Return, ast.If, ast.Assign, ast.AugAssign, ast.Raise, ast.Assert, ast.Pass),
    *(ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.Constant, ast.List),
    *(ast.operator, ast.unaryop, ast.boolop, ast.cmpop, ast.Load, ast.Store, ast.Starred),
    *(ast.Subscript, ast.Slice, ast.GeneratorExp, ast.ListComp, ast.comprehension),
    *(ast.JoinedStr, ast.FormattedValue, ast.arguments, ast.arg, ast.keyword),
)
"""the nodes of a text, beside names, tuples, dictionaries, attributes and calls"""
FIX = (
    "a file holds assignments, if, return, raise and assert, operators and comprehensions, functions "
    "of your own of these, min, max, sum, len, range, zip, math.ceil, math.prod, numpipe.cdiv and the "
    "like, and constants"
)


def bound_names(function: ast.AST) -> set[str]:
    """Return the parameters of a function, and the names that it assigns."""
    return {node.arg for node in ast.walk(function) if isinstance(node, ast.arg)} | {
        node.id
        for node in ast.walk(function)
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)
    }


def parameters(function: ast.FunctionDef) -> list[str]:
    """Return the parameters of a function of a text."""
    return [each.arg for each in function.args.args]


def check(function: ast.FunctionDef, earlier: Collection[str]) -> None:
    """Raise Unsupported for the first node that a text cannot hold; `earlier` functions it may call."""
    local = bound_names(function)
    nodes: list[tuple[ast.AST, int]] = [(function.args, 0), *((part, 0) for part in function.body)]
    while nodes:
        node, depth = nodes.pop()
        if depth > MOST_DEPTH:
            raise Unsupported(
                node, "its expressions are nested too deeply", "assign parts to names"
            )
        nodes += [(child, depth + 1) for child in ast.iter_child_nodes(node)]
        match node:
            case ast.Name(id=name, ctx=ast.Load()):
                fits = name in local or name in earlier or name in NAMES
            case ast.Name() | ast.Tuple():
                fits = True
            case ast.expr(ctx=ast.Store()) | ast.MatMult():  # type: ignore[misc]
                fits = False
            case ast.Dict(keys=keys):
                fits = None not in keys
            case ast.Attribute(attr=name):
                fits = any(name in names for names in _ATTRIBUTES.values())
            case ast.Call(func=ast.Name(id=name), keywords=keywords):
                fits = name not in local and not (name in earlier and keywords)
            case _:
                fits = isinstance(node, _NODES)
        if not fits:
            raise Unsupported(node, f"it has {_shown(node)}", FIX)


def _shown(node: ast.AST) -> str:
    """Return how a message shows a node: by its text, or by its kind where that is long."""
    text = ast.unparse(node) if isinstance(node, ast.expr) else ""
    return text if 0 < len(text) <= 60 and "\n" not in text else f"a node {type(node).__name__}"


# ---- the value
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
        """Run statements; returns what they return in a tuple, None where they come to their end."""
        for statement in body:
            match statement:
                case ast.Return(value=value):
                    return (None if value is None else self.value(value, names),)
                case ast.If(test=test, body=yes, orelse=no):
                    if (
                        end := self._run(yes if self.truth(test, names) else no, names)
                    ) is not None:
                        return end
                case ast.Assign(targets=targets, value=value):
                    self.assign(targets, value, names)
                case ast.AugAssign(target=target, op=operation, value=value):
                    before = ast.Name(target.id, ast.Load())  # type: ignore[union-attr]
                    self.assign([target], ast.BinOp(before, operation, value), names)
                case ast.Raise(exc=error):
                    self.fail(error, names)  # type: ignore[arg-type]
                case ast.Assert(test=test, msg=message):
                    if not self.truth(test, names):
                        args = [message] if message else []
                        self.fail(ast.Call(ast.Name("AssertionError"), args, []), names)
        return None

    def truth(self, test: ast.expr, names: dict[str, Any]) -> bool:
        return bool(self.value(test, names))

    def fail(self, error: ast.expr, names: dict[str, Any]) -> None:
        raise self.value(error, names)

    def assign(self, targets: list[ast.expr], value: ast.expr, names: dict[str, Any]) -> None:
        found = self.value(value, names)
        for target in targets:
            self._store(target, found, names)

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
        parts = [value]
        while parts:  # items count wherever they stand: comparing or copying them takes as long
            part = parts.pop()
            large = isinstance(part, int) and part.bit_length()
            self._left -= 1 + large // 64 + (len(part) if isinstance(part, _SEQUENCES) else 0)
            if self._left < 0 or large > MOST_BITS:
                raise TooMuch
            if isinstance(part, (tuple, list)):
                parts += part
            elif isinstance(part, dict):
                parts += [*part.keys(), *part.values()]
        return value

    def _value(self, node: ast.expr, names: dict[str, Any]) -> Any:
        def get(part: ast.expr) -> Any:
            return self.value(part, names)

        match node:
            case ast.Constant(value=value):
                return value
            case ast.Name(id=name):
                return names[name] if name in names else self.missing(name)
            case ast.Attribute(value=base, attr=name):
                found = get(base)
                if not any(
                    isinstance(found, of) and name in has for of, has in _ATTRIBUTES.items()
                ):
                    raise AttributeError(f"a {type(found).__name__} has no {name!r} here")
                return getattr(found, name)
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
                return get(yes if self.truth(test, names) else no)
            case ast.Tuple(elts=elts):
                return tuple(self._items(elts, names))
            case ast.List(elts=elts):
                return list(self._items(elts, names))
            case ast.Dict(keys=keys, values=values):
                return dict(zip(map(get, keys), map(get, values), strict=True))  # type: ignore[arg-type]
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
        raise TypeError(f"{type(node).__name__} has no value")

    def missing(self, name: str) -> Any:
        """Return what a name is that the function has not assigned."""
        if name not in NAMES:
            raise NameError(f"name {name!r} is not defined")
        return NAMES[name]

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
            if all(self.truth(test, inner) for test in loops[0].ifs):
                yield from self._comprehended(item, loops[1:], inner)


@dataclass(frozen=True)
class Expression:
    """A function of shapes of a file: it is called with the arguments that its signature names.

    It returns what the user's function returns, or raises what that raises.

    >>> half = Expression("def half(a):\\n    return (a.shape[0] // 2,)", "k.numpipe: grid")
    >>> half(a=HostView(ArrayType((10,), np.float16)))
    (5,)
    """

    text: str
    what: str
    """what messages call it"""

    @cached_property
    def functions(self) -> dict[str, ast.FunctionDef]:
        """The functions of the text. Raises ImageError where it is none that `sources` writes."""
        functions: dict[str, ast.FunctionDef] = {}
        try:
            if len(self.text) > MOST_TEXT:
                raise ValueError(f"it has more than {MOST_TEXT} characters")
            for function in ast.parse(self.text).body:
                if not isinstance(function, ast.FunctionDef) or function.name in {
                    *functions,
                    *NAMES,
                }:
                    raise ValueError("it is no list of functions")
                check(function, functions)
                functions[function.name] = function
            if not functions:
                raise ValueError("it is empty")
        except (ValueError, SyntaxError, RecursionError, MemoryError, Unsupported) as error:
            what = f"{self.what} cannot be used: {str(error) or 'it is nested too deeply'}"
            raise ImageError(f"{what}; export the kernel again") from None
        return functions

    @cached_property
    def __signature__(self) -> inspect.Signature:
        names = parameters([*self.functions.values()][-1])
        kind = inspect.Parameter.KEYWORD_ONLY
        return inspect.Signature([inspect.Parameter(name, kind) for name in names])

    def __call__(self, **known: Any) -> Any:
        values = [known[name] for name in self.__signature__.parameters]
        try:
            return Evaluation(self.functions).call([*self.functions][-1], values)
        except (TooMuch, RecursionError, MemoryError):
            raise ImageError(
                f"{self.what} cannot be used: it computes more than any function of shapes needs"
            ) from None


# ---- constants
def described(
    value: Any, what: str, of_class: Callable[[str, Any], str] = lambda text, _: text
) -> str:
    """Return the text of a Static's value, by which a file's are compared with a call's.

    A class is known by its name and fields only, so that a process needs none of the one that wrote
    the file; `of_class` makes another text of that of an instance. Raises SpecError, which begins with
    `what`, for a value that no text describes.

    >>> described((1, np.dtype("float16"), np.float32(2), True), "the Static 'cfg'")
    '(1, float16, float32(2.0), True)'
    """
    kind, fields = type(value), None

    def part(value: Any) -> str:
        return described(value, what, of_class)

    if id(value) in SPELLED:
        return SPELLED[id(value)]
    if value is None or kind in (bool, str) or (kind is int and value.bit_length() <= MOST_BITS):
        return repr(value)
    if kind is float:
        return repr(value) if math.isfinite(value) else f"float('{value}')"
    if isinstance(value, np.generic) and value.dtype in BY_DTYPE:
        return f"{part(value.dtype)}({part(value.item())})"
    if isinstance(value, np.dtype) and value in BY_DTYPE:
        return SPELLED[id(BY_DTYPE[value].dtype.type)]
    if kind is tuple or kind is list:
        begin, end = "()" if kind is tuple else "[]"
        return f"{begin}{', '.join(map(part, value))}{',' * (len(value) == 1)}{end}"
    if isinstance(value, Described):
        return of_class(value.text, value)
    if isinstance(value, enum.Enum):
        return of_class(f"{kind.__qualname__}.{value.name}", value)
    if isinstance(value, Function) and "<locals>" not in value.__qualname__:  # type: ignore[attr-defined]
        return of_class(f"{value.__module__}:{value.__qualname__}", value)  # type: ignore[attr-defined]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        fields = dict(zip(value._fields, value, strict=True))
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if fields is None:
        raise SpecError(
            f"{what} is {told(value)}, a {kind.__name__}, which a file cannot describe: Statics of an "
            "exported kernel are numbers, strings, element types, numpipe functions of a module, and "
            "tuples, dataclasses, NamedTuples and Enums of these"
        )
    if kind in (ArrayType, Workspace):
        return (
            f"{kind.__name__}({', '.join(f'{name}={part(each)}' for name, each in fields.items())})"
        )
    parts = [f"{name}={described(each, what)}" for name, each in fields.items()]
    return of_class(f"{kind.__qualname__}({', '.join(parts)})", value)


@dataclass(frozen=True)
class Described:
    """A Static as a file describes it; it stands for the value where a call leaves the Static out."""

    text: str

    def __repr__(self) -> str:
        return self.text


def constant_of(text: str) -> Any:
    """Return the value that a text of `described` is of, or a `Described` where it is of a class.

    >>> constant_of("float('inf')"), constant_of("Config(tm=128)")
    (inf, Config(tm=128))
    """
    try:
        value = Expression(f"def value():\n    return {text}", "a constant")()
        hash(value)  # a call's Statics are keys
        return value
    except Exception:
        return Described(text)
