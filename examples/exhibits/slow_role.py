"""A ring waits for a role that waits for the ring (marin#8311)."""

from __future__ import annotations

import numpy as np

import numpipe
from numpipe import SMEM, Barrier, ClusterBarrier, cdiv, ds

SLOTS = 2


@numpipe.kernel(grid=2, cluster=2, cluster_names="pair", num_compute_wgs=2, warp_specialized=False)
def slow_role(x, y, *, fixed: numpipe.Static = False):
    """Both CTAs of a cluster: y = the sum of the blocks of 64 columns of x"""
    steps, result_rows = cdiv(x.shape[1], 64), ds(numpipe.axis_index("pair") * 64, 64)
    tiles, result = numpipe.scratch((SMEM((SLOTS, 64, 64), x.dtype), SMEM((64, 64), x.dtype)))
    landed = numpipe.scratch(Barrier(num_barriers=SLOTS))
    # the readers of each of the two CTAs
    free = numpipe.scratch(ClusterBarrier("pair", SLOTS, num_arrivals=1 if fixed else 2))
    done = numpipe.scratch(Barrier())
    total = numpipe.zeros((64, 64), np.float32)
    if numpipe.axis_index("wg") == 0:  # computes
        for k in range(steps):
            slot, columns = k % SLOTS, ds(k * 64, 64)
            if k >= SLOTS:
                numpipe.barrier_wait(free.at[slot])
            numpipe.copy_gmem_to_smem(
                x.at[ds(0, 64), columns], tiles.at[slot], landed.at[slot], collective_axes="pair"
            )
            numpipe.barrier_wait(landed.at[slot])
            total = total + tiles.at[slot][...]
            if k + SLOTS < steps:
                numpipe.barrier_arrive(free.at[slot])
        result[...] = total
        numpipe.commit_smem()
        numpipe.barrier_arrive(done)
    else:  # sends results
        numpipe.barrier_wait(done)
        numpipe.copy_smem_to_gmem(result, y.at[result_rows, ds(0, 64)])
        for k in range(0 if fixed else steps - SLOTS):
            numpipe.barrier_arrive(free.at[k % SLOTS])


X = np.ones((64, 256), np.float32)
ARRAYS = (X, np.zeros((128, 64), np.float32))

if __name__ == "__main__":
    print(numpipe.verify(slow_role, *ARRAYS, schedules=21))
    print(numpipe.verify(slow_role, *ARRAYS, schedules="all", fixed=True))
