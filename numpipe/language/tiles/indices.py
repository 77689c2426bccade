"""``numpipe.index(i, mode="clip")``: what it means that an index may lie outside its array.

An index is a number, ``x[i, ds(0, 64)]``, or a vector of them, of which each names an element, a
row or a column. One outside is the hazard `out-of-bounds` on the simulated SM, and on the GPU in a
kernel with ``CompilerParams(debug=True)``; without it the GPU reads 0 there, and writes nothing.
Where that is meant, or where the nearest element is, the index says so.
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
from ...plan.specs import check_mode
from .refs import GmemRef
from .tile import Tile, TileLike

__all__ = ["index"]


class Index:
    """An index with a mode, or the Numba type of one, whose `value` is a type."""

    def __init__(self, value: Any, mode: str) -> None:
        self.value, self.mode = value, mode

    def __repr__(self) -> str:
        return f"index({self.value!r}, {self.mode!r})"


@op
def index(value: Any, mode: str) -> Index:
    """Say what an index of an array means where the array has no such element, inside a kernel:
    ``x[numpipe.index(i, "clip"), …]``.

    value  an integer, or a vector of int32: rows, columns or elements that are gathered or
           scattered
    mode   "zero": what is loaded there is 0, and nothing is stored there. "clip": the nearest
           element that there is

    It stands in the index of a load, ``x[…]``, or of a store, ``y[…] = tile``. Without it an index
    outside is the hazard `out-of-bounds`. Blocks of a pipeline have the same modes: ``BlockSpec(…,
    mode="clip")``.

    Raises SpecError for another mode, and for a value that is no index.

    >>> index(7, "clip")
    index(7, 'clip')
    """
    return Index(value, checked(value, mode))


def checked(value: Any, mode: Any) -> str:
    """Return the mode of an index, given values or Numba types."""
    mode = constant("index(i, mode)", "mode", mode)
    if mode is None:
        raise SpecError(
            'index(i, mode): mode must be "zero" or "clip"; an index without a mode is the index '
            "alone"
        )
    check_mode("index(i, mode)", mode)
    if not isinstance(value, (NoValue, TileLike)) and not is_integer(value):
        raise SpecError(
            f"index(i, mode): i must be an integer or a vector of int32, got {called(value)}"
        )
    return str(mode)


def plain(parts: Sequence[Any]) -> tuple[Any, ...]:
    """Return the parts of an array's index without their modes."""
    return tuple(part.value if isinstance(part, Index) else part for part in parts)


def settled(
    ref: GmemRef, given: Sequence[Any], parts: Sequence[Any]
) -> tuple[tuple[Any, ...], bool]:
    """Return (an index's parts with their modes applied, whether a number among them lies outside
    with mode "zero").

    given, parts  those of the index, and these without modes. Vectors with mode "zero" stay as they
                  are
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


def check_gathered(ref: GmemRef, given: Sequence[Any]) -> None:
    """Raise SimulationError for a vector of indices without a mode that has one outside; others
    `check_inside` looks at."""
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
