"""Ping-pong

c = gelu(a @ b.T / 64), in tiles of 64 x 64. A CTA is *persistent*: it computes one tile after the
other. Products are short here (64 columns), and the function gelu takes longer than they do. While
the compute warpgroup computes it, the tensor core and the copies are idle.

Let two compute warpgroups take turns, so that one computes gelu while the other multiplies. Add two
arguments to `numpipe.kernel`: the number of compute warpgroups (`num_compute_wgs`), and the
`schedule`, "pingpong". The kernel's body stays as it is.
"""

import numpy as np

import numpipe
from numpipe import BlockSpec, cdiv, ds


@numpipe.function
def gelu(x):
    return 0.5 * x * (1 + np.tanh(0.79788 * (x + 0.044715 * x * x * x)))


@numpipe.kernel(grid=numpipe.persistent())
def product(a, b, c):
    """c = gelu(a @ b.T / 64)"""
    for m, n in numpipe.tiles(cdiv(a.shape[0], 64), cdiv(b.shape[0], 64)):
        acc = numpipe.zeros((64, 64), np.float32)
        pipe = numpipe.pipeline(
            grid=(cdiv(a.shape[1], 64),),
            max_concurrent_steps=6,
            in_specs=(
                BlockSpec((64, 64), lambda k: (m, k)),
                BlockSpec((64, 64), lambda k: (n, k)),
            ),
        )
        for (k,), (a_tile, b_tile) in pipe(a, b):
            acc = numpipe.wgmma(acc, a_tile, b_tile.T)
        c[ds(m * 64, 64), ds(n * 64, 64)] = gelu(acc / 64)


# ---- the check: do not change anything below this line ----
from checker import Puzzle  # noqa: E402

A, B = (np.random.default_rng(n).integers(-3, 4, (n, 64)).astype(np.float16) for n in (256, 192))
PUZZLE = Puzzle(
    product,
    (A, B, np.zeros((256, 192), np.float32)),
    expected=gelu(A.astype(np.float32) @ B.T.astype(np.float32) / 64),
    cycles=4500,
    hints={
        "too slow": "the tensor core has nothing to do while wg0 computes (#) after a product and "
        'stores (S). In the schedule "pingpong", warpgroups take turns on whole tiles.',
        "hazard": 'without schedule="pingpong", both warpgroups compute and store every tile.',
        "error": 'two warpgroups take turns with num_compute_wgs=2, schedule="pingpong".',
        "solved": "the tensor core works for one warpgroup while the other one computes gelu. That "
        "helps if products are short; warpgroups that share a larger tile load less.",
    },
)
if __name__ == "__main__":
    print(PUZZLE.check())
