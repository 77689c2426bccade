"""``numpipe.index(i, mode="clip")``: how to treat an index that may be outside its array.

An index is a number, ``x[i, ds(0, 64)]``, or a vector of numbers, each of which selects an element,
a row or a column. An index outside the array is the hazard `out-of-bounds`. It is reported on the
simulated SM, and on the GPU in a kernel with ``CompilerParams(debug=True)``; otherwise the GPU
reads 0 there, and writes nothing. A mode declares that indices outside the array are intended.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...core.arith import is_integer
from ...core.inert import NoValue
from ...core.machine import failure
from ...core.op import called, constant, op
from ...diagnostics.errors import SimulationError, SpecError
from ...plan.specs import MODE
from .refs import GmemRef, Index
from .tile import Tile, TileLike

__all__ = ["index"]


@op
def index(value: Any, mode: str) -> Index:
    """Give an array index a mode that handles indices outside the array, inside a kernel:
    ``x[numpipe.index(i, "clip"), …]``.

    value  an integer, or a vector of int32: rows, columns or elements that are gathered or
           scattered
    mode   "zero": loads outside the array give 0, and stores there are dropped. "clip": use the
           nearest element of the array

    Use it in the index of a load, ``x[…]``, or of a store, ``y[…] = tile``. Without it, an index
    outside the array is the hazard `out-of-bounds`. Blocks of a pipeline have the same modes:
    ``BlockSpec(…, mode="clip")``.

    Raises SpecError for another mode, and for a value that is not an index.

    >>> index(7, "clip")
    index(7, 'clip')
    """
    return Index(value, checked(value, mode))


def checked(value: Any, mode: Any) -> str:
    """Return the validated mode of an index, given values or Numba types."""
    mode = constant("index(i, mode)", "mode", mode, MODE)
    if mode is None:
        raise SpecError(
            'index(i, mode): mode must be "zero" or "clip"; fix: for an index without a mode, '
            "write i alone"
        )
    if not isinstance(value, (NoValue, TileLike)) and not is_integer(value):
        raise SpecError(
            f"index(i, mode): i must be an integer or a vector of int32, got {called(value)}"
        )
    return str(mode)


def plain(parts: Sequence) -> tuple:
    """Return the parts of an array's index without their modes."""
    return tuple(part.value if isinstance(part, Index) else part for part in parts)


def settled(ref: GmemRef, given: Sequence, parts: Sequence) -> tuple[tuple, bool]:
    """Return (the parts of an index with their modes applied, whether a number with mode "zero"
    lies outside).

    given, parts  the parts of the index, and the same parts without modes. Vectors with mode "zero"
                  are returned unchanged
    """
    found, absent = list(parts), False
    for axis, (part, whole) in enumerate(zip(parts, given, strict=True)):
        if not isinstance(whole, Index):
            continue
        size, vector = ref.array.shape[axis], isinstance(part, Tile)
        if whole.mode == "clip" and size:
            found[axis] = (
                Tile(np.clip(part.value, 0, size - 1), part.form)
                if vector
                else min(max(int(part), 0), size - 1)
            )
        elif not vector:
            absent = absent or not 0 <= int(part) < size
    return tuple(found), absent


def check_gathered(ref: GmemRef, given: Sequence) -> None:
    """Raise SimulationError if a vector of indices without a mode has one outside the array.
    `check_inside` checks the other indices."""
    for axis, part in enumerate(given):
        size = ref.array.shape[axis]
        if isinstance(part, Tile) and (outside := (part.value < 0) | (part.value >= size)).any():
            fix = (
                f'indices in 0…{size - 1}, or numpipe.index(v, mode="zero") or mode="clip" where '
                "it is meant"
            )
            raise failure(
                SimulationError,
                "out-of-bounds",
                f"'{ref.name}[…]': index {int(part.value[outside][0])} along dimension "
                f"{axis} is outside the array's {size}; the GPU reads 0 there: {fix}",
                fix,
                f"loads from '{ref.name}'",
            )
