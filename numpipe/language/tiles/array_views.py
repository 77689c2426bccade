"""Views of arrays in global memory: ``a.at[ds(i, 64), ds(j, 64)]``, used by copies and atomics.

A view has ``ds(start, size)`` along one or two dimensions, and integers along the others; two `ds`
are its rows and columns. A view with integers only is a single element, for atomics. Starts are
run-time values and may lie outside the array.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ...arch.dimensions import Ints
from ...core.arith import is_integer, is_read
from ...core.inert import NoValue
from ...core.machine import failure
from ...diagnostics.errors import SimulationError, SpecError
from .layouts import Form, needed
from .refs import All, At, Ds, GmemRef, bounded, method_of, unlimited, whole_slices
from .tile import TileLike


class GmemView:
    """A part of an array. `start` has one entry for each dimension of the array; `shape` has the
    sizes along `axes`. `placed`: whether this role knows the start.

    Its Numba type is a subclass, as for references.
    """

    operand = "view"

    def __init__(self, ref: GmemRef, start: tuple, axes: Ints, shape: Ints) -> None:
        self.ref, self.start, self.axes, self.shape, self.dtype = ref, start, axes, shape, ref.dtype
        self.placed = placed(start)


def _view(ref: GmemRef, index: Any) -> GmemView:
    parts = whole_slices(index)
    axes = block_axes(ref, parts, f"{ref.name}.at[…]")
    unlimited(parts, f"{ref.name}.at[…]")
    return GmemView(ref, starts(parts), axes, tuple(parts[axis].size for axis in axes))


method_of(GmemRef, "at")(property(lambda ref: At(functools.partial(_view, ref))))


def placed(parts: Sequence) -> bool:
    """Return whether the starts of an index's parts, given as values or Numba types, are known in
    this role."""
    return not any(
        isinstance(of, NoValue) or getattr(of, "inert", False)
        for part in parts
        for of in (part, getattr(part, "start", None))
    )


def check_placed(ref: Any, known: bool, what: str) -> None:
    """Raise SpecError if a role that stores tiles for another one does not know their place."""
    if ref.takes_over and not known:
        raise SpecError(
            f"{what}: the {ref.np.role} role issues this store, and has no tile data, but the "
            "place depends on tile data; fix: compute the place from integers, or leave out "
            f"CompilerParams({ref.np.role.option}=True)"
        )


def starts(parts: Sequence) -> tuple:
    """Return the start of each part of an index; an integer is its own start."""
    return tuple(part.start if isinstance(part, Ds) else part for part in parts)


def ends(ref: GmemRef, parts: Sequence) -> Ints:
    """Return the end of each dimension of an array for an index: the array's end, or the stop of a
    `ds` before it."""
    return tuple(
        max(0, min(size, int(part.stop))) if isinstance(part, Ds) and part.limited else size
        for part, size in zip(parts, ref.array.shape, strict=True)
    )


def along(vector: Form, tile: Form, axis: int) -> Ints:
    """Return the shape of a vector that lies along a dimension of a tile."""
    shape = [1] * len(tile.shape)
    shape[axis] = vector.shape[0]
    return tuple(shape)


def index_form(tile: Form, axis: int, vector: Form) -> Form:
    """Return the form that a vector of indices along a tile's dimension `axis` is moved to: its
    own, if lanes have the indices of their elements."""
    want = needed(along(vector, tile, axis), tile.shape, tile.layout)
    return vector if vector.single or vector.holds(want) else replace(vector, layout=want)


def check_inside(
    ref: GmemRef,
    parts: Sequence,
    axes: Ints,
    what: str,
    below: str,
    beyond: str,
    does: str,
) -> None:
    """Raise SimulationError for an integer index outside its dimension. `below` and `beyond` say
    what the GPU does with a negative index, and with one past the end."""
    for axis, (part, size) in enumerate(zip(parts, ref.array.shape, strict=True)):
        if axis not in axes and not 0 <= int(part) < size:
            raise failure(
                SimulationError,
                "out-of-bounds",
                f"{what}: index {int(part)} along dimension {axis} is outside the "
                f"array's {size}; {below if int(part) < 0 else beyond} there",
                f"an index in 0…{size - 1}",
                f"{does} '{ref.name}'",
            )


def check_read(
    ref: GmemRef, start: Sequence, axes: Sequence[int], shape: Sequence[int], what: str
) -> None:
    """Raise SimulationError for a block that starts at a number that was read from an array, and
    lies wholly outside: it is not the last one of a grid, but wrong data."""
    for axis, side in zip(axes, shape, strict=True):
        size = ref.array.shape[axis]
        if is_read(start[axis]) and size and not -side < start[axis] < size:
            fix = (
                f'a start in {1 - side}…{size - 1}, or ds(numpipe.index(start, mode="zero"), '
                f"{side}) where it is meant"
            )
            raise failure(
                SimulationError,
                "out-of-bounds",
                f"{what}: ds({start[axis]}, {side}) along dimension {axis} starts at a number that "
                f"was read from an array, and lies outside the array's {size}; the GPU reads zeros "
                f"there, and writes nothing: {fix}",
                fix,
                f"takes a block of '{ref.name}'",
            )


def check_parts(ref: GmemRef, parts: Sequence, what: str) -> None:
    """`check_read` of the parts of an index. The stop of a `ds` already says what lies outside."""
    axes = [n for n, part in enumerate(parts) if isinstance(part, Ds) and not part.limited]
    check_read(ref, starts(parts), axes, [parts[axis].size for axis in axes], what)


def block_axes(ref: Any, parts: Sequence, what: str, gathers: bool = False) -> Ints:
    """Return the dimensions of an array in which an index selects several elements.

    parts    the index's parts, or their Numba types: ``ds(start, size)``, an integer, and with
             `gathers` a vector of indices
    what     the index's name in messages

    Raises SpecError for another number of parts, for other parts, and for more than two dimensions.
    """
    name, ndim = ref.arg.name, ref.arg.ndim
    bounded(tuple(parts))
    if not gathers and any(isinstance(part, TileLike) for part in parts):
        instead = ", ".join(
            f"ds(start, {part.shape[0]})"
            if isinstance(part, TileLike)
            else f"ds(start, {part.size})"
            if isinstance(part, Ds)
            else "i"
            for part in parts
        )
        raise SpecError(
            f"{what}: a vector of indices is supported only in loads (gather) and stores "
            "(scatter); here an index has ds(start, size) and integers; fix: write "
            f"{what.replace('…', instead)}"
        )
    axes = tuple(axis for axis, part in enumerate(parts) if isinstance(part, (Ds, All, TileLike)))
    others = [part for axis, part in enumerate(parts) if axis not in axes]
    if (
        len(parts) != ndim
        or len(axes) > 2
        or not all(isinstance(p, NoValue) or is_integer(p) for p in others)
    ):
        raise SpecError(
            f"array '{name}' has {ndim} dimension{'s' * (ndim != 1)}: expected {what} with "
            "ds(start, size) along one or two of them and an integer along each of the others, "
            f"got {parts}"
        )
    if any(isinstance(part, All) for part in parts):
        raise SpecError(f"{what}: ':' has no compile-time size here; fix: write ds(start, size)")
    return axes
