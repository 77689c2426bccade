"""Functions of shapes as text that a file can hold, in a small subset of Python.

`sources` writes the text of a user's out_type, grid, workspace or choose. Captured values become
constants, and user functions that it calls come first::

    def blocks(n, side=64):
        return cdiv(n, side)


    def grid(x, cfg):
        if x.ndim > 2:
            raise ValueError(f"two dimensions are expected, got {x.shape}")
        return (blocks(x.shape[0]), blocks(x.shape[1], side=128))

`ast` parses a text, and `check` accepts only the nodes in `_NODES` and the names in `NAMES`.
Nothing else of Python is available: no builtins, only a few attributes, no loops except
comprehensions, and only calls of earlier functions. `evaluation` evaluates the rest within a
budget, to numbers, strings, tuples, lists, dictionaries, `ArrayType` and `Workspace`.
"""

from __future__ import annotations

import ast
import dataclasses
import enum
import inspect
import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cached_property
from types import CodeType
from typing import Any

import numpy as np

from ..arch.dtypes import BY_DTYPE
from ..core.functions import Function
from ..diagnostics.argument_checks import told
from ..diagnostics.errors import ImageError, SpecError
from ..plan.specs import ArrayType, Workspace
from .evaluation import (
    ATTRIBUTES,
    MOST_BITS,
    NAMES,
    SPELLED,
    Described,
    TooMuch,
    compiled,
    evaluate,
    parameters,
)

MOST_TEXT = 1 << 14
"""characters of a text; Python's parser uses stack for each of them"""
MOST_DEPTH = 60
"""maximum nesting of nodes"""


class Unsupported(Exception):
    """Raised for a node that a text cannot hold: `what` the function does there, and the `fix`."""

    def __init__(self, node: ast.AST, what: str, fix: str) -> None:
        super().__init__(what)
        self.node, self.what, self.fix = node, what, fix


# ---- what a text may hold
_NODES = (
    *(ast.Return, ast.If, ast.Assign, ast.AugAssign, ast.Raise, ast.Assert, ast.Pass),
    *(ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.Constant, ast.List),
    *(ast.operator, ast.unaryop, ast.boolop, ast.cmpop, ast.Load, ast.Store, ast.Starred),
    *(ast.Subscript, ast.Slice, ast.GeneratorExp, ast.ListComp, ast.comprehension),
    *(ast.JoinedStr, ast.FormattedValue, ast.arg, ast.keyword),
)
"""node types that a text may contain, in addition to names, tuples, dictionaries, attributes and
calls"""
FIX = (
    "a file can hold assignments, if, return, raise and assert, operators and comprehensions, "
    "your own functions of these, min, max, sum, len, range, zip, math.ceil, math.prod, "
    "numpipe.cdiv and the like, and constants"
)


def bound_names(function: ast.AST) -> set[str]:
    """Return the names of a function's parameters and of the variables that it assigns."""
    return {node.arg for node in ast.walk(function) if isinstance(node, ast.arg)} | {
        node.id
        for node in ast.walk(function)
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)
    }


def check(function: ast.FunctionDef, earlier: Collection[str]) -> None:
    """Raise Unsupported for a node that no text can hold. The function may call `earlier`
    functions."""
    local = bound_names(function)
    nodes = [(function.args, 0), *((part, 0) for part in function.body)]
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
            case ast.arguments(args=args):
                fits = len({each.arg for each in args}) == len(args)
            case ast.Dict(keys=keys):
                fits = None not in keys
            case ast.Attribute(attr=name):
                fits = name in ATTRIBUTES
            case ast.Call(func=ast.Name(id=name), keywords=keywords):
                fits = name not in local and not (name in earlier and keywords)
            case _:
                fits = isinstance(node, _NODES)
        if not fits:
            raise Unsupported(node, f"it has {_shown(node)}", FIX)


def _shown(node: ast.AST) -> str:
    """Format a node for a message: as source, or as its type if the source is long."""
    text = ast.unparse(node) if isinstance(node, ast.expr) else ""
    return text if 0 < len(text) <= 60 and "\n" not in text else f"a node {type(node).__name__}"


@dataclass(frozen=True)
class Expression:
    """A function of shapes from a file; it is called with the arguments that its signature names.

    It returns what the user's function does, and raises what the function raises on purpose. Raises
    SpecError for an operation that fails in it, such as a division by zero.

    >>> half = Expression("def half(a):\\n    return (a.shape[0] // 2,)", "k.numpipe: grid")
    >>> half(a=HostView(ArrayType((10,), np.float16)))
    (5,)
    """

    text: str
    what: str
    """how messages refer to it"""

    @cached_property
    def _functions(self) -> tuple[CodeType, ast.FunctionDef]:
        """The code of the functions, and the last function, which is the one to call.

        Raises ImageError for a text that `sources` does not write.
        """
        functions: dict[str, ast.FunctionDef] = {}
        try:
            if len(self.text) > MOST_TEXT:
                raise ValueError(f"it has more than {MOST_TEXT} characters")
            for function in ast.parse(self.text).body:
                if not isinstance(function, ast.FunctionDef) or function.name in {
                    *functions,
                    *NAMES,
                }:
                    raise ValueError("it is not a list of functions")
                check(function, functions)
                functions[function.name] = function
            if not functions:
                raise ValueError("it is empty")
            return compiled(functions.values()), [*functions.values()][-1]
        except (ValueError, SyntaxError, RecursionError, MemoryError, Unsupported) as error:
            what = f"{self.what} cannot be used: {str(error) or 'it is nested too deeply'}"
            raise ImageError(f"{what}; export the kernel again") from None

    @cached_property
    def __signature__(self) -> inspect.Signature:
        kind = inspect.Parameter.KEYWORD_ONLY
        names = parameters(self._functions[1])
        return inspect.Signature([inspect.Parameter(name, kind) for name in names])

    def __call__(self, **known: Any) -> Any:
        code, function = self._functions
        try:
            return evaluate(code, function.name, [known[name] for name in parameters(function)])
        except (TooMuch, RecursionError, MemoryError):
            raise ImageError(
                f"{self.what} cannot be used: it exceeds the budget of a function of shapes"
            ) from None
        except (ArithmeticError, AttributeError, KeyError, NameError, TypeError) as error:
            given = ", ".join(f"{name}={told(value)}" for name, value in known.items())
            raise SpecError(
                f"{self.what} fails for {given}: {type(error).__name__}: {error}"
            ) from error


# ---- constants
def described(value: Any, what: str, of_class: Callable[[str], str] = lambda text: text) -> str:
    """Return the text that describes the value of a Static, which files and calls are compared by.

    A class is identified by its name and fields only, so that a loading process does not need the
    class itself. `of_class` is applied to the texts of class instances. Raises SpecError, with a
    message that starts with `what`, for a value that cannot be described.

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
        return of_class(value.text)
    if isinstance(value, enum.Enum):
        return of_class(f"{kind.__qualname__}.{value.name}")
    if isinstance(value, Function) and "<locals>" not in value.__qualname__:  # type: ignore
        return of_class(f"{value.__module__}:{value.__qualname__}")  # type: ignore
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        fields = dict(zip(value._fields, value, strict=True))
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if fields is None:
        raise SpecError(
            f"{what} is {told(value)}, a {kind.__name__}, which a file cannot describe: Statics of "
            "an exported kernel are numbers, strings, element types, numpipe functions of a "
            "module, and tuples, dataclasses, NamedTuples and Enums of these"
        )
    if kind in (ArrayType, Workspace):
        return (
            f"{kind.__name__}({', '.join(f'{name}={part(each)}' for name, each in fields.items())})"
        )
    parts = [f"{name}={described(each, what)}" for name, each in fields.items()]
    return of_class(f"{kind.__qualname__}({', '.join(parts)})")


def constant_of(text: str) -> Any:
    """Return the value that a text made by `described` represents, or a `Described` for a class
    instance.

    >>> constant_of("float('inf')"), constant_of("Config(tm=128)")
    (inf, Config(tm=128))
    """
    try:
        value = Expression(f"def value():\n    return {text}", "a constant")()
        hash(value)  # Statics are dictionary keys
        return value
    except Exception:
        return Described(text)
