"""One barrier announces three slots, and a reader can miss its phases (facebook triton#3472)."""

from __future__ import annotations

import numpy as np

import numpipe
from numpipe import SMEM, Barrier, cdiv, ds

SLOTS = 3


@numpipe.kernel(num_compute_wgs=2, warp_specialized=False)
def missed_phase(x, y, *, fixed: numpipe.Static = False):
    """y = the sums of x and of x * x over its blocks of 64 rows"""
    wg, steps, barriers = numpipe.axis_index("wg"), cdiv(x.shape[0], 64), SLOTS if fixed else 1
    tiles = numpipe.scratch(SMEM((SLOTS, 64, 64), x.dtype))
    landed = numpipe.scratch(Barrier(num_barriers=barriers))
    free = numpipe.scratch(Barrier(num_barriers=SLOTS))
    total = numpipe.zeros((64, 64), np.float32)
    for k in range(steps):
        slot, rows = k % SLOTS, ds(k * 64, 64)
        if wg == 1:  # loads, and adds the squares
            if k >= SLOTS:
                numpipe.barrier_wait(free.at[slot])
            numpipe.copy_gmem_to_smem(
                x.at[rows, ds(0, 64)], tiles.at[slot], landed.at[k % barriers]
            )
            numpipe.barrier_wait(landed.at[k % barriers])
            total = total + tiles.at[slot][...] * tiles.at[slot][...]
        else:
            numpipe.barrier_wait(landed.at[k % barriers])
            total = total + tiles.at[slot][...]
            if k + SLOTS < steps:
                numpipe.barrier_arrive(free.at[slot])
    y[ds(wg * 64, 64), ds(0, 64)] = total


X = np.ones((384, 64), np.float32)
ARRAYS = (X, np.zeros((128, 64), np.float32))

if __name__ == "__main__":
    print(numpipe.verify(missed_phase, *ARRAYS, schedules=21))
    print(numpipe.verify(missed_phase, *ARRAYS, schedules="all", fixed=True))
