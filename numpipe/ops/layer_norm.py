"""``layer_norm(x, weight, bias)``: rows with mean 0 and variance 1, and the gradients."""

from __future__ import annotations

from typing import Any

from .norms import declared

__all__ = ["layer_norm"]


@declared(centered=True)
def layer_norm(
    x: Any,
    weight: Any = None,
    bias: Any = None,
    residual: Any = None,
    *,
    eps: float = 1e-5,
    dropout: float = 0.0,
    seed: int = 0,
    out_scales: str | None = None,
    out_dtype: str = "float8_e4m3fn",
    out: Any = None,
    target: str | None = None,
    stream: Any = None,
) -> Any:
    """Return ``(x - mean) / sqrt(variance + eps) * weight + bias`` along the last dimension; with a
    residual, ``(y, total)``, where total = x + residual and y is the norm of the total.

    x         (…, n) of float16, bfloat16 or float32, with any strides
    weight, bias
              (n,) of any of these types, or None
    residual  like x, or None
    eps       at least 0
    dropout   probability with which an element of x is dropped before the residual is added; the
              others are divided by 1 - dropout
    seed      int32 seed of the draw, which depends on it and on row and column alone
    out_scales
              "row" or "1x128": return (y, scales), or (y, scales, total) with a residual, with the
              float32 numbers of y quantized as by `quantize` with this block; no gradient
    out_dtype "float8_e4m3fn" or "int8", for quantized results
    out       an array to write to, or a tuple of as many as there are results; allocated by default
    target, stream
              as for any kernel

    Sums are float32, and the variance is computed from the differences to the mean. Each row is
    read once. The gradients of weight and bias are added in a fixed order. Raises SpecError for
    other types or shapes, a dropout above 1, and an `out` of another shape or type.

    >>> layer_norm(np.array([[1, 2, 3, 4]], np.float32), target="sim").round(2)
    array([[-1.34, -0.45,  0.45,  1.34]], dtype=float32)
    """
