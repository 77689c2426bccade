"""Views of arrays in global memory: ``a.at[ds(i, 64), ds(j, 64)]``, which copies read and write, and atomics change.

Along one or two dimensions a view has ``ds(start, size)``, along the others an integer; two are its rows and columns. Starts are
run-time values and may lie outside the array.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...core.arith import is_integer
from ...core.inert import NoValue
from ...core.machine import failure
from ...diagnostics.errors import SimulationError, SpecError
from .refs import All, Ds, GmemRef, method_of, whole_slices


class GmemView:
    """A part of an array. `start` has a place for each of its dimensions, `shape` is that of those along `axes`.

    Its Numba type is a subclass, as those of references are.
    """

    operand = "view"

    def __init__(self, ref: GmemRef, start: tuple[Any, ...], axes: tuple[int, ...], shape: tuple[int, ...]) -> None:
        self.ref, self.start, self.axes, self.shape, self.dtype = ref, start, axes, shape, ref.dtype


class GmemAt:
    """Indexing with it gives a view: ``array.at[rows, columns]``."""

    def __init__(self, ref: GmemRef) -> None:
        self.ref = ref

    def __getitem__(self, index: Any) -> GmemView:
        parts = whole_slices(index)
        axes = view_axes(self.ref, parts)
        start = tuple(part.start if isinstance(part, Ds) else part for part in parts)
        return GmemView(self.ref, start, axes, tuple(parts[axis].size for axis in axes))


method_of(GmemRef, "at")(property(GmemAt))


def view_axes(ref: Any, parts: Sequence[Any]) -> tuple[int, ...]:
    """The dimensions that a view of an array has."""
    if any(isinstance(part, All) for part in parts):
        raise SpecError(f"{ref.arg.name}.at[…]: ':' has no compile-time size in an array; write ds(0, size)")
    return block_axes(ref, parts, f"{ref.arg.name}.at", least=1)


def check_inside(ref: GmemRef, parts: Sequence[Any], axes: tuple[int, ...], what: str, below: str, beyond: str, does: str) -> None:
    """SimulationError for an integer in an index that is outside its dimension; what the GPU does there `below` 0 and `beyond`."""
    for axis, (part, size) in enumerate(zip(parts, ref.array.shape, strict=True)):
        if axis not in axes and not 0 <= int(part) < size:
            raise failure(SimulationError, "out-of-bounds", f"{what}: index {int(part)} along dimension {axis} is outside the "
                          f"array's {size}; {below if int(part) < 0 else beyond} there", f"an index in 0…{size - 1}",
                          f"{does} '{ref.name}'")


def block_axes(ref: Any, parts: Sequence[Any], what: str, least: int = 0, several: tuple[type, ...] = ()) -> tuple[int, ...]:
    """The dimensions of an array along which a block of it lies, of two at most: `parts` of an index, or their Numba types.

    ``ds(start, size)``, ':' and what is of a class in `several` select several elements, an integer one. SpecError for another
    number of parts, for something else, and for less than `least` dimensions or more than two.
    """
    name, ndim = ref.arg.name, ref.arg.ndim
    axes = tuple(axis for axis, part in enumerate(parts) if isinstance(part, (Ds, All, *several)))
    others = [part for axis, part in enumerate(parts) if axis not in axes]
    if len(parts) != ndim or not least <= len(axes) <= 2 or not all(isinstance(p, NoValue) or is_integer(p) for p in others):
        raise SpecError(f"array '{name}' has {ndim} dimension{'s' * (ndim != 1)}: {what}[…] is a block of one or two of them, "
                        f"ds(start, size), with an integer along the others, got {parts}")
    return axes
