"""Find the race

This kernel copies x to y through two tiles of shared memory, without a pipeline: it issues a load
(`copy_gmem_to_smem`), waits for it (`barrier_wait`), and issues a store (`copy_smem_to_gmem`).
Copies are asynchronous: each runs on its own after it was issued. In most runs, the numbers are
right. But something may still be reading a tile when the next load begins to overwrite it.

Read the report, and add one line to the kernel. While a block is loaded, the store of the previous
one should still go on.
"""

import numpy as np

import numpipe
from numpipe import SMEM, Barrier, cdiv, ds


@numpipe.kernel(warp_specialized=False)
def copied(x, y):
    """y = x, for arrays of 64 columns"""
    tiles, landed = numpipe.scratch((SMEM((2, 64, 64), x.dtype), Barrier(num_barriers=2)))
    for k in range(cdiv(x.shape[0], 64)):
        rows, slot = (ds(k * 64, 64), ds(0, 64)), k % 2
        numpipe.copy_gmem_to_smem(x.at[rows], tiles.at[slot], landed.at[slot])
        numpipe.barrier_wait(landed.at[slot])
        numpipe.copy_smem_to_gmem(tiles.at[slot], y.at[rows])
    numpipe.wait_smem_to_gmem(0)


# ---- the check: do not change anything below this line ----
from checker import Puzzle  # noqa: E402

X = np.random.default_rng(0).integers(-3, 4, (512, 64)).astype(np.float32)
PUZZLE = Puzzle(
    copied,
    (X, np.zeros_like(X)),
    expected=X,
    cycles=11800,
    hints={
        "refilled-while-read": "a store reads its tile until wait_smem_to_gmem(n, "
        "wait_read_only=True) returns: it waits until at most n of the stores issued so far are "
        "still reading. Which store used the tile that is loaded next?",
        "too slow": "no store goes on during a load. With two tiles, the last store may still be "
        "reading when the next load begins; only the one before it must have read.",
        "solved": "with n = 1, the last store can go on during the next load, which goes to the "
        "other tile.",
    },
)
if __name__ == "__main__":
    print(PUZZLE.check())
