"""A cluster

Two CTAs of a cluster add the same blocks of x: CTA 0 stores their sum, CTA 1 twice their sum. They
share the loads: with `collective_axes="pair"`, each CTA loads one half of a block, and the copy
writes it to the shared memory of both. `landed` of each CTA completes when the whole block is
there.

Before the next load, each CTA makes sure that its warpgroup has read the tile. But a load of this
CTA writes into the other CTA's tile, too. Change the barrier `free`, so that both CTAs arrive at it
in both CTAs: `numpipe.ClusterBarrier(collective_axes)` is a barrier for the CTAs along some axes of
a cluster. The loads stay shared.
"""

import numpy as np

import numpipe
from numpipe import SMEM, Barrier, cdiv, ds


@numpipe.kernel(grid=2, cluster=2, cluster_names="pair", warp_specialized=False)
def sums(x, y):
    """Rows 0 … 63 of y = the sum of the blocks of 64 columns of x; rows 64 … 127 = twice that"""
    cta = numpipe.axis_index("pair")
    tile, landed, free = numpipe.scratch((SMEM((64, 64), x.dtype), Barrier(), Barrier()))
    acc = numpipe.zeros((64, 64), np.float32)
    for k in range(cdiv(x.shape[1], 64)):
        block = x.at[ds(0, 64), ds(k * 64, 64)]
        numpipe.copy_gmem_to_smem(block, tile, landed, collective_axes="pair")
        numpipe.barrier_wait(landed)
        acc = acc + tile[...]
        numpipe.barrier_arrive(free)
        numpipe.barrier_wait(free)
    y[ds(cta * 64, 64), ds(0, 64)] = acc * (cta + 1)


# ---- the check: do not change anything below this line ----
from checker import Puzzle  # noqa: E402

X = np.random.default_rng(0).integers(-3, 4, (64, 384)).astype(np.float32)
SUM = X.reshape(64, 6, 64).sum(axis=1)
PUZZLE = Puzzle(
    sums,
    (X, np.zeros((128, 64), np.float32)),
    expected=np.concatenate([SUM, 2 * SUM]),
    hints={
        "hazard": 'free has to be numpipe.ClusterBarrier("pair"): the axis has its name from '
        "cluster_names. landed stays as it is, because each CTA waits for its own tile.",
        "error": 'free = numpipe.ClusterBarrier("pair"); landed is a Barrier of each CTA.',
        "solved": "with shared loads, each CTA loads half of every block and has all of it: x "
        "is read once, not twice.",
    },
)
if __name__ == "__main__":
    print(PUZZLE.check())
