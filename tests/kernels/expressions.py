"""Generated expressions as source text, drawn by Hypothesis, with their values from an independent
interpreter.

`integers` and `floats` draw the text of an expression in the run-time scalars p, q, r (int32) and
x, y (float32). `worth` gives the value that a kernel must compute: exact integers, with `Undefined`
for an operation outside their range, and float32 with a bound on what a fused multiply-add may
change. `load` makes a kernel of many expressions.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import linecache
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

SCALARS = ("p", "q", "r", "x", "y")
F32 = np.float32
ULP = 2.0**-23
"""relative, of float32: more than one omitted rounding can change"""


class Undefined(Exception):
    """An integer overflow, a division by zero or a shift too far: an error in the simulator."""


class Uncertain(Exception):
    """A fused multiply-add may decide a comparison or a truncation either way."""


# ---- what is drawn -------------------------------------------------------------------------------
def _literals() -> st.SearchStrategy[str]:
    return st.one_of(
        st.integers(0, 9),
        st.integers(-100, 100),
        st.sampled_from([64, 4096, 65536, 2**31 - 1, -(2**31)]),
    ).map(lambda n: str(n) if n >= 0 else f"({n})")


def _fractions() -> st.SearchStrategy[str]:
    return st.sampled_from(
        ["0.5", "1.5", "2.0", "0.1", "3.25", "(-0.75)", "1e-3", "1e30", "100.0", "0.0"]
    )


@st.composite
def drawn(draw: st.DrawFn, real: bool, depth: int = 4) -> str:
    """Draw a float or int expression that a kernel may contain."""
    for _ in range(5):
        text = draw(floats(depth) if real else integers(depth))
        if acceptable(text):
            return text
    return "x" if real else "p"


@functools.cache
def integers(depth: int = 4) -> st.SearchStrategy[str]:
    """Draw expressions whose value is an int32; depth is the nesting of operators."""
    leaves = st.one_of(
        st.sampled_from(["p", "q", "r"]), st.sampled_from(["p", "q", "r"]), _literals()
    )
    if depth == 0:
        return leaves
    less = st.deferred(lambda: integers(depth - 1))
    count = st.one_of(st.integers(0, 31).map(str), less.map(lambda e: f"({e} & 15)"), less)
    return st.one_of(
        leaves,
        _joined(less, ["+", "-", "*", "//", "%", "&", "|", "^"]),
        _joined(less, ["+", "-", "*", "//", "%"]),
        st.tuples(less, st.sampled_from(["<<", ">>"]), count).map(_spaced),
        st.tuples(less, _literals(), st.sampled_from(["//", "%"])).map(
            lambda t: f"({t[0]} {t[2]} {t[1]})"
        ),
        st.tuples(st.sampled_from(["-", "~", "+"]), less).map(lambda t: f"({t[0]}{t[1]})"),
        st.tuples(less, st.integers(0, 3)).map(lambda t: f"({t[0]} ** {t[1]})"),
        st.tuples(st.sampled_from(["min", "max"]), less, less, less).map(
            lambda t: f"{t[0]}({t[1]}, {t[2]}, {t[3]})"
        ),
        less.map("abs({})".format),
        st.tuples(less, less).map(lambda t: f"sum_of(*divmod({t[0]}, {t[1]}))"),
        st.deferred(lambda: floats(depth - 1)).map("int({})".format),
        st.deferred(lambda: floats(depth - 1)).map("round({})".format),
        st.deferred(lambda: truths(depth - 1)).map("int({})".format),
        st.tuples(less, st.deferred(lambda: truths(depth - 1))).map(lambda t: f"({t[0]} + {t[1]})"),
        _chosen(less, depth),
    )


@functools.cache
def floats(depth: int = 4) -> st.SearchStrategy[str]:
    """Draw expressions whose value is a float32."""
    names = st.sampled_from(["x", "y"])
    if depth == 0:
        return names
    less = st.deferred(lambda: floats(depth - 1))
    whole = st.deferred(lambda: integers(depth - 1))
    other = st.one_of(less, less, _fractions(), whole)
    return st.one_of(
        names,
        st.tuples(less, st.sampled_from(["+", "-", "*", "/", "//", "%"]), other).map(_spaced),
        st.tuples(other, st.sampled_from(["+", "-", "*", "/"]), less).map(_spaced),
        st.tuples(whole, st.just("/"), whole).map(_spaced),
        st.tuples(whole, st.sampled_from(["+", "*", "-"]), _fractions()).map(_spaced),
        less.map("(-{})".format),
        less.map("abs({})".format),
        st.tuples(less, st.integers(0, 3)).map(lambda t: f"({t[0]} ** {t[1]})"),
        st.tuples(st.sampled_from(["min", "max"]), less, other).map(
            lambda t: f"{t[0]}({t[1]}, {t[2]})"
        ),
        whole.map("float({})".format),
        whole.map("np.float32({})".format),
        _chosen(less, depth),
    )


@functools.cache
def truths(depth: int = 3) -> st.SearchStrategy[str]:
    """Draw comparisons and boolean expressions."""
    less = st.deferred(lambda: integers(max(depth - 1, 0)))
    real = st.deferred(lambda: floats(max(depth - 1, 0)))
    compared = st.one_of(
        _joined(less, _COMPARED),
        _joined(real, _COMPARED[:4]),
        st.tuples(less, st.sampled_from(_COMPARED[:4]), less, st.sampled_from(_COMPARED), less).map(
            _spaced
        ),
    )
    if depth <= 0:
        return compared
    inner = st.deferred(lambda: truths(depth - 1))
    return st.one_of(
        compared,
        compared,
        inner.map("(not {})".format),
        _joined(inner, ["and", "or"]),
        _joined(inner, ["&", "|", "^"]),
    )


_COMPARED = ["<", "<=", ">", ">=", "==", "!="]


def _spaced(parts: tuple[str, ...]) -> str:
    return f"({' '.join(parts)})"


def _joined(operand: st.SearchStrategy[str], symbols: list[str]) -> st.SearchStrategy[str]:
    return st.tuples(operand, st.sampled_from(symbols), operand).map(_spaced)


def _chosen(arm: st.SearchStrategy[str], depth: int) -> st.SearchStrategy[str]:
    return st.tuples(arm, st.deferred(lambda: truths(depth - 1)), arm).map(
        lambda t: f"({t[0]} if {t[1]} else {t[2]})"
    )


def scalars() -> st.SearchStrategy[dict[str, Any]]:
    """Draw values of the run-time scalars, small ones and the limits of their ranges."""
    whole = st.one_of(
        st.integers(-10, 10),
        st.integers(-10, 10),
        st.integers(-1000, 1000),
        st.integers(-(2**31), 2**31 - 1),
    )
    real = st.one_of(
        st.integers(-40, 40).map(lambda n: n / 8),
        st.floats(-1000, 1000, width=32),
        st.floats(width=32),
    )
    return st.fixed_dictionaries({"p": whole, "q": whole, "r": whole, "x": real, "y": real})


# ---- what it is worth ----------------------------------------------------------------------------
@dataclass(frozen=True)
class Real:
    """A float32 and the maximum error of the GPU's result."""

    value: Any
    error: float = 0.0


Value = int | bool | Real


def worth(text: str, values: dict[str, Any]) -> Value:
    """Return a kernel's value of an expression: an exact int, a bool or a Real.

    Raises Undefined or Uncertain.
    """
    given = {name: Real(F32(v)) if name in "xy" else v for name, v in values.items()}
    with np.errstate(all="ignore"):
        return _evaluate(ast.parse(text, mode="eval").body, given)


def known(node: ast.AST) -> bool:
    """Return whether an expression is constant, so that the AST pass evaluates it as Python
    does."""
    return not any(isinstance(part, ast.Name) and part.id in SCALARS for part in ast.walk(node))


def _folded(node: Any) -> Any:
    with np.errstate(all="ignore"):
        return eval(
            compile(ast.Expression(node), "", "eval"), {"np": np, "sum_of": lambda a, b: a + b}
        )


def acceptable(text: str) -> bool:
    """Return whether a kernel may contain an expression.

    No constant may fail or overflow int32, and no function may be called between two comparisons.
    """
    chains = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Compare))
    if any("sum_of" in ast.unparse(part) for chain in chains for part in chain.comparators[:-1]):
        return False

    def check(node: Any) -> None:
        if isinstance(node, ast.expr) and not isinstance(node, ast.Name) and known(node):
            value = _folded(node)
            if isinstance(value, int) and not -(2**31) <= value < 2**31:
                raise OverflowError
        else:
            for child in ast.iter_child_nodes(node):
                if not isinstance(child, (ast.operator, ast.cmpop)):
                    check(child)

    try:
        check(ast.parse(text, mode="eval").body)
    except (ArithmeticError, ValueError, TypeError):
        return False
    return not known(ast.parse(text, mode="eval"))


def _evaluate(node: Any, given: dict[str, Any]) -> Any:
    def of(child: Any) -> Any:
        return _evaluate(child, given)

    if known(node):
        value = _folded(node)
        return Real(F32(value)) if isinstance(value, (float, F32)) else value
    match node:
        case ast.Name(id=name):
            return given[name]
        case ast.BinOp(left=left, op=op, right=right):
            return _operate(type(op).__name__, of(left), of(right))
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return not of(operand)
        case ast.UnaryOp(op=op, operand=operand):
            value = of(operand)
            if isinstance(value, Real):
                return Real(-value.value, value.error) if isinstance(op, ast.USub) else value
            return _int32(
                -value
                if isinstance(op, ast.USub)
                else ~value
                if isinstance(op, ast.Invert)
                else int(value)
            )
        case ast.BoolOp(op=op, values=parts):
            return (all if isinstance(op, ast.And) else any)(of(part) for part in parts)
        case ast.Compare(left=left, ops=ops, comparators=rights):
            a = of(left)
            for op, right in zip(ops, rights, strict=True):
                b = of(right)
                if not _compare(type(op).__name__, a, b):
                    return False
                a = b
            return True
        case ast.IfExp(test=test, body=body, orelse=orelse):
            return of(body) if of(test) else of(orelse)
        case ast.Call(func=function, args=args):
            return _call(ast.unparse(function), args, of)
    raise NotImplementedError(ast.dump(node))


def _call(name: str, args: list[Any], of: Any) -> Any:
    if name == "sum_of":
        a, b = (of(arg) for arg in args[0].value.args)
        return _operate("Add", _operate("FloorDiv", a, b), _operate("Mod", a, b))
    values = [of(arg) for arg in args]
    if name in ("min", "max"):
        values = (
            [_real(v) for v in values]
            if any(isinstance(v, Real) for v in values)
            else [int(v) for v in values]
        )
        best = values[0]
        for value in values[1:]:
            if _compare("Lt" if name == "min" else "Gt", value, best):
                best = value
        return best
    (value,) = values
    if name == "abs":
        return (
            Real(abs(value.value), value.error) if isinstance(value, Real) else _int32(abs(value))
        )
    if name in ("float", "np.float32"):
        return _real(value)
    assert name in ("int", "round")
    if not isinstance(value, Real):
        return _int32(int(value))
    if not np.isfinite(value.value):
        raise Undefined
    to_int = int if name == "int" else round
    found = _int32(to_int(float(value.value)))
    if any(to_int(float(value.value) + sign * value.error) != found for sign in (-1, 1)):
        raise Uncertain
    return found


def _int32(value: int) -> int:
    if not -(2**31) <= value < 2**31:
        raise Undefined
    return value


def _real(value: Value) -> Real:
    return value if isinstance(value, Real) else Real(np.int32(value).astype(F32))


def _operate(op: str, a: Value, b: Value) -> Value:
    if op == "Pow":
        assert isinstance(b, int)
        return _power(a, b)
    if op in ("BitAnd", "BitOr", "BitXor") and isinstance(a, bool) and isinstance(b, bool):
        return a & b if op == "BitAnd" else a | b if op == "BitOr" else a ^ b
    if op == "Div" or isinstance(a, Real) or isinstance(b, Real):
        return _float_operation(op, _real(a), _real(b))
    if (op in ("FloorDiv", "Mod") and b == 0) or (op in ("LShift", "RShift") and not 0 <= b < 32):
        raise Undefined
    a, b = int(a), int(b)
    return _int32(
        {
            "Add": lambda: a + b,
            "Sub": lambda: a - b,
            "Mult": lambda: a * b,
            "FloorDiv": lambda: a // b,
            "Mod": lambda: a % b,
            "LShift": lambda: a << b,
            "RShift": lambda: a >> b,
            "BitAnd": lambda: a & b,
            "BitOr": lambda: a | b,
            "BitXor": lambda: a ^ b,
        }[op]()
    )


def _power(a: Value, n: int) -> Value:
    if not isinstance(a, Real):
        return _int32(int(a) ** n)
    result: Value = a if n else Real(F32(1))
    for _ in range(n - 1):  # for n <= 3: a a, (a a) a
        result = _operate("Mult", result, a)
    return result


def _float_operation(op: str, a: Real, b: Real) -> Real:
    x, y = a.value, b.value
    if op in ("FloorDiv", "Mod"):
        if a.error or b.error:
            raise Uncertain
        return Real(np.floor_divide(x, y) if op == "FloorDiv" else np.remainder(x, y))
    value = {"Add": np.add, "Sub": np.subtract, "Mult": np.multiply, "Div": np.divide}[op](x, y)
    before = a.error + b.error
    left, right = abs(float(x)), abs(float(y))
    if op in ("Add", "Sub"):
        error = before
    elif op == "Mult":
        # the product may not be rounded (fused multiply-add)
        error = a.error * right + b.error * left + a.error * b.error + ULP * abs(float(value))
    else:
        if before and right <= 2 * b.error:
            raise Uncertain
        error = (a.error + abs(float(value)) * b.error) / (right - b.error) if before else 0.0
    if before:
        error += ULP * abs(float(value)) + 1e-44
    if before and (math.isnan(error) or not np.isfinite(value)):
        raise Uncertain
    if error and np.isfinite(value) and abs(float(value)) > 1e37:
        raise Uncertain
    return Real(value, error if np.isfinite(value) else 0.0)


def _compare(op: str, a: Value, b: Value) -> bool:
    if isinstance(a, Real) or isinstance(b, Real):
        one, other = _real(a), _real(b)
        unsure = one.error + other.error
        if unsure and not abs(float(one.value) - float(other.value)) > unsure:
            raise Uncertain
        x, y = one.value, other.value
    else:
        x, y = a, b
    return bool(
        {"Lt": x < y, "LtE": x <= y, "Gt": x > y, "GtE": x >= y, "Eq": x == y, "NotEq": x != y}[op]
    )


# ---- kernels of them -----------------------------------------------------------------------------
WIDTH = 16
"""output columns per expression: 8 for the high half and 8 for the low half of an int32"""

HEAD = """
import numpy as np

import numpipe
from numpipe import ds


@numpipe.function
def sum_of(pair):
    return pair[0] + pair[1]


@numpipe.kernel
def expressions(c, which, p, q, r, x, y):
    zeros = numpipe.zeros((64, 8), np.float32)
"""


def source(texts: Sequence[str], real: Sequence[bool]) -> str:
    """Return the source of a kernel that stores the values of expressions.

    `real` says which are floats. With ``which >= 0`` only that expression is stored.
    """
    lines = [HEAD]
    for i, (text, is_real) in enumerate(zip(texts, real, strict=True)):
        text = text.replace("sum_of(*divmod", "sum_of(divmod")
        column = WIDTH * i
        parts = [f"v{i}"] if is_real else [f"(v{i} >> 16)", f"(v{i} & 65535)"]
        lines += [
            f"    if which < 0 or which == {i}:",
            f"        v{i} = {text}",
            *(
                f"        c[ds(0, 64), ds({column + 8 * j}, 8)] = zeros + {part}"
                for j, part in enumerate(parts)
            ),
        ]
    return "\n".join(lines) + "\n"


def load(text: str) -> Any:
    """Return the kernel of a source text, registered so that errors can show its lines."""
    filename = f"<expressions {hashlib.sha1(text.encode()).hexdigest()[:12]}>"
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    namespace: dict[str, Any] = {"__name__": filename}
    exec(compile(text, filename, "exec"), namespace)
    return namespace["expressions"]


def result(c: np.ndarray, i: int, is_real: bool) -> Any:
    """Return the value of expression i from a kernel's output."""
    column = WIDTH * i
    if is_real:
        return c[0, column]
    return int(c[0, column]) * 65536 + int(c[0, column + 8])


def agrees(found: Any, value: Value, *, exactly: bool) -> bool:
    """Return whether a result equals the value, on the GPU within its error."""
    if not isinstance(value, Real):
        return bool(found == value)
    if np.isnan(value.value):
        return bool(np.isnan(found))
    return bool(
        found == value.value
        or (not exactly and abs(float(found) - float(value.value)) <= value.error)
    )
