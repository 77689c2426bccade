"""Why two slots

This kernel adds twelve blocks of x. A memory warpgroup loads them, a compute warpgroup adds them,
and they hand each block over in a *slot* of shared memory. There is one slot, so each of the two
waits for the other: a block is loaded, then added, then the next one is loaded.

Make it faster: change one number. Then the timeline's row `copy in` has fewer gaps.

numpipe's docs/glossary.md explains the words (warpgroup, slot, CTA), docs/timeline.md the timeline.
"""

import numpy as np

import numpipe
from numpipe import BlockSpec, cdiv, ds


@numpipe.kernel
def total(x, y):
    """y = the sum of the blocks of 64 rows of x"""
    acc = numpipe.zeros((64, 64), np.float32)
    pipe = numpipe.pipeline(
        grid=(cdiv(x.shape[0], 64),),
        max_concurrent_steps=1,
        in_specs=(BlockSpec((64, 64), lambda k: (k, 0)),),
    )
    for (k,), (tile,) in pipe(x):
        acc = acc + tile[...]
    y[ds(0, 64), ds(0, 64)] = acc


# ---- the check: do not change anything below this line ----
from checker import Puzzle  # noqa: E402

X = np.random.default_rng(0).integers(-3, 4, (768, 64)).astype(np.float32)
PUZZLE = Puzzle(
    total,
    (X, np.zeros((64, 64), np.float32)),
    expected=X.reshape(12, 64, 64).sum(axis=0),
    cycles=9000,
    hints={
        "too slow": "wg0 waits (.) while copy in loads (L), and nothing is loaded while wg0 "
        "computes (#). With max_concurrent_steps=2, the next block is loaded meanwhile.",
        "solved": "two slots let a block be loaded while another one is added. Loads take longer "
        "than additions here, so three slots are faster still: try them.",
    },
)
if __name__ == "__main__":
    print(PUZZLE.check())
