"""Multi-GPU kernels for tests; arrays are float32 with 64 columns and a multiple of 64 rows."""

from __future__ import annotations

import numpy as np

import numpipe
from numpipe import BlockSpec, cdiv, ds

BLOCK = (64, 64)


@numpipe.kernel(grid=numpipe.persistent(), semaphores=lambda x: cdiv(x.shape[0], 64))
def shift(x, y, ready):
    """Store x + 1 to y of the next GPU; a GPU ends when its own y has arrived."""
    other = (numpipe.axis_index("gpu") + 1) % numpipe.axis_size("gpu")
    for (i,) in numpipe.tiles(cdiv(x.shape[0], 64)):
        numpipe.peer(y, other)[ds(i * 64, 64), ds(0, 64)] = x[ds(i * 64, 64), ds(0, 64)] + 1
        numpipe.signal(ready.at[i], other)
        numpipe.wait(ready.at[i], 1)


@numpipe.kernel(grid=numpipe.persistent(), semaphores=1)
def gather(x, y, done):
    """Gather the x of all GPUs into y, in order; a GPU ends when all have read its x."""
    me, gpus, rows = numpipe.axis_index("gpu"), numpipe.axis_size("gpu"), cdiv(x.shape[0], 64)
    for (t,) in numpipe.tiles(rows * gpus):
        rank, i = (me + t // rows) % gpus, t % rows
        pipe = numpipe.pipeline(
            grid=(1,), in_specs=(BlockSpec(BLOCK, lambda k: (i, 0)),), max_concurrent_steps=2
        )
        for (k,), (tile,) in pipe(numpipe.peer(x, rank)):
            y[ds((rank * rows + i) * 64, 64), ds(0, 64)] = tile[...] * 1
        numpipe.signal(done.at[0], rank)
    numpipe.wait(done.at[0], rows * gpus)


def forgetful(**options):  # type: ignore[no-untyped-def]
    """Return a kernel whose GPU 1 does not signal, so that GPU 0 waits in vain."""

    @numpipe.kernel(grid=numpipe.persistent(), semaphores=2, **options)
    def forgetful(x, y, ready):
        me = numpipe.axis_index("gpu")
        if numpipe.program_id(0) == 0:
            numpipe.peer(y, me)[ds(0, 64), ds(0, 64)] = x[ds(0, 64), ds(0, 64)]
            numpipe.signal(ready.at[0], 1 - me)
            numpipe.wait(ready.at[0], 1)
            if me == 0:
                numpipe.signal(ready.at[1], 0)
                numpipe.wait(ready.at[1], 2)

    return forgetful


def inputs(gpus: int, rows: int = 256) -> list[np.ndarray]:
    """Return an array for each GPU, with small integers that differ between all rows."""
    return [
        (np.arange(rows * 64).reshape(rows, 64) % 4096 + 5000 * gpu).astype(np.float32)
        for gpu in range(gpus)
    ]
