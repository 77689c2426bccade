"""Gradients of LayerNorm: of x, of the weight and of the bias, in one pass over memory."""

from __future__ import annotations

import numpy as np

import numpipe
from numpipe import ArrayType, BlockSpec, CompilerParams, cdiv, ds, ops

WARPGROUPS, HEIGHT, BLOCK = 2, 4, 8  # HEIGHT rows of a block for each warpgroup


def programs(x):
    """Return the number of CTAs: one for each SM, but each with some blocks to add up."""
    return min(132, cdiv(x.shape[0], 4 * BLOCK))


def out_types(x):
    parts = (2, WARPGROUPS * programs(x), x.shape[1])
    return ArrayType(x.shape, x.dtype), ArrayType(parts, np.float32)


@numpipe.kernel(
    grid=lambda x: (programs(x),),
    num_compute_wgs=WARPGROUPS,
    static_dims=(-1,),  # the length of a row is a constant
    out_type=out_types,
    compiler_params=CompilerParams(approx_math=True),
)
def gradients(x, grad, weight, dx, parts, *, eps=1e-5):
    """dx, and what the rows of each warpgroup add to the gradients of weight and bias; for rows of
    at most 2 KB"""
    columns, warpgroup = ds(0, x.shape[1]), numpipe.axis_index("wg")
    first, step = numpipe.program_id(0), numpipe.num_programs(0)
    dweight = dbias = numpipe.zeros((HEIGHT, x.shape[1]), np.float32)
    block = BlockSpec((BLOCK, x.shape[1]), lambda k: (first + k * step, 0))
    steps = cdiv(cdiv(x.shape[0], BLOCK) - first, step)
    pipe = numpipe.pipeline(grid=(steps,), max_concurrent_steps=4, in_specs=(block, block))
    for (k,), (x_tile, grad_tile) in pipe(x, grad):
        own = ds(warpgroup * HEIGHT, HEIGHT)
        tile, dy = x_tile[own, :].astype(np.float32), grad_tile[own, :].astype(np.float32)
        centered = tile - tile.mean(axis=1)[:, None]
        inverse = numpipe.rsqrt((centered * centered).mean(axis=1) + eps)[:, None]
        normed = centered * inverse
        dweight, dbias = dweight + dy * normed, dbias + dy
        # the gradient of normed
        slope = dy * weight[columns].astype(np.float32)
        # a shift or a scale of x does not change y: dx has no part along either
        along, mean = (slope * normed).mean(axis=1)[:, None], slope.mean(axis=1)[:, None]
        row = (first + k * step) * BLOCK + warpgroup * HEIGHT
        dx[ds(row, HEIGHT), columns] = (slope - normed * along - mean) * inverse
    place = ds(first * WARPGROUPS + warpgroup, 1)
    parts[0, place, columns] = dweight.sum(axis=0)[None, :]
    parts[1, place, columns] = dbias.sum(axis=0)[None, :]


def layer_norm_backward(x, grad, weight):
    """Return dx, and an array with the gradients of weight and bias."""
    dx, parts = gradients(x, grad, weight)
    return dx, ops.sum(parts, axis=1)


X, GRAD = np.random.default_rng(0).standard_normal((2, 64, 256), np.float32)
WEIGHT = np.linspace(-1, 1, 256, dtype=np.float32)
ARRAYS = (X, GRAD, WEIGHT)


def mean(rows):
    return rows.mean(1, keepdims=True)


CENTERED = X - mean(X.astype(float))
INVERSE = 1 / np.sqrt(mean(CENTERED**2) + 1e-5)
NORMED, SLOPE = CENTERED * INVERSE, GRAD * WEIGHT
DX = INVERSE * (SLOPE - NORMED * mean(SLOPE * NORMED) - mean(SLOPE))
EXACT = (DX, np.stack([GRAD * NORMED, GRAD]).sum(1))
ERROR = 1e-6

if __name__ == "__main__":
    for found, exact in zip(layer_norm_backward(*ARRAYS), EXACT, strict=True):
        np.testing.assert_allclose(found, exact, atol=1e-4)
