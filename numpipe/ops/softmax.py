"""``softmax(x)``: exp(x) / sum(exp(x)) along the last dimension, and ``log_softmax(x)``, its
logarithm, with their gradients: each in one pass over memory."""

# schedules in kernels have no types
# mypy: disable-error-code="no-untyped-def, attr-defined"

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from ..diagnostics.argument_checks import FLAG
from ..kernels.row_kernels import RowKernel, rows
from ..language.tiles.mathematics import fma
from ..plan.specs import Static
from .declaration import op
from .over_rows import MATRIX, TYPES, given, launch_over_rows


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


def _composed(xp: Any, y: Any, grad: Any, log: bool) -> Any:
    y, wide = xp.cast(y, np.float32), xp.cast(grad, np.float32)
    if log:
        made = wide - xp.exp(y) * wide.sum(-1)[..., None]
    else:
        made = y * (wide - (wide * y).sum(-1)[..., None])
    return xp.cast(made, grad.dtype)


@op(
    operands={"y": "... n", "grad": "... n"},
    results={"dx": "... n"},
    types=TYPES,
    launch=lambda y, grad, dx, log, place: launch_over_rows(
        backward(log), given(MATRIX, g=grad, y=y), given(MATRIX, dx=dx), place
    ),
    checks={"log": FLAG},
    composite=lambda: _composed,
    batching="leading",
)
def softmax_backward(
    y: Any,
    grad: Any,
    *,
    log: bool = False,
) -> Any:
    """Return the gradient of x, where grad is the gradient of y: ``y * (grad - sum(grad * y))`` for
    y = softmax(x), or with `log` ``grad - exp(y) * sum(grad)`` for y = log_softmax(x)."""


def _declared(log: bool) -> Any:
    """Return the declaration of softmax, or of log_softmax."""
    return op(
        operands={"x": "... n"},
        results={"y": "... n"},
        types=TYPES,
        launch=lambda x, y, place: launch_over_rows(
            forward(log), given(MATRIX, x=x), given(MATRIX, y=y), place
        ),
        gradients={"x": lambda xp, y, grad_y: xp(softmax_backward, y, grad_y, log=log)},
        batching="leading",
    )


@_declared(log=False)
def softmax(x: Any, *, out: Any = None, target: str | None = None, stream: Any = None) -> Any:
    """Return ``exp(x) / sum(exp(x))`` along the last dimension.

    x    (…, n) of float16, bfloat16 or float32, with any strides
    out  an array of x's shape and type to write to; allocated by default
    target, stream
         as for any kernel

    The maximum of each row is subtracted first, so that nothing overflows; sums are float32. Each
    row is read once, and one of more than 131,072 elements twice; an array whose rows are not
    contiguous is copied first. The gradient takes one pass over y and the gradient of y. Raises
    SpecError for other element types, and an `out` of another shape or type.

    >>> softmax(np.zeros((3, 4), np.float32), target="sim")[0]
    array([0.25, 0.25, 0.25, 0.25], dtype=float32)
    """


@_declared(log=True)
def log_softmax(x: Any, *, out: Any = None, target: str | None = None, stream: Any = None) -> Any:
    """Return ``x - log(sum(exp(x)))`` along the last dimension. Parameters and errors are those of
    `softmax`.

    >>> log_softmax(np.zeros((3, 4), np.float32), target="sim")[0] == -np.log(np.float32(4))
    array([ True,  True,  True,  True])
    """
