"""Kernels of the cross entropy of rows of logits, and of its gradient.

Short rows stay in registers (`numpipe.rows`). A longer row is read in blocks (`long_rows`): once
for the loss, and once more for a gradient that is computed together with it.
"""

# tiles and schedules in kernels have no types
# mypy: disable-error-code="no-untyped-def, attr-defined, operator, arg-type, call-overload"

from __future__ import annotations

import functools

import numpy as np

from ..core.arith import cdiv
from ..core.functions import function
from ..kernels.decorator import kernel
from ..kernels.kernel import Kernel
from ..kernels.row_kernels import RowKernel, rows
from ..language.tiles.elementwise import full, iota
from ..language.tiles.refs import ds
from ..plan.context import axis_index, program_id
from ..plan.params import CompilerParams
from ..plan.specs import Static
from .long_rows import Blocks, blocks_kernel, functions

SHORT, HELD = 16384, 8192
"""most columns of a row in registers: for its loss or its gradient alone, and for both at once"""


@function
def target(p, column, label, grad, smoothing, n):
    """Return the gradient of the logits: grad times p minus the targets."""
    hit = np.where(column == label, 1.0 - smoothing, 0.0)
    return (p - (hit + smoothing / n)) * grad


@functools.cache
def forward_short(lacking: tuple[str, ...], smooth: bool, debug: bool = False) -> RowKernel:
    """Return the kernel ``(x, labels, grad, loss, lse, dx)`` without the `lacking` ones.

    x, labels  logits (rows, n) and the column of each row's label
    loss, lse  of each row: the cross entropy, and log(sum(exp(x)))
    grad, dx   the gradient of each row's loss, and of x

    With `debug`, the kernel reports labels outside the row.
    """

    params = CompilerParams(approx_math=True, unsafe_no_auto_barriers=True, debug=True)
    options = {"compiler_params": params} if debug else {}

    @rows(without=lacking, operands=1 if "dx" in lacking else 2, **options)
    def cross_entropy_rows(x, labels, grad, loss, lse, dx, *, smoothing, ignored, row: Static):
        i, j = row.block()
        n = x.shape[1]
        tile = x[i, j].astype(np.float32)
        label = row.get(labels).astype(np.int32)
        counted = label != ignored
        if row.height == 1:
            number = labels[program_id(0) // row.cluster]
            # an element, so that a label outside the row is reported
            own = x[program_id(0) // row.cluster, 0 if number == ignored else number]
            picked = full((1, 1), own, np.float32)
        else:
            # not used, so that only checks of bounds remain of it
            x[0, np.where(counted, label, 0).reshape(-1)]
            picked = row.sum(np.where(row.column() == label, tile, 0.0), n)
        # a loss near 0 keeps its digits
        shift = np.where(abs(picked) < np.inf, picked, 0.0)
        tile = tile - shift
        p, total = row.softmax(tile, n)
        value = total - (1.0 - smoothing) * (picked - shift)
        if smooth:
            value = value - smoothing / n * row.sum(tile, n)
        if (row.wgs == 1 or axis_index("wg") == 0) and (
            row.cluster == 1 or axis_index("part") == 0
        ):
            loss[i] = np.where(counted, value, 0.0).reshape(-1)
            if lse is not None:
                lse[i] = (total + shift).reshape(-1)
        if dx is not None:
            made = target(p, row.column(), label, row.get(grad), smoothing, n)
            dx[i, j] = np.where(counted, made, 0.0)

    return cross_entropy_rows


@functools.cache
def backward_short() -> RowKernel:
    """Return the kernel ``(x, labels, lse, grad, dx)`` of the gradient dx of the logits."""

    @rows()
    def cross_entropy_gradient(x, labels, lse, grad, dx, *, smoothing, ignored, row: Static):
        i, j = row.block()
        label = row.get(labels).astype(np.int32)
        p = np.exp(x[i, j].astype(np.float32) - row.get(lse))
        made = target(p, row.column(), label, row.get(grad), smoothing, x.shape[1])
        dx[i, j] = np.where(label != ignored, made, 0.0)

    return cross_entropy_gradient


@functools.cache
def forward_long(
    blocks: Blocks, lacking: tuple[str, ...], smooth: bool, debug: bool = False
) -> Kernel:
    """Return the kernel of `forward_short` for longer rows; dx may be x."""
    of = functions(blocks, smooth)
    normalizer, block, end, whole = of.normalizer, of.block, of.end, blocks.whole
    column, column_end = of.column, of.column_end

    @blocks_kernel(blocks, debug, grid=lambda x: (x.shape[0],), without=lacking)
    def cross_entropy_blocks(x, labels, grad, loss, lse, dx, *, smoothing, ignored):
        at = program_id(0)
        r, n, label = ds(at, 1), x.shape[1], labels[at]
        counted = full((1, 1), label, np.int32) != ignored
        picked = x[at, 0 if label == ignored else label]
        top, total, plain = normalizer(x, r, n)
        value = np.log(total) + (1.0 - smoothing) * (top - full((1, 1), picked, np.float32))
        if smooth:
            value = value + smoothing * (top - plain / n)
        if axis_index("wg") == 0:
            loss[r] = np.where(counted, value, 0.0).reshape(-1)
            if lse is not None:
                lse[r] = (top + np.log(total)).reshape(-1)
        if dx is not None:
            scale, inverse = grad[at], 1.0 / total

            def made(tile, columns):
                p = np.exp(tile.astype(np.float32) - top) * inverse
                return np.where(counted, target(p, columns, label, scale, smoothing, n), 0.0)

            for k in range(blocks.tail):
                dx[r, end(k)] = made(x[r, end(k)], column_end(k))
            for k in range(whole):
                b = whole - 1 - k
                dx[r, block(b)] = made(x[r, block(b)], column(b))

    return cross_entropy_blocks


@functools.cache
def backward_long(blocks: Blocks) -> Kernel:
    """Return the kernel of `backward_short` for longer rows."""
    of = functions(blocks)
    block, end, column, column_end = of.block, of.end, of.column, of.column_end

    @blocks_kernel(blocks, grid=lambda x: (x.shape[0],))
    def cross_entropy_blocks_gradient(x, labels, lse, grad, dx, *, smoothing, ignored):
        at = program_id(0)
        r, n, label, total, scale = ds(at, 1), x.shape[1], labels[at], lse[at], grad[at]
        counted = full((1, 1), label, np.int32) != ignored

        def made(tile, columns):
            p = np.exp(tile.astype(np.float32) - total)
            return np.where(counted, target(p, columns, label, scale, smoothing, n), 0.0)

        for k in range(blocks.whole):
            dx[r, block(k)] = made(x[r, block(k)], column(k))
        for k in range(blocks.tail):
            dx[r, end(k)] = made(x[r, end(k)], column_end(k))

    return cross_entropy_blocks_gradient


VECTOR = 1024
"""elements of a vector that a warpgroup adds at once"""


@function
def counted(labels, k, ignored):
    """Return 1 for labels of vector k that are not ignored, else 0."""
    inside = iota(VECTOR) + k * VECTOR < labels.shape[0]
    return np.where((labels[ds(k * VECTOR, VECTOR)] != ignored) & inside, 1.0, 0.0)


@kernel(grid=(1,), warp_specialized=False)
def inverse_count(labels, inverse, *, ignored, mean):
    """inverse[0] = 1 / number of labels that are not ignored, or 1 without `mean`"""
    counts = full(VECTOR, 0.0, np.float32)
    for k in range(cdiv(labels.shape[0], VECTOR)):
        counts = counts + counted(labels, k, ignored)
    inverse[ds(0, 1)] = 1.0 / full(1, counts.sum() if mean else 1.0, np.float32)


@kernel(grid=(1,), warp_specialized=False)
def reduced(losses, labels, result, *, ignored, mean):
    """result[0] = sum of losses, with `mean` over the number of labels that are not ignored"""
    totals = counts = full(VECTOR, 0.0, np.float32)
    for k in range(cdiv(labels.shape[0], VECTOR)):
        totals = totals + losses[ds(k * VECTOR, VECTOR)]
        counts = counts + counted(labels, k, ignored)
    count = counts.sum() if mean else 1.0
    result[ds(0, 1)] = full(1, totals.sum(), np.float32) / full(1, count, np.float32)
