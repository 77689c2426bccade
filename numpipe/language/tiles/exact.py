"""Functions of register tiles and numbers whose result is an element, or rounded once: ``np.floor``, ``np.clip`` and their like.

=============================  =================================================================================================
``np.floor``, ``np.ceil``      a whole number, of the operand's type; int32 as it is
``np.sign``                    -1, 0 or 1, of the operand's type; NaN of NaN, and 0 of -0
``np.square``                  ``x * x``; int32 too
``np.clip(x, low, high)``      ``np.minimum(np.maximum(x, low), high)``: NaN comes through; a bound may be a tile, or None
``np.isnan``                   a mask, of a number a bool; of int32 False
=============================  =================================================================================================

They are of float32, float16, bfloat16 and int32 tiles and of float32 and int32 numbers, and give NumPy's bits in both executions.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...arch.dtypes import BFLOAT16, FLOAT32, INT32
from ...core import arith
from ...core.op import Op, op
from ...diagnostics.errors import SpecError
from .elementwise import evaluated, not_computed


def check_number(name: str, dtype: np.dtype) -> None:
    """SpecError for numbers of other types than a kernel's own."""
    if dtype not in (FLOAT32, INT32):
        raise not_computed(name, f"{dtype}: convert it with float(x)")


def bounds(low: bool, high: bool) -> None:
    """SpecError for a clip that has neither."""
    if not low and not high:
        raise SpecError("np.clip(x, low, high): one of the two bounds may be None, not both")


def _computed(name: str, values: Sequence[Any], function: Callable[..., Any], compares: bool = False) -> Any:
    def wide(*values: Any) -> Any:  # ml_dtypes' functions are not all NumPy's: its sign of -0 is -0
        return function(*(np.asarray(value, FLOAT32) if np.asarray(value).dtype == BFLOAT16 else value for value in values))

    return evaluated(name, values, wide, takes="fhi", check=functools.partial(check_number, name), compares=compares)


def _function(name: str, function: Callable[[Any], Any], compares: bool = False) -> Op[..., Any]:
    def operation(x: Any, literals: int = 0) -> Any:
        return _computed(f"np.{name}", (x,), function, compares)

    return arith.named(operation, name, f"``np.{name}(x)`` of a tile or a number.", getattr(np, name))


FUNCTIONS = {name: _function(name, getattr(np, name), name == "isnan") for name in ("floor", "ceil", "sign", "square", "isnan")}


@op(numpy=np.clip)
def clip(a: Any, a_min: Any, a_max: Any, literals: int = 0) -> Any:
    """``np.clip(a, a_min, a_max)`` of a tile or a number."""
    bounds(a_min is not None, a_max is not None)

    def clipped(x: Any, *given: Any) -> Any:
        limits = list(given)
        x = x if a_min is None else np.maximum(x, limits.pop(0))
        return x if a_max is None else np.minimum(x, limits.pop(0))

    return _computed("np.clip", [a, *(bound for bound in (a_min, a_max) if bound is not None)], clipped)
