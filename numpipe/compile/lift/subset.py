"""The Python that a kernel cannot contain: statements and expressions with no meaning on a GPU, and
what to write instead.

They are rejected while the source is rewritten, for the simulator too, so that no simulated kernel
fails to compile. An arm of a branch that is dropped at compile time is not checked.
"""

from __future__ import annotations

import ast
import builtins
import math
from typing import Any

import numpy as np

from ...language.tiles import mathematics
from .constants import lookup

_SEQUENCE = "has no fixed length on the GPU: use a tuple"
_IMPORT = "belongs to the top of the module: a kernel uses the names it finds there"
_GENERATOR = "makes a generator, and the GPU has none: loop with 'for'"
_ASYNC = "has no meaning in a kernel: loads are asynchronous by themselves"
_SCOPE = "cannot be compiled: captures are by value; return the value instead"

#: node type -> (what the user wrote, why not and the fix)
_REFUSED: dict[str, tuple[str, str]] = {
    **dict.fromkeys(
        ("Try", "TryStar"),
        (
            "'try'",
            "catches nothing on the GPU, which has no exceptions: test for the condition with 'if'",
        ),
    ),
    "Raise": (
        "'raise'",
        "does nothing on the GPU, which has no exceptions: check arguments before the call, or "
        "under an 'if' on compile-time constants",
    ),
    "AsyncWith": ("'async with'", _ASYNC),
    "AsyncFor": ("'async for'", _ASYNC),
    "AsyncFunctionDef": ("'async def'", _ASYNC),
    "Await": ("'await'", _ASYNC),
    "Yield": ("'yield'", _GENERATOR),
    "YieldFrom": ("'yield from'", _GENERATOR),
    "GeneratorExp": ("'for' in parentheses", _GENERATOR),
    "List": ("a list", _SEQUENCE),
    "Set": ("a set", _SEQUENCE),
    "Dict": ("a dictionary", _SEQUENCE),
    **dict.fromkeys(("ListComp", "SetComp", "DictComp"), ("a comprehension", _SEQUENCE)),
    "JoinedStr": ("an f-string", "is made at run time, and the GPU has no strings: use a constant"),
    "Starred": ("'*'", "needs a length known only at run time: write the elements out"),
    "NamedExpr": ("':='", "cannot be compiled: assign on a line of its own"),
    "Match": ("'match'", "cannot be compiled: use 'if'"),
    "Delete": ("'del'", "cannot be compiled: a name simply goes out of use"),
    "ClassDef": ("'class'", "cannot be compiled: define it outside the kernel"),
    "Import": ("'import'", _IMPORT),
    "ImportFrom": ("'import'", _IMPORT),
    "Global": ("'global'", _SCOPE),
    "Nonlocal": ("'nonlocal'", _SCOPE),
}


def refusal(node: ast.AST) -> str | None:
    """Return why a kernel cannot contain `node`, or None."""
    match node:
        case ast.Constant(value=complex() | bytes() as value):
            return (
                f"a {type(value).__name__} constant has no meaning in a kernel: its numbers are "
                "bool, int and float"
            )
        case ast.Compare(ops=ops, comparators=rights) if not all(
            isinstance(right, ast.Constant) and right.value is None
            for op, right in zip(ops, rights, strict=True)
            if isinstance(op, (ast.Is, ast.IsNot))
        ):
            return (
                "'is' compares objects, and run-time values are none on the GPU: write '==' ('is "
                "None' may stand)"
            )
    found = _REFUSED.get(type(node).__name__)
    return None if found is None else f"{found[0]} {found[1]}"


_SPELLED = {function.symbol for function in mathematics.FUNCTIONS.values()}
_NUMPYS = {
    "abs",
    "clip",
    "where",
    *(name.removeprefix("np.") for name in _SPELLED if name.startswith("np.")),
}
_OWN = mathematics.__all__
_INSTEAD: dict[Any, str] = {
    builtins.zip: "write the pairs out: for i, j in ((i0, j0), (i1, j1)):",
    builtins.enumerate: "write the pairs out: for i, v in ((0, v0), (1, v1)):",
    builtins.reversed: "count down: range(n - 1, -1, -1)",
    builtins.any: "join conditions with 'or'",
    builtins.all: "join conditions with 'and'",
    builtins.sum: "write the sum out",
    builtins.isinstance: "the type of a run-time value is known where it is written",
    math.fabs: "use abs(x)",
    **{getattr(math, name): f"use np.{name}(x)" for name in _NUMPYS if hasattr(math, name)},
    math.trunc: "use int(x)",
}
_TILES: dict[Any, str] = {
    np.zeros: "zeros(shape, np.float32)",
    np.empty: "zeros(shape, np.float32)",
    np.ones: "full(shape, 1.0, np.float32)",
    np.full: "full(shape, value, np.float32)",
    np.arange: "iota(n)",
}
_FUNCTIONS = f"np.{', '.join(sorted(_NUMPYS))}, numpipe.{', '.join(sorted(_OWN))}"
_ELSEWHERE = ("numpy", "math", "builtins", "_io", "io")


def host_only(function: Any, written: str) -> str | None:
    """Return why a Python or NumPy function cannot be called on run-time values; None for all other
    functions."""
    home = "numpy" if isinstance(function, np.ufunc) else str(getattr(function, "__module__", None))
    if (
        not callable(function)
        or home.split(".")[0] not in _ELSEWHERE
        or isinstance(function, np.generic)
    ):
        return None
    if (tile := lookup(_TILES, function)) is not None:
        return (
            f"'{written}' makes an array on the host: in a kernel numpipe.{tile} makes a register "
            "tile"
        )
    instead = lookup(_INSTEAD, function)
    tiles = (
        f"; of tiles and numbers there are {_FUNCTIONS}"
        if isinstance(function, np.ufunc) and not instead
        else ""
    )
    return (
        f"'{written}' takes constants only in a kernel{tiles}: "
        f"{instead or 'compute it before the call and pass the result'}"
    )


def spelled(signature: Any) -> str:
    """Return the parameters of a call as a message shows them: names and defaults, no annotations.

    >>> import inspect
    >>> spelled(inspect.signature(lambda start, size=8, *rest: 0))
    '(start, size=8, *rest)'
    """
    empty = signature.empty
    plain = [p.replace(annotation=empty) for p in signature.parameters.values()]
    return str(signature.replace(parameters=plain, return_annotation=empty))


def mismatch(signature: Any, positional: int, keywords: list[str]) -> str | None:
    """Return what is wrong with a call of `positional` arguments and these keywords, or None."""
    parameters = signature.parameters
    fixed = [
        p.name
        for p in parameters.values()
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    variadic = any(p.kind is p.VAR_POSITIONAL for p in parameters.values())
    unknown = [k for k in keywords if k not in parameters]
    if unknown:
        return f"it has no argument {', '.join(map(repr, unknown))}"
    if positional > len(fixed) and not variadic:
        return f"{positional} positional arguments given, it takes {len(fixed)}"
    given = [*fixed[:positional], *keywords]
    twice = [k for k in keywords if given.count(k) > 1]
    if twice:
        return f"argument {twice[0]!r} given twice"
    missing = [
        p.name
        for p in parameters.values()
        if p.default is p.empty
        and p.name not in keywords
        and p.name not in fixed[:positional]
        and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    return f"argument {', '.join(map(repr, missing))} missing" if missing else None
