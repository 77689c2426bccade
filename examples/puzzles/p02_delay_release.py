"""delay_release

y[k] = x[k] - x[k - 1] for blocks k of 64 rows, and zeros for the first block. Each step keeps a
reference to its tile, so that the next step can subtract it. But after a step, its slot is
released, and the memory warpgroup may load another block into it at any time.

Tell the pipeline to keep each slot for one step longer than its own, and no longer.
"""

import numpy as np

import numpipe
from numpipe import BlockSpec, cdiv, ds


@numpipe.kernel
def changes(x, y):
    """y[k] = x[k] - x[k - 1], for blocks of 64 rows"""
    pipe = numpipe.pipeline(
        grid=(cdiv(x.shape[0], 64),),
        max_concurrent_steps=3,
        in_specs=(BlockSpec((64, 64), lambda k: (k, 0)),),
    )
    for (k,), (tile,) in pipe(x):
        if k == 0:
            before = tile
        y[ds(k * 64, 64), ds(0, 64)] = tile[...] - before[...]
        before = tile


# ---- the check: do not change anything below this line ----
from checker import Puzzle  # noqa: E402

X = np.random.default_rng(0).integers(-3, 4, (1024, 64)).astype(np.float32)
PUZZLE = Puzzle(
    changes,
    (X, np.zeros_like(X)),
    expected=X - np.concatenate([X[:64], X[:-64]]),
    cycles=18000,
    hints={
        "read-after-release": "the report's line 'fix:' names the argument of the pipeline.",
        "too slow": "the memory warpgroup waits for slots (.): with delay_release=2, all three are "
        "in use when a step begins. One step longer is enough.",
        "error": "three slots are enough; delay_release has to be less than their number, "
        "max_concurrent_steps.",
        "solved": "with delay_release=1, one slot holds the previous tile and one the current one, "
        "so one of three is left for a load that runs ahead. A copy in registers, before = "
        "tile[...], needs no delay_release: it costs 32 registers of each thread.",
    },
)
if __name__ == "__main__":
    print(PUZZLE.check())
