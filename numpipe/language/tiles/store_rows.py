"""Tiles to arrays whose rows TMA cannot write: through a panel in shared memory, from which the
warps write rows as they lie.

Where lanes store what they have of an accumulator, an instruction of a warp writes 16 bytes of each
of 8 rows. So each warp stores its 16 rows of a panel of 64 rows, at most 128 bytes wide
(`store_ring`), to shared memory, and loads them row by row. Then an instruction writes neighbours:

======================================================================  ============================
array                                                                   an instruction writes, of a
                                                                        row of 128 bytes
======================================================================  ============================
32 bits                                                                 32 elements
16 bits; all rows begin at a multiple of 4 bytes, their size, and the   64 elements, two a lane
column of the tile, are even
16 bits otherwise                                                       32 elements
======================================================================  ============================

A warp loads what it has stored itself, to 2 KB of its own, so no barrier stands between: its lanes
meet (bar.warp.sync). A barrier of the warpgroup comes before each tile, because through the same
bytes warps exchange values (`exchange`). To column-major arrays of 16 bits columns are written in
the same way: a panel lies turned (stmatrix.trans), each column has elements of all warps, and
barriers of the warpgroup stand around what is stored to a panel.

The lanes write what they have in column-major arrays of 32 bits, in those of 8 bits, in reductions
and scattered tiles, and in a kernel whose shared memory has no room left for a panel, 8 KB, of each
compute warpgroup.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...core.machine import current
from ...plan.layout import swizzled
from ...plan.plans import ArrayArg
from .exchange import room
from .layouts import ACCUMULATOR, BLOCK, Form
from .shared_tiles import read, write
from .store_ring import panel_layout, panels_of
from .tile import Tile

WARP_BYTES = 2048
"""of a panel that a warp has: 16 rows of at most 128 bytes"""


def through_panel(array: ArrayArg, axes: tuple[int, ...], form: Form) -> bool:
    """Return whether a tile that lies along `axes` of this array is stored by rows."""
    if form.layout != ACCUMULATOR or (array.tma and array.tma_store):
        return False
    if array.order == "col":
        return axes[0] == 0 and form.dtype.itemsize == 2
    return axes[-1] == array.ndim - 1 and form.dtype.itemsize in (2, 4)


def apart(width: int) -> int:
    """Return the bytes that the rows of a panel, `width` bytes wide, skip from a warp's to the next
    one's.

    >>> apart(128), apart(32)
    (0, 1536)
    """
    return WARP_BYTES - 16 * width


def store_rows(
    ref: Any, axes: tuple[int, ...], start: tuple[int, ...], tile: Tile, last: tuple[int, ...]
) -> None:
    """Store a tile from `start` on, panel by panel; `last`: where each dimension of the array
    ends."""
    machine, dtype, what = current(), tile.form.dtype, f"'{ref.name}[…] = tile'"
    inner, base = int(ref.arg.order == "row"), room(ref.unit)
    for number, (row, column, columns) in enumerate(
        panels_of(tile.form.shape, dtype.itemsize, inner)
    ):
        layout = panel_layout(columns, dtype.itemsize, inner)
        value = tile.value[row : row + BLOCK, column : column + columns]
        if not number or not inner:
            # what was stored to these bytes before has been read
            machine.bar_sync(1 + machine.warpgroup, 128)
        if inner:
            address = base + apart(layout.width) * np.arange(4)[:, None]
            write(layout, address, value, what)
            value = read(layout, address, dtype, what)
        else:
            write(layout, base, value, what)
            # each warp loads what all of them have stored
            machine.bar_sync(1 + machine.warpgroup, 128)
            value = _read_columns(columns, base, dtype, what)
        at = list(start)
        at[axes[0]], at[axes[1]] = at[axes[0]] + row, at[axes[1]] + column
        write_inside(ref, axes, at, value, last)


def _read_columns(columns: int, base: int, dtype: np.dtype, what: str) -> np.ndarray:
    """Return a panel that lies turned: each warp loads every fourth column, 128 bytes."""
    chunks = (
        swizzled(np.arange(0, 128 * columns, 16).reshape(-1, 4, 8), 128)
        .transpose(1, 0, 2)
        .reshape(4, -1)
    )
    found = current().smem_read(base + chunks, what).reshape(4, -1, 128)
    return np.ascontiguousarray(found.transpose(1, 0, 2)).reshape(columns, 128).view(dtype).T


def write_inside(
    ref: Any,
    axes: tuple[int, ...],
    start: Any,
    value: np.ndarray,
    last: tuple[int, ...],
    reduction: str = "",
) -> None:
    """Write elements of a tile, along `axes` of the array, that lie before `last`."""
    sizes = [
        min(size, last[axis] - start[axis]) for size, axis in zip(value.shape, axes, strict=True)
    ]
    if min(sizes) > 0:
        where: list[Any] = list(start)
        for axis, size in zip(axes, sizes, strict=True):
            where[axis] = slice(start[axis], start[axis] + size)
        current().gmem_write(
            ref.array,
            tuple(where),
            value[tuple(slice(size) for size in sizes)],
            ref.name,
            reduction,
        )
