"""A load is issued a step ahead and never waited for: it usually lands in time (CUTracer#106)."""

from __future__ import annotations

import numpy as np

import numpipe
from numpipe import SMEM, Barrier, cdiv, ds


@numpipe.kernel(warp_specialized=False)
def missing_wait(a, b, c, *, fixed: numpipe.Static = False):
    """c = a @ b.T"""
    a_slots, b_slots = numpipe.scratch((SMEM((2, 64, 64), a.dtype), SMEM((2, 64, 64), b.dtype)))
    full_a = numpipe.scratch(Barrier(num_barriers=2))
    full_b = numpipe.scratch(Barrier(num_barriers=2))

    def load(k):
        step, slot = (ds(0, 64), ds(k * 64, 64)), k % 2
        numpipe.copy_gmem_to_smem(a.at[step], a_slots.at[slot], full_a.at[slot])
        numpipe.copy_gmem_to_smem(b.at[step], b_slots.at[slot], full_b.at[slot])

    acc = numpipe.zeros((64, 64), np.float32)
    steps = cdiv(a.shape[1], 64)
    load(0)
    for k in range(steps):
        if k + 1 < steps:
            load(k + 1)
        numpipe.barrier_wait(full_a.at[k % 2])
        if fixed:
            numpipe.barrier_wait(full_b.at[k % 2])
        acc = numpipe.wgmma(acc, a_slots.at[k % 2], b_slots.at[k % 2].T)
        acc = numpipe.wgmma_wait(acc, 0)
    c[ds(0, 64), ds(0, 64)] = acc


A = np.ones((64, 256), np.float16)
ARRAYS = (A, A, np.zeros((64, 64), np.float32))

if __name__ == "__main__":
    print(numpipe.verify(missing_wait, *ARRAYS, schedules=21))
    print(numpipe.verify(missing_wait, *ARRAYS, schedules="all", fixed=True))
