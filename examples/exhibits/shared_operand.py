"""Two warpgroups multiply by one tile, and the faster one refills it (tilelang#2613)."""

from __future__ import annotations

import numpy as np

import numpipe
from numpipe import SMEM, Barrier, cdiv, ds


@numpipe.kernel(num_compute_wgs=2, warp_specialized=False)
def shared_operand(a, b, c, *, fixed: numpipe.Static = False):
    """c = a @ b.T: each warpgroup computes 64 columns, and both use all of a."""
    wg = numpipe.axis_index("wg")
    a_tile = numpipe.scratch(SMEM((64, 64), a.dtype))
    b_tiles = numpipe.scratch(SMEM((2, 64, 64), b.dtype))
    landed = numpipe.scratch(Barrier(num_arrivals=4))
    read = numpipe.scratch(Barrier(num_arrivals=2))
    acc = numpipe.zeros((64, 64), np.float32)
    for k in range(cdiv(a.shape[1], 64)):
        half, own = ds(wg * 32, 32), ds(wg * 64, 64)
        numpipe.copy_gmem_to_smem(a.at[half, ds(k * 64, 64)], a_tile.at[half, :], landed)
        numpipe.copy_gmem_to_smem(b.at[own, ds(k * 64, 64)], b_tiles.at[wg], landed)
        numpipe.barrier_wait(landed)
        acc = numpipe.wgmma_wait(numpipe.wgmma(acc, a_tile, b_tiles.at[wg].T), 0)
        if fixed:
            numpipe.barrier_arrive(read)
            numpipe.barrier_wait(read)
    c[ds(0, 64), ds(wg * 64, 64)] = acc


A, B = np.ones((64, 256), np.float16), np.ones((128, 256), np.float16)
ARRAYS = (A, B, np.zeros((64, 128), np.float32))

if __name__ == "__main__":
    print(numpipe.verify(shared_operand, *ARRAYS, schedules=21))
    print(numpipe.verify(shared_operand, *ARRAYS, schedules="all", fixed=True))
