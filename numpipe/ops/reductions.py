"""``sum(x, axis)``, ``mean``, ``max`` and ``argmax``: reductions of an axis, or of all elements
(`reduce_axis`)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..diagnostics.argument_checks import NONE, a, whole
from ..diagnostics.errors import SpecError
from ..plan.specs import ArrayType
from .declaration import op
from .reduce_axis import launch_indices, launch_totals
from .tiled import TYPES

__all__ = ["argmax", "max", "mean", "sum"]

CHECKS = {"axis": NONE | whole(), "keepdims": a(bool)}


def _axis(op: str, x: Any, axis: int | None) -> int | None:
    """Return an axis as a number from 0. Raises SpecError if x does not have it."""
    rank = len(x.shape)
    if axis is None or (rank == 0 and axis in (0, -1)):
        return None
    if not -rank <= axis < rank:
        raise SpecError(
            f"{op}: axis must be an int of {-rank}…{rank - 1} or None for an array of shape "
            f"{tuple(x.shape)}, got {axis}"
        )
    return axis % rank


def _kept(op: str, x: Any, axis: int | None) -> tuple[Any, ...]:
    """Return the shape of x with 1 for each axis that is reduced."""
    axis = _axis(op, x, axis)
    return tuple(1 if axis in (None, k) else size for k, size in enumerate(x.shape))


def _result(op: str, x: Any, axis: int | None, keepdims: bool, dtype: Any) -> ArrayType:
    kept = _kept(op, x, axis)
    if keepdims:
        return ArrayType(kept, dtype)
    number = _axis(op, x, axis)
    return ArrayType(
        () if number is None else tuple(n for k, n in enumerate(kept) if k != number), dtype
    )


def _not_empty(op: str, x: Any, axis: int | None) -> None:
    """Raise SpecError if there are no elements to choose from."""
    number = _axis(op, x, axis)
    if any(size == 0 for size in (x.shape if number is None else (x.shape[number],))):
        raise SpecError(
            f"{op}: an axis without elements has no maximum, got shape {tuple(x.shape)} and axis "
            f"{axis}"
        )


def _expanded(op: str, x: Any, axis: int | None, y: Any) -> Any:
    """Return y with the shape of x, but 1 along the reduced axis."""
    return y.reshape(_kept(op, x, axis))


def _sum_gradient(xp: Any, x: Any, axis: Any, grad_y: Any) -> Any:
    return xp.broadcast_to(_expanded("sum", x, axis, grad_y), tuple(x.shape))


def _mean_gradient(xp: Any, x: Any, axis: Any, grad_y: Any) -> Any:
    number = _axis("mean", x, axis)
    count = math.prod(x.shape) if number is None else x.shape[number]
    return xp.broadcast_to(_expanded("mean", x, axis, grad_y), tuple(x.shape)) / count


def _max_gradient(xp: Any, x: Any, axis: Any, y: Any, grad_y: Any) -> Any:
    equal = xp.cast(x == _expanded("max", x, axis, y), np.float32)
    number = _axis("max", x, axis)
    count = equal.sum() if number is None else equal.sum(number)
    share = xp.cast(grad_y, np.float32).reshape(count.shape) / count
    return equal * _expanded("max", x, axis, share)


def _over_batch(op: Any) -> Any:
    """Return the rule for `vmap`: the axis moves by the new leading dimension."""

    def rule(xp: Any, x: Any, axis: int | None, keepdims: bool) -> Any:
        if axis is None:
            made = xp(op(), x.reshape((x.shape[0], -1)), axis=1)
            return made.reshape((x.shape[0], *[1] * (len(x.shape) - 1))) if keepdims else made
        if len(x.shape) == 1:  # numbers: nothing to reduce
            return x if op() is not argmax else xp.cast(x * 0, np.int32)
        return xp(op(), x, axis=axis + 1 if axis >= 0 else axis, keepdims=keepdims)

    return rule


def _number_of(x: Any, axis: int | None) -> int:
    number = _axis("mean", x, axis)
    return math.prod(x.shape) if number is None else x.shape[number]


@op(
    operands={"x": ""},
    results={"y": lambda x, axis, keepdims: _result("sum", x, axis, keepdims, x.dtype)},
    types=TYPES,
    launch=lambda x, y, axis, target, stream: launch_totals(
        "sum", "sum", x, _axis("sum", x, axis), y, target, stream
    ),
    checks=CHECKS,
    gradients={"x": _sum_gradient},
    batching=_over_batch(lambda: sum),
)
def sum(
    x: Any,
    axis: int | None = -1,
    *,
    keepdims: bool = False,
    out: Any = None,
    target: str | None = None,
    stream: Any = None,
) -> Any:
    """Return the sum along an axis, of x's type.

    x         an array of float16, bfloat16 or float32, with any strides
    axis      the axis, negative from the last one; None: all elements
    keepdims  whether the axis stays, with size 1
    out       an array of the result's shape and type to write to; allocated by default
    target, stream
              as for any kernel

    Sums are float32, and the order of additions depends on the shape only, so that results are
    reproducible. x is read once; if it would take a copy to make either the axis or the last
    dimension contiguous, it is copied first. Raises SpecError for an axis that x does not have.

    >>> sum(np.ones((2, 3), np.float32), 0, target="sim")
    array([2., 2., 2.], dtype=float32)
    """


@op(
    operands={"x": ""},
    results={"y": lambda x, axis, keepdims: _result("mean", x, axis, keepdims, x.dtype)},
    types=TYPES,
    launch=lambda x, y, axis, target, stream: launch_totals(
        "mean",
        "sum",
        x,
        _axis("mean", x, axis),
        y,
        target,
        stream,
        1.0 / _number_of(x, axis) if _number_of(x, axis) else math.nan,
    ),
    checks=CHECKS,
    gradients={"x": _mean_gradient},
    batching=_over_batch(lambda: mean),
)
def mean(
    x: Any,
    axis: int | None = -1,
    *,
    keepdims: bool = False,
    out: Any = None,
    target: str | None = None,
    stream: Any = None,
) -> Any:
    """Return the mean along an axis, of x's type; NaN for an axis without elements. Parameters and
    errors are those of `sum`.

    >>> mean(np.ones((2, 3), np.float32), target="sim")
    array([1., 1.], dtype=float32)
    """


def _max_result(x: Any, axis: int | None, keepdims: bool) -> ArrayType:
    _not_empty("max", x, axis)
    return _result("max", x, axis, keepdims, x.dtype)


@op(
    operands={"x": ""},
    results={"y": _max_result},
    types=TYPES,
    launch=lambda x, y, axis, target, stream: launch_totals(
        "max", "max", x, _axis("max", x, axis), y, target, stream
    ),
    checks=CHECKS,
    gradients={"x": _max_gradient},
    batching=_over_batch(lambda: max),
)
def max(
    x: Any,
    axis: int | None = -1,
    *,
    keepdims: bool = False,
    out: Any = None,
    target: str | None = None,
    stream: Any = None,
) -> Any:
    """Return the largest element along an axis, or NaN if one is NaN. The gradient is shared
    equally by all elements that are the largest, as in ``torch.amax``. Parameters and errors are
    those of `sum`; an axis without elements is an error.

    >>> max(np.array([[1, 5], [7, 2]], np.float32), target="sim")
    array([5., 7.], dtype=float32)
    """


def _argmax_result(x: Any, axis: int | None, keepdims: bool) -> ArrayType:
    _not_empty("argmax", x, axis)
    return _result("argmax", x, axis, keepdims, np.int32)


@op(
    operands={"x": ""},
    results={"y": _argmax_result},
    types=TYPES,
    launch=lambda x, y, axis, target, stream: launch_indices(
        "argmax", x, _axis("argmax", x, axis), y, target, stream
    ),
    checks=CHECKS,
    batching=_over_batch(lambda: argmax),
)
def argmax(
    x: Any,
    axis: int | None = -1,
    *,
    keepdims: bool = False,
    out: Any = None,
    target: str | None = None,
    stream: Any = None,
) -> Any:
    """Return the int32 index of the largest element along an axis: of the first NaN if there is
    one, otherwise of the first largest element. With axis None, the index is into the flat array.
    Parameters and errors are those of `sum`; an axis without elements is an error.

    >>> argmax(np.array([[1, 5], [7, 2]], np.float32), target="sim")
    array([1, 0], dtype=int32)
    """
