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

import numpy as np

from ..core.functions import Function, function
from ..language.tiles.elementwise import iota
from ..language.tiles.mathematics import fma
from .attention_configs import Form
from .attention_functions import caller, kept

STEP = 64
"""queries of a step of the kernels of keys"""


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
        queries, keys, heads, scale = sizes
        score_0, score_1, score_2, mask_0, mask_1, mask_2, seeds = arrays
        factor, slope = scale * math.log2(math.e), 1.0
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
            s, factor = s * scale, math.log2(math.e)
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
