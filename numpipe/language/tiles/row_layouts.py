"""Layouts in which L lanes share a row, for tiles that are not accumulators and for arithmetic
along rows.

Lane l of the warpgroup has two adjacent columns of every 2 L, in every R-th row. It starts at row
``l / L % R`` and column ``2 (l % L)``:

============  ============  ==============================  ========================================
layout        shape         elements of a lane              held by
============  ============  ==============================  ========================================
``rows L``    (M, N)        R s, 2 L p + o for step s,      one lane, or 128 / (R L) of them if rows
                            panel p, odd o                  are few
``column L``  (M,), (M, 1)  R s, along the rows             the L lanes of a row
``row L``     (N,), (1, N)  2 L p + o, along the columns    all lanes of this column
============  ============  ==============================  ========================================

L is 32 (a row per warp), 16, 8, 4, 2 or 1. R is the largest power of two, at most 128 / L, that
divides M / 2, M rounded up to a multiple of 8: each lane has at least two rows, so registers of
16-bit elements are full. A load or store of a warp moves 32 / L rows of at least 8 L bytes. A
reduction along a row takes log2 L shuffles within one warp. A single element is in all lanes.

In ``rows L v``, a lane has v adjacent columns of every v L (`load_tile` calls it "runs" if they
are 16 bytes).

A row may be spread over the whole warpgroup (L = 128). A lane then has the same columns of all rows
of a tile. If the columns are a multiple of 512, a warp has 128 adjacent columns of every 512: lane
l of warp w starts at column 128 w + 2 l, and has two columns there and two 64 columns further.

If M or N is not a multiple of the distance at which the layout repeats, the last elements of some
lanes are outside the tile (`Form.outside`). Nothing reads or stores them.
"""

from __future__ import annotations

from ...arch.dimensions import Ints, round_up
from ...arch.register_layouts import WARP, WARPS, Bits, RegisterLayout, Registers
from ...core.arith import cdiv
from .layout_names import ROW, ROWS, name_of

LANES = 32, 16, 8, 4
"""lanes that share a row by default"""
EVERY = *LANES, 2, 1
"""lanes that may share a row"""
WHOLE = 128
"""lanes that share a row that is spread over the warpgroup"""


def power_of_two(n: int, most: int) -> int:
    """Return the largest power of two, at most `most`, that divides n.

    >>> power_of_two(24, 32), power_of_two(1024, 32)
    (8, 32)
    """
    return min(n & -n, most)


def lanes_for(columns: int) -> int:
    """Return how many lanes share a row of this many columns by default: as many as there are pairs
    for, and at most 16 of up to 128 columns: fewer rows to check for bounds, shorter reductions.
    Tiles of longer rows may have 8 of them, too few for all lanes if 16 share a row.

    >>> [lanes_for(columns) for columns in (48, 6, 128, 184, 1000, 544)]
    [8, 4, 16, 32, 32, 32]
    """
    own = power_of_two(columns // 2, 16 if columns <= 128 else 32) if columns % 8 == 0 else 0
    if own and columns <= (128 if own < 16 else 256):
        return own
    return next((n for n in reversed(LANES) if 2 * n >= columns), LANES[0])


def covered_rows(rows: int) -> int:
    """Return the rows that the lanes have registers for, of a tile of `rows` rows."""
    return round_up(rows, 8) if rows > 1 else 2


def shared_lanes(rows: int, columns: int, itemsize: int) -> int:
    """Return how many lanes share a row of a tile that they load from shared memory, where rows
    follow each other without gaps: enough for all lanes to have rows, for at most 32 columns of a
    lane, and for at most two rows of a warp in a bank.

    >>> [shared_lanes(256, n, 2) for n in (17, 24, 33, 64)], shared_lanes(20, 24, 2)
    ([1, 2, 2, 16], 8)
    """
    least = (
        4 if itemsize == 4 else 1,  # a lane's sum of a whole row has a larger error (H200)
        256 >> (covered_rows(rows) - 1).bit_length(),
        columns / 32,
        power_of_two(columns * itemsize, 128) / 8,
    )
    return next((lanes for lanes in reversed(EVERY) if lanes >= max(least)), EVERY[0])


def shared_run(columns: int, itemsize: int, lanes: int) -> int:
    """Return how many adjacent columns a lane has of rows that `lanes` lanes share in shared memory
    (`shared_lanes`): the fewest with which at most two words of a warp are in one bank, or as few
    words as possible, and with which lanes have no more elements.

    >>> [shared_run(n, 2, 4) for n in (31, 33, 37, 43)], shared_run(61, 2, 8)
    ([4, 10, 2, 4], 4)
    """
    each = 2 * cdiv(columns, 2 * lanes)

    def conflicts(run: int) -> int:
        banks = [(i // lanes * columns + i % lanes * run) * itemsize // 4 % 32 for i in range(32)]
        # two take no longer than what else a lane does
        return max(2, *map(banks.count, banks))

    return min((run for run in range(2, each + 1, 2) if each % run == 0), key=conflicts)


def record(shape: Ints, layout: str) -> RegisterLayout:
    """Return the record of the layout of a tile of this shape, as `layouts.record` does.

    >>> record((8, 1024), "rows 32").warps, record((64, 16), "rows 8").distances(0)
    (4, (8, 16))
    """
    name = name_of(layout)
    lanes, run, along = name.lanes, name.run, name.word == ROW
    single = along or shape[0] == 1
    rows = 1 if single else power_of_two(covered_rows(shape[0]) // 2, WHOLE // lanes)
    spread = lanes == WHOLE and run == 2 and shape[-1] % 512 == 0
    columns = (Bits(WARP, 2), Bits(WARPS, 128)) if spread else (Bits(lanes - 1, run),)
    steps = (Registers(1, 512), Registers(1, 64, 2)) if spread else (Registers(1, run * lanes),)
    whole = RegisterLayout(
        layout,
        ((Bits(lanes * (rows - 1), 1, shifted=rows > 1),), columns),
        (Registers(0, rows, 2 * single), *steps, Registers(1, 1, run)),
    )
    return whole if name.word == ROWS else whole.along(int(along))
