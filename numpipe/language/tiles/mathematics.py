"""Elementwise functions of tiles and numbers: NumPy's, such as ``np.maximum``, ``np.floor`` and
``np.exp``, and a few more.

================================  ==================================================================
function                          result
================================  ==================================================================
``np.maximum``, ``np.minimum``    all numbers: NaN if one of the two is NaN; tiles also support
                                  ``max(…)``, ``min(…)``
``np.clip(x, low, high)``         floats, integers: ``np.minimum(np.maximum(x, low), high)``; a
                                  bound may be a tile, or None
``np.floor``, ``np.ceil``,        floats, integers: a whole number, of the operand's type; integers
``np.round``                      are unchanged
``np.sign``                       floats, integers: -1, 0 or 1, of the operand's type; NaN for NaN,
                                  and 0 for -0
``np.square``                     floats, integers: ``x * x``
``np.isnan``, ``np.isinf``,       floats, integers: a mask, for a number a bool; integers are finite
``np.isfinite``
`mulhi`                           int32, uint32 tiles: the high 32 bits of the product
``np.exp`` … `fma`                floats: see below
================================  ==================================================================

Tiles may be float32, float16, bfloat16 and integers; numbers may be float32 and int32. All but the
last row give the same bits as NumPy. Each kernel selects exact or approximate functions with a link
symbol (`core.approximate_cuda`).

=====================================  ==================  =========================================
function                               error, ulp          with ``CompilerParams(approx_math=True)``
=====================================  ==================  =========================================
``np.exp``                             2                   ``ex2.approx.ftz`` of x log2(e): 2 + 1.2
                                                           |x|; exp2: 2
``np.log``, ``np.log2``                1                   ``lg2.approx.ftz``: 2^-21 absolute from
                                                           0.5 to 2, else 2 ulp + 1
``np.sqrt``                            0 (rounded)         ``sqrt.approx.ftz``: 1
``np.tanh``                            2                   ``tanh.approx``: relative 2^-11
``np.sin``, ``np.cos``                 2                   ``sin.approx.ftz``, ``cos.approx.ftz``:
                                                           absolute 2^-21 within pi
``np.tan``                             4                   the quotient of both
`rsqrt`                                2                   ``rsqrt.approx.ftz``: 2
`sigmoid`                              4                   ``tanh.approx`` of x / 2: absolute 2^-11
`fma`                                  0 (rounded once)    the same
=====================================  ==================  =========================================

Errors are relative to the exact result, from the CUDA C++ Programming Guide, "Mathematical
Functions", and the PTX ISA. The errors of sine, cosine and tangent were measured over all of
float32 (1.5 and 3.1; `trigonometry_cuda`). ``.ftz``: subnormal operands and results are flushed to
zero. The simulator rounds the float64 result. For a 16-bit tile, a function is computed in float32
and rounded; `fma` does not support 16-bit tiles, because it would round twice.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...arch.dtypes import BFLOAT16, FLOAT32, INT32
from ...core import arith
from ...core.inert import first_inert
from ...core.op import Op, called, op
from ...diagnostics.errors import SpecError
from .elementwise import Operator, Plan, computed, operands_of
from .layouts import Form
from .tile import Tile, TileLike

__all__ = ["fma", "mulhi", "rsqrt", "sigmoid"]


@dataclass(frozen=True)
class Function(Operator):
    """A function of tiles and numbers.

    numbers  the types that it supports if no operand is a tile; () for all
    words    whether it refuses tiles of 8-bit integers
    """

    numbers: tuple[np.dtype, ...] = (FLOAT32, INT32)
    words: bool = False

    def __call__(self, *values: Any) -> Any:
        plan = self.plan(values)
        return (
            first_inert(values)
            if plan is None
            else computed(self.symbol, plan, values, self.meaning)
        )

    def plan(self, values: Sequence, literals: int = 0) -> Plan | None:
        """Return the plan of the function for values or types. Numbers alone are computed in the
        type that `arith.common` gives.

        Return None if a number has no value and no operand is a tile. Raises SpecError for an
        operand that is neither a tile nor a number.
        """
        plan = super().plan(values, literals)
        tiles = any(isinstance(part, TileLike) for part in values)
        if plan is not None and self.words and plan.computed.itemsize < 4:
            raise SpecError(
                f"{self.symbol}(…) takes tiles of int32 or uint32, got {plan.computed}: use "
                ".astype(np.int32) first"
            )
        if plan is not None or (not tiles and first_inert(values) is not None):
            return plan
        kinds = operands_of(self.symbol, values, literals)
        wrong = f"{self.symbol}(…) takes register tiles and numbers, got "
        if tiles or any(kind is None for kind in kinds):
            raise SpecError(wrong + " and ".join(map(called, values)))
        dtype = arith.common(*kinds)
        if self.numbers and dtype not in self.numbers:
            raise SpecError(f"{wrong}{dtype}; fix: convert it with float(x)")
        return Plan(dtype, Form((), np.dtype(bool) if self.compares else dtype))


FUNCTIONS: dict[Op, Function] = {}


def elementwise_function(
    name: str,
    meaning: Callable,
    doc: str = "",
    operands: Sequence[str] = "x",
    numpy: Any = (),
    **of: Any,
) -> Op:
    """Make the operation for a function with these operands. If its name begins with ``np.``, it
    replaces that NumPy function; `numpy` lists further NumPy functions that it replaces."""
    known, plain = Function(name, meaning, **{"takes": "fhi", **of}), name.removeprefix("np.")

    def operation(*values: Any) -> Any:
        return known(*values[: len(operands)])

    parameters = [
        inspect.Parameter(operand, inspect.Parameter.POSITIONAL_OR_KEYWORD) for operand in operands
    ]
    operation.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            *parameters,
            inspect.Parameter("literals", inspect.Parameter.POSITIONAL_OR_KEYWORD, default=0),
        ]
    )
    found = arith.named(
        operation,
        plain,
        doc or f"``{name}({', '.join(operands)})`` of tiles and numbers.",
        numpy or (() if plain == name else getattr(np, plain)),
    )
    FUNCTIONS[found] = known
    return found


def _as_numpy(function: Callable) -> Callable:
    """Return NumPy's function, computed through float32 for bfloat16: ml_dtypes differs in some
    functions (its sign of -0 is -0)."""
    return lambda *values: function(
        *(np.asarray(v, FLOAT32) if np.asarray(v).dtype == BFLOAT16 else v for v in values)
    )


maximum, minimum = (
    elementwise_function(f"np.{function.__name__}", function, operands="ab", numbers=())
    for function in (np.maximum, np.minimum)
)
floor, ceil, trunc, sign, square = (
    elementwise_function(f"np.{function.__name__}", _as_numpy(function))
    for function in (np.floor, np.ceil, np.trunc, np.sign, np.square)
)
nearest = elementwise_function("np.round", _as_numpy(np.rint), numpy=(np.round, np.around, np.rint))
isnan, isinf, isfinite = (
    elementwise_function(f"np.{function.__name__}", _as_numpy(function), compares=True)
    for function in (np.isnan, np.isinf, np.isfinite)
)


def _bits(x: Any) -> Any:
    # as the GPU's arithmetic returns NaN; NumPy's keeps its sign and payload
    return np.where(np.isnan(x), x.dtype.type(np.nan), x).view(f"u{x.itemsize}")


differ = elementwise_function(
    "differ",
    lambda a, b: _bits(a) != _bits(b),
    "Return a mask: whether the bits of two tiles of floats differ. NaN must be a result of "
    "arithmetic: on the GPU, all such NaN have the same bits.",
    "ab",
    takes="fh",
    compares=True,
)


mulhi = elementwise_function(
    "mulhi",
    # a * b >> 32 of int64 arrays that hold 32-bit integers, without overflow
    lambda a, b: a * (b >> 16) + (a * (b & 0xFFFF) >> 16) >> 16,
    """Return the high 32 bits of the 64-bit products of int32 or uint32 tiles (PTX ISA, "mul").

One operand may be a number. Raises SpecError for other types.
""",
    "ab",
    takes="i",
    numbers=(INT32,),
    words=True,
)

mullo = elementwise_function(
    "mullo",
    lambda a, b: a * (b >> 16 << 16) + a * (b & 0xFFFF),
    """Return the low 32 bits of the products whose high 32 bits `mulhi` returns, by the same
    instruction.""",
    "ab",
    takes="i",
    numbers=(INT32,),
    words=True,
)

for _name, _meaning in {"least": minimum, "greatest": maximum}.items():
    setattr(Tile, f"_{_name}", staticmethod(_meaning))
Tile.__round__ = lambda self: nearest(self)  # type: ignore[attr-defined]


def clipped_by(operands: Sequence) -> list[int]:
    """Return which operands of a clip are not None: 0 and at least one bound. Raises SpecError if
    both bounds are None."""
    present = [number for number, operand in enumerate(operands) if operand is not None]
    if present == [0]:
        raise SpecError("np.clip(x, low, high): one of the two bounds may be None, not both")
    return present


@op(numpy=np.clip)
def clip(a: Any, a_min: Any, a_max: Any, literals: int = 0) -> Any:
    """Implement ``np.clip(a, a_min, a_max)`` for tiles and numbers."""
    every = a, a_min, a_max
    present = clipped_by(every)

    def clipped(x: Any, *limits: Any) -> Any:
        for number, limit in zip(present[1:], limits, strict=True):
            x = (np.maximum if number == 1 else np.minimum)(x, limit)
        return x

    return replace(CLIP, meaning=_as_numpy(clipped))(*(every[number] for number in present))


CLIP = Function("np.clip", clip, "fhi")


def _rounded(
    name: str, function: Callable, doc: str = "", operands: str = "x", takes: str = "fh"
) -> Op:
    """Make the operation for a function of floats that is computed in float64 and rounded."""

    def rounded(*values: Any) -> Any:
        return np.asarray(function(*(np.asarray(value, np.float64) for value in values))).astype(
            np.float32
        )[()]

    return elementwise_function(name, rounded, doc, operands, takes=takes, numbers=(FLOAT32,))


exp, exp2, log, log2, sqrt, tanh, sin, cos, tan = (
    _rounded(f"np.{function.__name__}", function)
    for function in (np.exp, np.exp2, np.log, np.log2, np.sqrt, np.tanh, np.sin, np.cos, np.tan)
)
rsqrt = _rounded(
    "rsqrt",
    lambda x: 1 / np.sqrt(x),
    """Return 1 / sqrt(x) of a float32 tile or number, within 2 ulp (PTX ISA, "rsqrt").

>>> float(rsqrt(np.float32(4)))
0.5
""",
)


def _sigmoid(x: Any) -> Any:
    """Compute 1 / (1 + exp(-x)) with exp(-|x|), which is at most 1: exp(-x) overflows where the
    result is still finite."""
    power = np.exp(-np.abs(x))
    return np.where(x < 0, power, np.ones_like(x)) / (1 + power)


sigmoid = _rounded(
    "sigmoid",
    _sigmoid,
    """Return 1 / (1 + exp(-x)) of a float32 tile or number, within 4 ulp.

``x * numpipe.sigmoid(x)`` is SiLU. With ``approx_math`` it uses ``tanh.approx``, with an
absolute error of at most 2^-11 (PTX ISA, "tanh").

>>> float(sigmoid(np.float32(0)))
0.5
""",
)
# the product is exact in float64
fma = _rounded(
    "fma",
    lambda x, y, z: x * y + z,
    """Return ``x * y + z`` of float32 tiles and numbers, rounded once (PTX ISA, "fma").

With operators, the GPU may either fuse the two operations or round the product as well; `fma`
guarantees a single rounding.

>>> float(fma(np.float32(2), np.float32(3), np.float32(1)))
7.0
""",
    "xyz",
    takes="f",
)
