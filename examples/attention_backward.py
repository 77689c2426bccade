"""Gradients of attention: dQ, dK and dV in one pass over blocks of queries.

A CTA owns 128 keys and loops over blocks of queries. The products S^T = K Q^T and dP^T = V dO^T
have keys as rows, so P^T is an A operand in registers for dV. dS^T passes through shared memory
once, for dK and for dQ = dS K. The products dQ and dK of a block are issued after the scores of the
next one, and run while its exponentials are computed. Warps of the memory warpgroup add dQ to a
float32 array by TMA (``store_role``), which a last kernel converts.

    python examples/attention_backward.py                simulated, against NumPy in float64
"""

# ruff: noqa: E501

import functools
import math

import numpy as np

import numpipe
from numpipe import SMEM, ArrayType, Barrier, BlockSpec, CompilerParams, cdiv, ds, full, iota

ROWS = {64: 128, 128: 64}
"""depth -> queries of a block"""
LATE = {64: True, 128: False}
"""depth -> whether the product dV begins after dS: otherwise registers do not suffice at depth 64"""
OWN_BARRIERS = {64: False, 128: True}
"""depth -> whether this kernel's barriers are the only ones; numpipe's gain 6 % at depth 64"""


def _statistics(o, do, lse):
    one = ArrayType((o.shape[0],), np.float32)
    return one, one, ArrayType(o.shape, np.float32)


@numpipe.rows(operands=2, out_type=_statistics)
def prepare(o, do, lse, stats, delta, dq, *, row: numpipe.Static):
    """What the main kernel reads of each query, and zeros in dq. All queries are rows of a matrix."""
    for k in row.blocks(o):
        x, g, block = row.load(k, o, do)
        row.put(k, delta, row.sum(lambda j: x(j) * g(j)))
        logarithm = row.get(k, lse) * math.log2(math.e)
        # a query that sees no key: exp2(s - inf) is 0
        row.put(k, stats, np.where(logarithm == -np.inf, np.inf, logarithm))
        row.store(block, dq, lambda j: full(x(j).shape, 0.0, np.float32))


@numpipe.rows(out_type=lambda acc: ArrayType(acc.shape, np.float16))
def convert(acc, dq, *, scale=1.0, row: numpipe.Static):
    for k in row.blocks(acc):
        x, block = row.load(k, acc)
        row.store(block, dq, lambda j: x(j) * scale)


@functools.cache
def backward(depth, causal):
    rows, late = ROWS[depth], LATE[depth]
    wgs = 2
    keys_of = 64 * wgs
    by_rows = rows // wgs >= 64  # a warpgroup has rows of dQ, else columns
    out_rows, out_cols = (rows // wgs, depth) if by_rows else (rows, depth // wgs)
    own_row, own_col = (out_rows, 0) if by_rows else (0, out_cols)

    @numpipe.kernel(
        grid=lambda q, k, v, do, stats, delta, dq, dk, dv, *, scale, scale_log2, diagonal, group: (
            cdiv(k.shape[2], keys_of) * k.shape[1] * k.shape[0]
        ),
        grid_names="tile",
        num_compute_wgs=wgs,
        wg_axis="wg",
        memory_registers=24,
        compiler_params=CompilerParams(
            approx_math=True,
            store_role=True,
            store_slots=2,
            unsafe_no_auto_barriers=OWN_BARRIERS[depth],
        ),
    )
    def bwd(q, k, v, do, stats, delta, dq, dk, dv, *, scale, scale_log2, diagonal, group):
        wg = numpipe.axis_index("wg")
        blocks = cdiv(k.shape[2], keys_of)
        tile = numpipe.axis_index("tile")
        if causal:
            # heads of a group side by side, blocks of keys with the most queries first
            heads = k.shape[0] * k.shape[1]
            above, rest = tile // (blocks * group), tile % (blocks * group)
            size = min(group, heads - above * group)
            head, j = above * group + rest % size, rest // size
        else:
            head, j = tile // blocks, tile % blocks
        b, hk = head // k.shape[1], head % k.shape[1]
        sharing = q.shape[1] // k.shape[1]
        end = cdiv(q.shape[2], rows)
        first = j * keys_of
        # blocks of queries before `start` see none of the keys, and those from `whole` on all
        start = min(end - 1, max(0, first - diagonal) // rows) if causal else 0
        whole = cdiv(max(0, first + keys_of - 1 - diagonal), rows) if causal else 0
        whole = whole if first + keys_of <= k.shape[2] else end
        kv = numpipe.pipeline(
            grid=(1,),
            in_specs=(BlockSpec((None, None, keys_of, depth), lambda _: (b, hk, j, 0)),) * 2,
        )
        grads = numpipe.scratch(SMEM((2, keys_of, rows), q.dtype))
        exchanged = numpipe.scratch(Barrier(num_arrivals=wgs, num_barriers=2))
        own = ds(wg * 64, 64)
        block = BlockSpec(
            (None, None, rows, depth),
            lambda h, i: (b, hk * sharing + h, start + i, 0),
            buffer_count=3,
            delay_release=1,
        )
        do_block = BlockSpec(
            (None, None, rows, depth),
            lambda h, i: (b, hk * sharing + h, start + i, 0),
            buffer_count=2,
            delay_release=1,
        )
        vector = BlockSpec(
            (None, None, rows), lambda h, i: (b, hk * sharing + h, start + i), buffer_count=2
        )
        main = numpipe.pipeline(
            grid=(sharing, end - start),
            in_specs=(block, vector, vector, do_block),
            manual_produced_barriers=True,
            manual_consumed_barriers=True,
        )
        for _, (k_tile, v_tile) in kv(k, v):
            k_own, v_own = k_tile.at[own, :], v_tile.at[own, :]
            k_part = k_tile.at[:, ds(wg * own_col, out_cols)]
            dk_acc = numpipe.zeros((64, depth), np.float32)
            dv_acc = numpipe.zeros((64, depth), np.float32)
            grad = full((64, rows), 0.0, np.float32).astype(q.dtype)
            grads.at[1, own, :][...] = grad
            numpipe.commit_smem()
            numpipe.barrier_arrive(exchanged.at[1])
            none = cdiv(dq.shape[2], rows)  # outside of dq: nothing is added
            before, now, h_before, i_before = 1, 0, 0, none

            for (h, i), (q_tile, lse_tile, delta_tile, do_tile), (
                q_ready,
                lse_ready,
                delta_ready,
                do_ready,
            ), (q_free, lse_free, delta_free, do_free) in main(q, stats, delta, do):
                if h + i == 0:
                    q_before = q_tile
                numpipe.barrier_wait(q_ready)
                s = numpipe.wgmma(None, k_own, q_tile.T)
                dv_acc = numpipe.wgmma_wait(dv_acc)
                numpipe.barrier_arrive(do_free)
                numpipe.barrier_wait(exchanged.at[before])
                part = numpipe.wgmma(
                    None, grads.at[before].T.at[ds(wg * own_row, out_rows), :], k_part
                )
                dk_acc = numpipe.wgmma(dk_acc, grads.at[before, own, :], q_before)
                s = numpipe.wgmma_wait(s)
                numpipe.barrier_wait(lse_ready)
                if start + i < whole:
                    key = iota(64) + (first + wg * 64)
                    if causal:
                        least = np.where(key < k.shape[2], key, 2**30)[:, None]
                        query = iota(rows) + ((start + i) * rows + diagonal)
                        s = np.where(query[None, :] >= least, s, -np.inf)
                    else:
                        s = np.where((key < k.shape[2])[:, None], s, -np.inf)
                p = np.exp2(numpipe.fma(s, scale_log2, -lse_tile[...][None, :]))
                numpipe.schedule_fence(after=p)
                part = numpipe.wgmma_wait(part)
                numpipe.atomic_add(
                    dq.at[
                        b,
                        hk * sharing + h_before,
                        ds(i_before * rows + wg * own_row, out_rows),
                        ds(wg * own_col, out_cols),
                    ],
                    part,
                )
                numpipe.barrier_wait(do_ready)
                numpipe.barrier_wait(delta_ready)
                dp = numpipe.wgmma(None, v_own, do_tile.T)
                dk_acc = numpipe.wgmma_wait(dk_acc)
                numpipe.barrier_arrive(q_free)
                if late:
                    dp = numpipe.wgmma_wait(dp)
                    pb = p.astype(q.dtype)
                    grad = (p * (dp - delta_tile[...][None, :])).astype(q.dtype)
                    dv_acc = numpipe.wgmma(dv_acc, pb, do_tile)
                else:
                    dv_acc = numpipe.wgmma(dv_acc, p.astype(q.dtype), do_tile)
                    dp = numpipe.wgmma_wait(dp)
                    grad = (p * (dp - delta_tile[...][None, :])).astype(q.dtype)
                numpipe.barrier_arrive(lse_free)
                numpipe.barrier_arrive(delta_free)
                grads.at[now, own, :][...] = grad
                numpipe.commit_smem()
                numpipe.barrier_arrive(exchanged.at[now])
                q_before, h_before, i_before, before, now = q_tile, h, start + i, now, before
                if h == sharing - 1 and start + i == end - 1:
                    dv_acc = numpipe.wgmma_wait(dv_acc)
                    numpipe.barrier_wait(exchanged.at[before])
                    part = numpipe.wgmma(
                        None, grads.at[before].T.at[ds(wg * own_row, out_rows), :], k_part
                    )
                    dk_acc = numpipe.wgmma(dk_acc, grads.at[before, own, :], q_tile)
                    part = numpipe.wgmma_wait(part)
                    numpipe.atomic_add(
                        dq.at[
                            b,
                            hk * sharing + h,
                            ds(i_before * rows + wg * own_row, out_rows),
                            ds(wg * own_col, out_cols),
                        ],
                        part,
                    )
                    dk_acc = numpipe.wgmma_wait(dk_acc)
            dk[b, hk, ds(first + wg * 64, 64), ds(0, depth)] = (dk_acc * scale).astype(dk.dtype)
            dv[b, hk, ds(first + wg * 64, 64), ds(0, depth)] = dv_acc.astype(dv.dtype)

    return bwd


def exact(q, k, v, do, causal, diagonal=0, scale=None):
    q, k, v, do = (x.astype(np.float64) for x in (q, k, v, do))
    g = q.shape[1] // k.shape[1]
    kk, vv = np.repeat(k, g, 1), np.repeat(v, g, 1)
    scale = scale or q.shape[3] ** -0.5
    s = np.einsum("bhqd,bhkd->bhqk", q, kk) * scale
    if causal:
        s = np.where(np.arange(k.shape[2]) <= np.arange(q.shape[2])[:, None] + diagonal, s, -np.inf)
    top = s.max(-1, keepdims=True)
    top = np.where(top == -np.inf, 0, top)
    e = np.exp(s - top)
    total = e.sum(-1, keepdims=True)
    with np.errstate(all="ignore"):
        lse = (np.log(total) + top)[..., 0]
    p = np.where(total > 0, e / np.where(total > 0, total, 1), 0)
    o = np.einsum("bhqk,bhkd->bhqd", p, vv)
    dv = np.einsum("bhqk,bhqd->bhkd", p, do)
    dp = np.einsum("bhqd,bhkd->bhqk", do, vv)
    dS = p * (dp - (do * o).sum(-1, keepdims=True))
    dq = np.einsum("bhqk,bhkd->bhqd", dS, kk) * scale
    dk = np.einsum("bhqk,bhqd->bhkd", dS, q) * scale
    fold = lambda x: x.reshape(x.shape[0], k.shape[1], g, *x.shape[2:]).sum(2)
    return o, lse, dq, fold(dk), fold(dv)


def run(kernel, q, k, v, o, lse, do, empty, diagonal=0, **place):
    """dq, dk and dv. The number of queries is a multiple of 4: TMA loads a float32 of each."""
    depth = q.shape[3]
    stats, delta = (empty(q.shape[:3], np.float32) for _ in range(2))
    acc = empty(q.shape, np.float32)
    dq, dk, dv = empty(q.shape, q.dtype), empty(k.shape, q.dtype), empty(v.shape, q.dtype)
    matrix, vector = (-1, depth), (-1,)
    prepare(
        *(x.reshape(matrix) for x in (o, do)),
        *(x.reshape(vector) for x in (lse, stats, delta)),
        acc.reshape(matrix),
        **place,
    )
    scale = depth**-0.5
    scales = {"scale": scale, "scale_log2": scale * math.log2(math.e)}
    kernel(q, k, v, do, stats, delta, acc, dk, dv, diagonal=diagonal, group=8, **scales, **place)
    convert(acc.reshape(matrix), dq.reshape(matrix), scale=scale, **place)
    return dq, dk, dv


def main() -> None:
    rng = np.random.default_rng(0)
    q, do = (rng.standard_normal((1, 2, 200, 64)).astype(np.float16) for _ in range(2))
    k, v = (rng.standard_normal((1, 1, 300, 64)).astype(np.float16) for _ in range(2))
    o, lse, *expected = exact(q, k, v, do, True, 100)
    kernel = backward(64, True)
    made = run(
        kernel,
        q,
        k,
        v,
        o.astype(np.float16),
        lse.astype(np.float32),
        do,
        lambda shape, dtype: np.full(shape, np.nan, dtype),
        100,
        target="sim",
    )
    for name, x, y in zip(("dq", "dk", "dv"), made, expected, strict=True):
        print(name, np.linalg.norm(x - y) / np.linalg.norm(y))


if __name__ == "__main__":
    main()
