"""A product starts before its operand has landed, and its wait comes too late (CUTracer#106)."""

from __future__ import annotations

import numpy as np

import numpipe
from numpipe import SMEM, Barrier, cdiv, ds


@numpipe.kernel(warp_specialized=False)
def late_wait(a, b, c, *, fixed: numpipe.Static = False):
    """c = a @ b.T"""
    a_tile, b_tile = numpipe.scratch((SMEM((64, 64), a.dtype), SMEM((64, 64), b.dtype)))
    full_a = numpipe.scratch(Barrier())
    full_b = numpipe.scratch(Barrier())
    acc = numpipe.zeros((64, 64), np.float32)
    for k in range(cdiv(a.shape[1], 64)):
        step = ds(0, 64), ds(k * 64, 64)
        numpipe.copy_gmem_to_smem(a.at[step], a_tile, full_a)
        numpipe.copy_gmem_to_smem(b.at[step], b_tile, full_b)
        if fixed:
            numpipe.barrier_wait(full_a)
        numpipe.barrier_wait(full_b)
        acc = numpipe.wgmma(acc, a_tile, b_tile.T)
        if not fixed:
            numpipe.barrier_wait(full_a)
        acc = numpipe.wgmma_wait(acc, 0)
    c[ds(0, 64), ds(0, 64)] = acc


A = np.ones((64, 256), np.float16)
ARRAYS = (A, A, np.zeros((64, 64), np.float32))

if __name__ == "__main__":
    print(numpipe.verify(late_wait, *ARRAYS, schedules=21))
    print(numpipe.verify(late_wait, *ARRAYS, schedules="all", fixed=True))
