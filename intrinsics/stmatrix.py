"""stmatrix: a warp stores 8 × 8 matrices of 16-bit elements from registers into shared memory.

It inverts the layout of wgmma accumulators. Of matrix i, lane t holds row t // 4, columns 2 (t % 4)
and 2 (t % 4) + 1, as the low and high half of register ``ri``. Lane 8 i + j supplies the address of
row j, which has 16 bytes and is aligned to 16:

    register r0 of lanes          row addresses from lanes
    row 0:  0  1  2  3            x1:  0 … 7
    row 1:  4  5  6  7            x2:  0 … 15
    ...                           x4:  0 … 31
    row 7: 28 29 30 31

With ``_trans`` each matrix is transposed while it is stored: lane t holds column t // 4, rows 2 (t
% 4) and 2 (t % 4) + 1.

On the simulator, addresses and registers are arrays over the 128 lanes of the warpgroup (int32
addresses, 32-bit words), and each of the four warps stores its own matrices. PTX ISA, "Warp-Level
Matrix Instructions: stmatrix".
"""

from __future__ import annotations

from typing import Any

import numpy as np

from numpipe.core.machine import current
from numpipe.core.op import ptx

from .matrix_rows import WARPS, per_lane, row_addresses


def _store(addr: Any, registers: tuple, transposed: bool) -> None:
    machine = current()
    machine.collective("stmatrix")
    count = len(registers)
    words = np.stack(
        [per_lane("stmatrix", f"r{i}", r).astype(np.uint32) for i, r in enumerate(registers)],
        axis=1,
    )
    matrices = words.view(np.uint16).reshape(WARPS, count, 8, 8)
    if transposed:
        matrices = matrices.swapaxes(2, 3)
    rows = np.ascontiguousarray(matrices).view(np.uint8).reshape(WARPS, 8 * count, 16)
    machine.smem_write(row_addresses("stmatrix", addr, count), rows, f"stmatrix.x{count}")


@ptx("stmatrix.sync.aligned.m8n8.x1.shared.b16 [$addr], {$r0};", addr="r", r0="r")
def store_x1(addr: Any, r0: Any) -> None:
    """Store one 8 × 8 matrix per warp. Lanes 0 … 7 supply the row addresses. Scope: a converged
    warp.

    PTX ISA: stmatrix.
    """
    _store(addr, (r0,), False)


@ptx("stmatrix.sync.aligned.m8n8.x2.shared.b16 [$addr], {$r0, $r1};", addr="r", r0="r", r1="r")
def store_x2(addr: Any, r0: Any, r1: Any) -> None:
    """Store two 8 × 8 matrices per warp. Lanes 0 … 15 supply the row addresses. Scope: a converged
    warp.

    PTX ISA: stmatrix.
    """
    _store(addr, (r0, r1), False)


@ptx(
    "stmatrix.sync.aligned.m8n8.x4.shared.b16 [$addr], {$r0, $r1, $r2, $r3};",
    addr="r",
    r0="r",
    r1="r",
    r2="r",
    r3="r",
)
def store_x4(addr: Any, r0: Any, r1: Any, r2: Any, r3: Any) -> None:
    """Store four 8 × 8 matrices per warp. All lanes supply row addresses. Scope: a converged warp.

    One store covers 16 rows and 16 columns of a warp's accumulator `d` (eight registers): r0 and r1
    are rows 0–7 and 8–15 of columns 0–7, r2 and r3 the same rows of columns 8–15::

        lane = special.lane_index()
        row, column = lane % 16, lane // 16 * 8
        stmatrix.store_x4(
            panel + 128 * row + 2 * column,  # without swizzle
            pack_bf16x2(d[0], d[1]),
            pack_bf16x2(d[2], d[3]),
            pack_bf16x2(d[4], d[5]),
            pack_bf16x2(d[6], d[7]),
        )

    PTX ISA: stmatrix.
    """
    _store(addr, (r0, r1, r2, r3), False)


@ptx("stmatrix.sync.aligned.m8n8.x1.trans.shared.b16 [$addr], {$r0};", addr="r", r0="r")
def store_x1_trans(addr: Any, r0: Any) -> None:
    """Store the matrix of `store_x1` transposed. Scope: a converged warp. PTX ISA: stmatrix."""
    _store(addr, (r0,), True)


@ptx(
    "stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [$addr], {$r0, $r1};", addr="r", r0="r", r1="r"
)
def store_x2_trans(addr: Any, r0: Any, r1: Any) -> None:
    """Store the matrices of `store_x2` transposed. Scope: a converged warp. PTX ISA: stmatrix."""
    _store(addr, (r0, r1), True)


@ptx(
    "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [$addr], {$r0, $r1, $r2, $r3};",
    addr="r",
    r0="r",
    r1="r",
    r2="r",
    r3="r",
)
def store_x4_trans(addr: Any, r0: Any, r1: Any, r2: Any, r3: Any) -> None:
    """Store the matrices of `store_x4` transposed, so that an accumulator tile becomes
    column-major. Scope: a converged warp.

    PTX ISA: stmatrix.
    """
    _store(addr, (r0, r1, r2, r3), True)
