"""Stores to arrays whose rows TMA cannot address: each warp moves its rows through shared memory
and writes them to the array in whole rows.

If the lanes stored an accumulator's elements directly, an instruction of a warp would write 16
bytes of each of 8 rows. Instead, each warp stores its 16 rows of a panel (64 rows, at most 128
bytes wide, as in `store_ring`) to shared memory, and loads them row by row, so that one instruction
writes adjacent elements:

======================================================================  ============================
array                                                                   one instruction writes, in a
                                                                        row of 128 bytes
======================================================================  ============================
32 bits                                                                 32 elements
16 bits; all rows start at a multiple of 4 bytes, and the row size and  64 elements, two per lane
the tile's first column are even
16 bits otherwise                                                       32 elements
======================================================================  ============================

A warp loads only what it stored itself, in 2 KB of its own, so its lanes synchronize with
bar.warp.sync only. A barrier of the warpgroup precedes each tile, because warps use the same bytes
to exchange values (`exchange`). For column-major arrays of 16 bits, columns are written in the same
way: a panel is transposed (stmatrix.trans), and each column has elements from all warps, so there
is a barrier of the warpgroup before and after a panel is stored.

The lanes write their own elements directly to column-major arrays of 32 bits and arrays of 8 bits,
in reductions and scatters, and in a kernel whose shared memory has no room for an 8 KB panel per
compute warpgroup.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...arch.dimensions import Ints
from ...core.machine import current
from ...plan.layout import swizzled
from ...plan.plans import ArrayArg
from .exchange import room
from .fence_order import meet
from .layouts import ACCUMULATOR, BLOCK, Form
from .shared_tiles import read, write
from .store_ring import panel_layout, panels_of
from .tile import Tile

WARP_BYTES = 2048
"""bytes of a panel that belong to a warp: 16 rows of at most 128 bytes"""


def through_panel(array: ArrayArg, axes: Ints, form: Form) -> bool:
    """Return whether a tile that lies along `axes` of this array is stored in whole rows or columns
    through a panel."""
    if form.layout != ACCUMULATOR or (array.tma and array.tma_store):
        return False
    if array.order == "col":
        return axes[0] == 0 and form.dtype.itemsize == 2
    return axes[-1] == array.ndim - 1 and form.dtype.itemsize in (2, 4)


def apart(width: int) -> int:
    """Return the gap in bytes between the rows of adjacent warps in a panel that is `width` bytes
    wide.

    >>> apart(128), apart(32)
    (0, 1536)
    """
    return WARP_BYTES - 16 * width


def store_rows(ref: Any, axes: Ints, start: Ints, tile: Tile, last: Ints) -> None:
    """Store a tile from `start` on, panel by panel; `last` is the end of each dimension of the
    array."""
    dtype, what = tile.form.dtype, f"'{ref.name}[…] = tile'"
    inner, base = int(ref.arg.order == "row"), room(ref.unit)
    for number, (row, column, columns) in enumerate(
        panels_of(tile.form.shape, dtype.itemsize, inner)
    ):
        layout = panel_layout(columns, dtype.itemsize, inner)
        value = tile.value[row : row + BLOCK, column : column + columns]
        if not number or not inner:
            # wait until the previous contents of these bytes have been read
            meet()
        if inner:
            address = base + apart(layout.width) * np.arange(4)[:, None]
            write(layout, address, value, what)
            value = read(layout, address, dtype, what)
        else:
            write(layout, base, value, what)
            # each warp loads what all four warps have stored
            meet()
            value = _read_columns(columns, base, dtype, what)
        at = list(start)
        at[axes[0]], at[axes[1]] = at[axes[0]] + row, at[axes[1]] + column
        write_inside(ref, axes, at, value, last)


def _read_columns(columns: int, base: int, dtype: np.dtype, what: str) -> np.ndarray:
    """Return a transposed panel: each warp loads every fourth column, 128 bytes."""
    chunks = (
        swizzled(np.arange(0, 128 * columns, 16).reshape(-1, 4, 8), 128)
        .transpose(1, 0, 2)
        .reshape(4, -1)
    )
    found = current().smem_read(base + chunks, what).reshape(4, -1, 128)
    return np.ascontiguousarray(found.transpose(1, 0, 2)).reshape(columns, 128).view(dtype).T


def write_inside(
    ref: Any,
    axes: Ints,
    start: Any,
    value: np.ndarray,
    last: Ints,
    reduction: str = "",
) -> None:
    """Write the elements of a tile, along `axes` of the array, that are inside it and lie before
    `last`."""
    parts = tuple(
        slice(max(0, -start[axis]), min(size, last[axis] - start[axis]))
        for size, axis in zip(value.shape, axes, strict=True)
    )
    if all(part.start < part.stop for part in parts):
        where: list = list(start)
        for axis, part in zip(axes, parts, strict=True):
            where[axis] = slice(start[axis] + part.start, start[axis] + part.stop)
        current().gmem_write(ref.array, tuple(where), value[parts], ref.name, reduction)
