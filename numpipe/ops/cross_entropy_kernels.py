"""Kernels of the cross entropy of rows of logits, and of its gradient."""

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
from ..language.grid.round_totals import end_launch, launch_number, publish, totals, workspace
from ..language.pipeline.schedule_fences import schedule_fence
from ..language.tiles.elementwise import full, iota
from ..language.tiles.indices import index
from ..language.tiles.refs import ds
from ..plan.context import num_programs, program_id
from ..plan.params import CompilerParams
from ..plan.specs import Static


@function
def rows_of(row, k):
    """Return the numbers of the rows of block k."""
    return iota((row.height, 1), 0) + k * row.height


@function
def labels_of(labels, row, k):
    """Return the label of each row, and the last row's label for rows past the end: a lane that
    replaced it with 0 would wait for the label before it loads the row."""
    return labels[index(rows_of(row, k), "clip")]


@function
def column_of(x, row, k, label, counted):
    """Return x in the column of each row's label, or in column 0."""
    return x[index(rows_of(row, k), "zero"), np.where(counted, label, 0)].astype(np.float32)


@function
def targets_of(smoothing, n, scale):
    """Return what is subtracted from p times scale in all columns, and more in the label's."""
    off = smoothing / n * scale
    # rounded like p - off, so that rows of one column have gradient 0
    return off, (1.0 - smoothing + smoothing / n) * scale - off


@function
def gradient(row, j, p, label, counted, off, target, dx):
    """Return the gradient of the logits, except for the label's of a row that has tiles of its own:
    p minus the targets, or 0 in ignored rows, where p may be NaN."""
    grad = p - off
    if row.height > 1:
        grad = grad - np.where(row.column(j) == label, target, 0.0)
    return np.where(counted, grad.astype(dx.dtype), 0)


@functools.cache
def forward(
    lacking: tuple[str, ...], smooth: bool, debug: bool = False, summed: bool = False
) -> RowKernel:
    """Return the kernel ``(x, labels, grad, loss, lse, dx)`` without the `lacking` ones.

    x, labels  logits (rows, n) and the column of each row's label
    loss, lse  of each row: the cross entropy, and log(sum(exp(x)))
    grad, dx   the gradient of each row's loss, 1 by default, and of x; dx may be x

    With `debug`, the kernel reports labels outside the row. If `summed` and CTAs compute several
    blocks of rows, loss has any number of elements, at least one for each CTA: the sum of the CTA's
    losses. The others become 0.
    """

    params = CompilerParams(approx_math=True, unsafe_no_auto_barriers=True, debug=True)
    options = {"compiler_params": params} if debug else {}

    @rows(
        held=int(smooth or "dx" not in lacking),
        once="dx" in lacking,
        by_row=True,
        without=lacking,
        **options,
    )
    def cross_entropy_rows(x, labels, grad, loss, lse, dx, *, smoothing, ignored, row: Static):
        spread = smoothing if smooth else 0.0
        following = labels_of(labels, row, program_id(0) // row.cluster)
        added = full((row.height, 1), 0.0, np.float32)
        for k in row.blocks(x):
            label = following
            if row.loops:
                # loaded with the label of an earlier block, and before this block has arrived
                picked = column_of(x, row, k, label, label != ignored)
            logits, block = row.load(k, x, dtype=x.dtype)
            # the labels of the next block come while this one is computed
            following = labels_of(labels, row, k + num_programs(0))
            n = x.shape[1]
            counted = label != ignored
            if row.height > 1:
                # ptxas would wait for a label before it loads the next row
                schedule_fence()
            if not row.loops:
                picked = column_of(x, row, k, label, counted)
            # a loss near 0 keeps its digits
            shift = np.where(abs(picked) < np.inf, picked, 0.0)
            if smooth:
                # before `softmax`, so that lanes need not keep the logits in addition to its terms
                even = spread / n * row.sum(lambda j: logits(j).astype(np.float32) - shift)
            p, total = row.softmax(logits, shift)
            value = total - (1.0 - spread) * (picked - shift)
            if smooth:
                value = value - even
            value = np.where(counted, value, 0.0)
            if not row.loops:
                row.put(k, loss, value)
            if lse is not None:
                row.put(k, lse, total + shift)
            if dx is not None:
                scale = 1.0 if grad is None else row.get(k, grad)
                off, target = targets_of(spread, n, scale) if smooth else (0.0, scale)
                # ptxas would compare all columns with a label early, and keep the results as bits
                label = np.where(total == total, label, -1)

                def made(j):
                    return gradient(row, j, p(j) * scale, label, counted, off, target, dx)

                row.store(block, dx, made)
                if row.height == 1:
                    own = row.exp(picked - shift - total) * scale
                    row.replace(k, dx, np.where(counted, label, -1), own - off - target)
            if row.loops and summed:
                added = added + np.where(rows_of(row, k) < x.shape[0], value, 0.0)
            elif row.loops:
                # the barrier of `row.store` would wait for losses that are stored before it
                row.put(k, loss, value)
        if summed and row.loops:
            total = added.sum()
            for i in range(program_id(0), loss.shape[0], num_programs(0)):
                loss[ds(i, 1)] = full(1, total, np.float32)
                total = 0.0

    return cross_entropy_rows


@rows(held=1, once=True, by_row=True)
def cross_entropy_gradient(x, labels, lse, grad, dx, *, smoothing, ignored, row: Static):
    """Compute the gradient dx of the logits."""
    for k in row.blocks(x):
        logits, block = row.load(k, x)
        label, total, scale = row.get(k, labels), row.get(k, lse), row.get(k, grad)
        counted = label != ignored
        off, target = targets_of(smoothing, x.shape[1], scale)

        def made(j):
            p = np.exp(logits(j) - total) * scale
            return gradient(row, j, p, label, counted, off, target, dx)

        if row.height == 1:
            own = np.exp(column_of(x, row, k, label, counted) - total) * scale
        row.store(block, dx, made)
        if row.height == 1:
            row.replace(k, dx, np.where(counted, label, -1), own - off - target)


VECTOR, MOST_PARTS = 2048, 256
"""elements that a warpgroup adds at once, and the most CTAs that add up losses"""


@functools.cache
def reduced(*absent: str) -> Kernel:
    """Return the kernel ``(losses, labels, total)`` without the `absent` ones.

    It stores the sum of losses (1, m), or 1 without losses. If `mean`, it divides it by the number
    of labels (1, n) that are not ignored. m is at most n or VECTOR if there are labels.
    """

    def parts(losses=None, labels=None):
        n = (losses if labels is None else labels).shape[1]
        return max(1, min(MOST_PARTS, cdiv(n, VECTOR)))

    @kernel(grid=parts, warp_specialized=False, without=absent, workspace=workspace(2 * MOST_PARTS))
    def cross_entropy_reduced(losses, labels, total, work, *, ignored, mean: Static):
        n = (losses if labels is None else labels).shape[1]
        part, others = program_id(0), num_programs(0) - 1
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
