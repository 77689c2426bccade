"""Gradients of attention with score and mask functions.

With functions, one kernel does not have enough registers to compute all gradients in one pass.
Here `of_keys` computes dK and dV, and `attention_gradients.of_queries` dQ. Both compute P and dS
again from the products, in registers, and add up in a fixed order. With a mask, each loads the
blocks of its own list.
"""

# tiles in kernels have no types
# mypy: disable-error-code="no-untyped-def, attr-defined, operator, arg-type, index, var-annotated"

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import numpy as np

from ..core.arith import cdiv
from ..core.functions import Function, function
from ..kernels.decorator import kernel as numpipe_kernel
from ..kernels.kernel import Kernel
from ..language.pipeline.pipelines import pipeline
from ..language.tiles.elementwise import iota
from ..language.tiles.mathematics import fma
from ..language.tiles.mma import wgmma, wgmma_wait
from ..language.tiles.refs import ds
from ..language.tiles.tile import zeros
from ..launch.array_info import ArrayInfo
from ..plan.context import axis_index, program_id
from ..plan.params import CompilerParams
from ..plan.specs import BlockSpec
from .attention_configs import Form
from .attention_functions import caller, kept, nth, visible_blocks
from .op_outputs import Place

STEP = 64
"""queries of a step of the kernels of keys"""
ROWS = 64
"""queries of a step of `of_keys`"""
BLOCK = 128
"""keys of a CTA of `of_keys`"""


@functools.cache
def scores(form: Form) -> tuple[Function, Function]:
    """Return two kernel functions: of (P, slope) for the products of a block of queries and keys,
    the weights and the derivatives of the scores, and of dS for P, dP and slope. Keys are rows.
    With dropout, weights that are dropped are negative."""
    of, slope_of = (
        each and caller("score", each, form.arrays[0]) for each in (form.score, form.slope)
    )
    mask_of = form.mask and caller("mask", form.mask, form.arrays[1])

    @function
    def keeps(seeds, cta, h, heads, query, own):
        row, column = (iota(STEP) + query)[None, :], (iota(64) + (cta.row + own))[:, None]
        return kept(seeds, form.dropped, cta.b * heads + h, row, column)

    @function
    def weights(s, stats, cta, h, query, own, masked, sizes, arrays):
        queries, keys, heads, scale_log2 = sizes
        score_0, score_1, score_2, mask_0, mask_1, mask_2, seeds = arrays
        factor, slope = scale_log2, 1.0
        if form.functions:
            row, column = (iota(STEP) + query)[None, :], (iota(64) + (cta.row + own))[:, None]
            i, j = row, column
        if masked:
            # a first query for each key: a last key for each query takes more registers
            key = iota(64) + own
            begin = np.where(
                key < cta.end_row - cta.row, key + (cta.least - query) if form.causal else 0, STEP
            )
            if form.functions:
                i, j = np.minimum(row, queries - 1), np.minimum(column, keys - 1)
        if of is not None and slope_of is not None:
            s, factor = s * (scale_log2 * math.log(2.0)), math.log2(math.e)
            # 16 bits: half of the registers until dP is known
            slope = slope_of(s, cta.b, h, i, j, score_0, score_1, score_2).astype(np.float16)
            s = of(s, cta.b, h, i, j, score_0, score_1, score_2)
        if masked:
            if mask_of is not None:
                s = np.where(mask_of(cta.b, h, i, j, mask_0, mask_1, mask_2), s, -np.inf)
            s = np.where(iota(STEP) >= begin[:, None], s, -np.inf)
        p = np.exp2(fma(s, factor, -stats))
        if form.dropout:
            p = np.where(keeps(seeds, cta, h, heads, query, own), p, -p)
        return p, slope

    @function
    def slopes(p, dp, total, slope):
        if form.dropout:
            dp, p = np.where(p > 0.0, dp * form.share, 0.0), np.abs(p)
        return p * (dp - total) * slope.astype(np.float32)

    return weights, slopes, keeps

@functools.cache
def of_keys(form: Form, *absent: str) -> Kernel:
    """Return the kernel of dk and dv, or of one of them. A CTA owns 128 keys and loops over blocks
    of queries, in all heads that share the keys."""
    depth, place, (weights, slopes) = form.depth, form.place, scores(form)
    rows_of_q, keys_of_k = form.block(ROWS), form.block(BLOCK)

    @numpipe_kernel(
        grid=lambda k: cdiv(k.shape[form.positions], BLOCK) * k.shape[form.heads] * k.shape[0],
        num_compute_wgs=2,
        wg_axis="wg",
        memory_registers=40 if form.mask is not None else 24,
        without=[*form.absent, *absent],
        compiler_params=CompilerParams(approx_math=True),
    )
    def attention_function_gradients(
        q,
        k,
        v,
        grad,
        stats,
        delta,
        blocks,
        score_0,
        score_1,
        score_2,
        mask_0,
        mask_1,
        mask_2,
        seeds,
        dk,
        dv,
        *,
        scale,
        diagonal,
    ):
        queries, keys = q.shape[form.positions], k.shape[form.positions]
        sharing = q.shape[form.heads] // k.shape[form.heads]
        head, j = program_id(0) // cdiv(keys, BLOCK), program_id(0) % cdiv(keys, BLOCK)
        b, hk = head // k.shape[form.heads], head % k.shape[form.heads]
        first, end = j * BLOCK, cdiv(queries, ROWS)
        # blocks of queries before `start` see none of the keys, and those from `whole` on all
        start = min(end, max(0, first - diagonal) // ROWS) if form.causal else 0
        whole = cdiv(max(0, first + BLOCK - 1 - diagonal), ROWS) if form.causal else 0
        whole = whole if first + BLOCK <= keys else end
        steps, parts = end - start, whole - start
        if blocks is not None:
            bm, hm = b % blocks.shape[0], hk % blocks.shape[1]
            parts = blocks[bm, hm, j, 0]
            steps = parts + blocks[bm, hm, j, 1]

        def block(i):
            return start + i if blocks is None else nth(blocks, bm, hm, j, i)

        matrix = BlockSpec(
            rows_of_q,
            lambda h, i: place(b, hk * sharing + h, block(i), 0),
            buffer_count=1 if depth > 128 else 2,
        )
        vector = BlockSpec((None, None, ROWS), lambda h, i: (b, hk * sharing + h, block(i)))
        own = ds(axis_index("wg") * 64, 64)
        dk_acc, dv_acc = (
            zeros((64, depth if dk is not None else 8), np.float32),
            zeros((64, depth if dv is not None else 8), np.float32),
        )
        kv = pipeline(grid=(1,), in_specs=(BlockSpec(keys_of_k, lambda _: place(b, hk, j, 0)),) * 2)
        main = pipeline(grid=(sharing, steps), in_specs=(matrix, vector, vector, matrix))
        for _, (k_tile, v_tile) in kv(k, v):
            for (h, i), (q_tile, stats_tile, delta_tile, do_tile) in main(q, stats, delta, grad):
                s = wgmma_wait(wgmma(None, k_tile.at[own, :], q_tile.T))
                row = block(i) * ROWS
                p, slope = weights(
                    s,
                    stats_tile[...][None, :],
                    i < parts or row + ROWS > queries,
                    b,
                    hk * sharing + h,
                    (iota(ROWS) + row)[None, :],
                    (iota(64) + (first + axis_index("wg") * 64))[:, None],
                    (queries, keys, q.shape[form.heads], diagonal, scale),
                    (score_0, score_1, score_2, mask_0, mask_1, mask_2, seeds),
                )
                if dv is not None:
                    weighed = np.maximum(p, 0.0) * form.share if form.dropout else p
                    dv_acc = wgmma(dv_acc, weighed.astype(q.dtype), do_tile)
                if dk is not None:  # only now: the functions need registers
                    dp = wgmma_wait(wgmma(None, v_tile.at[own, :], do_tile.T))
                    grad_s = slopes(p, dp, delta_tile[...][None, :], slope)
                    dk_acc = wgmma(dk_acc, grad_s.astype(q.dtype), q_tile)
        mine = place(b, hk, ds(first + axis_index("wg") * 64, 64), ds(0, depth))
        if dk is not None:
            dk[mine] = (dk_acc * scale).astype(dk.dtype)
        if dv is not None:
            dv[mine] = dv_acc.astype(dv.dtype)

    return attention_function_gradients  # type: ignore[no-any-return]


def launch_function_gradients(
    read: tuple[ArrayInfo, ...],
    dk: ArrayInfo,
    dv: ArrayInfo,
    form: Form,
    arrays: Sequence[ArrayInfo],
    diagonal: int,
    scale: float,
    place: Place,
) -> None:
    """Compute dk and dv from q, k, v, grad, stats and delta (`attention_gradients.prepare`).
    `arrays` are those of the form's functions."""
    q, k, *_ = read
    listed = *visible_blocks(q, k, form, arrays, ROWS, BLOCK, place, by_keys=True), *arrays
    numbers = {"scale": scale, "diagonal": diagonal, **place}
    if form.depth <= 128:
        of_keys(form)(*read, *listed, dk, dv, **numbers)
    else:  # registers do not have room for both
        of_keys(form, "dv")(*read, *listed, dk, **numbers)
        of_keys(form, "dk")(*read, *listed, dv, **numbers)
