"""The arithmetic of kernels, which is the same on the GPU and simulated: run-time integers are
int32, run-time floats are float32.

The AST pass (`compile/lift/arithmetic`) replaces every operator and comparison on run-time values
by an operation of this file, and ``range``, ``min``, ``int`` … by operations of `numbers`. The
languages' own operators differ: CPython's integers have no width, NumPy's promotion depends on its
version, and Numba widens int32 + int32 to int64.

An operand has a NumPy type, or is *weak*: a Python literal takes the type of the other operands.
`common` implements this rule:

===========================  =======================================================================
operands                     computed in
===========================  =======================================================================
int32 and int literals       int32; two literals too
float32 with any of these    float32; int32 with a float literal too
int32 with another float     the float's type
other NumPy types            the type that ``np.result_type`` returns; for example, int64 with
                             int32 is int64
bool                         counts as an int literal, 0 or 1
===========================  =======================================================================

``int32 / int32`` is float32. ``//`` and ``%`` round down, as in Python. An integer overflow is an
error when simulated, and wraps on the GPU. Integer division by zero, and shifts by a negative count
or by at least the width, are errors when simulated and undefined on the GPU. Floats follow IEEE 754
in both cases: infinities and NaN are ordinary values.

Operands that are not numbers (tiles, tuples, inert values of the memory role) use Python's
operator, or on the GPU Numba's.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..arch.dtypes import FLOAT32, FLOAT64, INT32
from ..diagnostics.argument_checks import told
from ..diagnostics.errors import SimulationError, SpecError
from .inert import Inert, first_inert
from .op import Op, op

__all__ = ["cdiv"]

POWERS = 64
"""largest exponent of ``**``"""

Kind = Any
"""kind of an operand: a NumPy dtype; int or float for a literal; bool"""


# ---- the rule ------------------------------------------------------------------------------------
def kind(value: Any) -> Kind | None:
    """Return the `Kind` of a value, or of values of a Numba type; None if it is not a number.

    >>> kind(1.5), kind(np.int32(3)), kind("text")
    (<class 'float'>, dtype('int32'), None)
    """
    if isinstance(value, np.generic):
        return (
            bool if value.dtype.kind == "b" else value.dtype if value.dtype.kind in "iuf" else None
        )
    return type(value) if type(value) in (bool, int, float) else kind_of_type(value)


@functools.singledispatch
def kind_of_type(ty: Any) -> Kind | None:
    """Return None for anything that is not a number; `arith_cuda` registers Numba types here."""
    return None


def is_integer(value: Any) -> bool:
    """Return whether a value, or values of a Numba type, are integers."""
    of = kind(value)
    return of is int or (isinstance(of, np.dtype) and of.kind in "iu")


def raised(x: Any, n: int, product: Callable[[Any, Any], Any]) -> Any:
    """Return ``x ** n`` for n of at least 1 by repeated squaring, with one product per bit of n and
    one more per set bit."""
    result = x
    for bit in f"{n:b}"[1:]:
        result = product(result, result)
        result = product(result, x) if bit == "1" else result
    return result


def common(*kinds: Kind) -> np.dtype:
    """Return the type in which operands of these kinds are computed.

    >>> common(np.dtype(np.int32), float), common(np.dtype(np.uint8), int), common(int, int)
    (dtype('float32'), dtype('uint8'), dtype('int32'))
    """
    typed = [k for k in kinds if isinstance(k, np.dtype)]
    fraction = any(k is float for k in kinds)  # `in` would find a float64 too
    if any(k.kind == "f" for k in typed):
        typed = [k for k in typed if k != INT32]
    if not typed:
        return FLOAT32 if fraction else INT32
    dtype = np.result_type(*typed)
    if fraction and dtype.kind != "f":
        return FLOAT32 if dtype == INT32 else np.result_type(dtype, FLOAT64)
    return dtype


def quotient_type(*kinds: Kind) -> np.dtype:
    """Return the type of ``a / b``, in which it is also computed."""
    dtype = common(*kinds)
    return dtype if dtype.kind == "f" else FLOAT32 if dtype == INT32 else FLOAT64


def integer_type(symbol: str, *kinds: Kind) -> np.dtype:
    """Return the type of an operation that only integers support; ``&``, ``|`` and ``^`` also
    support bools. Raises SpecError for floats."""
    if kinds == (bool, bool) and symbol in "&|^":
        return np.dtype(bool)
    dtype = common(*kinds)
    if dtype.kind == "f":
        raise SpecError(
            f"'{symbol}' takes integers, got {spelled(*kinds)}: int(x) truncates a float"
        )
    return dtype


def inverted_type(of: Kind) -> np.dtype:
    """Return the type of ``~a``. Raises SpecError for a float, and for a bool, for which ``~``
    would always be true."""
    if of is bool:
        raise SpecError("'~' of a bool is -1 or -2, which both count as true: write 'not'")
    return integer_type("~", of)


def exponent(n: Any) -> int:
    """Return a valid exponent of ``**``. Raises SpecError for others; None represents a run-time
    value."""
    if type(n) is not int or not 0 <= n <= POWERS:
        actual = "a run-time value" if n is None or isinstance(n, np.generic) else repr(n)
        raise SpecError(
            f"'**' takes a compile-time exponent from 0 to {POWERS}, because it is expanded to "
            f"products, got {actual}; for a power of 2 write 1 << n"
        )
    return n


def holds(dtype: np.dtype, value: int) -> bool:
    info = np.iinfo(dtype)
    return bool(info.min <= value <= info.max)


def misfit(value: int, dtype: np.dtype) -> SpecError:
    """Return the error for an int literal in an operation with values whose type cannot hold it."""
    return SpecError(
        f"the constant {value} does not fit {dtype}, the type it takes here: pass an np.int64 to "
        "compute in 64 bits"
    )


def spelled(*kinds: Kind) -> str:
    """Format kinds of operands for messages."""
    return " and ".join(
        {int: "an int literal", float: "a float literal", bool: "bool"}.get(k, str(k))
        for k in kinds
    )


# ---- numbers that are data -----------------------------------------------------------------------
class ReadInt32(np.int32):
    """An int32 that was read from an array, or computed from one that was: where it chooses a block
    that lies outside its array, the data is wrong."""


class ReadInt64(np.int64):
    """The same of int64."""


def as_read(value: Any) -> Any:
    """Mark an integer as one that was read from an array; other values are unchanged."""
    if isinstance(value, np.int32):
        return ReadInt32(value)
    return ReadInt64(value) if isinstance(value, np.int64) else value


def is_read(*values: Any) -> bool:
    """Return whether one of the values was read from an array, or computed from one that was."""
    return any(isinstance(value, (ReadInt32, ReadInt64)) for value in values)


def keeps_read(function: Callable) -> Callable:
    """Mark the results of a function of numbers that were read from an array."""

    @functools.wraps(function)
    def marked(*values: Any) -> Any:
        result = function(*values)
        return as_read(result) if is_read(*values) else result

    return marked


# ---- operators, simulated ------------------------------------------------------------------------
def as_type(value: Any, dtype: np.dtype) -> Any:
    """Convert an operand to the type it is computed in: Python's exact int for integers, a NumPy
    scalar for floats."""
    if dtype.kind == "f":
        with np.errstate(all="ignore"):
            return value.astype(dtype) if isinstance(value, np.generic) else dtype.type(value)
    if type(value) is int and not holds(dtype, value):
        raise misfit(value, dtype)
    return int(value)


def _fit(value: int, dtype: np.dtype, what: str) -> Any:
    """Convert an exact integer to its type. Raises SimulationError if the type cannot hold it."""
    if not holds(dtype, value):
        raise SimulationError(
            f"{what} = {value} overflows {dtype}, which wraps silently on the GPU"
        )
    return dtype.type(value)


def otherwise(python: Callable, *values: Any) -> Any:
    """Apply Python's operator to operands that are not all numbers. The result for inert values and
    numbers is inert."""
    inert = first_inert(values)
    if inert is not None and all(isinstance(v, Inert) or kind(v) is not None for v in values):
        return inert
    return python(*values)


def named(function: Callable, name: str, doc: str, numpy: Any = ()) -> Op:
    function.__name__ = function.__qualname__ = name
    function.__doc__ = doc
    return op(numpy=numpy)(function)


@dataclass(frozen=True)
class Operator:
    """The operator that an operation implements, as used by the GPU, the simulation and the AST
    pass."""

    symbol: str
    python: Callable
    """the operator's own function, also used for operands that are not numbers"""
    rule: Callable[..., np.dtype] = common
    """returns the type it is computed in, given the kinds of its operands"""
    compares: bool = False
    """whether its result is a bool"""


OPERATORS: dict[Op, Operator] = {}
"""operators by their operation"""


def _binary(
    symbol: str,
    python: Callable[[Any, Any], Any],
    rule: Callable[..., np.dtype] = common,
    *,
    compares: bool = False,
    floats: Callable[[Any, Any], Any] | None = None,
) -> Op:
    """Create the operation of a binary operator. `python` computes exact ints, and `floats`, a
    NumPy function with the same meaning, computes floats.

    Bit i of the operation's `literals` is set if operand i is a float literal, which Numba would
    treat as a float64.
    """
    partial = symbol in ("//", "%", "<<", ">>")

    def operation(a: Any, b: Any, literals: int = 0) -> Any:
        # the most common case, for speed
        if rule is not quotient_type and type(a) in (np.int32, int) and type(b) in (np.int32, int):
            x, y = int(a), int(b)
            if -0x80000000 <= x <= 0x7FFFFFFF and -0x80000000 <= y <= 0x7FFFFFFF:
                if partial:
                    _check_defined(x, symbol, y, 32)
                result = python(x, y)
                return (
                    result
                    if compares
                    else np.int32(result)
                    if -0x80000000 <= result <= 0x7FFFFFFF
                    else _fit(result, INT32, f"{x} {symbol} {y}")
                )
        return general(a, b)

    @keeps_read
    def general(a: Any, b: Any) -> Any:
        kinds = kind(a), kind(b)
        if any(k is None for k in kinds):
            return otherwise(python, a, b)
        dtype = rule(*kinds)
        if dtype.kind == "b":
            return python(bool(a), bool(b))
        x, y = as_type(a, dtype), as_type(b, dtype)
        if compares:
            return bool(python(x, y))
        if dtype.kind != "f":
            if partial:
                _check_defined(x, symbol, y, 8 * dtype.itemsize)
            return _fit(python(x, y), dtype, f"{x} {symbol} {y}")
        with np.errstate(all="ignore"):
            return (floats or python)(x, y)

    result = named(operation, python.__name__, f"``a {symbol} b``", floats or ())
    OPERATORS[result] = Operator(symbol, python, rule, compares)
    return result


def _check_defined(a: int, symbol: str, b: int, bits: int) -> None:
    if symbol in ("//", "%"):
        if b == 0:
            raise SimulationError(
                f"{a} {symbol} 0: integer division by zero is undefined on the GPU"
            )
    elif not 0 <= b < bits:
        raise SimulationError(
            f"{a} {symbol} {b}: a shift of {bits}-bit integers by a count outside 0 … {bits - 1} "
            "is undefined on the GPU"
        )


add = _binary("+", operator.add)
sub = _binary("-", operator.sub)
mul = _binary("*", operator.mul)
floordiv = _binary("//", operator.floordiv, floats=np.floor_divide)
mod = _binary("%", operator.mod, floats=np.remainder)
# always a float; division by zero gives an infinity or NaN
truediv = _binary("/", operator.truediv, quotient_type)
and_, or_, xor, lshift, rshift = (
    _binary(symbol, python, functools.partial(integer_type, symbol))
    for symbol, python in (
        ("&", operator.and_),
        ("|", operator.or_),
        ("^", operator.xor),
        ("<<", operator.lshift),
        (">>", operator.rshift),
    )
)
lt, le, gt, ge, eq, ne = (
    _binary(symbol, python, compares=True)
    for symbol, python in (
        ("<", operator.lt),
        ("<=", operator.le),
        (">", operator.gt),
        (">=", operator.ge),
        ("==", operator.eq),
        ("!=", operator.ne),
    )
)


@op
def power(a: Any, n: Any, literals: int = 0) -> Any:
    """``a ** n`` for a literal n from 0 to 64, expanded to products (`raised`)."""
    of = kind(a)
    if of is None:
        return otherwise(operator.pow, a, n)
    exponent(n)
    base = as_type(a, dtype := common(of, int))
    return raised(dtype.type(base), n, mul) if n else dtype.type(1)


OPERATORS[power] = Operator("**", operator.pow)


@op
def quotient_remainder(a: Any, b: Any, literals: int = 0) -> Any:
    """``divmod(a, b)``"""
    return floordiv(a, b), mod(a, b)


def _unary(
    name: str,
    symbol: str,
    python: Callable[[Any], Any],
    rule: Callable[..., np.dtype] = common,
    numpy: Any = (),
) -> Op:
    @keeps_read
    def operation(a: Any) -> Any:
        of = kind(a)
        if of is None:
            return otherwise(python, a)
        dtype = rule(of)
        value = python(as_type(a, dtype))
        if dtype.kind == "u" and symbol == "~":
            value &= np.iinfo(dtype).max
        return value if dtype.kind == "f" else _fit(value, dtype, f"{symbol}({a})")

    result = named(operation, name, f"``{symbol}(a)``", numpy)
    OPERATORS[result] = Operator(symbol, python, rule)
    return result


negative = _unary("negative", "-", operator.neg)
positive = _unary("positive", "+", operator.pos)
absolute = _unary("absolute", "abs", abs, numpy=np.abs)
invert = _unary("invert", "~", operator.invert, inverted_type)


# ---- int32 values that are not negative ----------------------------------------------------------
@op
def quotient(a: Any, b: Any) -> Any:
    """``a // b`` of non-negative int32 values, by an unsigned division, which avoids the cost of
    rounding down."""
    return np.int32(int(a) // int(b))


@op
def remainder(a: Any, b: Any) -> Any:
    """``a % b`` of non-negative int32 values."""
    return np.int32(int(a) % int(b))


@op
def cdiv(a: Any, b: Any) -> Any:
    """Ceiling division, ``-(-a // b)``: how many blocks of b cover a. It is an int32 in a kernel,
    and a Python int for Python ints, which have no largest value.

    >>> cdiv(130, 64)
    3
    """
    try:
        top, below = (int(None if isinstance(value, str) else value) for value in (a, b))  # type: ignore[arg-type]
    except TypeError:
        raise SpecError(f"cdiv(a, b) divides integers, got {told(a)} and {told(b)}") from None
    if below <= 0:
        raise ZeroDivisionError(f"cdiv({a}, {b}): the divisor must be positive")
    result = -(-top // below)
    return result if type(a) is type(b) is int else np.int32(result)


@op
def divisor(d: Any) -> tuple[Any, Any]:
    """Return (d, 2³² / d) for `divide`, so that one division serves for many numbers that are
    divided by d.

    0 counts as 1, because a loop over no tiles divides nothing.
    """
    d = max(int(d), 1)
    return np.int32(d), np.uint32(0xFFFFFFFF // d).view(np.int32)


@op
def divide(a: Any, by: tuple[Any, Any]) -> Any:
    """Divide a non-negative int32 by a `divisor`, ``a // d``, with a multiplication and a
    correction, in 20 cycles instead of 150.

    >>> int(divide(1000, divisor(7)))
    142
    """
    return np.int32(int(a) // int(by[0]))


@op
def successor(k: Any) -> Any:
    """``k + 1``, opaque to the compiler: a loop counted with it is not unrolled."""
    return np.int32(k) + np.int32(1)
