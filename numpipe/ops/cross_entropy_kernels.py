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
from ..language.grid.round_totals import end_launch, launch_number, publish, totals, workspace
from ..language.pipeline.schedule_fences import schedule_fence
from ..language.tiles.elementwise import full, iota
from ..language.tiles.indices import index
from ..language.tiles.refs import ds
from ..language.tiles.warp_parts import STEP
from ..plan.context import num_programs, program_id
from ..plan.params import CompilerParams
from ..plan.specs import Static


@function
def gradient(row, j, p, label, number, ignored, grad, smoothing, n):
    """Return the gradient of the logits: grad times p minus the targets, or 0 in ignored rows.
    `number` is the label of a row that has tiles of its own."""
    off = smoothing / n * grad
    own = p * grad - off
    # rounded like `own`, so that rows of one column have gradient 0
    target = (1.0 - smoothing + smoothing / n) * grad - off

    def minus_target(own, j):
        here = (number >= j.start) & (number < j.start + j.size)
        if row.height > 1 or here | (number == ignored):
            own = own - np.where(row.column(j) == label, target, 0.0)
            own = np.where(label != ignored, own, 0.0)
        return own

    if row.height > 1 or row.steps > 0:
        return minus_target(own, j)
    # most parts of a row do not have its label
    made = minus_target(own[:, 0:STEP], ds(j.start, STEP))
    for c in static_range(STEP, row.width, STEP):
        part = minus_target(own[:, c : c + STEP], ds(j.start + c, STEP))
        made = np.concatenate((made, part), axis=1)
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
        following = row.get(program_id(0) // row.cluster, labels)
        for k in row.blocks(x):
            label = following
            logits, block = row.load(k, x)
            # the labels of the next block come while this one is computed
            following = row.get(k + num_programs(0), labels)
            n = x.shape[1]
            counted = label != ignored
            number = labels[k] if row.height == 1 else 0
            i = index(iota((row.height, 1), 0) + k * row.height, "zero")
            if row.height > 1:
                # ptxas would wait for a label before it loads the next row
                schedule_fence()
            picked = x[i, np.where(counted, label, 0)].astype(np.float32)
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
            label = row.get(k, labels)
            number = labels[k] if row.height == 1 else 0
            total, scale, n = row.get(k, lse), row.get(k, grad), x.shape[1]

            def made(j):
                p = np.exp(logits(j) - total)
                return gradient(row, j, p, label, number, ignored, scale, smoothing, n)

            row.store(block, dx, made)

    return cross_entropy_gradient


VECTOR, MOST_PARTS = 2048, 256
"""elements that a warpgroup adds at once, and the most CTAs that add up losses"""


@functools.cache
def reduced(*absent: str) -> Kernel:
    """Return the kernel ``(losses, labels, total)`` without the `absent` ones.

    It stores the sum of losses (1, n), or 1 without losses. If `mean`, it divides it by the number
    of labels (1, n) that are not ignored.
    """

    def parts(labels):
        return max(1, min(MOST_PARTS, cdiv(labels.shape[1], VECTOR)))

    @kernel(grid=parts, warp_specialized=False, without=absent, workspace=workspace(2 * MOST_PARTS))
    def cross_entropy_reduced(losses, labels, total, work, *, ignored, mean: Static):
        n, part, others = labels.shape[1], program_id(0), num_programs(0) - 1
        sums = counts = full((1, VECTOR), 0.0, np.float32)
        launch = launch_number(work)
        for k in range(part, cdiv(n, VECTOR), others + 1):
            i, j = ds(0, 1), ds(k * VECTOR, VECTOR)
            if mean:
                counted = (labels[i, j] != ignored) & (iota((1, VECTOR), 1) + j.start < n)
                counts = counts + np.where(counted, 1.0, 0.0)
            if losses is not None:
                sums = sums + losses[i, j]
        added, count = sums.sum(), counts.sum() if mean else 1.0
        if part < others:
            publish(work, 0, added, launch)
            if mean:
                publish(work, 1, count, launch)
        else:
            if others > 0:
                added = added + totals(work, 0, others, launch).sum()
                if mean:
                    count = count + totals(work, 1, others, launch).sum()
                end_launch(work, launch)
            added = 1.0 if losses is None else added
            total[ds(0, 1)] = full(1, added, np.float32) / full(1, count, np.float32)

    return cross_entropy_reduced  # type: ignore[no-any-return]
