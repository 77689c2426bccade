"""``layer_norm(x, weight, bias)``: rows with mean 0 and variance 1, and the gradients."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..launch.array_info import ArrayInfo
from ..plan.specs import ArrayType
from .declaration import Operand, op
from .norms import (
    CHECKS,
    Numbers,
    batched_norm,
    dresidual_type,
    launch_backward,
    launch_forward,
    total_type,
)
from .over_rows import TYPES

__all__ = ["layer_norm"]

VECTOR = Operand("n", types=TYPES)


def _launch_backward(
    x: ArrayInfo,
    grad: ArrayInfo,
    weight: ArrayInfo | None,
    grad_total: ArrayInfo | None,
    dx: ArrayInfo,
    dresidual: ArrayInfo | None,
    dweight: ArrayInfo | None,
    dbias: ArrayInfo | None,
    eps: float,
    dropout: float,
    seed: int,
    target: str | None,
    stream: Any,
) -> None:
    inputs = {"x": x, "grad": grad, "weight": weight, "grad_total": grad_total}
    results = {"dx": dx, "dresidual": dresidual, "dweight": dweight, "dbias": dbias}
    launch_backward(True, inputs, results, Numbers(eps, dropout, seed), target, stream)


@op(
    operands={"x": "... n", "grad": "... n", "weight": VECTOR, "grad_total": "... n"},
    results={
        "dx": "... n",
        "dresidual": dresidual_type,
        "dweight": lambda weight: None if weight is None else ArrayType(weight.shape, np.float32),
        "dbias": lambda x, bias: ArrayType(x.shape[-1:], np.float32) if bias else None,
    },
    types=TYPES,
    launch=_launch_backward,
)
def layer_norm_backward(
    x: Any,
    grad: Any,
    weight: Any = None,
    grad_total: Any = None,
    *,
    bias: bool = False,
    eps: float = 1e-5,
    dropout: float = 0.0,
    seed: int = 0,
    residual: bool = False,
    out: Any = None,
    target: str | None = None,
    stream: Any = None,
) -> Any:
    """Return the gradients of x, of weight and, with `bias`, of bias, for the gradients grad of y
    and grad_total of the total."""


def _launch(
    x: ArrayInfo,
    weight: ArrayInfo | None,
    bias: ArrayInfo | None,
    residual: ArrayInfo | None,
    y: ArrayInfo,
    total: ArrayInfo | None,
    eps: float,
    dropout: float,
    seed: int,
    target: str | None,
    stream: Any,
) -> None:
    inputs = {"x": x, "residual": residual, "weight": weight, "bias": bias}
    launch_forward(
        True, inputs, {"y": y, "total": total}, Numbers(eps, dropout, seed), target, stream
    )


def _gradients(
    xp: Any,
    x: Any,
    weight: Any,
    bias: Any,
    residual: Any,
    total: Any,
    grad_y: Any,
    grad_total: Any,
    eps: float,
    dropout: float,
    seed: int,
) -> tuple[Any, ...]:
    summed = x if residual is None else total
    more = () if residual is None else (grad_total,)
    made = xp(
        layer_norm_backward,
        summed,
        grad_y,
        weight,
        *more,
        bias=bias is not None,
        eps=eps,
        dropout=dropout,
        seed=seed,
        residual=residual is not None,
    )
    dx, *sums = made if isinstance(made, tuple) else (made,)
    dresidual = sums.pop(0) if residual is not None and dropout > 0 else dx
    dweight = None if weight is None else sums.pop(0)
    return dx, dweight, sums[0] if sums else None, None if residual is None else dresidual


def _batched(
    xp: Any,
    size: Any,
    batched: dict[str, bool],
    x: Any,
    weight: Any,
    bias: Any,
    residual: Any,
    eps: float,
    dropout: float,
    seed: int,
) -> Any:
    operands = {"x": x, "weight": weight, "bias": bias, "residual": residual}
    return batched_norm(
        xp, layer_norm, size, batched, operands, eps=eps, dropout=dropout, seed=seed
    )


@op(
    operands={"x": "... n", "weight": VECTOR, "bias": VECTOR, "residual": "... n"},
    results={"y": "... n", "total": total_type},
    types=TYPES,
    launch=_launch,
    checks=CHECKS,
    gradients={"x weight bias residual": _gradients},
    batching=_batched,
)
def layer_norm(
    x: Any,
    weight: Any = None,
    bias: Any = None,
    residual: Any = None,
    *,
    eps: float = 1e-5,
    dropout: float = 0.0,
    seed: int = 0,
    out: Any = None,
    target: str | None = None,
    stream: Any = None,
) -> Any:
    """Return ``(x - mean) / sqrt(variance + eps) * weight + bias`` along the last dimension; with a
    residual, ``(y, total)``, where total = x + residual and y is the norm of the total.

    x         (…, n) of float16, bfloat16 or float32, n up to 262,144, with any strides
    weight, bias
              (n,) of any of these types, or None
    residual  like x, or None
    eps       at least 0
    dropout   probability with which an element of x is dropped before the residual is added; the
              others are divided by 1 - dropout
    seed      int32 seed of the draw, which depends on it and on row and column alone
    out       an array of x's shape and type to write to, or a pair of them with a residual;
              allocated by default
    target, stream
              as for any kernel

    Rows have at most 87,360 elements with dropout or a gradient, and 52,416 with dropout, residual
    and gradient.

    Sums are float32, and the variance is computed from the differences to the mean. Each row is
    read once. The gradients of weight and bias are added in a fixed order. Raises SpecError for
    longer rows, other types or shapes, a dropout above 1, and an `out` of another shape or type.

    >>> layer_norm(np.array([[1, 2, 3, 4]], np.float32), target="sim").round(2)
    array([[-1.34, -0.45,  0.45,  1.34]], dtype=float32)
    """
