"""Multiply the rows of two GPUs while they are being exchanged: tensor parallelism."""

from __future__ import annotations

import numpy as np

import numpipe
from numpipe import BlockSpec, cdiv, ds

TM, TN, TK = 128, 256, 64


@numpipe.kernel(
    grid=numpipe.persistent(),
    num_compute_wgs=2,
    memory_registers=40,
    # the parameter `arrived`: one for each band of 128 rows
    semaphores=lambda rows: cdiv(rows.shape[1], TM),
)
def multiply(rows, b, c, arrived, *, senders: numpipe.Static = 16):
    """c[i] = rows[i] @ b.T. At first, a GPU has only its own rows, rows[me]."""
    me, wg = numpipe.axis_index("gpu"), numpipe.axis_index("wg")
    other, m_tiles, steps = 1 - me, cdiv(rows.shape[1], TM), cdiv(rows.shape[2], TK)
    mine = ds(wg * 64, 64)

    # some CTAs begin by sending bands of rows
    if numpipe.program_id(0) < senders:
        for band in range(numpipe.program_id(0), m_tiles, min(senders, numpipe.num_programs(0))):
            send = numpipe.pipeline(
                grid=(steps,),
                max_concurrent_steps=2,
                in_specs=(BlockSpec((None, TM, TK), lambda k: (me, band, k)),),
                out_specs=(BlockSpec((None, TM, TK), lambda k: (me, band, k)),),
            )
            for _, (here, there) in send(rows, numpipe.peer(rows, other)):
                there[mine, :] = here[mine, :]
            # a signal arrives after all earlier stores of the warpgroup
            numpipe.signal(arrived.at[band], other)

    # Tiles come from a counter, so that senders compute fewer. The other GPU's rows are last.
    for i, m, n in numpipe.tiles(2, m_tiles, cdiv(b.shape[0], TN), order="grouped", dynamic=True):
        source = me if i == 0 else other
        if i == 1:
            numpipe.wait(arrived.at[m], 2)  # a signal of each warpgroup
        acc = numpipe.zeros((64, TN), np.float32)
        pipe = numpipe.pipeline(
            grid=(steps,),
            max_concurrent_steps=3,
            in_specs=(
                BlockSpec((None, TM, TK), lambda k: (source, m, k)),
                BlockSpec((TN, TK), lambda k: (n, k)),
            ),
        )
        for _, (a_tile, b_tile) in pipe(rows, b):
            acc = numpipe.wgmma(acc, a_tile.at[mine, :], b_tile.T)
        c[source, ds(m * TM + wg * 64, 64), ds(n * TN, TN)] = acc.astype(c.dtype)


def all_gather_matmul(a, b, mesh):
    """Return concatenate(a) @ b[gpu].T of each GPU, for lists with an array of each GPU."""
    (m, k), n = a[0].shape, b[0].shape[0]
    rows, c = np.zeros((2, 2, m, k), a[0].dtype), mesh.zeros((2, m, n), a[0].dtype)
    rows[0, 0], rows[1, 1] = a
    multiply(mesh.to_device(list(rows)), mesh.to_device(b), c, mesh=mesh)
    return tuple(np.asarray(each).reshape(2 * m, n) for each in c)


RNG = np.random.default_rng(0)
A = [RNG.standard_normal((256, 128)).astype(np.float16) for _ in range(2)]
B = [RNG.standard_normal((256, 128)).astype(np.float16) for _ in range(2)]
ARRAYS = (A, B, numpipe.Mesh.simulated(2))
EXACT = tuple(np.concatenate(A).astype(float) @ each.T.astype(float) for each in B)
ERROR = 1e-3

if __name__ == "__main__":
    np.testing.assert_allclose(all_gather_matmul(*ARRAYS), EXACT, atol=0.02)
