"""A peer

Two GPUs exchange arrays: each stores the blocks of its x into the y of the other
(`numpipe.peer(y, other)`), and negates each block of y that it got. But nothing ensures that a
block has arrived before it is read.

`ready` holds a semaphore for each block, on each GPU. `numpipe.signal(ready.at[i], gpu)` adds 1 to
semaphore i of a GPU, after everything that was stored before. `numpipe.wait(ready.at[i], 1)` waits
until this GPU's own semaphore i has counted 1. Add a line with each. (The GPUs are simulated.)
"""

import numpy as np

import numpipe
from numpipe import cdiv, ds


@numpipe.kernel(grid=numpipe.persistent(), semaphores=lambda x: cdiv(x.shape[0], 64))
def swap(x, y, ready):
    """On each GPU, y = -x of the other one"""
    other = 1 - numpipe.axis_index("gpu")
    for (i,) in numpipe.tiles(cdiv(x.shape[0], 64)):
        block = ds(i * 64, 64), ds(0, 64)
        numpipe.peer(y, other)[block] = x[block]
        y[block] = -y[block]


# ---- the check: do not change anything below this line ----
from checker import Puzzle  # noqa: E402

X = [np.random.default_rng(gpu).integers(-3, 4, (128, 64)).astype(np.float32) for gpu in (0, 1)]
PUZZLE = Puzzle(
    swap,
    (X, [np.zeros_like(x) for x in X]),
    expected=[-X[1], -X[0]],
    mesh=numpipe.Mesh.simulated(2),
    hints={
        "hazard": "after its store, each GPU signals the other one (not itself); before it reads, "
        "it waits for the signal of the other one.",
        "deadlock": "each GPU has to signal the other one before it waits.",
        "solved": "a block is used as soon as it is there, while others are still on their way.",
    },
)
if __name__ == "__main__":
    print(PUZZLE.check())
