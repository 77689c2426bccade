"""``fused_linear_cross_entropy(x, weight, labels)``: the cross entropy of the logits
x @ weight.T, of which at most a quarter is in memory at once.

Rows are taken in chunks. A chunk's logits are a product; the gradient of its loss replaces them in
place, and two more products make its part of the gradients of x and weight. So these gradients
are ready after the forward pass, and the backward pass scales them.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..arch.target import LINE
from ..diagnostics.argument_checks import word
from ..diagnostics.errors import SpecError
from ..launch.array_info import ArrayInfo
from ..launch.windows import strided, transposed
from ..plan.specs import ArrayType
from .cross_entropy import (
    LABELS,
    OPTIONS,
    as_int32,
    floats,
    inverse_of,
    launch_rows,
    launch_sum,
)
from .declaration import Operand, op
from .matmul import TYPES, launch_product
from .op_outputs import allocated
from .operands import copied, move
from .over_rows import MATRIX, ROWS, flat

__all__ = ["fused_linear_cross_entropy"]

NAME = "fused_linear_cross_entropy"
CHECKS = OPTIONS | {"reduction": word("mean", "sum")}
QUARTER = 4
"""chunks, at least, unless there are fewer rows"""
TALL = 128
"""rows of a tile of a product, of which large chunks are a multiple"""


def _loss(x: Any, weight: Any) -> ArrayType:
    """Return the type of the loss. Raises SpecError for a weight without rows."""
    if weight.shape[0] == 0:
        raise SpecError(
            f"{NAME}: weight must have a row for each class, got shape {tuple(weight.shape)}"
        )
    return ArrayType((), np.dtype(np.float32))


def chunk(rows: int) -> int:
    """Return how many rows a chunk has.

    >>> chunk(8192), chunk(7), chunk(5000)
    (2048, 1, 1152)
    """
    size = max(1, rows // QUARTER)
    return size // TALL * TALL if size >= 8 * TALL else size


def part(info: ArrayInfo, first: int, last: int) -> ArrayInfo:
    """Return rows of an array."""
    return info._replace(
        ptr=info.ptr + first * info.strides[0],
        shape=(last - first, *info.shape[1:]),
        array=None if info.array is None else info.array[first:last],
    )


def _launch(
    x: ArrayInfo,
    weight: ArrayInfo,
    labels: ArrayInfo,
    loss: ArrayInfo,
    dx: ArrayInfo | None,
    dweight: ArrayInfo | None,
    scale: ArrayInfo | None,
    label_smoothing: float,
    ignore_index: int,
    debug: bool,
    reduction: str,
    target: str | None,
    stream: Any,
) -> None:
    place = {"target": target, "stream": stream}
    labels = as_int32(labels)
    flat_labels = flat(ROWS, labels) or flat(ROWS, copied(labels, target, stream))
    matrix = flat(MATRIX, x) or flat(MATRIX, copied(x, target, stream))
    assert flat_labels is not None and matrix is not None
    (rows, _), (classes, _), size = matrix.shape, weight.shape, x.dtype.itemsize
    mean = reduction == "mean"
    inverse = inverse_of(flat_labels, x, mean, ignore_index, target, stream)
    one = inverse_of(flat_labels, x, False, ignore_index, target, stream) if dx else None
    losses = floats(NAME, x, (rows,), stream)
    # rows that TMA can address
    pitch = -(-classes * size // LINE) * LINE // size
    whole = allocated(NAME, x, (chunk(rows), pitch), stream)
    made = dx and (flat(MATRIX, dx) or allocated(NAME, x, matrix.shape, stream))

    def product(a: ArrayInfo, b: ArrayInfo, out: ArrayInfo, added: bool = False) -> None:
        """out = a @ b, or out += a @ b."""
        added_to = out if added else None
        launch_product(a, b, added_to, None, out, 1.0, 1.0, None, False, None, target, stream)

    for first in range(0, rows, chunk(rows)):
        last = min(rows, first + chunk(rows))
        window = part(whole, 0, last - first)
        logits = strided(window, (last - first, classes), window.strides)
        x_rows = part(matrix, first, last)
        product(x_rows, transposed(weight), logits)
        launch_rows(
            logits,
            part(flat_labels, first, last),
            part(losses, first, last),
            label_smoothing=label_smoothing,
            ignore_index=ignore_index,
            debug=debug,
            grad=one and strided(one, (last - first,), (0,)),
            dlogits=logits if dx else None,
            **place,
        )
        if made and dweight:
            product(logits, weight, part(made, first, last))
            product(transposed(logits), x_rows, dweight, added=first > 0)
    if dweight and not rows:
        product(transposed(strided(whole, (0, classes), whole.strides)), matrix, dweight)
    launch_sum(losses, inverse, loss, target, stream)
    if made and dx and scale:
        if flat(MATRIX, dx) is None:
            move(strided(made, dx.shape, _dense(dx)), dx, target, stream)
        move(inverse, strided(scale, (1,), (4,)), target, stream)


def _dense(info: ArrayInfo) -> tuple[int, ...]:
    """Return the strides of a contiguous array of this shape."""
    return tuple(
        info.dtype.itemsize * math.prod(info.shape[axis + 1 :]) for axis in range(len(info.shape))
    )


def _launch_loss(
    x: ArrayInfo,
    weight: ArrayInfo,
    labels: ArrayInfo,
    loss: ArrayInfo,
    label_smoothing: float,
    ignore_index: int,
    debug: bool,
    reduction: str,
    target: str | None,
    stream: Any,
) -> None:
    options = label_smoothing, ignore_index, debug, reduction, target, stream
    _launch(x, weight, labels, loss, None, None, None, *options)


def _batched(
    xp: Any,
    x: Any,
    weight: Any,
    labels: Any,
    label_smoothing: float,
    ignore_index: int,
    debug: bool,
    reduction: str,
    size: Any,
    batched: dict[str, bool],
    several: bool = False,
) -> Any:
    options = {"label_smoothing": label_smoothing, "ignore_index": ignore_index, "debug": debug}
    arrays = {"x": x, "weight": weight, "labels": labels}
    each = [
        xp(
            fused_linear_cross_entropy_with_gradient if several else fused_linear_cross_entropy,
            *(a[number] if batched[name] else a for name, a in arrays.items()),
            reduction=reduction,
            **options,
        )
        for number in range(size)
    ]
    if not several:
        return xp.stack(each)
    return tuple(xp.stack(results) for results in zip(*each, strict=True))


def _batched_with_gradient(
    xp: Any,
    x: Any,
    weight: Any,
    labels: Any,
    label_smoothing: float,
    ignore_index: int,
    debug: bool,
    reduction: str,
    size: Any,
    batched: dict[str, bool],
) -> Any:
    options = label_smoothing, ignore_index, debug, reduction
    return _batched(xp, x, weight, labels, *options, size, batched, True)


@op(
    operands={"x": "... d", "weight": "v d", "labels": Operand("...", LABELS)},
    results={"loss": _loss, "dx": "... d", "dweight": "v d", "scale": _loss},
    types=TYPES,
    launch=_launch,
    checks=CHECKS,
    gradients={
        "x": lambda dx, scale, grad_loss: dx * (grad_loss * scale),
        "weight": lambda dweight, scale, grad_loss: dweight * (grad_loss * scale),
    },
    batching=_batched_with_gradient,
)
def fused_linear_cross_entropy_with_gradient(
    x: Any,
    weight: Any,
    labels: Any,
    *,
    label_smoothing: float = 0.0,
    ignore_index: int = -100,
    debug: bool = False,
    reduction: str = "mean",
    out: Any = None,
    target: str | None = None,
    stream: Any = None,
) -> Any:
    """Return (loss, dx, dweight, scale): scale times dx and dweight are the gradients of the loss.
    They are not scaled, so that those of float16 do not underflow."""


def _composed(
    xp: Any,
    x: Any,
    weight: Any,
    labels: Any,
    label_smoothing: float,
    ignore_index: int,
    debug: bool,
    reduction: str,
) -> Any:
    options = {"label_smoothing": label_smoothing, "ignore_index": ignore_index, "debug": debug}
    made = xp(
        fused_linear_cross_entropy_with_gradient, x, weight, labels, reduction=reduction, **options
    )
    return made[0]


@op(
    operands={"x": "... d", "weight": "v d", "labels": Operand("...", LABELS)},
    results={"loss": _loss},
    types=TYPES,
    launch=_launch_loss,
    checks=CHECKS,
    composite=lambda: _composed,
    batching=_batched,
    operations=lambda x, weight: 2.0 * math.prod(x.shape) * weight.shape[0],
)
def fused_linear_cross_entropy(
    x: Any,
    weight: Any,
    labels: Any,
    *,
    label_smoothing: float = 0.0,
    ignore_index: int = -100,
    debug: bool = False,
    reduction: str = "mean",
    out: Any = None,
    target: str | None = None,
    stream: Any = None,
) -> Any:
    """Return the cross entropy of the logits ``x @ weight.T`` and labels, float32, with at most a
    quarter of the logits in memory (a row, if there are fewer than four).

    x          (…, d) of float16 or bfloat16, with any strides
    weight     (v, d) of the same type: a row for each class
    labels     (…) of int32 or int64: the class of each row of x, 0…v - 1
    reduction  "mean" over the rows that are not ignored (NaN if all are), or "sum"
    label_smoothing, ignore_index, debug, out, target, stream
               as for `cross_entropy`

    In PyTorch and JAX, the gradients of x and weight are computed with the loss where it is
    differentiated; they take as much memory as x and weight. Logits are rounded to the type of x,
    and the gradient of weight after each chunk. There are no second gradients. Raises SpecError for
    other shapes, types and options; `cross_entropy` says what other labels do.

    >>> x, labels = np.ones((8, 16), np.float16), np.arange(8)
    >>> fused_linear_cross_entropy(x, np.ones((8, 16), np.float16), labels, target="sim")
    array(2.0794415, dtype=float32)
    """
