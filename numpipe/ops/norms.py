"""``layer_norm(x, weight, bias)``: rows with mean 0 and variance 1. ``rms_norm(x, weight)``: rows
whose squares have the mean 1. Their declarations, launches and forward kernel.

Where a gradient is needed, the forward kernel also stores the statistics of each row, so that the
gradient (`norm_gradients`) exchanges numbers once a row.
"""

# tiles and schedules in kernels have no types
# mypy: disable-error-code="no-untyped-def, attr-defined, operator, arg-type, call-overload"

from __future__ import annotations

import functools
from collections.abc import Callable
from functools import partial
from typing import Any, ParamSpec

import numpy as np

from ..diagnostics.argument_checks import FLAG, FRACTION, INT32, as_tuple, finite
from ..diagnostics.errors import SpecError
from ..kernels.row_kernels import RowKernel, rows
from ..language.tiles.mathematics import fma, rsqrt
from ..language.tiles.refs import ds
from ..plan.specs import ArrayType, Static
from .declaration import Op, Operand, op
from .norm_gradients import launch_gradient, scaling
from .op_outputs import Place, same
from .over_rows import COLUMNS, MATRIX, ROWS, TYPES, given, lacking, launch_over_rows
from .quantize import QUANTIZED, UNITS, quantizer, result_type, scales_type

DROPOUT = {"dropout": FRACTION, "seed": INT32}
CHECKS = DROPOUT | {"eps": finite(0.0)}
VECTOR = Operand("n", types=TYPES)
P = ParamSpec("P")


@functools.cache
def forward(centered: bool, quantized: tuple[str, str] | None, *present: str) -> RowKernel:
    """Return the kernel of y = norm(x + residual) * weight + bias, total = x + residual, and
    `statistics`, with the arrays that are `present`; with "dropout", elements of x are dropped
    first. If y is `quantized`, as (type, block), it is divided by `scales`."""
    absent = lacking(present, "residual", "weight", "bias", "scales", "total", "statistics")
    drops, adds = "dropout" in present, "residual" in present
    kind, block_of = quantized or ("int8", None)
    *_, quantized_ = quantizer(kind, block_of)

    # random numbers take registers: with held=1, there would be more CTAs, and ptxas would spill
    @rows(operands=1 + adds, held=2 if drops else int(adds), unit=UNITS[block_of], without=absent)
    def norm(
        x, residual, weight, bias, y, scales, total, statistics, *, eps, dropout, scale, seed,
        row: Static,
    ):  # fmt: skip
        folds = quantized and bias is None  # the quantizer multiplies by 1 / rms
        if weight is not None:
            gamma = row.vector(weight)
        if bias is not None:
            beta = row.vector(bias)
        for k in row.blocks(x):
            if adds:
                first, second, block = row.load(k, x, residual)
            else:
                first, block = row.load(k, x)

            # loading the total of a longer row again is faster than a second draw
            stored = adds and (row.rereads or (drops and row.steps > 0))

            def added(j):
                tile = first(j)
                if drops:
                    tile = np.where(row.random(k, j, seed) < dropout, 0.0, tile * scale)
                if adds:
                    tile = tile + second(j)
                if stored:
                    total[ds(k, 1), j] = tile
                return tile

            def value(j):
                return total[ds(k, 1), j].astype(np.float32) if stored else added(j)

            def squared(j):
                tile = added(j)
                return tile * tile

            if centered:
                mean, square = row.moments(added)
            else:
                square = row.mean(squared)
            square = square + eps
            root = rsqrt(square)
            # one step of Newton's method, with the rounding error of square * root; 0 and infinity
            # stay as they are
            scaled = square * root
            off = fma(-scaled, root, 1.0) - fma(square, root, -scaled) * root
            inverse = np.where(off < 1.0, fma(0.5 * root, off, root), root)
            if statistics is not None:
                row.put(k, statistics, inverse, 0)
                if centered:
                    row.put(k, statistics, mean, 1)

            def result(j):
                tile = value(j)
                if centered:
                    tile = tile - mean
                if not folds:
                    tile = tile * inverse
                if weight is not None:
                    tile = tile * gamma(j)
                if bias is not None:
                    tile = tile + beta(j)
                return tile

            if quantized:
                factor = inverse if folds else 1.0
                result = quantized_(row, row.put, row.each_group, k, scales, result, factor)
            if adds and not stored:
                row.store(block, y, result, total, value)
            else:
                row.store(block, y, result)

    return norm


def _launch(
    x: Any,
    weight: Any,
    residual: Any,
    y: Any,
    total: Any,
    eps: float,
    dropout: float,
    seed: int,
    place: Place,
    centered: bool,
    bias: Any = None,
    statistics: Any = None,
    scales: Any = None,
    out_scales: Any = None,
    out_dtype: str = "",
) -> None:
    inputs = given(MATRIX, x=x, residual=residual) | given(COLUMNS, weight=weight, bias=bias)
    results = given(MATRIX, y=y, total=total, statistics=statistics)
    results |= given(ROWS if out_scales == "row" else MATRIX, scales=scales)
    quantized = out_scales and (out_dtype, out_scales)
    run = forward(centered, quantized, *inputs, *results, *["dropout"] * (dropout > 0))
    launch_over_rows(run, inputs, results, place, eps=eps, **scaling(dropout, seed))


@op(
    operands={
        "x": "... n",
        "grad": "... n",
        "statistics": Operand("... s", types=("float32",)),
        "weight": VECTOR,
        "grad_total": "... n",
    },
    results={
        "dx": "... n",
        "dresidual": lambda x, dropout: same(x, dropout > 0),
        "dweight": lambda weight: None if weight is None else ArrayType(weight.shape, np.float32),
        "dbias": lambda x, bias: ArrayType(x.shape[-1:], np.float32) if bias else None,
    },
    types=TYPES,
    launch=launch_gradient,
    checks=DROPOUT | {"bias": FLAG},
    batching="each",
)
def norm_backward(
    x: Any,
    grad: Any,
    statistics: Any,
    weight: Any = None,
    grad_total: Any = None,
    *,
    bias: bool = False,
    dropout: float = 0.0,
    seed: int = 0,
) -> Any:
    """Return the gradients of x, of weight and, with `bias`, of bias, for the gradients grad of y
    and grad_total of the total. x is the input of the norm, or the total if there was a residual;
    `statistics` is the result of `norm_rows`. With dropout, the first two results are the gradients
    of the input before elements were dropped and of the residual."""


def _gradients(
    xp: Any,
    x: Any,
    weight: Any,
    bias: Any,
    residual: Any,
    statistics: Any,
    total: Any,
    grad_y: Any,
    grad_total: Any,
    dropout: float,
    seed: int,
) -> tuple:
    summed, grad_total = (x, None) if residual is None else (total, grad_total)
    made = xp(
        norm_backward,
        summed,
        grad_y,
        statistics,
        weight,
        grad_total,
        bias=bias is not None,
        dropout=dropout,
        seed=seed,
    )
    dx, *rest = as_tuple(made)
    dresidual = rest.pop(0) if dropout > 0 else dx
    dweight = None if weight is None else rest.pop(0)
    return dx, dweight, rest[0] if rest else None, None if residual is None else dresidual


@op(
    operands={"x": "... n", "weight": VECTOR, "bias": VECTOR, "residual": "... n"},
    results={
        "y": "... n",
        "statistics": lambda x, centered: ArrayType((*x.shape[:-1], 1 + centered), np.float32),
        "total": lambda residual: same(residual),
    },
    types=TYPES,
    launch=_launch,
    checks=CHECKS | {"centered": FLAG},
    gradients={"x weight bias residual": _gradients},
    batching="leading",
)
def norm_rows(
    x: Any,
    weight: Any = None,
    bias: Any = None,
    residual: Any = None,
    *,
    centered: bool = False,
    eps: float = 1e-6,
    dropout: float = 0.0,
    seed: int = 0,
) -> Any:
    """Return (y, statistics), or (y, statistics, total) with a residual: y and total as rms_norm
    returns them, or layer_norm if `centered`. The statistics of a row are 1 / sqrt(variance + eps)
    and, if `centered`, its mean; they have no gradient."""


def _recorded(
    xp: Any,
    x: Any,
    weight: Any,
    residual: Any,
    eps: float,
    dropout: float,
    seed: int,
    centered: bool,
    bias: Any = None,
) -> Any:
    """Call `norm_rows`. With dropout it always gets a residual, because its gradient needs the
    total, in which elements have been dropped."""
    whole = residual
    if residual is None and dropout > 0:
        whole = xp.zeros_like(x)
    y, _, *total = xp(
        norm_rows, x, weight, bias, whole, centered=centered, eps=eps, dropout=dropout, seed=seed
    )
    return y if residual is None else (y, *total)


def _refused() -> Any:
    raise SpecError("norm: quantized results have no gradient; fix: omit out_scales")


def declared(centered: bool) -> Callable[[Callable[P, Any]], Op[P]]:
    """Return the declaration of layer_norm if `centered`, else of rms_norm, which has no bias."""
    vectors, recorded = ("weight", "bias")[: 1 + centered], partial(_recorded, centered=centered)
    operands = {"x": "... n", **dict.fromkeys(vectors, VECTOR), "residual": "... n"}
    return op(
        operands=operands,
        results={
            "y": lambda x, out_scales, out_dtype: result_type(x.shape, x, out_scales, out_dtype),
            "scales": lambda x, out_scales: scales_type(x.shape, out_scales),
            "total": lambda residual: same(residual),
        },
        types=TYPES,
        launch=partial(_launch, centered=centered),
        checks=CHECKS | QUANTIZED,
        gradients={" ".join(operands): _refused},
        composite=lambda out_scales: recorded if out_scales is None else None,
        batching="leading",
    )


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


@declared(centered=False)
def rms_norm(
    x: Any,
    weight: Any = None,
    residual: Any = None,
    *,
    eps: float = 1e-6,
    dropout: float = 0.0,
    seed: int = 0,
    out_scales: str | None = None,
    out_dtype: str = "float8_e4m3fn",
    out: Any = None,
    target: str | None = None,
    stream: Any = None,
) -> Any:
    """Return ``x / sqrt(mean(x * x) + eps) * weight`` along the last dimension; with a residual,
    ``(y, total)``, where total = x + residual and y is the norm of the total.

    x         (…, n) of float16, bfloat16 or float32, with any strides
    weight    (n,) of any of these types, or None
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

    Sums are float32. Each row is read once. The gradient of weight is added in a fixed order.
    Raises SpecError for other types or shapes, a dropout above 1, and an `out` of
    another shape or type.

    >>> rms_norm(np.array([[1, 2, 3, 4]], np.float32), target="sim").round(2)
    array([[0.37, 0.73, 1.1 , 1.46]], dtype=float32)
    """
