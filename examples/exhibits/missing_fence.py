"""TMA stores a tile that was zeroed by ordinary stores, without a fence (FlashKDA#24)."""

from __future__ import annotations

import numpy as np

import numpipe
from numpipe import SMEM, Barrier, CompilerParams, cdiv, ds


@numpipe.kernel(
    warp_specialized=False,
    compiler_params=CompilerParams(unsafe_no_auto_barriers=True),
)
def missing_fence(x, length, y, *, fixed: numpipe.Static = False):
    """y = the sum of the blocks of 64 rows of x[:length]"""
    state, tile = numpipe.scratch((SMEM((64, 64), x.dtype), SMEM((64, 64), x.dtype)))
    landed = numpipe.scratch(Barrier())
    state[...] = numpipe.zeros((64, 64), np.float32)
    if fixed:
        numpipe.commit_smem()
    for k in range(cdiv(length, 64)):
        numpipe.copy_gmem_to_smem(x.at[ds(k * 64, 64), ds(0, 64)], tile, landed)
        numpipe.barrier_wait(landed)
        state[...] = state[...] + tile[...]
        numpipe.commit_smem()
    numpipe.copy_smem_to_gmem(state, y.at[ds(0, 64), ds(0, 64)])


X = np.ones((128, 64), np.float32)
ARRAYS = (X, 0, np.zeros((64, 64), np.float32))

if __name__ == "__main__":
    print(numpipe.verify(missing_fence, *ARRAYS, schedules=21))
    print(numpipe.verify(missing_fence, *ARRAYS, schedules="all", fixed=True))
