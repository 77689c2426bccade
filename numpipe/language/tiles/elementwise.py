"""Elementwise arithmetic, comparisons and selection of register tiles, broadcast as in NumPy.
Functions are in `mathematics`.

Operands are tiles and numbers; a number is converted to the tile's type. Masks are tiles of bool.

===========================================  =======================================================
``+ - * /``, ``-x``, ``x ** 2``, ``abs(x)``  floats; integers except ``/``
``//``, ``%``                                floats and integers, rounded down as in NumPy; integer
                                             division by 0 is as in `core.arith`
``< <= > >= == !=``                          floats and integers; masks only ``== !=``: the result
                                             is a mask
``& | ^ << >>``, ``~``                       integers; masks except shifts
``np.where(mask, x, y)``                     any type
===========================================  =======================================================

Floats follow IEEE 754 as numbers of a kernel do: a product and a sum of float32 may be one fused
instruction on the GPU. Tiles of float16 and bfloat16 stay what they are, as in NumPy: each
operation is rounded to 16 bits, once, and gives NumPy's bits. Two elements are computed by one
instruction (PTX ISA, "Half Precision Floating Point Instructions"), quotients, functions and
comparisons in float32. Operands of another type are refused: a run-time float32 would be rounded
silently. A tile of another layout is moved to that of the result (`layouts.combined`), through
shared memory.

Integers are int32, uint32, int8 and uint8; 8-bit integers are computed in 32 bits, and each result
is truncated to 8. Unsigned integers wrap, as in NumPy and C. Signed integers that overflow are an
error on the simulated SM, and wrap on the GPU. If wrapping is intended, compute in uint32, which
gives the same bits: ``(x.astype(np.uint32) * 1664525).astype(np.int32)``.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...arch.dimensions import Ints
from ...arch.dtypes import BFLOAT16, BOOL, FLOAT32, HALVES, INT32, INTEGERS, packing
from ...core import arith
from ...core.inert import NoValue, first_inert
from ...core.machine import current
from ...core.op import called, constant, op
from ...diagnostics.argument_checks import is_int
from ...diagnostics.errors import SimulationError, SpecError
from .conversions import moved
from .layouts import Form, combined, laid
from .tile import Tile, check_form, dtype_of, form_of

__all__ = ["full", "iota"]


@dataclass(frozen=True)
class Plan:
    """How an elementwise operation is computed.

    computed  the type that operands are converted to
    result    the form of the resulting tile; a form without dimensions for a number
    inert     nothing is computed: the memory role has no tile values, nor values that depend on
              them
    steps     the steps of the resulting tile's type (`TileType`)
    """

    computed: np.dtype
    result: Form
    inert: bool = False
    steps: Ints = ()


Operand = Form | arith.Kind
"""a tile's form, the kind of a number, or `NoValue`"""


def operands_of(symbol: str, operands: Sequence, literals: int = 0) -> list[Operand | None]:
    """Return the form or the kind of each operand, given values or Numba types; None for operands
    that are neither tiles nor numbers.

    Bit i of `literals` is set if operand i is a float literal.
    """
    return [
        float
        if literals >> i & 1
        else NoValue
        if isinstance(part, NoValue)
        else form_of(part, f"'{symbol}'") or arith.kind(part)
        for i, part in enumerate(operands)
    ]


def _inert(operands: Sequence) -> bool:
    return any(isinstance(part, NoValue) or getattr(part, "inert", False) for part in operands)


def _one_type(what: str, which: str, forms: Sequence[Form]) -> np.dtype:
    """Return the type of all these tiles. Raises SpecError if they have several."""
    types = list(dict.fromkeys(form.dtype for form in forms))
    if len(types) > 1:
        raise SpecError(
            f"{what} of tiles of {' and '.join(map(str, types))}: {which} must have one type; "
            "fix: convert one of them, such as x.astype(np.float32)"
        )
    return types[0]


def _check_numbers(symbol: str, operands: Sequence[Operand], dtype: np.dtype) -> None:
    """Raise SpecError for a number that cannot be converted to the tiles' type."""
    for number in operands:
        if isinstance(number, Form) or number is NoValue:
            continue
        fraction = number is float or (isinstance(number, np.dtype) and number.kind == "f")
        if dtype in INTEGERS and (fraction or (isinstance(number, np.dtype) and number != dtype)):
            raise SpecError(
                f"'{symbol}' of {'a' if dtype.kind == 'u' else 'an'} {dtype} tile and "
                + (
                    "a float; fix: convert the tile, .astype(np.float32)"
                    if fraction
                    else f"{arith.spelled(number)}; fix: convert the number, int(x)"
                    if dtype == INT32
                    else (
                        f"{arith.spelled(number)}; fix: convert the tile, .astype(np.int32), or "
                        "write full(tile.shape, number, tile.dtype)"
                    )
                )
            )
        # numba may have typed a float literal as float64
        if dtype in HALVES and number not in (int, float, np.dtype(np.float64), dtype):
            raise SpecError(
                f"'{symbol}' of a {dtype} tile and {arith.spelled(number)}, which would be "
                "rounded; fix: use .astype(np.float32) on the tile, or full(tile.shape, number, "
                "tile.dtype)"
            )
        if dtype == BOOL and number is not bool:
            raise SpecError(
                f"'{symbol}' of a mask and {arith.spelled(number)}: the other operand of a mask "
                "must be a mask or a bool"
            )


# ---- simulated -----------------------------------------------------------------------------------
def computed(symbol: str, plan: Plan, operands: Sequence, function: Callable) -> Any:
    """Apply a function of NumPy arrays to tiles and numbers, as planned."""
    form = plan.result
    if plan.inert:
        return Tile(None, form)
    values = [_in_type(value, plan.computed) for value in in_place(form, operands)]
    # floats overflow to inf and NaN, as on the GPU; only integers raise
    with np.errstate(all="ignore"):
        found = function(*values)
        if form.dtype in INTEGERS:
            found = integers(symbol, found, form.dtype)
        if not form.shape:
            return bool(found) if form.dtype == BOOL else form.dtype.type(found)
        return Tile(np.broadcast_to(found, form.shape).astype(form.dtype, copy=False), form)


def in_place(form: Form, operands: Sequence) -> list:
    """Return operands, of which tiles have their elements where an operation that gives `form`
    needs them."""
    return [
        moved(value, laid(value.form, form.shape, form.layout))
        if isinstance(value, Tile)
        else value
        for value in operands
    ]


def _in_type(value: Any, dtype: np.dtype) -> Any:
    """Return an operand in the type used for computing; int64 for integers, so that overflow can be
    detected."""
    if isinstance(value, Tile):
        return value.value.astype(np.int64) if dtype in INTEGERS else value.value
    if dtype.kind in "iu":
        return (np.int64 if dtype in INTEGERS else dtype.type)(arith.as_type(value, dtype))
    with np.errstate(all="ignore"):
        return dtype.type(np.float32(value) if dtype == BFLOAT16 else value)


def integers(symbol: str, found: Any, dtype: np.dtype) -> Any:
    """Convert integers, computed in int64, to their type; unsigned integers wrap.

    Raises SimulationError if a signed type cannot hold one.
    """
    limits = np.iinfo(dtype)
    outside = (found < limits.min) | (found > limits.max)
    if dtype.kind == "i" and np.any(outside):
        raise SimulationError(
            f"'{symbol}': an element {int(np.asarray(found)[outside].flat[0])} overflows {dtype}, "
            "and the GPU wraps silently"
            + (
                "; fix: if wrapping is intended, compute in uint32, x.astype(np.uint32)"
                if dtype == INT32
                else "; fix: compute in int32, x.astype(np.int32)"
            )
        )
    return np.asarray(found).astype(dtype)[()]


@dataclass(frozen=True)
class Operator:
    """A Python operator on tiles. Calling it with values computes the result on the simulated SM.

    takes     the types that it supports, by first letter: f(loat32), h(alves: float16 and
              bfloat16), i(ntegers), b(ool), d(ouble: float64)
    compares  whether the result is a mask
    """

    symbol: str
    meaning: Callable
    takes: str
    compares: bool = False

    def __call__(self, *values: Any) -> Any:
        plan = self.plan(values)
        return NotImplemented if plan is None else computed(self.symbol, plan, values, self.meaning)

    def plan(self, values: Sequence, literals: int = 0) -> Plan | None:
        """Return the plan of the operation for values or types. Return None if no operand is a
        tile, or if one is neither a tile nor a number.

        Raises SpecError for unsupported types, and for shapes and layouts that cannot be combined.
        """
        operands = operands_of(self.symbol, values, literals)
        symbol = self.symbol
        takes = self.takes
        forms = [part for part in operands if isinstance(part, Form)]
        if not forms or any(part is None for part in operands):
            return None
        shape, layout = combined(symbol, forms)
        for dtype in (form.dtype for form in forms):
            if packing(dtype).computed not in tuple(takes):
                kinds = [
                    name
                    for code, name in (("f", "float32"), ("i", "int32"), ("b", "masks"))
                    if code in takes
                ]
                raise SpecError(
                    f"'{symbol}' takes tiles of {' or '.join(kinds)}, got "
                    f"{'a mask' if dtype == BOOL else dtype}"
                    + ("; fix: use .astype(np.float32) first" if "f" in takes else "")
                )
        of = _one_type(f"'{symbol}'", "operands", forms)
        _check_numbers(symbol, operands, of)
        steps = [getattr(value, "steps", (0, 0)) for value in values]  # numbers have none
        linear = symbol in "+-" and all(steps)
        return Plan(
            of,
            Form(shape, BOOL if self.compares else of, layout),
            _inert(values),
            tuple(self.meaning(*steps).tolist()) if linear else (),
        )


UNARY: dict[str, Operator] = {  # keyed by names in `operator`
    "neg": Operator("-", np.negative, "fhi"),
    "invert": Operator("~", np.invert, "ib"),
    "abs": Operator("abs", np.abs, "fhi"),
}
BINARY: dict[str, Operator] = {
    "add": Operator("+", np.add, "fhid"),
    "sub": Operator("-", np.subtract, "fhid"),
    "mul": Operator("*", np.multiply, "fhid"),
    "truediv": Operator("/", np.divide, "fh"),
    "floordiv": Operator("//", lambda a, b: _in_float32(np.floor_divide, a, _divisor(b)), "fhi"),
    "mod": Operator("%", lambda a, b: _in_float32(np.remainder, a, _divisor(b)), "fhi"),
    "and_": Operator("&", np.bitwise_and, "ib"),
    "or_": Operator("|", np.bitwise_or, "ib"),
    "xor": Operator("^", np.bitwise_xor, "ib"),
    "lshift": Operator("<<", lambda a, b: np.left_shift(a, _counts(b)), "i"),
    "rshift": Operator(">>", lambda a, b: np.right_shift(a, _counts(b)), "i"),
}
COMPARISONS: dict[str, Operator] = {
    "lt": Operator("<", np.less, "fhi", True),
    "le": Operator("<=", np.less_equal, "fhi", True),
    "gt": Operator(">", np.greater, "fhi", True),
    "ge": Operator(">=", np.greater_equal, "fhi", True),
    "eq": Operator("==", np.equal, "fhib", True),
    "ne": Operator("!=", np.not_equal, "fhib", True),
}
POWER = Operator("**", np.ones_like, "fhi")
"""``tile ** 0``; other powers are computed as products"""


def _in_float32(function: Callable, a: Any, b: Any) -> Any:
    """Apply a function of two operands; compute 16-bit operands in float32, because ml_dtypes
    rounds at each step."""
    return function(
        *(np.asarray(x, FLOAT32) if np.asarray(x).dtype in HALVES else x for x in (a, b))
    )


def _divisor(b: Any) -> Any:
    if np.asarray(b).dtype.kind == "i" and np.any(b == 0):
        raise SimulationError(
            "integer division by zero in an integer tile // or %: the result is undefined on the "
            "GPU"
        )
    return b


def _counts(b: Any) -> Any:
    if np.any((b < 0) | (b > 31)):
        raise SimulationError(
            "a shift count outside 0 … 31 for 32-bit integers: the result is undefined on the GPU"
        )
    return b


def _power(tile: Any, n: Any) -> Any:
    arith.exponent(n)
    return arith.raised(tile, n, operator.mul) if n else POWER(tile)


for _name, _meaning in {
    **UNARY,
    **BINARY,
    **COMPARISONS,
    "pow": _power,
    "pos": lambda tile: tile,
}.items():
    setattr(
        Tile, f"__{_name.rstrip('_')}__", lambda *operands, meaning=_meaning: meaning(*operands)
    )
for _name, _operator in BINARY.items():
    setattr(
        Tile,
        f"__r{_name.rstrip('_')}__",
        lambda self, other, meaning=_operator: meaning(other, self),
    )
Tile.__hash__ = None  # type: ignore[assignment]


# ---- choices -------------------------------------------------------------------------------------
def plan_where(values: Sequence, literals: int = 0) -> Plan | None:
    """Return how a selection is computed, in the type of its tiles or numbers. Return None if no
    operand is a tile and one has no value."""
    mask, *operands = every = operands_of("np.where", values, literals)
    tiles = [part for part in every if isinstance(part, Form)]
    forms = [part for part in operands if isinstance(part, Form)]
    if not tiles and first_inert(values) is not None:
        return None
    if (
        mask is not bool
        and mask is not NoValue
        and not (isinstance(mask, Form) and mask.dtype == BOOL)
    ) or any(part is None for part in every):
        raise SpecError(
            "np.where(mask, x, y) takes a mask, such as x < y, and two tiles or numbers, got "
            f"({', '.join(map(called, values))})"
        )
    of = (
        _one_type("np.where", "x and y", forms)
        if forms
        else arith.common(*(part for part in operands if part is not NoValue))
    )
    if forms and not packing(of).computed:
        raise SpecError(
            f"np.where of {of} tiles, which can only be converted, loaded and stored; fix: "
            "select before astype"
        )
    if not tiles:
        return Plan(of, Form((), of))
    if not forms and of not in (FLOAT32, INT32, BOOL):
        raise SpecError(
            f"np.where selects between tiles, or numbers of float32, int32 or bool, got {of} "
            "numbers"
        )
    if forms:
        _check_numbers("np.where", operands, of)
    shape, layout = combined("np.where", tiles)
    return Plan(of, Form(shape, of, layout), _inert(values))


@op(numpy=np.where)
def where(mask: Any, x: Any, y: Any, literals: int = 0) -> Any:
    """Return x where the mask is true, else y: ``np.where(mask, x, y)``. All three may be tiles or
    numbers."""
    plan = plan_where((mask, x, y))
    if plan is None:
        return first_inert((mask, x, y))
    return computed(
        "np.where",
        plan,
        (x, y),
        lambda x, y: np.where(
            in_place(plan.result, [mask])[0].value if isinstance(mask, Tile) else bool(mask), x, y
        ),
    )


# ---- tiles of numbers ----------------------------------------------------------------------------
def full_form(shape: Any, value: Any, dtype: Any) -> Form:
    number = operands_of("full", (value,))
    if number[0] is None or isinstance(number[0], Form):
        raise SpecError("full(shape, value, dtype): value must be a number")
    form = check_form(constant("full", "shape", shape), dtype_of(dtype), "full")
    if not packing(form.dtype).computed:
        raise SpecError(
            f"full: a tile of {form.dtype} cannot be created directly; fix: create one of float32 "
            "or int32, and convert it with astype"
        )
    if form.dtype not in HALVES:  # a 16-bit `dtype` states explicitly that the number is rounded
        _check_numbers("full", number, form.dtype)
    return form


@op
def full(shape: Any, value: Any, dtype: Any) -> Tile:
    """Create a tile with all elements equal to `value`, a number known at compile time or at run
    time.

    shape   (M, N), (M, 1), (1, N), or (n,) for a vector
    dtype   float32, float16, bfloat16, an integer type of tiles, or bool; the number is rounded to
            it

    Raises SpecError for other shapes and types.
    """
    form = full_form(shape, value, dtype)
    if isinstance(value, NoValue) or not current().role.computes:
        return Tile(None, form)
    return Tile(np.full(form.shape, _in_type(value, form.dtype), form.dtype), form)


def check_axis(form: Form, axis: Any, what: str, kind: str = "a compile-time int") -> int:
    """Return the dimension that `axis` names. Raises SpecError for one that the tile does not
    have."""
    rank = len(form.shape)
    if not is_int(axis) or not -rank <= axis < rank:
        raise SpecError(
            f"{what}: axis must be {kind} from {-rank} to {rank - 1} for shape {form.shape}, got "
            f"{axis!r}"
        )
    return int(axis) % rank


@op
def iota(shape: Any, axis: int = 0) -> Tile:
    """Create an int32 tile in which each element is its index along `axis`: ``iota(128)`` is the
    vector 0 … 127. Given a tile in place of a shape, the result has its shape and layout.

    Use it to make masks: ``np.where(iota(128) + k < n, s, -np.inf)``. Raises SpecError for
    unsupported shapes.
    """
    form, along = iota_form(shape, axis)
    if not current().role.computes:
        return Tile(None, form)
    index = np.arange(form.shape[along], dtype=np.int32).reshape(
        [-1 if i == along else 1 for i in range(len(form.shape))]
    )
    return Tile(np.broadcast_to(index, form.shape).copy(), form)


@op
def positions(tile: Any, size: Any) -> Any:
    """Return a tile of consecutive int32 numbers, (M, 1) or (1, N), as positions in an array of
    `size` elements. The compiler then knows that a lane's elements differ by constants.

    The constants are part of the type (`TileType.steps`), also of sums and differences with numbers
    and other positions. The GPU converts a lane's first element to float32 and adds the constants,
    instead of converting each element. In ``key - query``, about half of a lane's elements are
    equal to others, and what is computed from them is computed once. Conversions are exact if a
    lane's elements are at most 2**24; otherwise they differ from the rounded number by at most 1
    unit in the last place.

    Positions from `size` on must not affect results: what is computed from them may be NaN. On the
    simulated SM, which reports indices outside arrays, they are replaced by the last position. The
    GPU keeps them, and loads zeros there.
    """
    return where(tile < size, tile, size - 1)


def iota_form(shape: Any, axis: Any) -> tuple[Form, int]:
    """Return (the form of the tile that `iota` returns, the dimension that `axis` names)."""
    like = form_of(shape, "iota")
    form = (
        replace(like, dtype=INT32)
        if like
        else check_form(constant("iota", "shape", shape), INT32, "iota")
    )
    return form, check_axis(form, constant("iota", "axis", axis), "iota")
