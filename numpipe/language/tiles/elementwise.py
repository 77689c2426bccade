"""Arithmetic, comparisons and functions of register tiles, element by element, broadcast as in NumPy.

Operands are tiles and numbers; a number takes the tile's type. Masks (of bool) have ``& | ^ ~``.

===========================================  ======================================================================
``+ - * /``, ``-x``, ``x ** 2``, ``abs(x)``  floats; int32 without ``/``
``< <= > >= == !=``                          of floats and int32 (of masks ``== !=``): masks
``& | ^ << >>``, ``~``                       int32, and masks without shifts
``np.maximum``, ``np.minimum``               floats, where NaN comes through, and int32
``np.where(mask, x, y)``                     one of two elements; any type
``np.exp`` … `rsqrt`, `sigmoid`              floats: see `mathematics`; `fma` float32
``np.floor`` … ``np.clip``, ``np.isnan``     floats and int32: see `exact`
===========================================  ======================================================================

Floats follow IEEE 754 as numbers of a kernel do: a product and a sum of float32 may be one fused instruction on the GPU. Tiles of
float16 and bfloat16 stay what they are, as in NumPy: each operation is rounded to 16 bits, once, and gives NumPy's bits. Two
elements are computed by one instruction (PTX ISA, "Half Precision Floating Point Instructions"), quotients, functions and
comparisons in float32. What is not of their type does not meet them: a run-time float32 would be rounded without a word.
Integers that int32 cannot hold are an error simulated and wrap on the GPU. A tile of another layout is an error that names both:
nothing is moved between lanes here.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...arch.dtypes import BFLOAT16, BOOL, FLOAT32, HALVES, INT32, packing
from ...core import arith
from ...core.inert import Inert
from ...core.machine import current
from ...core.op import constant, op
from ...diagnostics.errors import SimulationError, SpecError
from .layouts import Form, combined, turned
from .refs import ALL, All
from .tile import Tile, check_form

__all__ = ["full", "iota"]


@dataclass(frozen=True)
class Plan:
    """An elementwise operation: the type that operands are computed in, and what it gives."""

    computed: np.dtype
    result: Form


Operand = Form | arith.Kind
"""a tile's form, or the kind of a number"""


def plan(symbol: str, operands: Sequence[Operand], *, takes: str, compares: bool = False) -> Plan:
    """How an operation is computed; `takes` says on which types: f(loat32), h(alves: float16 and
    bfloat16), i(nt32), b(ool).

    Raises SpecError for types it does not have, and for shapes and layouts that do not combine.
    """
    forms = [part for part in operands if isinstance(part, Form)]
    shape, layout = combined(symbol, forms)
    types = list(dict.fromkeys(form.dtype for form in forms))
    for dtype in types:
        if packing(dtype).computed not in tuple(takes):
            kinds = [name for code, name in (("f", "float32"), ("i", "int32"), ("b", "masks")) if code in takes]
            raise SpecError(f"'{symbol}' takes tiles of {' or '.join(kinds)}, got {'a mask' if dtype == BOOL else dtype}" + (
                ": use .astype(np.float32) first" if "f" in takes else ""))
    if len(types) > 1:
        raise SpecError(f"'{symbol}' of tiles of {' and '.join(map(str, types))}: convert one of them, e.g. x.astype(np.float32)")
    computed = types[0]
    for number in operands:
        if not isinstance(number, Form):
            _check_number(symbol, number, computed)
    return Plan(computed, Form(shape, BOOL if compares else computed, layout))


def _check_number(symbol: str, number: arith.Kind, dtype: np.dtype) -> None:
    """SpecError for a number that does not take a tile's type."""
    fraction = number is float or (isinstance(number, np.dtype) and number.kind == "f")
    if dtype == INT32 and (fraction or (isinstance(number, np.dtype) and number != INT32)):
        raise SpecError(f"'{symbol}' of an int32 tile and a float: use .astype(np.float32) first" if fraction else
                        f"'{symbol}' of an int32 tile and {arith.spelled(number)}: convert the number with int(x)")
    if dtype in HALVES and number not in (int, float, np.dtype(np.float64), dtype):  # a float literal may be a float64 by now
        raise SpecError(f"'{symbol}' of a {dtype} tile and {arith.spelled(number)}, which it would round: use .astype(np.float32) "
                        f"on the tile, or full(tile.shape, number, tile.dtype)")
    if dtype == BOOL and number is not bool:
        raise SpecError(f"'{symbol}' of a mask and {arith.spelled(number)}: a mask combines with masks and bools")


# ---- simulated ------------------------------------------------------------------------------------------------------
def form_of(value: Any) -> Operand | None:
    """The operand that a value is; None for what is none."""
    return value.form if isinstance(value, Tile) else arith.kind(value)


def apply(symbol: str, operands: Sequence[Any], function: Callable[..., Any], *, takes: str, compares: bool = False) -> Any:
    """An operation on tiles and numbers, at least one of them a tile; NotImplemented where another operand is neither."""
    inert = any(getattr(value, "inert", False) or isinstance(value, Inert) for value in operands)
    known = [value for value in operands if not isinstance(value, Inert)]
    forms = [form_of(value) for value in known]
    if any(form is None for form in forms):
        return NotImplemented
    made = plan(symbol, forms, takes=takes, compares=compares)
    if inert:
        return Tile(None, made.result.shape, made.result.dtype, made.result.layout)
    values = [_in_type(value, made.computed) for value in known]
    with np.errstate(all="ignore"):  # floats overflow to inf and NaN, as on the GPU; only integers raise
        found = function(*values)
        if made.result.dtype == INT32:
            found = int32(symbol, found)
        value = np.broadcast_to(found, made.result.shape).astype(made.result.dtype, copy=False)
    return Tile(value, made.result.shape, made.result.dtype, made.result.layout)


def _in_type(value: Any, dtype: np.dtype) -> Any:
    """An operand in the type that is computed in; int32 in int64, where an overflow can be seen."""
    if dtype == INT32:
        return value.value.astype(np.int64) if isinstance(value, Tile) else np.int64(arith.as_type(value, INT32))
    with np.errstate(all="ignore"):
        return value.value if isinstance(value, Tile) else dtype.type(np.float32(value) if dtype == BFLOAT16 else value)


def int32(symbol: str, found: Any) -> Any:
    limits = np.iinfo(np.int32)
    outside = (found < limits.min) | (found > limits.max)
    if np.any(outside):
        raise SimulationError(f"'{symbol}': an element {int(np.asarray(found)[outside].flat[0])} overflows int32, which wraps "
                              "silently on the GPU")
    return found


BINARY: dict[str, tuple[str, Callable[[Any, Any], Any], str]] = {  # operator's name -> (symbol, meaning, types)
    "add": ("+", np.add, "fhi"), "sub": ("-", np.subtract, "fhi"), "mul": ("*", np.multiply, "fhi"),
    "truediv": ("/", np.divide, "fh"), "and_": ("&", np.bitwise_and, "ib"), "or_": ("|", np.bitwise_or, "ib"),
    "xor": ("^", np.bitwise_xor, "ib"), "lshift": ("<<", lambda a, b: np.left_shift(a, _counts(b)), "i"),
    "rshift": (">>", lambda a, b: np.right_shift(a, _counts(b)), "i"),
}
UNARY: dict[str, tuple[str, Callable[[Any], Any], str]] = {
    "neg": ("-", np.negative, "fhi"), "invert": ("~", np.invert, "ib"), "abs": ("abs", np.abs, "fhi"),
}
COMPARISONS: dict[str, tuple[str, Callable[[Any, Any], Any]]] = {
    "lt": ("<", np.less), "le": ("<=", np.less_equal), "gt": (">", np.greater), "ge": (">=", np.greater_equal),
    "eq": ("==", np.equal), "ne": ("!=", np.not_equal),
}


def _counts(b: Any) -> Any:
    if np.any((b < 0) | (b > 31)):
        raise SimulationError("a shift of 32-bit integers by a count outside 0 … 31 is undefined on the GPU")
    return b


def power(tile: Any, n: Any) -> Any:
    """``tile ** n`` for a literal n from 0 to 64, as products."""
    arith.exponent(n)
    if n == 0:
        return apply("**", (tile,), np.ones_like, takes="fhi")
    result = tile
    for bit in f"{n:b}"[1:]:
        result = result * result
        result = result * tile if bit == "1" else result
    return result


def expansion(parts: Sequence[str]) -> str:
    """":, None" or "None, :"; SpecError for any other index of a register tile."""
    written = ", ".join(parts)
    if written not in (":, None", "None, :"):
        raise SpecError("tile[…]: a register tile has no parts: v[:, None] and v[None, :] give a vector a dimension; take "
                        "parts of a tile in shared memory, or of an array")
    return written


def expanded(tile: Tile, index: Any) -> Tile:
    """``v[:, None]``, ``v[None, :]``"""
    parts = index if isinstance(index, tuple) else (index,)
    written = expansion([":" if isinstance(p, All) or p is ALL or p == slice(None) else "None" if p is None else repr(p)
                         for p in parts])
    shape, layout = turned(tile.form, written)
    return Tile(None if tile.inert else tile.value.reshape(shape), shape, tile.dtype, layout)


PYTHON: dict[str, Any] = {name: getattr(operator, name) for name in (*BINARY, *COMPARISONS)}


def _define_operators() -> None:
    def binary(symbol: str, function: Callable[..., Any], takes: str, compares: bool, swap: bool) -> Callable[..., Any]:
        return lambda self, other: apply(symbol, (other, self) if swap else (self, other), function, takes=takes, compares=compares)

    def unary(symbol: str, function: Callable[..., Any], takes: str) -> Callable[..., Any]:
        return lambda self: apply(symbol, (self,), function, takes=takes)

    for name, (symbol, function, takes) in BINARY.items():
        stem = name.rstrip("_")
        setattr(Tile, f"__{stem}__", binary(symbol, function, takes, False, False))
        setattr(Tile, f"__r{stem}__", binary(symbol, function, takes, False, True))
    for name, (symbol, function) in COMPARISONS.items():
        setattr(Tile, f"__{name}__", binary(symbol, function, "fhib" if name in ("eq", "ne") else "fhi", True, False))
    for name, (symbol, of_one, takes) in UNARY.items():
        setattr(Tile, f"__{name}__", unary(symbol, of_one, takes))
    for name, own in (("pow", power), ("pos", lambda tile: tile), ("getitem", expanded)):
        setattr(Tile, f"__{name}__", own)
    Tile.__hash__ = None  # type: ignore[assignment]


_define_operators()


# ---- functions ------------------------------------------------------------------------------------------------------
def any_number(dtype: np.dtype) -> None:
    """The check of a function that all numbers have."""


def evaluated(name: str, values: Sequence[Any], function: Callable[..., Any], *, takes: str,
              check: Callable[[np.dtype], None] = any_number, compares: bool = False) -> Any:
    """A function of tiles and numbers; of numbers alone in the type that `arith.common` gives, which `check` may refuse."""
    if any(isinstance(value, Tile) for value in values):
        found = apply(name, values, function, takes=takes, compares=compares)
        if found is NotImplemented:
            raise not_computed(name, " and ".join(type(value).__name__ for value in values))
        return found
    inert = next((value for value in values if isinstance(value, Inert)), None)
    if inert is not None:
        return inert
    kinds = [arith.kind(value) for value in values]
    if any(kind is None for kind in kinds):
        raise not_computed(name, " and ".join(type(value).__name__ for value in values))
    dtype = arith.common(*kinds)
    check(dtype)
    with np.errstate(all="ignore"):
        return (bool if compares else dtype.type)(function(*[arith.as_type(value, dtype) for value in values]))


def not_computed(name: str, given: str) -> SpecError:
    """The error for a function of something that is neither a tile nor a number."""
    return SpecError(f"{name}(…) takes register tiles and numbers, got {given}")


def _extreme(name: str, function: np.ufunc) -> Any:
    def operation(a: Any, b: Any, literals: int = 0) -> Any:
        return evaluated(name, (a, b), function, takes="fhi")

    return arith.named(operation, name.replace("np.", ""), f"``{name}(a, b)``: NaN where one of the two is NaN.", function)


maximum = _extreme("np.maximum", np.maximum)
minimum = _extreme("np.minimum", np.minimum)


def check_where(mask: Operand | None, operands: Sequence[Operand | None], given: str) -> None:
    """SpecError for arguments of `where` that are no mask and no tiles or numbers."""
    is_mask = mask is bool or (isinstance(mask, Form) and mask.dtype == BOOL)
    if not is_mask or any(part is None for part in operands):
        raise SpecError(f"np.where(mask, x, y) takes a mask, as x < y gives it, and two tiles or numbers, got ({given})")


def plan_where(mask: Operand, operands: Sequence[Operand]) -> Plan:
    """How a choice between tiles and numbers is computed: in the tiles' type, or in that of the numbers."""
    forms = [part for part in operands if isinstance(part, Form)]
    types = list(dict.fromkeys(form.dtype for form in forms))
    if len(types) > 1:
        raise SpecError(f"np.where of tiles of {' and '.join(map(str, types))}: convert one of them")
    if types and not packing(types[0]).computed:
        raise SpecError(f"np.where of {types[0]} tiles: they are converted, loaded and stored only; choose before astype")
    kinds = [part for part in operands if not isinstance(part, Form)]
    computed = types[0] if types else arith.common(*kinds)
    if not types and computed not in (FLOAT32, INT32, BOOL):
        raise SpecError(f"np.where chooses between tiles, or numbers of float32, int32 or bool, got {computed} numbers")
    for number in kinds if types else ():
        _check_number("np.where", number, computed)
    shape, layout = combined("np.where", [part for part in (mask, *operands) if isinstance(part, Form)])
    return Plan(computed, Form(shape, computed, layout))


@op(numpy=np.where)
def where(mask: Any, x: Any, y: Any, literals: int = 0) -> Any:
    """``np.where(mask, x, y)``: x where the mask is true, else y. All three may be tiles or numbers."""
    if isinstance(mask, Inert) or (any(isinstance(v, Inert) for v in (x, y)) and not any(
            isinstance(v, Tile) for v in (mask, x, y))):
        return mask if isinstance(mask, Inert) else x if isinstance(x, Inert) else y
    forms = [form_of(value) if not isinstance(value, Inert) else INT32 for value in (mask, x, y)]
    check_where(forms[0], forms[1:], ", ".join(type(value).__name__ for value in (mask, x, y)))
    if not any(isinstance(form, Form) for form in forms):
        dtype = arith.common(*forms[1:])
        return dtype.type(arith.as_type(x if mask else y, dtype))
    made = plan_where(forms[0], forms[1:])
    form = made.result
    if any(getattr(value, "inert", False) or isinstance(value, Inert) for value in (mask, x, y)):
        return Tile(None, form.shape, form.dtype, form.layout)
    chosen = np.where(mask.value if isinstance(mask, Tile) else bool(mask), *[_in_type(value, made.computed) for value in (x, y)])
    return Tile(np.broadcast_to(chosen, form.shape).astype(form.dtype), form.shape, form.dtype, form.layout)


# ---- tiles of numbers, and another dimension ------------------------------------------------------------------------
def full_form(shape: Any, kind: arith.Kind | None, dtype: Any) -> Form:
    """What `full` makes of a number of this kind."""
    if kind is None:
        raise SpecError("full(shape, value, dtype): the value must be a number")
    form = check_form(shape, np.dtype(dtype), "full")
    if not packing(form.dtype).computed:
        raise SpecError(f"full: a tile of {form.dtype} is made by astype, of one of float32 or int32")
    if form.dtype not in HALVES:  # said outright, not by the way
        _check_number("full", kind, form.dtype)
    return form


@op
def full(shape: Any, value: Any, dtype: Any) -> Tile:
    """A tile whose elements are all `value`, a number known at compile time or at run time.

    shape   (M, N), (M, 1), (1, N), or (n,): a vector
    dtype   float32, float16, bfloat16, int32 or bool: what the number is rounded to

    Raises SpecError for other shapes and types.
    """
    constant("full", "shape", shape)
    form = full_form(shape, INT32 if isinstance(value, Inert) else arith.kind(value), dtype)
    if isinstance(value, Inert) or current().role == "memory":
        return Tile(None, form.shape, form.dtype, form.layout)
    return Tile(np.full(form.shape, bool(value) if form.dtype == BOOL else _in_type(value, form.dtype), form.dtype),
                form.shape, form.dtype, form.layout)


def check_axis(form: Form, axis: Any, what: str) -> int:
    """The dimension that `axis` names."""
    rank = len(form.shape)
    if isinstance(axis, bool) or not isinstance(axis, (int, np.integer)) or not -rank <= axis < rank:
        raise SpecError(f"{what}: axis must be a compile-time int from {-rank} to {rank - 1} for shape {form.shape}, got {axis!r}")
    return int(axis) % rank


@op
def iota(shape: Any, axis: int = 0) -> Tile:
    """An int32 tile in which each element is its index along `axis`: ``iota(128)`` is the vector 0 … 127.

    Masks are made of it: ``np.where(iota(128) + k < n, s, -np.inf)``. Raises SpecError for a shape that no tile has.
    """
    constant("iota", "shape", shape)
    constant("iota", "axis", axis)
    form = check_form(shape, INT32, "iota")
    axis = check_axis(form, axis, "iota")
    if current().role == "memory":
        return Tile(None, form.shape, INT32, form.layout)
    index = np.arange(form.shape[axis], dtype=np.int32).reshape([-1 if i == axis else 1 for i in range(len(form.shape))])
    return Tile(np.broadcast_to(index, form.shape).copy(), form.shape, INT32, form.layout)
