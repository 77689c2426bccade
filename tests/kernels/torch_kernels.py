"""Elementwise kernels that tests make PyTorch ops of; their gradients are elementwise too."""

from __future__ import annotations

import numpy as np

import numpipe
from numpipe import ArrayType, BlockSpec, cdiv, ds

ONE_MORE = np.int64(1)
BLOCK = BlockSpec((64, 64), lambda i, j: (i, j))
SAME = {"grid": lambda x: (cdiv(x.shape[0], 64), cdiv(x.shape[1], 64))}


@numpipe.kernel(
    in_specs=(BLOCK,),
    out_specs=(BLOCK, BLOCK),
    **SAME,
    out_type=lambda x: (ArrayType(x.shape, x.dtype), ArrayType(x.shape, np.float32)),
)
def squared(x, y, z, *, alpha: float, n=1):
    """Compute y = alpha * x * x + n - 1 and z = 2 alpha x."""
    tile = x[...].astype(np.float32)
    y[...] = (alpha * tile * tile + (n - 1)).astype(y.dtype)
    z[...] = 2.0 * alpha * tile


@numpipe.kernel(
    in_specs=(BLOCK, BLOCK),
    out_specs=BLOCK,
    grid=lambda z: (cdiv(z.shape[0], 64), cdiv(z.shape[1], 64)),
    out_type=lambda grad_y: ArrayType(grad_y.shape, grad_y.dtype),
)
def squared_backward(z, grad_y, grad_x):
    grad_x[...] = (z[...] * grad_y[...].astype(np.float32)).astype(grad_x.dtype)


@numpipe.kernel(in_specs=BLOCK, out_specs=BLOCK, **SAME)
def tripled(x, y):
    y[...] = x[...] * 3.0


@numpipe.kernel(
    in_specs=BLOCK, out_specs=BLOCK, **SAME, out_type=lambda x, factor: ArrayType(x.shape, x.dtype)
)
def times(x, y, *, factor: numpipe.Static):
    y[...] = x[...] * factor


@numpipe.kernel(
    in_specs=BLOCK, out_specs=BLOCK, **SAME, out_type=lambda x: ArrayType(x.shape, x.dtype)
)
def untyped(x, y, *, alpha):
    y[...] = x[...] * alpha


@numpipe.kernel(
    in_specs=BLOCK, out_specs=BLOCK, **SAME, out_type=lambda x: ArrayType(x.shape, x.dtype)
)
def shifted(x, y, *, by=ONE_MORE):
    y[...] = x[...] + by


@numpipe.kernel(warp_specialized=False, out_type=lambda x: ArrayType(x.shape, x.dtype))
def counted(x, times: int, count, y):
    """Compute y = times * x, and count the call."""
    all_of = (ds(0, 64), ds(0, 64))
    y[all_of] = x[all_of] * float(times)
    count[all_of] = count[all_of] + 1.0
