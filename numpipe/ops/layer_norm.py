"""``layer_norm(x, weight, bias)``: rows with mean 0 and variance 1, and the gradients."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..diagnostics.argument_checks import finite
from ..launch.array_info import ArrayInfo
from ..plan.specs import ArrayType
from .declaration import Operand, op
from .norms import batched_norm, launch_backward, launch_forward, total_type
from .over_rows import TYPES

__all__ = ["layer_norm"]

VECTOR = Operand("n", types=TYPES)


def _launch_backward(
    x: ArrayInfo,
    grad: ArrayInfo,
    weight: ArrayInfo | None,
    grad_total: ArrayInfo | None,
    dx: ArrayInfo,
    dweight: ArrayInfo | None,
    dbias: ArrayInfo | None,
    eps: float,
    target: str | None,
    stream: Any,
) -> None:
    inputs = {"x": x, "grad": grad, "weight": weight, "grad_total": grad_total}
    results = {"dx": dx, "dweight": dweight, "dbias": dbias}
    launch_backward(True, inputs, results, eps, target, stream)


@op(
    operands={"x": "... n", "grad": "... n", "weight": VECTOR, "grad_total": "... n"},
    results={
        "dx": "... n",
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
    out: Any = None,
    target: str | None = None,
    stream: Any = None,
) -> Any:
    """Return the gradients of x, of weight and, with `bias`, of bias, given those of y and of the
    total."""


def _launch(
    x: ArrayInfo,
    weight: ArrayInfo | None,
    bias: ArrayInfo | None,
    residual: ArrayInfo | None,
    y: ArrayInfo,
    total: ArrayInfo | None,
    eps: float,
    target: str | None,
    stream: Any,
) -> None:
    inputs = {"x": x, "residual": residual, "weight": weight, "bias": bias}
    launch_forward(True, inputs, {"y": y, "total": total}, eps, target, stream)


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
) -> tuple[Any, ...]:
    summed = x if residual is None else total
    more = () if residual is None else (grad_total,)
    made = xp(layer_norm_backward, summed, grad_y, weight, *more, bias=bias is not None, eps=eps)
    dx, *sums = made if isinstance(made, tuple) else (made,)
    dweight = None if weight is None else sums.pop(0)
    return dx, dweight, sums[0] if sums else None, None if residual is None else dx


def _batched(
    xp: Any,
    size: Any,
    batched: dict[str, bool],
    x: Any,
    weight: Any,
    bias: Any,
    residual: Any,
    eps: float,
) -> Any:
    operands = {"x": x, "weight": weight, "bias": bias, "residual": residual}
    return batched_norm(xp, layer_norm, size, batched, operands, eps)


@op(
    operands={"x": "... n", "weight": VECTOR, "bias": VECTOR, "residual": "... n"},
    results={"y": "... n", "total": total_type},
    types=TYPES,
    launch=_launch,
    checks={"eps": finite(0.0)},
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
    out: Any = None,
    target: str | None = None,
    stream: Any = None,
) -> Any:
    """Return ``(x - mean) / sqrt(variance + eps) * weight + bias`` along the last dimension; with a
    residual, ``(y, total)``, where total = x + residual is what y is the norm of.

    x         (…, n) of float16, bfloat16 or float32, n up to 262,144, with any strides
    weight, bias
              (n,) of any of these types, or None
    residual  like x, or None
    eps       at least 0
    out       an array of x's shape and type to write to, or a pair of them with a residual;
              allocated by default
    target, stream
              as for any kernel

    Sums are float32, and the variance is computed from the differences to the mean. Each row is
    read once. The gradients of weight and bias are added in a fixed order. Raises SpecError for
    longer rows, other types or shapes, and an `out` of another shape or type.

    >>> layer_norm(np.array([[1, 2, 3, 4]], np.float32), target="sim").round(2)
    array([[-1.34, -0.45,  0.45,  1.34]], dtype=float32)
    """
