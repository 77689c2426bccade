"""A warpgroup without work arrives at a named barrier and runs ahead (vllm#26026)."""

from __future__ import annotations

import numpy as np

import numpipe
from numpipe import SMEM, Barrier, ds
from numpipe.intrinsics import barrier

EPILOGUE = 14


@numpipe.kernel(num_compute_wgs=2, warp_specialized=False)
def empty_tile(x, lengths, y, *, fixed: numpipe.Static = False):
    """y = the sum of the tiles of x that have a length"""
    tile, landed = numpipe.scratch((SMEM((64, 64), x.dtype), Barrier()))
    total = numpipe.zeros((64, 64), np.float32)
    for t in range(lengths.shape[0]):
        if numpipe.axis_index("wg") == 1:  # loads
            if lengths[t] > 0:
                numpipe.copy_gmem_to_smem(x.at[ds(t * 64, 64), ds(0, 64)], tile, landed)
            barrier.sync(EPILOGUE, 256)
        elif lengths[t] > 0:  # computes
            numpipe.barrier_wait(landed)
            total = total + tile[...]
            barrier.sync(EPILOGUE, 256)
        elif fixed:
            barrier.sync(EPILOGUE, 256)
        else:  # nothing to compute
            barrier.arrive(EPILOGUE, 256)
    if numpipe.axis_index("wg") == 0:
        y[ds(0, 64), ds(0, 64)] = total


X = np.ones((256, 64), np.float32)
ARRAYS = (X, np.array([64, 0, 0, 64], np.int32), np.zeros((64, 64), np.float32))

if __name__ == "__main__":
    print(numpipe.verify(empty_tile, *ARRAYS, schedules=21))
    print(numpipe.verify(empty_tile, *ARRAYS, schedules="all", fixed=True))
