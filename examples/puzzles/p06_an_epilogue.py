"""An epilogue

A layer of a network: c = max(a @ b.T + bias, 0), in float16. The product is there; each CTA
computes a tile of 64 x 64. What follows a product, before its result is stored, is its *epilogue*.

After the loop, `acc` is a register tile of float32, with which you can do what NumPy can do with an
array: arithmetic, broadcasting, `np.maximum`. `bias[ds(i, 64)]` loads 64 elements of the vector
`bias` from i on. The 64 columns of `acc` are columns n * 64 … of c. The store converts to c's type.
"""

import numpy as np

import numpipe
from numpipe import BlockSpec, cdiv, ds


@numpipe.kernel(
    grid=lambda a, b: (cdiv(a.shape[0], 64), cdiv(b.shape[0], 64)), grid_names=("m", "n")
)
def layer(a, b, bias, c):
    """c = max(a @ b.T + bias, 0)"""
    m, n = numpipe.axis_index("m"), numpipe.axis_index("n")
    acc = numpipe.zeros((64, 64), np.float32)
    pipe = numpipe.pipeline(
        grid=(cdiv(a.shape[1], 64),),
        max_concurrent_steps=3,
        in_specs=(
            BlockSpec((64, 64), lambda k: (m, k)),
            BlockSpec((64, 64), lambda k: (n, k)),
        ),
    )
    for (k,), (a_tile, b_tile) in pipe(a, b):
        acc = numpipe.wgmma(acc, a_tile, b_tile.T)
    c[ds(m * 64, 64), ds(n * 64, 64)] = ...


# ---- the check: do not change anything below this line ----
from checker import Puzzle  # noqa: E402

A, B = (np.random.default_rng(n).integers(-3, 4, (n, 192)).astype(np.float16) for n in (128, 192))
BIAS = np.arange(-96, 96, dtype=np.float32)
EXACT = np.maximum(A.astype(np.float32) @ B.T.astype(np.float32) + BIAS, 0)
PUZZLE = Puzzle(
    layer,
    (A, B, BIAS, np.zeros((128, 192), np.float16)),
    expected=EXACT.astype(np.float16),
    hints={
        "wrong result": "bias has an element for each column of c. As in NumPy, a vector is added "
        "to each row of a tile; this CTA's columns begin at n * 64.",
        "error": "load this CTA's part of bias, bias[ds(…, 64)], and use functions such as "
        "np.maximum instead of methods. acc and bias are float32: nothing needs to be converted.",
        "solved": "the epilogue works in registers: the product itself is never written to memory.",
    },
)
if __name__ == "__main__":
    print(PUZZLE.check())
