"""Views of arrays in global memory: ``a.at[ds(i, 64), ds(j, 64)]``, which copies read and write, and atomics change.

Along one or two dimensions a view has ``ds(start, size)``, along the others an integer; two are its rows and columns. Starts are
run-time values and may lie outside the array.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from ...core.inert import Inert
from ...diagnostics.errors import SpecError
from ...plan.transforms import is_int
from .refs import All, At, Ds, GmemRef, method_of, whole_slices


class GmemView:
    """A part of an array. `start` has a place for each of its dimensions, `shape` is that of those along `axes`."""

    operand = "view"

    def __init__(self, ref: GmemRef, start: tuple[Any, ...], axes: tuple[int, ...], shape: tuple[int, ...]) -> None:
        self.ref, self.start, self.axes, self.shape, self.dtype = ref, start, axes, shape, ref.dtype


def _view(ref: GmemRef, index: Any) -> GmemView:
    """``array.at[rows, columns]``"""
    parts = whole_slices(index)
    axes = view_axes(ref.name, ref.ndim, [is_slice(part) for part in parts], parts, any(isinstance(part, All) for part in parts))
    start = tuple(part.start if isinstance(part, Ds) else part for part in parts)
    return GmemView(ref, start, axes, tuple(parts[axis].size for axis in axes))


method_of(GmemRef, "at")(property(lambda ref: At(functools.partial(_view, ref))))


def is_slice(part: Any) -> bool | None:
    """Whether a part of an index selects several elements; None for what is no part of one."""
    if isinstance(part, (Ds, All)):
        return True
    return False if is_int(part) or isinstance(part, Inert) else None


def view_axes(name: str, ndim: int, along: Sequence[bool | None], got: object, whole: bool) -> tuple[int, ...]:
    """The dimensions that a view has; `whole`: a part of the index is ':'."""
    if whole:
        raise SpecError(f"{name}.at[…]: ':' has no compile-time size in an array; write ds(0, size)")
    return block_axes(f"{name}.at", name, ndim, along, got, least=1)


def block_axes(what: str, name: str, ndim: int, along: Sequence[bool | None], got: object, least: int = 0) -> tuple[int, ...]:
    """The dimensions of an array along which a block of it lies, of two at most.

    `along` says of each part of the index whether it selects several elements: False for an integer, None for what may not be
    there. SpecError for another number of parts, and for less than `least` dimensions or more than two.
    """
    axes = tuple(axis for axis, several in enumerate(along) if several)
    if len(along) != ndim or None in along or not least <= len(axes) <= 2:
        raise SpecError(f"array '{name}' has {ndim} dimension{'s' * (ndim != 1)}: {what}[…] is a block of one or two of them, "
                        f"ds(start, size), with an integer along the others, got {got}")
    return axes
