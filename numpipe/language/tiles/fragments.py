"""Shared-memory loads for warp-level products (mma.sync): which bytes of the operands A and B each
lane loads.

Warp w of a warpgroup has rows 16 w … 16 w + 15 of every 64 rows of A, and all of B. One instruction
multiplies 16 rows of A by 8 columns of B over `Product.k_bytes` bytes along K. Operands are loaded
as follows:

============  ===========  =======================================================================
instruction   order        what one instruction loads
============  ===========  =======================================================================
ldmatrix      K-major      matrices of 8 rows x 16 bytes: four of them are A of one step, or B of
                           two groups of 8 columns
ldmatrix      MN-major     the same with ``.trans``, for 16-bit elements
ld.shared.v2  K-major      for lane 4 g + t: elements 4 t … 4 t + 3 of 16 along K, in row g, by two
                           loads of 16 bytes. A and B use the same order along K, so the sum is
                           unchanged
============  ===========  =======================================================================

ldmatrix serves 8 rows of 16 bytes at a time; the swizzle of 128, 64 or 32 bytes spreads them over
all banks. One phase of ld.shared.v2 serves lanes of two adjacent rows: after the 128-byte swizzle,
these are chunks 0, 2, 4, 6 of one row and 1, 3, 5, 7 of the other.

An address is ``((tile + start) ^ xor) + add``, as in `addresses`: only `start` depends on the lane.
`start` takes ints, NumPy arrays (in tests) and LLVM values.
"""

from __future__ import annotations

from typing import Any, Literal

from ...plan.layout import Layout
from .addresses import in_line

Side = Literal["a", "b"]


def start(layout: Layout, side: Side, loads: str, thread: Any) -> Any:
    """Return the swizzled byte offset at which a lane's loads of an operand start.

    layout  has rows along M or N, and columns along K
    thread  the lane's number in the warpgroup, 0 … 127
    """
    lane = thread & 31
    first = (thread >> 5) * 16 if side == "a" else 0
    if loads == "ldmatrix":
        near, far = (lane >> 3) & 1, lane >> 4
        rows, chunk = (near, far) if side == "a" else (far, near)
        if layout.inner == 1:
            return in_line(layout, (lane & 7) + rows * 8 + first, chunk * 16)
        return in_line(layout, (lane & 7) + chunk * 8, rows * 16 + first * layout.itemsize)
    return in_line(layout, (lane >> 2) + first, (lane & 3) * 32)


def moved(layout: Layout, row: int, column: int) -> tuple[int, int]:
    """Return (xor, add) that moves a load from element (0, 0) to element (row, column).

    >>> moved(Layout((64, 128), 2, 1, 128, 64 * 128), 8, 80)
    (32, 9216)
    """
    distance = layout.offset(row, column)
    return distance % layout.width, distance // layout.width * layout.width
