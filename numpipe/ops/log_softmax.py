"""``log_softmax(x)``: the logarithm of `softmax` along the last dimension, and its gradient, each
in one pass over memory (`softmax_kernels`)."""

from __future__ import annotations

from typing import Any

import numpy as np

from .declaration import op
from .over_rows import TYPES
from .softmax_kernels import launch_backward, launch_forward

__all__ = ["log_softmax"]


def _gradient_of_y(xp: Any, y: Any, grad: Any, grad_dx: Any) -> Any:
    y, grad, grad_dx = (xp.cast(x, np.float32) for x in (y, grad, grad_dx))
    return -xp.exp(y) * grad.sum(-1)[..., None] * grad_dx


def _gradient_of_grad(xp: Any, y: Any, grad_dx: Any) -> Any:
    y, grad_dx = xp.cast(y, np.float32), xp.cast(grad_dx, np.float32)
    return grad_dx - (xp.exp(y) * grad_dx).sum(-1)[..., None]


@op(
    operands={"y": "... n", "grad": "... n"},
    results={"dx": "... n"},
    types=TYPES,
    launch=launch_backward(log=True),
    gradients={"y": _gradient_of_y, "grad": _gradient_of_grad},
    batching="leading",
)
def log_softmax_backward(
    y: Any, grad: Any, *, out: Any = None, target: str | None = None, stream: Any = None
) -> Any:
    """Return the gradient of x, ``grad - exp(y) * sum(grad)``, where y = log_softmax(x) and grad is
    the gradient of y."""


@op(
    operands={"x": "... n"},
    results={"y": "... n"},
    types=TYPES,
    launch=launch_forward(log=True),
    gradients={"x": lambda xp, y, grad_y: xp(log_softmax_backward, y, grad_y)},
    batching="leading",
)
def log_softmax(x: Any, *, out: Any = None, target: str | None = None, stream: Any = None) -> Any:
    """Return ``x - log(sum(exp(x)))`` along the last dimension.

    x    (…, n) of float16, bfloat16 or float32, with any strides
    out  an array of x's shape and type to write to; allocated by default
    target, stream
         as for any kernel

    The maximum of each row is subtracted first, so that nothing overflows; sums are float32. Each
    row is read once, and one of more than 131,072 elements twice; an array whose rows are not
    contiguous is copied first. The gradient takes one pass over y and the gradient of y. Raises
    SpecError for other element types, and an `out` of another shape or type.

    >>> log_softmax(np.zeros((3, 4), np.float32), target="sim")[0] == -np.log(np.float32(4))
    array([ True,  True,  True,  True])
    """
