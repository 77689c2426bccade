"""``c[rows, columns]``: a block of an array in global memory as a register tile, loaded by the lanes that hold its elements.

====================================  =====================================================================================
index                                 value
====================================  =====================================================================================
``c[ds(i, 128), ds(j, 64)]``          a tile (128, 64)
``bias[ds(j, 64)]``                   a vector (64,): along the columns, or ``[:, None]`` along the rows, of a tile
``scale[k]``                          a number
====================================  =====================================================================================

An array of more dimensions has integers along the others: ``c[b, ds(i, 128), ds(j, 64)]``, ``bias[layer, ds(j, 64)]``. The rows and
columns of a tile lie in the order of the array's dimensions. Elements outside the array are 0, and are not touched.

What a tile is multiplied from comes through a pipeline. This is for what an epilogue reads once: a bias, a residual, ``beta * c``.
A lane has two columns of each row side by side, so a row comes in pieces of 4 or 8 bytes, each warp instruction in 8 pieces of 16
or 32 bytes; where the pieces would not be aligned (an odd first column, an array with rows of odd length) element by element.
In the memory role there is no value: loads of a pipeline do not depend on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ._machine import current, failure
from ._op import op
from .errors import SimulationError, SpecError
from .fragment.layouts import Form
from .fragment.tile import Tile, check_dtype, check_form
from .inert import Inert
from .refs import All, Ds, GmemRef


def block_axes(name: str, ndim: int, along: Sequence[bool | None], got: object) -> tuple[int, ...]:
    """The dimensions of an array that a block has; `along` says of each part of the index what `store.tile_axes` is told."""
    axes = tuple(axis for axis, slice_ in enumerate(along) if slice_)
    if len(along) != ndim or None in along or len(axes) > 2:
        raise SpecError(f"array '{name}' has {ndim} dimension{'s' * (ndim != 1)}: {name}[…] is a block of one or two of them, "
                        f"ds(start, size), with an integer along the others, got {got}")
    return axes


def block_form(name: str, dtype: np.dtype, sizes: Sequence[int | None]) -> Form | None:
    """What a block of these sizes is as a register tile; None for a single element."""
    if None in sizes:
        raise SpecError(f"{name}[…]: ':' has no compile-time size here; use ds(start, size)")
    check_dtype(dtype, f"{name}[…]")
    return check_form(tuple(sizes), dtype, f"{name}[…]") if sizes else None


def element(name: str) -> str:
    """What a single element is called in the memory role."""
    return f"an element of array '{name}'"


def _is_slice(part: Any) -> bool | None:
    if isinstance(part, (Ds, All)):
        return True
    integer = isinstance(part, (int, np.integer)) and not isinstance(part, (bool, np.bool_))
    return False if integer or isinstance(part, Inert) else None


@op
def load(ref: GmemRef, parts: tuple[Any, ...]) -> Any:
    """The block ``ref[parts]`` as a register tile, or a single element as a number."""
    array = ref.array
    axes = block_axes(ref.name, array.ndim, [_is_slice(part) for part in parts], parts)
    form = block_form(ref.name, ref.dtype, [None if isinstance(parts[axis], All) else parts[axis].size for axis in axes])
    machine = current()
    if machine.role == "memory":
        return Inert(element(ref.name)) if form is None else Tile(None, form.shape, form.dtype, form.layout)
    start = [int(part.start if isinstance(part, Ds) else part) for part in parts]
    for axis, (place, size) in enumerate(zip(start, array.shape, strict=True)):
        if axis not in axes and not 0 <= place < size:
            raise failure(
                SimulationError, "out-of-bounds", f"'{ref.name}[…]': index {place} along dimension {axis} is outside the array's "
                f"{size}; the GPU reads 0 there", f"an index in 0…{size - 1}", f"loads from '{ref.name}'")
    inside = tuple(slice(max(0, place), max(0, min(place + (form.shape[axes.index(axis)] if form and axis in axes else 1), size)))
                   for axis, (place, size) in enumerate(zip(start, array.shape, strict=True)))
    some = all(part.start < part.stop for part in inside)
    found = machine.gmem_read(array, inside, ref.name) if some else np.zeros([0] * array.ndim, array.dtype)
    if form is None:
        return found.reshape(-1)[0]
    value = np.zeros(form.shape, form.dtype)
    if some:
        where = tuple(slice(inside[axis].start - start[axis], inside[axis].stop - start[axis]) for axis in axes)
        value[where] = found.reshape(tuple(found.shape[axis] for axis in axes))
    return Tile(value, form.shape, form.dtype, form.layout)
