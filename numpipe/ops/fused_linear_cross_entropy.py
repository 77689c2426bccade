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

from ..arch.dimensions import round_up
from ..arch.target import LINE
from ..diagnostics.argument_checks import FLAG, word
from ..diagnostics.errors import SpecError
from ..launch.array_info import ArrayInfo
from ..launch.windows import strided, transposed
from ..plan.specs import ArrayType
from .cross_entropy import LABELS, OPTIONS, as_int32, check_labels, launch_reduced, launch_rows
from .declaration import Operand, op
from .matmul import TYPES, launch_product
from .op_outputs import Place, allocated, same
from .over_rows import MATRIX, ROWS, given, launch_over_rows

NAME = "fused_linear_cross_entropy"
QUARTER = 4
"""chunks, at least, unless there are fewer rows"""
TALL = 128
"""rows of a tile of a product, of which large chunks are a multiple"""


def _loss(weight: Any) -> ArrayType:
    """Return the type of the loss. Raises SpecError for a weight without rows."""
    if weight.shape[0] == 0:
        raise SpecError(
            f"{NAME}: weight must have a row for each class, got shape {tuple(weight.shape)}"
        )
    return ArrayType((), np.float32)


def chunk(rows: int) -> int:
    """Return how many rows a chunk has.

    >>> chunk(8192), chunk(7), chunk(5000)
    (2048, 1, 1152)
    """
    size = max(1, rows // QUARTER)
    return size // TALL * TALL if size >= 8 * TALL else size


def part(info: ArrayInfo, first: int, last: int) -> ArrayInfo:
    """Return rows of an array."""
    return strided(info, (last - first, *info.shape[1:]), info.strides, (first,))


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
    place: Place,
) -> None:
    check_labels(labels, weight.shape[0], ignore_index)
    mean = reduction == "mean"

    def product(a: ArrayInfo, b: ArrayInfo, out: ArrayInfo, added: bool = False) -> None:
        """out = a @ b, or out += a @ b."""
        launch_product(a, b, out, place, out if added else None)

    def run(x: ArrayInfo, labels: ArrayInfo, dx: ArrayInfo | None = None, **place: Any) -> None:
        rows, classes, size = x.shape[0], weight.shape[0], x.dtype.itemsize
        losses = allocated(x, (rows,), place, np.float32)
        # rows that TMA can address
        pitch = round_up(classes * size, LINE) // size
        whole = allocated(x, (chunk(rows), pitch), place)
        for first in range(0, max(rows, 1), chunk(rows)):
            last = min(rows, first + chunk(rows))
            logits = strided(whole, (last - first, classes), whole.strides)
            x_rows = part(x, first, last)
            product(x_rows, transposed(weight), logits)
            launch_rows(
                logits,
                part(labels, first, last),
                part(losses, first, last),
                label_smoothing,
                ignore_index,
                debug,
                place,
                dlogits=logits if dx else None,
            )
            if dx and dweight:
                product(logits, weight, part(dx, first, last))
                product(transposed(logits), x_rows, dweight, added=first > 0)
        launch_reduced(losses, labels, loss, mean, ignore_index, place)
        if scale:
            launch_reduced(None, labels, scale, mean, ignore_index, place)

    launch_over_rows(
        run,
        given(MATRIX, x=x) | given(ROWS, labels=as_int32(labels)),
        given(MATRIX, dx=dx),
        place,
    )


@op(
    operands={"x": "... d", "weight": "v d", "labels": Operand("...", LABELS)},
    results={
        "loss": _loss,
        "dx": lambda x, with_gradients: same(x, with_gradients),
        "dweight": lambda weight, with_gradients: same(weight, with_gradients),
        "scale": lambda weight, with_gradients: _loss(weight) if with_gradients else None,
    },
    types=TYPES,
    launch=_launch,
    checks=OPTIONS | {"reduction": word("mean", "sum"), "with_gradients": FLAG},
    gradients={
        "x": lambda dx, scale, grad_loss: dx * (grad_loss * scale),
        "weight": lambda dweight, scale, grad_loss: dweight * (grad_loss * scale),
    },
    composite="with_gradients",
    batching="each",
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
    with_gradients: bool = False,
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
    with_gradients
               return (loss, dx, dweight, scale): the gradients are scale times dx and dweight,
               which are not scaled so that those of float16 do not underflow
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
