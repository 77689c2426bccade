"""A tile is read from global memory before its TMA store has written it (triton#10415)."""

from __future__ import annotations

import numpy as np

import numpipe
from numpipe import SMEM, Barrier, ds


@numpipe.kernel(num_compute_wgs=2, warp_specialized=False)
def early_read(x, y, z, *, fixed: numpipe.Static = False):
    """Warpgroup 0 stores y = 2 * x, then warpgroup 1 stores z = y + 1."""
    tile, stored = numpipe.scratch((SMEM((64, 64), x.dtype), Barrier()))
    whole = ds(0, 64), ds(0, 64)
    if numpipe.axis_index("wg") == 0:
        tile[...] = 2 * x[whole]
        numpipe.copy_smem_to_gmem(tile, y.at[whole])
        numpipe.wait_smem_to_gmem(0, wait_read_only=not fixed)
        numpipe.barrier_arrive(stored)
    else:
        numpipe.barrier_wait(stored)
        z[whole] = y[whole] + 1


X = np.ones((64, 64), np.float32)
ARRAYS = (X, np.zeros_like(X), np.zeros_like(X))

if __name__ == "__main__":
    print(numpipe.verify(early_read, *ARRAYS, schedules=21))
    print(numpipe.verify(early_read, *ARRAYS, schedules="all", fixed=True))
