"""Kernels of softmax and log_softmax along the rows of a matrix, and of their gradients.

==========================  ========================================================================
columns                     a row is
==========================  ========================================================================
up to `HELD`                in registers (`numpipe.rows`), read once
more                        read in blocks, twice (`long_rows`)
==========================  ========================================================================
"""

# tiles and schedules in kernels have no types
# mypy: disable-error-code="no-untyped-def, attr-defined, operator, arg-type, call-overload"

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from ..kernels.kernel import Kernel
from ..kernels.row_kernels import RowKernel, rows
from ..language.tiles.refs import ds
from ..launch.array_info import ArrayInfo
from ..plan.context import program_id
from ..plan.specs import Static
from .long_rows import Blocks, blocks_kernel, cut, functions
from .over_rows import MATRIX, launch_over_rows

HELD = 131072
"""most columns in registers, of all matrices that a kernel reads"""


@functools.cache
def forward_rows(log: bool) -> RowKernel:
    """Return the kernel ``(x, y)`` of `forward` for rows in registers."""

    @rows()
    def softmax_rows(x, y, *, row: Static):
        i, j = row.block()
        tile = x[i, j].astype(np.float32)
        p, lse = row.softmax(tile, x.shape[1])
        y[i, j] = tile - lse if log else p

    return softmax_rows


@functools.cache
def backward_rows(log: bool) -> RowKernel:
    """Return the kernel ``(g, y, dx)`` of `backward` for rows in registers."""

    @rows(operands=2)
    def softmax_rows_gradient(g, y, dx, *, row: Static):
        i, j = row.block()
        a, b = g[i, j].astype(np.float32), y[i, j].astype(np.float32)
        total = row.sum(a if log else a * b, g.shape[1])
        dx[i, j] = a - np.exp(b) * total if log else (a - total) * b

    return softmax_rows_gradient


@functools.cache
def forward(blocks: Blocks, log: bool) -> Kernel:
    """Return the kernel ``(x, y)`` of y = softmax(x), or log_softmax(x)."""
    of = functions(blocks)
    normalizer, block, end, whole = of.normalizer, of.block, of.end, blocks.whole

    @blocks_kernel(blocks, grid=lambda x: (x.shape[0],))
    def softmax_blocks(x, y):
        r = ds(program_id(0), 1)
        top, total, _ = normalizer(x, r, x.shape[1])
        less, scale = np.log(total), 1.0 / total

        def result(tile):
            tile = tile.astype(np.float32) - top
            return tile - less if log else np.exp(tile) * scale

        for k in range(blocks.tail):
            j = end(k)
            y[r, j] = result(x[r, j])
        for k in range(whole):
            j = block(whole - 1 - k)
            y[r, j] = result(x[r, j])

    return softmax_blocks


@functools.cache
def backward(blocks: Blocks, log: bool) -> Kernel:
    """Return the kernel ``(g, y, dx)`` of the gradient dx of x, given y = softmax(x) or
    log_softmax(x) and the gradient g of y."""
    of = functions(blocks)
    sums, block, end, whole = of.sums, of.block, of.end, blocks.whole

    @blocks_kernel(blocks, grid=lambda g: (g.shape[0],))
    def softmax_blocks_gradient(g, y, dx):
        r = ds(program_id(0), 1)

        def term(g, y):
            return g if log else g * y

        total = sums(g, y, r, term)

        def result(g, y):
            g, y = g.astype(np.float32), y.astype(np.float32)
            return g - np.exp(y) * total if log else (g - total) * y

        for k in range(blocks.tail):
            j = end(k)
            dx[r, j] = result(g[r, j], y[r, j])
        for k in range(whole):
            j = block(whole - 1 - k)
            dx[r, j] = result(g[r, j], y[r, j])

    return softmax_blocks_gradient


def launch_forward(log: bool) -> Callable[..., None]:
    """Return the launch function of the op y(x)."""

    def launch(x: ArrayInfo, y: ArrayInfo, target: str | None, stream: Any) -> None:
        _launch({"x": x}, {"y": y}, log, target, stream)

    return launch


def launch_backward(log: bool) -> Callable[..., None]:
    """Return the launch function of the op dx(y, grad)."""

    def launch(
        y: ArrayInfo, grad: ArrayInfo, dx: ArrayInfo, target: str | None, stream: Any
    ) -> None:
        _launch({"g": grad, "y": y}, {"dx": dx}, log, target, stream)

    return launch


def _launch(
    arrays: dict[str, ArrayInfo],
    results: dict[str, ArrayInfo],
    log: bool,
    target: str | None,
    stream: Any,
) -> None:
    (result,) = results.values()
    n, gradient = result.shape[-1], len(arrays) > 1
    of_rows, of_blocks = (backward_rows, backward) if gradient else (forward_rows, forward)
    launch_over_rows(
        "softmax",
        of_rows(log) if n * len(arrays) <= HELD else of_blocks(cut(n, result.dtype.itemsize), log),
        {name: (MATRIX, info) for name, info in arrays.items()},
        {name: (MATRIX, info) for name, info in results.items()},
        target,
        stream,
    )
