"""A page table

The cache of a language model is a pool of *pages*. The pages of a sequence lie anywhere in the
pool: the sequence's row of the table `pages` lists them in order, and `lengths` says how many there
are. The rest of a row means nothing. Each CTA adds the pages of one sequence, s.

Both numbers come from arrays, and the memory warpgroup can read them: the grid of a pipeline, which
is its number of steps, and the index map of a block may contain elements of integer arrays. Pages
are blocks of 64 x 64: `None` in the block's shape stands for one page of the pool, so the index map
returns three indices, of which the last two are 0.
"""

import numpy as np

import numpipe
from numpipe import BlockSpec, ds


@numpipe.kernel(grid=lambda lengths: (lengths.shape[0],), grid_names="s")
def paged(pool, pages, lengths, y):
    """y[s] = the sum of pool[pages[s, k]] for k < lengths[s]"""
    s = numpipe.axis_index("s")
    acc = numpipe.zeros((64, 64), np.float32)
    pipe = numpipe.pipeline(
        grid=(...,),
        max_concurrent_steps=3,
        in_specs=(BlockSpec((None, 64, 64), lambda k: ...),),
    )
    for (k,), (page,) in pipe(pool):
        acc = acc + page[...]
    y[s, ds(0, 64), ds(0, 64)] = acc


# ---- the check: do not change anything below this line ----
from checker import Puzzle  # noqa: E402

POOL = np.random.default_rng(0).integers(-3, 4, (8, 64, 64)).astype(np.float32)
PAGES = np.array([[6, 1, 4, 3], [5, 0, 2, -1], [-1, -1, -1, -1], [2, 7, 1, -1]], np.int32)
LENGTHS = np.array([4, 2, 0, 3], np.int32)
PUZZLE = Puzzle(
    paged,
    (POOL, PAGES, LENGTHS, np.zeros((4, 64, 64), np.float32)),
    expected=np.stack([POOL[row[:n]].sum(axis=0) for row, n in zip(PAGES, LENGTHS, strict=True)]),
    hints={
        "wrong result": "step k of sequence s loads page pages[s, k], and there are lengths[s] "
        "steps.",
        "out-of-bounds": "entries of the table after a sequence's last page mean nothing: do not "
        "load them. There are lengths[s] steps.",
        "error": "an element of an array with two dimensions is array[i, j], and the index map "
        "returns three integers.",
        "solved": "the memory warpgroup reads both arrays by itself, so loads run ahead as with any"
        " other index map. A sequence without pages has no steps, and its sum is zero.",
    },
)
if __name__ == "__main__":
    print(PUZZLE.check())
