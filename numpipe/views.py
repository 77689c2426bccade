"""Views of arrays in global memory: ``a.at[ds(i, 64), ds(j, 64)]``, which copies read and write.

Along two dimensions a view has ``ds(start, size)``, along the others an integer; the two are its rows and columns. Starts are
run-time values and may lie outside the array.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .errors import SpecError
from .inert import Inert
from .refs import All, Ds, GmemRef, whole_slices


class GmemView:
    """A part of an array. `start` has a place for each of its dimensions, `sizes` are of the two along `axes`."""

    def __init__(self, ref: GmemRef, start: tuple[Any, ...], axes: tuple[int, int], sizes: tuple[int, int]) -> None:
        self.ref, self.start, self.axes, self.sizes = ref, start, axes, sizes

    @property
    def shape(self) -> tuple[int, int]:
        return self.sizes

    @property
    def dtype(self) -> np.dtype:
        return self.ref.dtype


class GmemAt:
    """Indexing with it gives a view."""

    def __init__(self, ref: GmemRef) -> None:
        self.ref = ref

    def __getitem__(self, index: Any) -> GmemView:
        parts = whole_slices(index)
        axes = view_axes(self.ref.name, self.ref.ndim, [_kind(part) for part in parts], parts)
        start = tuple(part.start if isinstance(part, Ds) else part for part in parts)
        return GmemView(self.ref, start, axes, (parts[axes[0]].size, parts[axes[1]].size))


def _kind(part: Any) -> str:
    if isinstance(part, (Ds, All)):
        return "ds" if isinstance(part, Ds) else ":"
    integer = isinstance(part, (int, np.integer)) and not isinstance(part, (bool, np.bool_))
    return "int" if integer or isinstance(part, Inert) else "other"


def view_axes(name: str, ndim: int, kinds: Sequence[str], got: object) -> tuple[int, int]:
    """The dimensions along which a view's rows and columns lie; `kinds` are those of the index's parts: "ds", ":", "int"."""
    if ":" in kinds:
        raise SpecError(f"{name}.at[…]: ':' has no compile-time size in an array; write ds(0, size)")
    axes = tuple(axis for axis, kind in enumerate(kinds) if kind == "ds")
    if ndim < 2:
        raise SpecError(f"{name}.at[…]: copies move tiles of 2 dimensions, and '{name}' has {ndim}: pass a view of it that has 2, "
                        "array.reshape(1, -1)")
    if len(kinds) != ndim or "other" in kinds or len(axes) != 2:
        others = "" if ndim == 2 else ", and by an integer along the others"
        raise SpecError(f"{name}.at[…]: an array of {ndim} dimensions is indexed by ds(start, size) along two of "
                        f"them{others}, got {got}")
    return axes[0], axes[1]
