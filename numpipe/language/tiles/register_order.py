"""Accumulators in register order: ``numpipe.to_register_order(tile)``, and back.

An accumulator's lanes have pairs of adjacent elements of a row, so lanes that add float32 to an
array move 8 bytes at a time. Where only the kernels that write an array read it, the order of its
elements does not matter. In register order every lane has 16 adjacent bytes, and nothing is moved:
register r of a lane stays register r, but counts as another element::

    sums = to_register_order(acc)  # (64, 64) of float32 becomes (128, 32)
    numpipe.atomic_add(parts.at[ds(i * 128, 128), ds(0, 32)], sums)  # red.global.add.v4.f32

and in the kernel that reads the sums::

    found = numpipe.load_tile(parts.at[ds(i * 128, 128), ds(0, 32)])
    c[ds(0, 64), ds(0, 64)] = numpipe.from_register_order(found, (64, 64))

A tile in register order is coalesced, with rows of 128 bytes: element i of the 16 bytes that lane l
of warp w has in step s of block b is at row ``64 b + 16 w + 4 s + l / 8`` (see `layouts`).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ...arch.dimensions import Ints
from ...core.op import called, constant, op
from ...diagnostics.errors import SpecError
from .layouts import ACCUMULATOR, BLOCK, Form, coalesced_form, fits
from .scattered_shared import lane_elements
from .tile import Tile, form_of

__all__ = ["from_register_order", "to_register_order"]

TO, FROM = "to_register_order", "from_register_order"
LINE = 128
"""bytes of a row of a tile in register order"""


def ordered(shape: Ints, dtype: np.dtype, what: str) -> Form:
    """Return the form in register order of an accumulator; raise SpecError if it has none."""
    columns = LINE // dtype.itemsize
    if dtype.itemsize == 1 or not fits(shape) or math.prod(shape) % (BLOCK * columns):
        raise SpecError(
            f"{what}: expected an accumulator of 16-bit or 32-bit elements, with a multiple of "
            f"{BLOCK * LINE} bytes, got {dtype} {shape}; fix: a tile (64, 64)"
        )
    return coalesced_form(Form((math.prod(shape) // columns, columns), dtype), what)


def to_form(tile: Any) -> Form:
    """Return the form of `to_register_order`."""
    form = form_of(tile, f"'{TO}'")
    if form is None or form.layout != ACCUMULATOR:
        raise SpecError(
            f"{TO}(tile): tile must be a register tile in accumulator layout, got "
            f'{form or called(tile)}; fix: numpipe.layout_cast(tile, "{ACCUMULATOR}")'
        )
    return ordered(form.shape, form.dtype, TO)


def from_form(tile: Any, shape: Any) -> Form:
    """Return the form of `from_register_order`."""
    form, shape = form_of(tile, f"'{FROM}'"), constant(FROM, "shape", shape)
    if form is None or not form.name.vector:
        raise SpecError(
            f"{FROM}(tile, shape): tile must be a coalesced register tile, got "
            f"{form or called(tile)}; fix: numpipe.load_tile(array.at[…])"
        )
    found = Form(tuple(shape) if isinstance(shape, tuple) else (), form.dtype)
    whole = ordered(found.shape, found.dtype, FROM)
    if whole != form:
        raise SpecError(
            f"{FROM}: {found.shape} of {form.dtype} is {whole.shape} in register order, but the "
            f"tile is {form.shape}; fix: pass the shape that was given to {TO}"
        )
    return found


def renamed(tile: Tile, form: Form) -> Tile:
    """Return a tile of another form whose lanes have the same registers. Registers that only one of
    the tiles has are left out."""
    if tile.inert:
        return Tile(None, form)
    value = np.empty(form.shape, form.dtype)
    have, made = (np.array(lane_elements(each)) for each in (tile.form, form))
    count = min(have.shape[2], made.shape[2])
    both = np.concatenate((have[..., :count], made[..., :count]))
    sizes = np.reshape((*tile.shape, *form.shape), (4, 1, 1))
    row, column, *place = both[:, (both < sizes).all(axis=0)]
    value[tuple(place)] = tile.value[row, column]
    return Tile(value, form)


@op
def to_register_order(tile: Any) -> Tile:
    """Return an accumulator in register order, inside a kernel: each lane's registers count as 16
    adjacent bytes, so one instruction adds four float32 to an array. Nothing is moved.

    tile  a register tile in accumulator layout, of 16-bit or 32-bit elements, with a multiple of
          8192 bytes

    The result has rows of 128 bytes: a tile (64, 64) of float32 becomes (128, 32). Its order of
    elements is fixed; `from_register_order` is the inverse. Raises SpecError for other tiles.

    For example, a kernel adds parts of sums to an array that only a later kernel reads::

        numpipe.atomic_add(
            parts.at[ds(i * 128, 128), ds(0, 32)], numpipe.to_register_order(acc)
        )
    """
    return renamed(tile, to_form(tile))


@op
def from_register_order(tile: Any, shape: Ints) -> Tile:
    """Return the accumulator whose register order is given, inside a kernel: the inverse of
    `to_register_order`.

    tile   a coalesced register tile, as `load_tile` loads it, with rows of 128 bytes
    shape  the accumulator's (M, N), compile-time constants

    ::

        found = numpipe.load_tile(parts.at[ds(i * 128, 128), ds(0, 32)])
        c[ds(0, 64), ds(0, 64)] = numpipe.from_register_order(found, (64, 64))

    Raises SpecError for tiles in other layouts, and for other numbers of elements.
    """
    return renamed(tile, from_form(tile, shape))
