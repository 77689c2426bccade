"""A product in flight

c is the sum of a_k @ w.T over the blocks a_k of 64 columns of a. `wgmma` starts a product on the
tensor core and returns; `wgmma_wait` waits for it. This kernel waits for each product before it
goes on, so the tensor core is idle until the next one is issued.

Let the tensor core always have the next product: remove the wait, and keep each slot for one step
longer than its own, so that a product may still read it in the next step. (Before the pipeline
releases a slot, and at the end of the loop, it waits for the products by itself.)
"""

import numpy as np

import numpipe
from numpipe import BlockSpec, cdiv, ds


@numpipe.kernel
def product(a, w, c):
    """c = the sum of the blocks of 64 columns of a, times w.T"""
    acc = numpipe.zeros((64, 256), np.float32)
    pipe = numpipe.pipeline(
        grid=(cdiv(a.shape[1], 64),),
        max_concurrent_steps=6,
        in_specs=(
            BlockSpec((64, 64), lambda k: (0, k)),
            BlockSpec((256, 64)),  # no index map: loaded once
        ),
    )
    for (k,), (a_tile, w_tile) in pipe(a, w):
        acc = numpipe.wgmma(acc, a_tile, w_tile.T)
        acc = numpipe.wgmma_wait(acc)
    c[ds(0, 64), ds(0, 256)] = acc


# ---- the check: do not change anything below this line ----
from checker import Puzzle  # noqa: E402

R = np.random.default_rng(0)
A, W = (R.integers(-3, 4, shape).astype(np.float16) for shape in ((64, 768), (256, 64)))
PUZZLE = Puzzle(
    product,
    (A, W, np.zeros((64, 256), np.float32)),
    expected=A.reshape(64, 12, 64).sum(axis=1).astype(np.float32) @ W.T.astype(np.float32),
    cycles=10500,
    hints={
        "too slow": "the row tensor core has gaps between products. It takes both changes: "
        "delay_release=1 in the pipeline, and no wgmma_wait in the loop.",
        "error": "delay_release has to be less than the number of slots, max_concurrent_steps.",
        "solved": "the tensor core is given the next product before it has finished the last one. "
        "The price is a slot, which holds a step that is already used.",
    },
)
if __name__ == "__main__":
    print(PUZZLE.check())
