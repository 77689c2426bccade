"""``cross_entropy(logits, labels)``: the loss of rows of logits, its gradient, and both at once."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..diagnostics.argument_checks import FLAG, FRACTION, INT32, word
from ..diagnostics.errors import SimulationError, SpecError, reported
from ..diagnostics.reports import Report
from ..launch.array_info import ArrayInfo
from ..launch.windows import broadcast, strided
from ..plan.specs import ArrayType, persistent
from .copy import window
from .copy_ways import Part
from .cross_entropy_kernels import VECTOR, cross_entropy_gradient, forward, reduced
from .declaration import Operand, op
from .op_outputs import Place, allocated, same
from .over_rows import MATRIX, ROWS, TYPES, given, lacking, launch_over_rows
from .tiled import reshaped

__all__ = ["cross_entropy"]

LABELS = ("int32", "int64")
OPTIONS = {
    "label_smoothing": FRACTION,
    "ignore_index": INT32,
    "debug": FLAG,
}


def loss_type(logits: Any, labels: Any, reduction: str) -> ArrayType:
    """Return the type of the loss. Raises SpecError for logits without columns."""
    if logits.shape[-1] == 0:
        raise SpecError(
            f"cross_entropy: logits have no columns, got shape {tuple(logits.shape)}; fix: pass "
            "the classes in the last dimension"
        )
    shape = tuple(labels.shape) if reduction == "none" else ()
    return ArrayType(shape, np.float32)


def as_int32(labels: ArrayInfo) -> ArrayInfo:
    """Return labels as int32: the low halves of int64."""
    return window(labels, Part(0, labels.shape, labels.strides), 4)


def check_labels(labels: ArrayInfo, classes: int, ignore_index: int) -> None:
    """Raise SimulationError (`out-of-bounds`) for a label in host memory that is no class."""
    if (found := labels.array) is None:
        return
    wrong = np.argwhere((found != ignore_index) & (found != np.clip(found, 0, classes - 1)))
    if len(wrong):
        place = wrong[0].tolist()
        text = (
            f"cross_entropy: labels{place} is {found[tuple(place)]}, but the logits have {classes} "
            "classes; fix: pass one of them, or ignore_index for a row without a label"
        )
        raise reported(SimulationError, Report("out-of-bounds", text))


def launch_rows(
    logits: ArrayInfo,
    labels: ArrayInfo,
    loss: ArrayInfo,
    label_smoothing: float,
    ignore_index: int,
    debug: bool,
    place: Place,
    reduction: str = "none",
    lse: ArrayInfo | None = None,
    dlogits: ArrayInfo | None = None,
) -> None:
    """Compute the loss of each row, or their sum or mean; with lse, log(sum(exp(logits))) of each
    row; with dlogits, which may be the logits, the gradient of the mean, or else of the sum."""
    check_labels(labels, logits.shape[-1], ignore_index)
    each, grad = reduction == "none", None
    if dlogits and reduction == "mean":
        factor = allocated(logits, (), place, np.float32)
        launch_reduced(None, labels, factor, True, ignore_index, place)
        grad = broadcast(factor, labels.shape)
    inputs = given(MATRIX, x=logits) | given(ROWS, labels=as_int32(labels), grad=grad)
    results = given(ROWS, loss=loss if each else None, lse=lse) | given(MATRIX, dx=dlogits)
    absent = tuple(lacking(inputs | results, "grad", "lse", "dx"))
    kernel = forward(absent, label_smoothing > 0, debug, not each)

    def run(**arrays: Any) -> None:
        chosen = kernel.kernel(**arrays)
        # CTAs that compute several blocks of rows, fewer than VECTOR, store one sum each
        count = VECTOR if chosen.options.grid == persistent() else arrays["x"].shape[0]
        losses = allocated(logits, (count,), place, np.float32)
        chosen(**arrays, loss=losses)
        launch_reduced(losses, labels, loss, reduction == "mean", ignore_index, place)

    launch_over_rows(
        kernel if each else run,
        inputs,
        results,
        place,
        smoothing=float(label_smoothing),
        ignored=int(ignore_index),
    )


def launch_reduced(
    losses: ArrayInfo | None,
    labels: ArrayInfo,
    result: ArrayInfo,
    mean: bool,
    ignore_index: int,
    place: Place,
) -> None:
    """Store the sum or mean of losses; without losses, the factor that makes the sum a mean, or
    1."""
    counted = mean or losses is None
    inputs = given(ROWS, losses=losses, labels=as_int32(labels) if counted else None)

    def run(**views: Any) -> None:
        for name in inputs:
            x = views[name]
            views[name] = strided(x, (1, *x.shape), (0, *x.strides))
        reduced(*lacking(inputs, "losses", "labels"))(
            **views, total=reshaped(result, 1), ignored=ignore_index, mean=mean
        )

    launch_over_rows(run, inputs, {}, place)


def _launch_backward(
    logits: ArrayInfo,
    labels: ArrayInfo,
    lse: ArrayInfo,
    grad_loss: ArrayInfo,
    dlogits: ArrayInfo,
    label_smoothing: float,
    ignore_index: int,
    place: Place,
) -> None:
    check_labels(labels, logits.shape[-1], ignore_index)
    rows = given(ROWS, labels=as_int32(labels), lse=lse, grad=grad_loss)
    launch_over_rows(
        cross_entropy_gradient,
        given(MATRIX, x=logits) | rows,
        given(MATRIX, dx=dlogits),
        place,
        smoothing=float(label_smoothing),
        ignored=int(ignore_index),
    )


LOGITS: dict[str, str | Operand] = {"logits": "... n", "labels": Operand("...", LABELS)}
OF_ROWS = Operand("...", ("float32",))


@op(
    operands={**LOGITS, "lse": OF_ROWS, "grad_loss": OF_ROWS},
    results={"dlogits": "... n"},
    types=TYPES,
    launch=_launch_backward,
    batching="leading",
)
def cross_entropy_backward(
    logits: Any,
    labels: Any,
    lse: Any,
    grad_loss: Any,
    *,
    label_smoothing: float = 0.0,
    ignore_index: int = -100,
) -> Any:
    """Return the gradient of the logits, given lse, log(sum(exp(logits))) of each row, and the
    gradient of each row's loss."""


@op(
    operands=LOGITS,
    results=dict.fromkeys(
        ("loss", "lse"), lambda logits, labels: loss_type(logits, labels, "none")
    ),
    types=TYPES,
    launch=launch_rows,
    gradients={"logits": cross_entropy_backward},
    batching="leading",
)
def cross_entropy_rows(
    logits: Any,
    labels: Any,
    *,
    label_smoothing: float = 0.0,
    ignore_index: int = -100,
    debug: bool = False,
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
    if 0 in labels.shape:
        loss = xp.cast(logits, np.float32).sum(-1)
    else:
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


@op(
    operands=LOGITS,
    results={
        "loss": loss_type,
        "dlogits": lambda logits, with_gradient: same(logits, with_gradient),
    },
    types=TYPES,
    launch=launch_rows,
    checks=OPTIONS | {"reduction": word("mean", "sum", "none"), "with_gradient": FLAG},
    gradients={
        "logits": lambda dlogits, grad_loss, reduction: (
            dlogits * (grad_loss[..., None] if reduction == "none" else grad_loss)
        )
    },
    composite=lambda with_gradient: None if with_gradient else _composed,
    batching="each",
)
def cross_entropy(
    logits: Any,
    labels: Any,
    *,
    label_smoothing: float = 0.0,
    ignore_index: int = -100,
    debug: bool = False,
    reduction: str = "mean",
    with_gradient: bool = False,
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
    with_gradient    return (loss, gradient of the logits), computed at once: with
                     ``out=(loss, logits)``, the gradient replaces the logits. With reduction
                     "none" it is that of each row's own loss
    debug            report a label outside 0…n - 1 in the GPU's memory as a SimulationError,
                     `out-of-bounds`
    out              a float32 array for the loss; allocated by default
    target, stream   as for any kernel

    Logits are read once, and once more for their gradient, which has no gradient itself. Raises
    SpecError for other shapes, types and options, and SimulationError, with the hazard
    `out-of-bounds`, for a label outside 0…n - 1 in host memory. The GPU reports one in its own
    memory with `debug`; without, it reads 0 for its logit. It reads the low 32 bits of int64
    labels.

    >>> logits, labels = np.zeros((3, 4), np.float32), np.array([0, 3, -100])
    >>> cross_entropy(logits, labels, target="sim") == np.log(np.float32(4))
    np.True_
    >>> cross_entropy(logits[:2], labels[:2], with_gradient=True, target="sim")[1][0]
    array([-0.375,  0.125,  0.125,  0.125], dtype=float32)
    """
