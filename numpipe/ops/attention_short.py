"""Attention kernel for short sequences: each CTA has one tile of 64 rows and one warpgroup, which
does its own loads.

The kernel of `ops.attention` keeps an SM busy with several warpgroups in one CTA that share blocks
of keys over many steps. Short sequences have few steps and too few rows to fill such a tile. Here
three or four CTAs run on each SM: while one waits for loads or for a product, another computes
exponentials. The hardware schedules the CTAs, so the kernel needs no tile scheduler and no handover
between warpgroups. The loads of all slots are issued at once. Each tile reads its key blocks from
L2 again, which is slow for many steps.
"""

from __future__ import annotations

import functools
import math

import numpy as np

from ..core.arith import cdiv
from ..kernels.decorator import kernel as numpipe_kernel
from ..kernels.kernel import Kernel
from ..language.pipeline.pipelines import pipeline
from ..language.tiles.conversions import layout_cast
from ..language.tiles.elementwise import full, iota
from ..language.tiles.mathematics import fma
from ..language.tiles.mma import wgmma, wgmma_wait
from ..language.tiles.reduce import partial_sum
from ..language.tiles.refs import ds
from ..language.tiles.tile import zeros
from ..plan.context import axis_index
from ..plan.params import CompilerParams
from ..plan.specs import BlockSpec
from .attention_configs import Config, Form


@functools.cache
def kernel(config: Config, form: Form) -> Kernel:
    """Return the kernel for a form, with the keys and slots of a config."""
    place, rows_of_q, keys_of_k = form.place, form.block(64), form.block(config.keys)

    @numpipe_kernel(
        out_type=form.results,
        without=() if form.sums else "lse",
        warp_specialized=False,
        num_compute_wgs=1,
        grid=lambda q: (q.shape[0] * q.shape[form.heads] * cdiv(q.shape[form.positions], 64),),
        grid_names="tile",
        compiler_params=CompilerParams(approx_math=True),
    )
    def attend_short(q, k, v, o, lse, *, scale, diagonal, group):  # type: ignore[no-untyped-def]
        """Compute o = softmax2(scale q k^T) v, with powers of two, and lse, the logarithms of the
        sums."""
        heads = q.shape[form.heads]
        keys = k.shape[form.positions]
        blocks = cdiv(q.shape[form.positions], 64)
        head, n = axis_index("tile") // blocks, axis_index("tile") % blocks
        b, h = head // heads, head % heads
        # several query heads share one head of keys and values
        hk = h * k.shape[form.heads] // heads
        i = blocks - 1 - n if form.causal else n  # the longest tiles first
        first = i * 64
        steps = cdiv(min(keys, max(0, first + 64 + diagonal)) if form.causal else keys, config.keys)
        # keys visible to every row of the tile
        whole = min(keys, max(0, first + diagonal + 1)) if form.causal else keys
        top = layout_cast(full(64, -np.inf, np.float32), "column")
        total = full((64, 8), 0.0, np.float32)
        acc = zeros((64, form.depth), np.float32)

        block = BlockSpec(keys_of_k, lambda j: place(b, hk, j, 0), buffer_count=config.slots)
        pipe = pipeline(
            grid=(steps,),
            in_specs=(BlockSpec(rows_of_q, lambda _: place(b, h, i, 0)), block, block),
        )  # type: ignore[var-annotated]
        for (j,), (q_tile, k_tile, v_tile) in pipe(q, k, v):
            s = wgmma_wait(wgmma(None, q_tile, k_tile.T))
            if (j + 1) * config.keys > whole:
                key = iota(config.keys) + j * config.keys
                end = (
                    np.minimum(iota(64) + (first + diagonal + 1), keys)[:, None]
                    if form.causal
                    else keys
                )
                s = np.where(key < end, s, -np.inf)
            new = np.maximum(top, s.max(axis=1))
            change = np.exp2(np.where(new == -np.inf, 0.0, (top - new) * scale))
            # 0 for a row in which every key is masked
            e = np.exp2(fma(s, scale, np.where(new == -np.inf, 0.0, new * -scale)[:, None]))
            total = total * change[:, None] + partial_sum(e)
            top = new
            acc = wgmma_wait(wgmma(acc * change[:, None], e.astype(q.dtype), v_tile))
        weight = total.sum(axis=1)
        out = (acc * np.where(weight > 0.0, 1.0 / weight, 0.0)[:, None]).astype(o.dtype)
        o[place(b, h, ds(first, 64), ds(0, form.depth))] = out
        if lse is not None:
            lse[b, h, ds(first, 64)] = (top * scale + np.log2(weight)) * math.log(2)

    return attend_short  # type: ignore[no-any-return]
