"""``cross_entropy(logits, labels)``: the loss of rows of logits, its gradient, and both at once."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..diagnostics.argument_checks import FLAG, Rule, finite, is_int, word
from ..diagnostics.errors import SpecError
from ..launch.array_info import ArrayInfo
from ..launch.windows import strided
from ..plan.specs import ArrayType
from .cross_entropy_kernels import (
    HELD,
    SHORT,
    backward_long,
    backward_short,
    forward_long,
    forward_short,
    inverse_count,
    scaled_sum,
)
from .declaration import Operand, op
from .long_rows import cut
from .op_outputs import allocated
from .operands import dense
from .over_rows import MATRIX, ROWS, TYPES, launch_over_rows

__all__ = ["cross_entropy", "cross_entropy_with_gradient"]

LABELS = ("int32", "int64")
CHECKS = {
    "label_smoothing": Rule(
        ("a number of 0…1",), lambda value: finite(0.0).holds(value) and value <= 1
    ),
    "ignore_index": Rule(
        ("an int of 32 bits",), lambda value: is_int(value) and -(1 << 31) <= value < 1 << 31
    ),
    "debug": FLAG,
    "reduction": word("mean", "sum", "none"),
}
TARGETS = {name: CHECKS[name] for name in ("label_smoothing", "ignore_index")}
OPTIONS = TARGETS | {"debug": FLAG}


def loss_type(logits: Any, labels: Any, reduction: str) -> ArrayType:
    """Return the type of the loss. Raises SpecError for logits without columns."""
    if logits.shape[-1] == 0:
        raise SpecError(
            f"cross_entropy: logits have no columns, got shape {tuple(logits.shape)}; fix: pass "
            "the classes in the last dimension"
        )
    shape = tuple(labels.shape) if reduction == "none" else ()
    return ArrayType(shape, np.dtype(np.float32))


def as_int32(labels: ArrayInfo) -> ArrayInfo:
    """Return labels as int32: the low halves of int64."""
    if labels.dtype == np.int32:
        return labels
    if labels.array is not None:
        return dense(labels.array.astype(np.int32))
    return labels._replace(dtype=np.dtype(np.int32))


def launch_rows(
    logits: ArrayInfo,
    labels: ArrayInfo,
    loss: ArrayInfo,
    *,
    label_smoothing: float,
    ignore_index: int,
    debug: bool,
    target: str | None,
    stream: Any,
    lse: ArrayInfo | None = None,
    grad: ArrayInfo | None = None,
    dlogits: ArrayInfo | None = None,
) -> None:
    """Compute the loss of each row; with lse, log(sum(exp(logits))) of each row; with dlogits,
    which may be the logits, their gradient for the gradient grad of each loss."""
    n, smooth = logits.shape[-1], label_smoothing > 0
    given = {"grad": grad, "lse": lse, "dx": dlogits}
    lacking = tuple(name for name, info in given.items() if info is None)
    inputs = {"x": (MATRIX, logits), "labels": (ROWS, as_int32(labels))}
    results = {"loss": (ROWS, loss)}
    if grad is not None:
        inputs["grad"] = (ROWS, grad)
    if lse is not None:
        results["lse"] = (ROWS, lse)
    if dlogits is not None:
        results["dx"] = (MATRIX, dlogits)
    launch_over_rows(
        "cross_entropy",
        forward_short(lacking, smooth, debug)
        if n <= (SHORT if dlogits is None else HELD)
        else forward_long(cut(n, logits.dtype.itemsize), lacking, smooth, debug),
        inputs,
        results,
        target,
        stream,
        smoothing=float(label_smoothing),
        ignored=int(ignore_index),
    )


def floats(op: str, like: ArrayInfo, shape: tuple[int, ...], stream: Any) -> ArrayInfo:
    """Return a new float32 array."""
    return allocated(op, like._replace(dtype=np.dtype(np.float32)), shape, stream)


def inverse_of(
    labels: ArrayInfo, like: ArrayInfo, mean: bool, ignore_index: int, target: Any, stream: Any
) -> ArrayInfo:
    """Return the number, (1,), that multiplies the sum of losses for a mean, or 1 for a sum."""
    made = floats("cross_entropy", like, (1,), stream)
    launch_over_rows(
        "cross_entropy",
        inverse_count,
        {"labels": (ROWS, as_int32(labels))},
        {"inverse": (ROWS, made)},
        target,
        stream,
        ignored=int(ignore_index),
        mean=bool(mean),
    )
    return made


def launch_sum(
    losses: ArrayInfo, scale: ArrayInfo, loss: ArrayInfo, target: Any, stream: Any
) -> None:
    """Store scale times the sum of losses."""
    inputs = {"losses": (ROWS, losses), "scale": (ROWS, scale)}
    launch_over_rows("cross_entropy", scaled_sum, inputs, {"result": (ROWS, loss)}, target, stream)


def repeated(number: ArrayInfo, shape: tuple[int, ...]) -> ArrayInfo:
    """Return an array of this shape whose elements are all the same number (1,)."""
    return strided(number, shape, (0,) * len(shape))


def _launch(
    logits: ArrayInfo,
    labels: ArrayInfo,
    loss: ArrayInfo,
    dlogits: ArrayInfo | None,
    label_smoothing: float,
    ignore_index: int,
    debug: bool,
    reduction: str,
    target: str | None,
    stream: Any,
) -> None:
    none, shape = reduction == "none", tuple(labels.shape)
    losses, scale = loss, None
    if not none:
        losses = floats("cross_entropy", logits, shape, stream)
    if dlogits is not None or not none:
        mean = reduction == "mean"
        scale = inverse_of(labels, logits, mean, ignore_index, target, stream)
    if math.prod(shape):
        launch_rows(
            logits,
            labels,
            losses,
            label_smoothing=label_smoothing,
            ignore_index=ignore_index,
            debug=debug,
            target=target,
            stream=stream,
            grad=None if dlogits is None or scale is None else repeated(scale, shape),
            dlogits=dlogits,
        )
    if scale is not None and not none:
        launch_sum(losses, scale, loss, target, stream)


def _launch_loss(
    logits: ArrayInfo,
    labels: ArrayInfo,
    loss: ArrayInfo,
    label_smoothing: float,
    ignore_index: int,
    debug: bool,
    reduction: str,
    target: str | None,
    stream: Any,
) -> None:
    _launch(
        logits, labels, loss, None, label_smoothing, ignore_index, debug, reduction, target, stream
    )


def _launch_rows(
    logits: ArrayInfo,
    labels: ArrayInfo,
    loss: ArrayInfo,
    lse: ArrayInfo,
    label_smoothing: float,
    ignore_index: int,
    debug: bool,
    target: str | None,
    stream: Any,
) -> None:
    launch_rows(
        logits,
        labels,
        loss,
        lse=lse,
        label_smoothing=label_smoothing,
        ignore_index=ignore_index,
        debug=debug,
        target=target,
        stream=stream,
    )


def _launch_backward(
    logits: ArrayInfo,
    labels: ArrayInfo,
    lse: ArrayInfo,
    grad: ArrayInfo,
    dlogits: ArrayInfo,
    label_smoothing: float,
    ignore_index: int,
    target: str | None,
    stream: Any,
) -> None:
    n = logits.shape[-1]
    launch_over_rows(
        "cross_entropy",
        backward_short() if n <= SHORT else backward_long(cut(n, logits.dtype.itemsize)),
        {
            "x": (MATRIX, logits),
            "labels": (ROWS, as_int32(labels)),
            "lse": (ROWS, lse),
            "grad": (ROWS, grad),
        },
        {"dx": (MATRIX, dlogits)},
        target,
        stream,
        smoothing=float(label_smoothing),
        ignored=int(ignore_index),
    )


def _second(
    xp: Any,
    logits: Any,
    labels: Any,
    lse: Any,
    grad: Any,
    grad_dlogits: Any,
    label_smoothing: float,
    ignore_index: int,
) -> tuple[Any, Any]:
    """Return the gradients of logits and grad."""
    options = {"label_smoothing": label_smoothing, "ignore_index": ignore_index}
    wide, v = xp.cast(logits, np.float32), xp.cast(grad_dlogits, np.float32)
    unit = xp(cross_entropy_backward, logits, labels, lse, xp.ones_like(grad), **options)
    p = xp.exp(wide - lse[..., None])
    each = grad * xp.cast(labels != ignore_index, np.float32)
    of_logits = each[..., None] * p * (v - (p * v).sum(-1)[..., None])
    return of_logits, (v * xp.cast(unit, np.float32)).sum(-1)


@op(
    operands={
        "logits": "... n",
        "labels": Operand("...", LABELS),
        "lse": Operand("...", ("float32",)),
        "grad": Operand("...", ("float32",)),
    },
    results={"dlogits": "... n"},
    types=TYPES,
    launch=_launch_backward,
    checks=TARGETS,
    gradients={"logits grad": _second},
    batching="leading",
)
def cross_entropy_backward(
    logits: Any,
    labels: Any,
    lse: Any,
    grad: Any,
    *,
    label_smoothing: float = 0.0,
    ignore_index: int = -100,
    out: Any = None,
    target: str | None = None,
    stream: Any = None,
) -> Any:
    """Return the gradient of the logits, given lse, log(sum(exp(logits))) of each row, and grad,
    the gradient of each row's loss."""


def _gradient_of_logits(
    xp: Any,
    logits: Any,
    labels: Any,
    lse: Any,
    grad_loss: Any,
    label_smoothing: float,
    ignore_index: int,
) -> Any:
    options = {"label_smoothing": label_smoothing, "ignore_index": ignore_index}
    return xp(cross_entropy_backward, logits, labels, lse, grad_loss, **options)


@op(
    operands={"logits": "... n", "labels": Operand("...", LABELS)},
    results=dict.fromkeys(
        ("loss", "lse"), lambda logits, labels: loss_type(logits, labels, "none")
    ),
    types=TYPES,
    launch=_launch_rows,
    checks=OPTIONS,
    gradients={"logits": _gradient_of_logits},
    batching="leading",
)
def cross_entropy_rows(
    logits: Any,
    labels: Any,
    *,
    label_smoothing: float = 0.0,
    ignore_index: int = -100,
    debug: bool = False,
    out: Any = None,
    target: str | None = None,
    stream: Any = None,
) -> Any:
    """Return (loss, log(sum(exp(logits)))) of each row, float32. The gradient of the second is not
    followed."""


def _composed(
    xp: Any,
    logits: Any,
    labels: Any,
    label_smoothing: float,
    ignore_index: int,
    debug: bool,
    reduction: str,
) -> Any:
    loss, _ = xp(
        cross_entropy_rows,
        logits,
        labels,
        label_smoothing=label_smoothing,
        ignore_index=ignore_index,
        debug=debug,
    )
    if reduction == "none":
        return loss
    total = loss.sum()
    return (
        total if reduction == "sum" else total / xp.cast(labels != ignore_index, np.float32).sum()
    )


def _batched(
    xp: Any,
    logits: Any,
    labels: Any,
    label_smoothing: float,
    ignore_index: int,
    debug: bool,
    reduction: str,
    size: Any,
    batched: dict[str, bool],
) -> Any:
    if not batched["logits"]:
        logits = xp.broadcast_to(logits, (size, *logits.shape))
    if not batched["labels"]:
        labels = xp.broadcast_to(labels, (size, *labels.shape))
    loss, _ = xp(
        cross_entropy_rows,
        logits,
        labels,
        label_smoothing=label_smoothing,
        ignore_index=ignore_index,
        debug=debug,
    )
    if reduction == "none":
        return loss
    total = loss.reshape(size, -1).sum(-1)
    if reduction == "sum":
        return total
    return total / xp.cast(labels != ignore_index, np.float32).reshape(size, -1).sum(-1)


@op(
    operands={"logits": "... n", "labels": Operand("...", LABELS)},
    results={"loss": loss_type},
    types=TYPES,
    launch=_launch_loss,
    checks=CHECKS,
    composite=lambda: _composed,
    batching=_batched,
)
def cross_entropy(
    logits: Any,
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
    """Return the cross entropy of softmax(logits) along the last dimension and labels, as
    torch.nn.functional.cross_entropy computes it, in float32.

    logits           (…, n) of float16, bfloat16 or float32, with any strides
    labels           (…) of int32 or int64: the class of each row, 0…n - 1
    label_smoothing  the part of each target, 0…1, that is spread over all classes
    ignore_index     rows with this label have no loss and no gradient
    reduction        "mean" over the rows that are not ignored (NaN if all are), "sum", or "none"
                     for an array like labels
    debug            report a label outside 0…n - 1 on the GPU as a SimulationError, `out-of-bounds`
    out              a float32 array for the loss; allocated by default
    target, stream   as for any kernel

    Logits are read once, and once more for their gradient. Raises SpecError for other shapes, types
    and options. A label outside 0…n - 1 is the hazard `out-of-bounds` in the simulator, and on
    the GPU with `debug`; without, the GPU reads 0 for its logit.

    >>> logits, labels = np.zeros((3, 4), np.float32), np.array([0, 3, -100])
    >>> cross_entropy(logits, labels, target="sim") == np.log(np.float32(4))
    np.True_
    """


def _batched_with_gradient(
    xp: Any,
    logits: Any,
    labels: Any,
    label_smoothing: float,
    ignore_index: int,
    debug: bool,
    reduction: str,
    size: Any,
    batched: dict[str, bool],
) -> Any:
    options = {"label_smoothing": label_smoothing, "ignore_index": ignore_index, "debug": debug}
    arrays = {"logits": logits, "labels": labels}
    each = [
        xp(
            cross_entropy_with_gradient,
            *(x[number] if batched[name] else x for name, x in arrays.items()),
            reduction=reduction,
            **options,
        )
        for number in range(size)
    ]
    return tuple(xp.stack(results) for results in zip(*each, strict=True))


@op(
    operands={"logits": "... n", "labels": Operand("...", LABELS)},
    results={"loss": loss_type, "dlogits": "... n"},
    types=TYPES,
    launch=_launch,
    checks=CHECKS,
    gradients={
        "logits": lambda dlogits, grad_loss, reduction: (
            dlogits * (grad_loss[..., None] if reduction == "none" else grad_loss)
        )
    },
    batching=_batched_with_gradient,
)
def cross_entropy_with_gradient(
    logits: Any,
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
    """Return (loss, gradient of the logits), both computed at once; `cross_entropy` has the
    arguments.

    ``out=(loss, logits)`` writes the gradient over the logits, which then takes no more memory.
    With ``reduction="none"`` the gradient is that of each row's own loss. Where the loss is
    differentiated, the gradient is multiplied by the loss's.

    >>> logits, labels = np.zeros((2, 4), np.float32), np.array([0, 3])
    >>> loss, gradient = cross_entropy_with_gradient(logits, labels, target="sim")
    >>> gradient[0]
    array([-0.375,  0.125,  0.125,  0.125], dtype=float32)
    """
