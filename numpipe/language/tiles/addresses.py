"""The bytes of a shared-memory tile that each lane moves when a register tile is loaded from it or
stored to it.

A register tile is distributed like a wgmma accumulator: in each block of 64 rows and each group j
of 8 columns, lane 4 g + t of warp w holds the elements in columns 8 j + 2 t and 8 j + 2 t + 1 of
rows 16 w + g and 16 w + g + 8. The instructions that move them depend on the layout of the tile in
memory:

==============  ==========================  ========================================================
elements        contiguous                  access
==============  ==========================  ========================================================
16 bits         rows                        ldmatrix, stmatrix: 16 rows x 16 columns an instruction
16 bits         columns (``tile.T``, …)     the same with ``.trans``
32 bits         rows                        ld.shared.v2, st.shared.v2: two columns a lane
32 bits         columns                     ld.shared, st.shared: one element a lane
8 bits          rows                        ld.shared, st.shared of 16 bits: two columns a lane;
                                            columns are an error
==============  ==========================  ========================================================

Lanes that are served together never access the same bank, except in rows of 16 bytes, and in
columns of 32-bit elements in pieces of less than 128 bytes. Accesses of two 32-bit columns would
conflict without a countermeasure: an access serves 16 lanes of 4 rows at once, and in a group of 8
columns each row has 32 bytes, which the swizzle, in steps of 16 bytes, spreads over only half of
the banks. So every other row, or pair of rows, takes the groups in another order (`detour`)::

    row (g)          0  1  2  3       0  1  2  3
    pair of chunks   0  0  1  1   ->  0  2  1  3

    group j of 128 bytes: j for even rows, j ^ 2 for odd rows

The registers of the two groups are swapped after a load, or before a store.

An address is ``((tile + lane offset) ^ xor) + add``: the lane offset is computed once, and the rest
are immediates of the instruction. The exclusive-or is valid because tiles, and views of them, start
at multiples of 8 rows, where the swizzle repeats. `lane_offset` takes ints, NumPy arrays (in tests)
and LLVM values (`shared_tiles_cuda`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...plan.layout import Layout, swizzled
from .layouts import BLOCK, FRAGMENTS, GROUP


@dataclass(frozen=True)
class Access:
    """One instruction of each lane: its address, and the `count` registers that it moves, starting
    at `first`.

    Registers are numbered as in `TileType`: 32 bits each, holding two elements of a smaller type.
    """

    first: int
    count: int
    xor: int
    add: int


@dataclass(frozen=True)
class Detour:
    """A permutation that avoids bank conflicts: lanes whose number has this `bit` set take group j
    ^ `groups` of 8 columns where the others take j. In these lanes, registers r and ``r ^ 4
    groups`` are swapped."""

    bit: int
    groups: int


def detour(layout: Layout) -> Detour | None:
    """Return the permutation that keeps accesses of two 32-bit columns on different banks, or None
    if none is needed.

    With rows of 128 bytes it applies to odd rows; with rows of 64 bytes, two of which fill a line
    of banks, to every other pair of rows.
    """
    if layout.itemsize != 4 or layout.inner != 1:
        return None
    return {128: Detour(2, 2), 64: Detour(3, 1)}.get(layout.width)


def lane_offset(layout: Layout, thread: Any, matrices: bool = True) -> Any:
    """Return the swizzled byte offset at which a lane's accesses start; `thread` is its number in
    the warpgroup, 0 … 127."""
    lane, warp = thread & 31, thread >> 5
    width, sixteen = layout.width, layout.itemsize == 2 and matrices
    if layout.inner == 1:
        row = warp * 16 + ((lane & 15) if sixteen else lane >> 2)
        # bytes along the row
        part = (lane >> 4) * 16 if sixteen else (lane & 3) * 2 * layout.itemsize
        if width == 16:
            return row * width + (part >> 4) * layout.panel_stride + (part & 15)
        start = swizzled(row * width + part, width)
        turn = detour(layout)
        return start if turn is None else start ^ (((lane >> turn.bit) & 1) << (turn.groups + 4))
    column = (lane & 7) + (lane >> 4) * 8 if sixteen else (lane & 3) * 2
    # bytes down the column
    part = warp * 32 + ((lane >> 3) & 1) * 16 if sixteen else warp * 64 + (lane >> 2) * 4
    return in_line(layout, column, part)


def in_line(layout: Layout, line: Any, inside: Any) -> Any:
    """Return the swizzled offset of a byte in a line of memory."""
    panel = (inside >> layout.width.bit_length() - 1) * layout.panel_stride
    return panel + swizzled(line * layout.width + (inside & (layout.width - 1)), layout.width)


def accesses(layout: Layout, matrices: bool = True) -> list[Access]:
    """Return the accesses of every lane, in register order. Without `matrices` (ldmatrix,
    stmatrix), each lane moves its own pairs of 16-bit columns."""
    elements = len(FRAGMENTS.places((BLOCK, layout.shape[1])))
    registers = elements * max(layout.itemsize, 2) // 4
    block_bytes = (
        BLOCK * layout.width
        if layout.inner == 1
        else BLOCK * layout.itemsize // layout.width * layout.panel_stride
    )
    return [
        Access(
            block * registers + access.first,
            access.count,
            access.xor,
            access.add + block * block_bytes,
        )
        for block in range(layout.shape[0] // BLOCK)
        for access in _of_a_block(layout, matrices)
    ]


def _of_a_block(layout: Layout, matrices: bool) -> list[Access]:
    """Return the accesses of the first 64 rows."""
    groups, width = range(layout.shape[1] // GROUP), layout.width
    if layout.itemsize == 2 and matrices:
        return [
            Access(2 * j, min(4, 2 * (len(groups) - j)), *_along(layout, 16 * j))
            for j in groups[::2]
        ]
    found = []
    for j in groups:
        for half in (0, 1):  # 8 rows further down
            if layout.inner == 1:
                xor, add = _along(layout, 8 * layout.itemsize * j)
                count = 2 if layout.itemsize == 4 else 1
                found.append(Access((2 * j + half) * count, count, xor, add + 8 * half * width))
                continue
            xor, add = (
                (32 * half, 0) if width >= 64 else (0, 32 * half // width * layout.panel_stride)
            )
            # The next column: where rows are 128 bytes wide, each is swizzled differently.
            for odd in (0, 1):
                found.append(
                    Access(
                        4 * j + 2 * half + odd,
                        1,
                        xor ^ (16 * odd if width == 128 else 0),
                        add + (8 * j + odd) * width,
                    )
                )
    return found


def _along(layout: Layout, nbytes: int) -> tuple[int, int]:
    """Return (xor, add) that moves an access by `nbytes` along the rows, or by the same number of
    bytes of 16-bit columns."""
    if layout.inner == 0:
        return 0, nbytes // 2 * layout.width
    return nbytes % layout.width, nbytes // layout.width * layout.panel_stride
