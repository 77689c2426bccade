"""Python's builtins on the numbers of kernels, on the GPU and simulated: ``min``, ``int``,
``range``, … with the types of `arith`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ..arch.dtypes import FLOAT32, INT32, INT64
from ..diagnostics.errors import SimulationError, SpecError
from .arith import (
    Kind,
    as_type,
    common,
    holds,
    keeps_read,
    kind,
    named,
    otherwise,
    spelled,
)
from .inert import Inert
from .op import Op, op


def range_type(*kinds: Kind) -> np.dtype:
    """Return the type of a range's numbers: int32, or int64 if a bound is wider."""
    dtype = common(INT32, *kinds)
    if dtype not in (INT32, INT64):
        raise SpecError(
            f"range expects integers that fit in int64, got {spelled(*kinds)}; fix: int(x), which "
            "truncates a float"
        )
    return dtype


def _extreme(name: str, builtin: Callable) -> Op:
    @keeps_read
    def operation(literals: int, *values: Any) -> Any:
        if len(values) == 1 and isinstance(values[0], tuple):
            values = values[0]
        kinds = [kind(v) for v in values]
        if any(k is None for k in kinds):
            # a tile operand works element by element
            own = next((getattr(v, f"_{name}") for v in values if hasattr(v, f"_{name}")), None)
            return functools.reduce(own, values) if own else otherwise(builtin, *values)
        dtype = common(*kinds)
        # of numbers that compare as false, such as NaN, the first one is returned
        return dtype.type(builtin([as_type(v, dtype) for v in values]))

    return named(
        operation,
        name,
        f"``{builtin.__name__}(…)`` of two or more numbers, or of a tuple; for tiles, element by "
        "element",
    )


least = _extreme("least", min)
greatest = _extreme("greatest", max)


@op
@keeps_read
def cast(value: Any, dtype: str) -> Any:
    """``int(x)``, ``float(x)``, ``bool(x)``, ``np.float16(x)`` …; floats are truncated to
    integers."""
    if isinstance(value, Inert):
        return value
    to = np.dtype(dtype)
    check_number(dtype, value)
    _kinds(dtype, value)
    if to.kind == "b":
        return bool(value)
    with np.errstate(all="ignore"):
        if to.kind == "f":
            return value.astype(to) if isinstance(value, np.generic) else to.type(value)
        if not np.isfinite(value) or not holds(to, int(value)):
            raise SimulationError(
                f"{value} does not fit {to}: the GPU would "
                + (
                    "wrap it silently"
                    if np.issubdtype(type(value), np.integer)
                    else "convert it to an undefined value"
                )
            )
        return to.type(int(value))


def check_number(dtype: str, value: Any) -> None:
    """Raise SpecError for a register tile, or its Numba type, in a conversion of a number."""
    form = getattr(value, "form", None)
    if form is not None and dtype != "bool":
        raise SpecError(
            f"{dtype}(…) converts a number, got a register tile {form.shape} of {form.dtype}: "
            f"write tile.astype(np.{dtype})"
        )


def not_a_number(what: str, actual: str) -> SpecError:
    """Return the error of `cast`, `rounded` and `counting` for an operand that is not a number."""
    return SpecError(f"{what}(…) takes a number, got {actual}")


def _kinds(what: str, *values: Any) -> list[Kind]:
    """Return the kinds of the operands of `what`. Raises SpecError for one that is not a number."""
    kinds = [kind(value) for value in values]
    if any(k is None for k in kinds):
        for value in values:
            if hasattr(value, "_steers"):  # a tile or an inert value raises its own error
                value._steers()
        raise not_a_number(what, " and ".join(type(v).__name__ for v in values))
    return kinds


@op
def rounded(value: Any) -> Any:
    """``round(x)``: the nearest integer as int32, with ties to even; for a tile,
    `mathematics.nearest`."""
    if hasattr(value, "__round__") and kind(value) is None:  # a tile
        return otherwise(round, value)
    dtype = common(*_kinds("round", value))
    return cast(np.rint(as_type(value, dtype)) if dtype.kind == "f" else value, "int32")


class Range:
    """A ``range(…)`` whose numbers are NumPy scalars."""

    def __init__(self, numbers: range, dtype: np.dtype) -> None:
        self.numbers, self.dtype = numbers, dtype

    def __iter__(self) -> Iterator:
        return map(self.dtype.type, self.numbers)

    def __len__(self) -> int:
        return len(self.numbers)


@op
def counting(*bounds: Any) -> Range:
    """``range(…)`` of int32 numbers, or int64 if a bound is int64."""
    dtype = range_type(*_kinds("range", *bounds))
    values = [as_type(b, dtype) for b in bounds]
    if len(values) == 3 and values[2] == 0:
        raise SimulationError(
            f"range({values[0]}, {values[1]}, 0): a step of zero is undefined on the GPU"
        )
    return Range(range(*values), dtype)


@op
def length(value: Any) -> Any:
    """``len(x)`` of a tuple, as int32."""
    return np.int32(len(value))


@op
def number(value: Any, literals: int = 0) -> Any:
    """Convert a constant to a run-time value: a Python int to int32, a float to float32, also in
    tuples; other values are unchanged."""
    if type(value) is tuple:
        return tuple([number(v) for v in value])
    return (
        as_type(value, FLOAT32)
        if type(value) is float
        else INT32.type(as_type(value, INT32))
        if type(value) is int
        else value
    )
