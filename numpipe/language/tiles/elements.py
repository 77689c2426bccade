"""Stores and reductions of a number to a single element of an array in global memory: ``y[i] = x``,
``numpipe.atomic_add(y.at[i, j], x)``.

A number is the same in all lanes of a warpgroup: a constant, a loaded element, or a reduction of a
whole tile. One lane stores it, or reduces it into the array (``red.relaxed.gpu.global``). With more
than one compute warpgroup each of them does so, as with tiles.

=====================  =============================================================================
array                  numbers that it accepts
=====================  =============================================================================
float16 … float64      floats, integers and bools; rounded to the array's type, under NumPy's
                       "same_kind" rule
int8 … uint64          integers and bools; a number that does not fit in the type is an error on the
                       simulated SM, and wraps on the GPU
bool                   bools
=====================  =============================================================================

An index outside the array is an error on the simulated SM; on the GPU nothing is written.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...arch.dtypes import BFLOAT16, BOOL, FLOAT32
from ...core import arith
from ...core.inert import NoValue
from ...core.machine import current
from ...core.op import called
from ...diagnostics.errors import SimulationError, SpecError
from .array_views import check_inside
from .refs import GmemRef


def is_element(parts: Sequence) -> bool:
    """Return whether an index, given as values or Numba types, selects a single element."""
    return all(isinstance(part, NoValue) or arith.is_integer(part) for part in parts)


def is_number(value: Any) -> bool:
    """Return whether a value, or its Numba type, is a number, including numbers that the memory
    role does not have."""
    return isinstance(value, NoValue) or arith.kind(value) is not None


def check_number(what: str, name: str, dtype: np.dtype, value: Any) -> None:
    """Raise SpecError unless an array of this type accepts the number; `what` begins the
    message."""
    kind = arith.kind(value)
    if kind is None:
        return
    if dtype.itemsize == 1 and dtype.kind not in "iub":
        raise SpecError(
            f"{what}: '{name}' is {dtype}, which numbers in kernels cannot be; fix: store a tile, "
            f"numpipe.full(…).astype({name}.dtype)"
        )
    fraction = kind is float or (isinstance(kind, np.dtype) and kind.kind == "f")
    if dtype == BOOL and kind is not bool:
        raise SpecError(
            f"{what}: '{name}' is bool, but the value is {called(value)}; fix: write x != 0"
        )
    if fraction and dtype.kind in "iu":
        raise SpecError(
            f"{what}: '{name}' is {dtype}, but the value is {called(value)}; fix: convert it, "
            "int(x), or convert the tile before it is reduced, tile.astype(np.int32)"
        )


def as_element(what: str, dtype: np.dtype, value: Any) -> Any:
    """Return a number converted to an array's type. Raises SimulationError for an integer that does
    not fit."""
    if dtype.kind in "iu":
        if not arith.holds(dtype, int(value)):
            raise SimulationError(f"{what}: {int(value)} overflows {dtype}; the GPU wraps silently")
        return dtype.type(int(value))
    with np.errstate(all="ignore"):
        return np.asarray(value).astype(FLOAT32 if dtype == BFLOAT16 else dtype).astype(dtype)


def write_element(
    ref: GmemRef, index: Sequence, value: Any, what: str, reduction: str = ""
) -> None:
    """Store a number, or reduce it into the array, from one lane. In the memory role it does
    nothing."""
    machine = current()
    if not machine.role.computes:
        return
    check_inside(
        ref, tuple(index), (), what, "the GPU writes nothing", "the GPU writes nothing", "stores to"
    )
    found = as_element(what, ref.array.dtype, value)
    where = tuple(slice(int(i), int(i) + 1) for i in index)
    machine.gmem_write(
        ref.array, where, np.full((1,) * len(where), found, ref.array.dtype), ref.name, reduction
    )
