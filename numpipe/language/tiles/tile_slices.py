"""Slices and reshapes of register tiles that move no data: ``x[:, 0:32]``, ``x[64:128, :]``, ``v[:,
None]``, ``reshape``.

Each lane keeps the elements that it has, so the start of a slice must be a multiple of the distance
at which the layout repeats, and so must its size, unless the slice ends where the tile does:

===================  ==============================  ===============================================
layout               along rows, in multiples of     along columns, in multiples of
===================  ==============================  ===============================================
accumulator (M, N)   64                              8
coalesced (M, N)     64                              the adjacent elements of a row's lanes, at most
                                                     128 bytes
(M, 1), a column     64                              –
(1, N), a row        –                               8
rows L (M, N)        R, if the part has the same R   2 L
===================  ==============================  ===============================================

Starts are compile-time constants, because instructions name their registers. A slice of a vector in
either layout stays in either layout if both support it; otherwise it lies along the columns.
Nothing is computed, and unused parts of a tile take no registers.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ...arch.dimensions import Ints, round_up
from ...core.op import constant, op
from ...diagnostics.errors import SpecError
from .conversions import moved
from .layout_names import COLUMN, EITHER, ROW
from .layouts import Form, deferred, expanded_form, layout_of
from .refs import All, Ds, Span, method_of, unlimited, whole_slices
from .tile import Tile, tile_form


def steps(form: Form) -> Ints:
    """Return of what a part's start and size are multiples, along each dimension."""
    if form.single:
        return (1,) * len(form.shape)
    units = {each.axis: each.step for each in form.record.registers if not each.count}
    return tuple(units.values()) if len(form.shape) == 1 else (units.get(0, 1), units.get(1, 1))


def _bounds(part: Any, size: int) -> tuple[Any, int]:
    """Return (start, size) of a slice of a dimension; the start is None if it is not known at
    compile time."""
    if isinstance(part, All):
        return 0, size
    if isinstance(part, Span):
        start, stop, _ = slice(part.start, part.stop).indices(size)
        return start, stop - start
    return None if isinstance(part.start, np.generic) else part.start, part.size


def part_form(form: Form, parts: Sequence) -> tuple[Form, tuple[slice, ...]]:
    """Return (form, slices) of the part of a tile that an index selects. Raises SpecError for a
    part that would need other lanes' elements.

    `parts` are the parts of the index, or their Numba types.
    """
    if any(not isinstance(part, (All, Ds, Span)) for part in parts):
        return expanded_form(form, tuple(parts)), ()
    unlimited(parts, "a part of a register tile")
    form = form.settled()
    if len(parts) != len(form.shape):
        raise SpecError(
            f"tile[…]: a tile {form.shape} is indexed by {len(form.shape)} "
            f"slice{'s' * (len(form.shape) > 1)}, got {len(parts)}; fix: write ':' for a whole "
            "dimension"
        )
    slices = []
    for axis, (part, size, step) in enumerate(zip(parts, form.shape, steps(form), strict=True)):
        start, count = _bounds(part, size)
        along = "" if len(form.shape) == 1 else (" of its rows", " of its columns")[axis]
        if start is None:
            raise SpecError(
                f"tile[…]: a part{along} starts at a run-time value, but instructions name "
                "registers at compile time; fix: use a constant, or store the tile to shared "
                "memory and load a part of that"
            )
        if start < 0 or count < 1 or start + count > size:
            raise SpecError(
                f"tile[…]: elements {start} … {start + count - 1}{along} are not in a tile "
                f"{form.shape}; fix: select elements in 0 … {size - 1}"
            )
        shape = *form.shape[:axis], count, *form.shape[axis + 1 :]
        if steps(replace(form, shape=shape))[axis] != step:
            step = size  # the part has a layout of its own
        # the last part may be smaller, but a single column would have another layout
        if start % step or (count % step and (start + count < size or count == 1 < size)):
            raise SpecError(
                f"tile[…]: elements {start} … {start + count - 1}{along}: the start and the size "
                f"of a part of a tile {form} must be multiples of {step}, because lanes keep "
                "their elements; fix: write "
                f"{start // step * step}:{min(round_up(start + count, step), size)}, or load a "
                "part of a tile in shared memory"
            )
        slices.append(slice(int(start), int(start + count)))
    shape, layout = tuple(part.stop - part.start for part in slices), form.layout
    if form.spread and shape[0] == 1:
        layout = form.name.along(ROW)
    return Form(shape, form.dtype, deferred(shape) if math.prod(shape) == 1 else layout), tuple(
        slices
    )


def elements_of(form: Form, result: Form, slices: Sequence[slice]) -> Ints:
    """Return which elements of a lane belong to a part of a tile, in the order of the part's
    registers.

    >>> wide, part = (Form((64, columns), np.dtype(np.float32)) for columns in (24, 8))
    >>> elements_of(wide, part, (slice(0, 64), slice(8, 16)))
    (4, 5, 6, 7)
    """
    number = {place: i for i, place in enumerate(form.places)}
    row, column = slices[0].start, slices[-1].start
    return tuple(
        number.get(
            (
                (row if form.spread else None) if r is None else r + row,
                None if c is None else c + column,
            ),
            -1,
        )
        for r, c in result.places
    )


@method_of(Tile, "__getitem__")
def _part(tile: Tile, index: Any) -> Tile:
    form, slices = part_form(tile.form, whole_slices(index))
    if tile.inert:
        return Tile(None, form)
    if not slices:
        return Tile(moved(tile, source_form(tile.form, form)).value.reshape(form.shape), form)
    return Tile(tile.value[slices], form)


# ---- other shapes
@op
def reshape(tile: Tile, *shape: Any) -> Tile:
    """Add or remove a dimension of size 1, ``tile.reshape(1, -1)``, without moving data."""
    form = reshaped_form(tile, shape)
    moved(tile, source_form(tile.form, form))
    return Tile(None if tile.inert else tile.value.reshape(form.shape), form)


def source_form(form: Form, result: Form) -> Form:
    """Return the form that a vector is moved to before it becomes `result`, of another shape."""
    return replace(form, layout=EITHER) if result.layout == EITHER != form.layout else form


def reshaped_form(tile: Any, shape: Sequence) -> Form:
    """Return the form of a tile in another shape. Raises SpecError if lanes would need other
    elements."""
    form = tile_form(tile, "reshape")
    wanted = [constant("reshape", "shape", size) for size in shape]
    wanted = list(wanted[0]) if len(wanted) == 1 and isinstance(wanted[0], tuple) else wanted
    size = int(np.prod(form.shape))
    try:
        found = tuple(
            int(n)
            for n in np.broadcast_to(np.int8(0), size)
            .reshape([operator.index(n) for n in wanted])
            .shape
        )
    except (TypeError, ValueError):
        raise SpecError(
            f"reshape: a tile {form.shape} has {size} elements, which do not fit {tuple(wanted)}"
        ) from None
    if found == form.shape:
        return form
    if form.name.word not in (ROW, COLUMN, EITHER) or found not in (
        (size,),
        (1, size),
        (size, 1),
    ):
        raise SpecError(
            f"reshape of a tile {form.shape} to {found}: other lanes would have its elements; "
            "only (n,), (1, n) and (n, 1) can be reshaped to each other; fix: go through shared "
            "memory, tile[...] = x, and load a part of it"
        )
    if len(form.shape) == 1:
        return expanded_form(form, (All(), None) if found[-1] == 1 else (None, All()))
    if len(found) == 2 and not form.single:
        raise SpecError(
            f"reshape of a tile {form.shape} to {found}: a row and a column are in different "
            f"lanes; fix: {_moved_to(found)}"
        )
    layout = form.settled().layout
    return Form(found, form.dtype, layout)


def _moved_to(shape: Ints) -> str:
    """Return the code that moves a row or a column x to the lanes of another shape."""
    return f'numpipe.layout_cast(x.reshape(-1), "{layout_of(shape)}").reshape{shape}'


@method_of(Tile, "reshape")
def _reshape(tile: Tile, *shape: Any) -> Tile:
    """Return the tile in another shape; see `reshape`."""
    return reshape(tile, *shape)


def check_turned(form: Form) -> None:
    """Raise SpecError for ``x.T`` of a two-dimensional tile, whose elements would move to other
    lanes. A vector is its own transpose."""
    if len(form.shape) == 1:
        return
    raise SpecError(
        f"x.T of a register tile {form.shape}: other lanes would have its elements; fix: "
        + (
            _moved_to(form.shape[::-1])
            if 1 in form.shape
            else "store it to shared memory, tile[...] = x, and load tile.T[...]"
        )
    )


def _turned(tile: Tile) -> Tile:
    check_turned(tile.form)
    return tile


method_of(Tile, "T")(property(_turned))
