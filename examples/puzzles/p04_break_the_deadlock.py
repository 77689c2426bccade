"""Break the deadlock

A ring by hand: warpgroup 1 loads blocks of x into two slots, and warpgroup 0 adds them. A slot has
two barriers. A load that lands completes a phase of `full`; warpgroup 0 waits for it before it
reads. When it has read the tile, warpgroup 0 arrives at `free`, and warpgroup 1 waits for that
before it loads into the slot again.

In the beginning, nobody can start. Change warpgroup 1.
"""

import numpy as np

import numpipe
from numpipe import SMEM, Barrier, cdiv, ds

SLOTS = 2


@numpipe.kernel(num_compute_wgs=2, warp_specialized=False)
def ring(x, y):
    """y = the sum of the blocks of 64 rows of x"""
    tiles = numpipe.scratch(SMEM((SLOTS, 64, 64), x.dtype))
    full = numpipe.scratch(Barrier(num_barriers=SLOTS))
    free = numpipe.scratch(Barrier(num_barriers=SLOTS))
    steps = cdiv(x.shape[0], 64)
    if numpipe.axis_index("wg") == 1:
        for k in range(steps):
            slot = k % SLOTS
            numpipe.barrier_wait(free.at[slot])
            block = x.at[ds(k * 64, 64), ds(0, 64)]
            numpipe.copy_gmem_to_smem(block, tiles.at[slot], full.at[slot])
    else:
        acc = numpipe.zeros((64, 64), np.float32)
        for k in range(steps):
            slot = k % SLOTS
            numpipe.barrier_wait(full.at[slot])
            acc = acc + tiles.at[slot][...]
            if k + SLOTS < steps:
                numpipe.barrier_arrive(free.at[slot])
        y[ds(0, 64), ds(0, 64)] = acc


# ---- the check: do not change anything below this line ----
from checker import Puzzle  # noqa: E402

X = np.random.default_rng(0).integers(-3, 4, (512, 64)).astype(np.float32)
PUZZLE = Puzzle(
    ring,
    (X, np.zeros((64, 64), np.float32)),
    expected=X.reshape(8, 64, 64).sum(axis=0),
    hints={
        "deadlock": "in the first steps, the slots are free although nobody has arrived yet.",
        "hazard": "only the first SLOTS loads go into slots that nobody has read.",
        "solved": "numpipe.pipeline makes the same two barriers for each slot, and waits in the "
        "same places: its barriers are called ready and consumed.",
    },
)
if __name__ == "__main__":
    print(PUZZLE.check())
