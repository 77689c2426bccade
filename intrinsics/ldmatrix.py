"""ldmatrix: a warp loads 8 × 8 matrices of 16-bit elements from shared memory into registers.

It is the inverse of `stmatrix`. Of matrix i, lane t receives row t // 4, columns 2 (t % 4) and 2 (t
% 4) + 1, as the low and high half of result i. Lane 8 i + j supplies the address of row j, which
has 16 bytes and is aligned to 16:

    result 0 of lanes             row addresses from lanes
    row 0:  0  1  2  3            x1:  0 … 7
    row 1:  4  5  6  7            x2:  0 … 15
    ...                           x4:  0 … 31
    row 7: 28 29 30 31

With ``_trans`` each matrix is transposed while it is loaded: lane t receives column t // 4, rows 2
(t % 4) and 2 (t % 4) + 1. A tile whose columns are contiguous in memory is thus loaded as the rows
of a wgmma accumulator.

On the simulator, addresses and results are arrays over the 128 lanes of the warpgroup (int32
addresses, 32-bit words), and each of the four warps loads its own matrices. PTX ISA, "Warp-Level
Matrix Instructions: ldmatrix".
"""

from __future__ import annotations

from typing import Any

import numpy as np

from numpipe.core.machine import current
from numpipe.core.op import op

from .matrix_rows import LANES, WARPS, row_addresses


def statement(count: int, transposed: bool, results: str, address: str) -> str:
    """Return the PTX of one load. `results` is the list inside the braces, `address` the operand
    inside the brackets."""
    return (
        f"ldmatrix.sync.aligned.m8n8.x{count}{'.trans' if transposed else ''}.shared.b16 "
        f"{{{results}}}, [{address}];"
    )


def _load(addr: Any, count: int, transposed: bool) -> Any:
    machine = current()
    machine.collective("ldmatrix")
    rows = machine.smem_read(row_addresses("ldmatrix", addr, count), f"ldmatrix.x{count}")
    matrices = np.ascontiguousarray(rows).view(np.uint16).reshape(WARPS, count, 8, 8)
    if transposed:
        matrices = matrices.swapaxes(2, 3)
    words = np.ascontiguousarray(matrices).view(np.uint32).reshape(WARPS, count, LANES)
    found = tuple(words[:, i].reshape(-1) for i in range(count))
    return found if count > 1 else found[0]


@op
def load_x1(addr: Any) -> Any:
    """Load one 8 × 8 matrix per warp, and return a 32-bit word. Lanes 0 … 7 supply the row
    addresses. Scope: a converged warp.

    PTX ISA: ldmatrix.
    """
    return _load(addr, 1, False)


@op
def load_x2(addr: Any) -> Any:
    """Load two 8 × 8 matrices per warp, and return two words. Lanes 0 … 15 supply the row
    addresses. Scope: a converged warp.

    PTX ISA: ldmatrix.
    """
    return _load(addr, 2, False)


@op
def load_x4(addr: Any) -> Any:
    """Load four 8 × 8 matrices per warp, and return four words. All lanes supply row addresses.
    Scope: a converged warp.

    One load covers 16 rows and 16 columns of a tile in the layout of a wgmma accumulator::

        lane = special.lane_index()
        row, column = lane % 16, lane // 16 * 8
        r0, r1, r2, r3 = ldmatrix.load_x4(panel + 128 * row + 2 * column)  # without swizzle

    PTX ISA: ldmatrix.
    """
    return _load(addr, 4, False)


@op
def load_x1_trans(addr: Any) -> Any:
    """Load the matrix of `load_x1` transposed. Scope: a converged warp. PTX ISA: ldmatrix."""
    return _load(addr, 1, True)


@op
def load_x2_trans(addr: Any) -> Any:
    """Load the matrices of `load_x2` transposed. Scope: a converged warp. PTX ISA: ldmatrix."""
    return _load(addr, 2, True)


@op
def load_x4_trans(addr: Any) -> Any:
    """Load the matrices of `load_x4` transposed, so that column-major memory becomes accumulator
    rows. Scope: a converged warp.

    PTX ISA: ldmatrix.
    """
    return _load(addr, 4, True)
