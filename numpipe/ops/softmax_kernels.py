"""Kernels of softmax and log_softmax along the rows of a matrix, and of their gradients."""

# schedules in kernels have no types
# mypy: disable-error-code="no-untyped-def, attr-defined"

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from ..kernels.row_kernels import RowKernel, rows
from ..language.tiles.mathematics import fma
from ..launch.array_info import ArrayInfo
from ..plan.specs import Static
from .over_rows import MATRIX, launch_over_rows


@functools.cache
def forward(log: bool) -> RowKernel:
    """Return the kernel ``(x, y)`` of y = softmax(x), or log_softmax(x)."""

    @rows(held=1)
    def softmax_rows(x, y, *, row: Static):
        for k in row.blocks(x):
            value, block = row.load(k, x)
            p, lse = row.softmax(value)
            row.store(block, y, lambda j: value(j) - lse if log else p(j))

    return softmax_rows


@functools.cache
def backward(log: bool) -> RowKernel:
    """Return the kernel ``(g, y, dx)`` of the gradient dx of x, given y = softmax(x) or
    log_softmax(x) and the gradient g of y."""

    @rows(operands=2)
    def softmax_rows_gradient(g, y, dx, *, row: Static):
        for k in row.blocks(g):
            grad, value, block = row.load(k, g, y)
            total = row.sum(lambda j: grad(j) if log else grad(j) * value(j))

            def result(j):
                if log:
                    return grad(j) - np.exp(value(j)) * total
                # rounded once, unless the terms cancel out
                return fma(grad(j), value(j), -total * value(j))

            row.store(block, dx, result)

    return softmax_rows_gradient


def launch_forward(log: bool) -> Callable[..., None]:
    """Return the launch function of the op y(x)."""

    def launch(x: ArrayInfo, y: ArrayInfo, target: str | None, stream: Any) -> None:
        operands, results = {"x": (MATRIX, x)}, {"y": (MATRIX, y)}
        launch_over_rows("softmax", forward(log), operands, results, target, stream)

    return launch


def launch_backward(log: bool) -> Callable[..., None]:
    """Return the launch function of the op dx(y, grad)."""

    def launch(
        y: ArrayInfo, grad: ArrayInfo, dx: ArrayInfo, target: str | None, stream: Any
    ) -> None:
        operands, results = {"g": (MATRIX, grad), "y": (MATRIX, y)}, {"dx": (MATRIX, dx)}
        launch_over_rows("softmax", backward(log), operands, results, target, stream)

    return launch
