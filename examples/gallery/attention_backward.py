"""Gradients of attention: five products for each block of scores, in one pass."""

import numpy as np

import numpipe
from numpipe import SMEM, ArrayType, Barrier, BlockSpec, CompilerParams, ds, wgmma, wgmma_wait

DEPTH, SCALE = 128, 128**-0.5


# P is the softmax of the scores S, so dS = P * (dP - delta), where delta is the sum of o * do of a
# query. `prepare` computes delta, and the zeros to which `gradients` adds parts of dq
@numpipe.kernel(
    grid=lambda o: (o.shape[2] // 64, o.shape[1], o.shape[0]),
    warp_specialized=False,
    out_type=lambda o: (ArrayType(o.shape[:3], "float32"), ArrayType(o.shape, "float32")),
)
def prepare(o, do, delta, dq):
    i, h, b = numpipe.program_id(0), numpipe.program_id(1), numpipe.program_id(2)
    rows = b, h, ds(i * 64, 64), ds(0, DEPTH)
    delta[rows[:3]] = (o[rows].astype(np.float32) * do[rows].astype(np.float32)).sum(1) * SCALE
    dq[rows] = numpipe.zeros((64, DEPTH), np.float32)


@numpipe.kernel(
    grid=lambda k: (k.shape[2] // 128, k.shape[1], k.shape[0]),
    num_compute_wgs=2,
    compiler_params=CompilerParams(approx_math=True),
    out_type=lambda k, v: (ArrayType(k.shape, k.dtype), ArrayType(v.shape, v.dtype)),
)
def gradients(q, k, v, do, lse, delta, dq, dk, dv):
    j, h, b = numpipe.program_id(0), numpipe.program_id(1), numpipe.program_id(2)
    own, blocks = ds(numpipe.axis_index("wg") * 64, 64), q.shape[2] // 64
    keys = BlockSpec((None, None, 128, DEPTH), lambda _: (b, h, j, 0))
    queries = BlockSpec((None, None, 64, DEPTH), lambda i: (b, h, i, 0), buffer_count=2)
    per_query = BlockSpec((None, None, 64), lambda i: (b, h, i), buffer_count=2)
    # dq is a step late: one more step, whose blocks are outside of the arrays, so they are zeros
    steps = numpipe.pipeline(grid=(blocks + 1,), in_specs=(queries, per_query) * 2)
    slopes, written = numpipe.scratch((SMEM((2, 128, 64), q.dtype), Barrier(2, num_barriers=2)))
    dk_sum = dv_sum = numpipe.zeros((64, DEPTH), np.float32)
    for _, (k_tile, v_tile) in numpipe.pipeline(grid=(1,), in_specs=(keys, keys))(k, v):
        for (i,), (q_tile, lse_tile, do_tile, delta_tile) in steps(q, lse, do, delta):
            # rows are keys, 64 of each warpgroup, so p and slope are operands in registers
            s = wgmma(None, k_tile.at[own, :], q_tile.T)
            if i > 0:
                # dq sums over the keys of both warpgroups: each has half of its columns
                numpipe.barrier_wait(written.at[(i - 1) % 2])
                part = wgmma_wait(wgmma(None, slopes.at[(i - 1) % 2].T, k_tile.at[:, own]))
                numpipe.atomic_add(dq.at[b, h, ds(i * 64 - 64, 64), own], part)
            p = np.exp(wgmma_wait(s) * SCALE - lse_tile[...][None, :])
            dp = wgmma(None, v_tile.at[own, :], do_tile.T)
            dv_sum = wgmma(dv_sum, p.astype(q.dtype), do_tile)
            # dS; SCALE, a factor of the scores, is in delta too
            slope = (p * (wgmma_wait(dp) * SCALE - delta_tile[...][None, :])).astype(q.dtype)
            slopes.at[i % 2, own, :][...] = slope
            numpipe.commit_smem()
            numpipe.barrier_arrive(written.at[i % 2])
            dk_sum = wgmma(dk_sum, slope, q_tile)
        # the additional step also arrives: wait for it before the CTA ends
        numpipe.barrier_wait(written.at[blocks % 2])
    mine = b, h, ds(j * 128 + numpipe.axis_index("wg") * 64, 64), ds(0, DEPTH)
    dk[mine], dv[mine] = dk_sum, dv_sum


def attention_backward(q, k, v, o, lse, do):
    # attention returned o and lse, the logarithm of the sum of each query's exponentials; do is the
    # gradient of o; dq is float32
    delta, dq = prepare(o, do)
    return dq, *gradients(q, k, v, do, lse, delta, dq)


Q, K, V, DO = np.random.default_rng(0).standard_normal((4, 1, 1, 256, DEPTH)).astype(np.float16)
P = np.exp(Q.astype(float) @ K.astype(float).swapaxes(2, 3) * SCALE)
LSE, P = np.log(P.sum(axis=3)), P / P.sum(axis=3, keepdims=True)
DS = P * (DO.astype(float) @ V.swapaxes(2, 3) - (DO * (P @ V)).sum(3, keepdims=True)) * SCALE
ARRAYS = Q, K, V, (P @ V).astype(np.float16), LSE.astype(np.float32), DO
EXACT, ERROR = (DS @ K, DS.swapaxes(2, 3) @ Q, P.swapaxes(2, 3) @ DO), 1e-3

if __name__ == "__main__":
    np.testing.assert_allclose(attention_backward(*ARRAYS), EXACT, atol=1e-3)
