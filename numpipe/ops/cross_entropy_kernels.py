"""Kernels of the cross entropy of rows of logits, and of its gradient."""

# tiles and schedules in kernels have no types
# mypy: disable-error-code="no-untyped-def, attr-defined, operator, arg-type, call-overload"

from __future__ import annotations

import functools

import numpy as np

from ..core.arith import cdiv
from ..core.functions import function
from ..core.static_range import static_range
from ..kernels.decorator import kernel
from ..kernels.kernel import Kernel
from ..kernels.row_kernels import RowKernel, rows
from ..language.pipeline.schedule_fences import schedule_fence
from ..language.tiles.elementwise import full, iota
from ..language.tiles.refs import ds
from ..language.tiles.warp_parts import STEP
from ..plan.context import program_id
from ..plan.params import CompilerParams
from ..plan.specs import Static


@function
def minus_targets(row, j, own, label, number, ignored, rest):
    """Subtract `rest` at the labels; ignored rows become 0. `number` is the label of a row that has
    tiles of its own: most of them do not have its column."""
    if row.height > 1 or (number == ignored) | (number >= j.start) & (number < j.start + j.size):
        # compared with other numbers than `label`, or ptxas keeps the results of the comparisons
        # for the loss
        target = np.where(label != ignored, label, -1)
        own = own - np.where(row.column(j) == target, rest, 0.0)
        own = np.where(label != ignored, own, 0.0)
    return own


@function
def gradient(row, j, p, label, number, ignored, grad, smoothing, n):
    """Return the gradient of the logits: grad times p minus the targets, or 0 in ignored rows."""
    off = smoothing / n * grad
    own = p * grad - off
    # rounded like `own`, so that rows of one column have gradient 0
    rest = (1.0 - smoothing + smoothing / n) * grad - off
    if row.height > 1 or row.steps > 0:
        return minus_targets(row, j, own, label, number, ignored, rest)
    made = None
    for c in static_range(0, row.width, STEP):
        i, part = ds(j.start + c, STEP), own[:, c : c + STEP]
        part = minus_targets(row, i, part, label, number, ignored, rest)
        made = part if c == 0 else np.concatenate((made, part), axis=1)
    return made


@functools.cache
def forward(lacking: tuple[str, ...], smooth: bool, debug: bool = False) -> RowKernel:
    """Return the kernel ``(x, labels, grad, loss, lse, dx)`` without the `lacking` ones.

    x, labels  logits (rows, n) and the column of each row's label
    loss, lse  of each row: the cross entropy, and log(sum(exp(x)))
    grad, dx   the gradient of each row's loss, 1 by default, and of x; dx may be x

    With `debug`, the kernel reports labels outside the row.
    """

    params = CompilerParams(approx_math=True, unsafe_no_auto_barriers=True, debug=True)
    options = {"compiler_params": params} if debug else {}

    @rows(held=smooth or "dx" not in lacking, without=lacking, once="dx" in lacking, **options)
    def cross_entropy_rows(x, labels, grad, loss, lse, dx, *, smoothing, ignored, row: Static):
        spread = smoothing if smooth else 0.0
        for k in row.blocks(x):
            logits, block = row.load(k, x)
            n = x.shape[1]
            label = row.get(k, labels).astype(np.int32)
            # ptxas would load rows one after the other, each when the previous one is computed
            schedule_fence()
            counted = label != ignored
            number = labels[k] if row.height == 1 else 0
            if row.height == 1:
                # an element, so that a label outside the row is reported
                own = x[k, 0 if number == ignored else number]
                picked = full((1, 1), own, np.float32)
            else:
                # the value is not used, so only the check of its index remains
                x[k * row.height, np.where(counted, label, 0).reshape(-1)]
                picked = row.sum(lambda j: np.where(row.column(j) == label, logits(j), 0.0))
            # a loss near 0 keeps its digits
            shift = np.where(abs(picked) < np.inf, picked, 0.0)
            p, total = row.softmax(logits, shift)
            value = total - (1.0 - spread) * (picked - shift)
            if smooth:
                value = value - spread / n * row.sum(lambda j: logits(j) - shift)
            row.put(k, loss, np.where(counted, value, 0.0))
            if lse is not None:
                row.put(k, lse, total + shift)
            if dx is not None:
                scale = 1.0 if grad is None else row.get(k, grad)

                row.store(
                    block,
                    dx,
                    lambda j: gradient(row, j, p(j), label, number, ignored, scale, spread, n),
                )

    return cross_entropy_rows


@functools.cache
def backward() -> RowKernel:
    """Return the kernel ``(x, labels, lse, grad, dx)`` of the gradient dx of the logits."""

    @rows(held=1, once=True)
    def cross_entropy_gradient(x, labels, lse, grad, dx, *, smoothing, ignored, row: Static):
        for k in row.blocks(x):
            logits, block = row.load(k, x)
            label = row.get(k, labels).astype(np.int32)
            number = labels[k] if row.height == 1 else 0
            total, scale, n = row.get(k, lse), row.get(k, grad), x.shape[1]

            def made(j):
                p = np.exp(logits(j) - total)
                return gradient(row, j, p, label, number, ignored, scale, smoothing, n)

            row.store(block, dx, made)

    return cross_entropy_gradient


VECTOR = 4096
"""elements that a warpgroup adds at once"""


@functools.cache
def reduced(*absent: str) -> Kernel:
    """Return the kernel ``(losses, labels, weights, total, count)`` without the `absent` ones.

    Each CTA adds up its part of losses (1, n), or 1 in all without losses, and of their weights: 1
    for labels (1, n) that are not ignored, or the given `weights` (1, n). It stores total[i] and
    count[i]; without `count`, total[i] is divided by it if `mean`. A sum needs losses alone.
    """

    @kernel(grid=lambda total: total.shape[0], warp_specialized=False, without=absent)
    def cross_entropy_reduced(losses, labels, weights, total, count, *, ignored, mean):
        per_row = losses if losses is not None else labels if labels is not None else weights
        steps, n = cdiv(per_row.shape[1], total.shape[0] * VECTOR), per_row.shape[1]
        totals = counts = full((1, VECTOR), 0.0, np.float32)
        part = program_id(0)
        for k in range(steps):
            i, j = ds(0, 1), ds((part * steps + k) * VECTOR, VECTOR)
            if labels is not None:
                counted = (labels[i, j] != ignored) & (iota((1, VECTOR), 1) + j.start < n)
                counts = counts + np.where(counted, 1.0, 0.0)
            if weights is not None:
                counts = counts + weights[i, j]
            if losses is not None:
                totals = totals + losses[i, j]
        added = 1.0 if losses is None else totals.sum()
        weight = counts.sum() if mean else 1.0
        if count is None:
            total[ds(part, 1)] = full(1, added, np.float32) / full(1, weight, np.float32)
        else:
            total[ds(part, 1)] = full(1, added, np.float32)
            count[ds(part, 1)] = full(1, weight, np.float32)

    return cross_entropy_reduced  # type: ignore[no-any-return]
