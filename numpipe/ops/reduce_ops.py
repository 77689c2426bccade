"""``sum(x, axis)``, ``mean``, ``max`` and ``argmax``: reductions of an axis, or of all elements
(`reduce_axis`)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..arch.dimensions import Ints
from ..diagnostics.argument_checks import NONE, a, whole
from ..diagnostics.errors import SpecError
from ..plan.specs import ArrayType
from .declaration import op
from .op_outputs import Place
from .reduce_axis import launch_reduction
from .tiled import TYPES


def _axes(x: Any, axis: int | None) -> Ints:
    """Return the axes that are reduced, counted from 0."""
    return tuple(range(len(x.shape))) if axis is None else (axis % len(x.shape),)


def _kept(x: Any, axis: int | None) -> tuple:
    """Return the shape of x with 1 for each axis that is reduced."""
    return tuple(1 if k in _axes(x, axis) else size for k, size in enumerate(x.shape))


def _count(x: Any, axis: int | None) -> Any:
    return math.prod(x.shape[k] for k in _axes(x, axis))


def _sum_gradient(xp: Any, x: Any, axis: Any, grad_y: Any) -> Any:
    return xp.broadcast_to(grad_y.reshape(_kept(x, axis)), tuple(x.shape))


def _max_gradient(xp: Any, x: Any, axis: Any, y: Any, grad_y: Any) -> Any:
    kept = _kept(x, axis)
    equal = xp.cast(x == y.reshape(kept), np.float32)
    share = xp.cast(grad_y, np.float32).reshape(kept) / equal.sum(_axes(x, axis)).reshape(kept)
    return equal * share


def _reduction(name: str, kind: str, doc: str, gradient: Any = None) -> Any:
    """Return an op; `kind` is `reduce_axis.reducer`'s."""

    def stub(
        x: Any,
        axis: int | None = -1,
        *,
        keepdims: bool = False,
        out: Any = None,
        target: str | None = None,
        stream: Any = None,
    ) -> Any: ...

    def result(x: Any, axis: int | None, keepdims: bool) -> ArrayType:
        shape, rank = tuple(x.shape), len(x.shape)
        if axis is not None and not -rank <= axis < rank:
            raise SpecError(
                f"{name}: axis must be an int of {-rank}…{rank - 1} or None for shape {shape}, got "
                f"{axis}; fix: pass axis={-1 if rank else None}"
            )
        if "max" in kind and not _count(x, axis):
            raise SpecError(
                f"{name}: an axis without elements has no maximum, got shape {shape} and axis "
                f"{axis}"
            )
        kept = _kept(x, axis)
        if not keepdims:
            kept = tuple(size for k, size in enumerate(kept) if k not in _axes(x, axis))
        return ArrayType(kept, np.int32 if kind == "argmax" else x.dtype)

    def launch(x: Any, y: Any, axis: int | None, place: Place) -> None:
        count = _count(x, axis)
        scale = 1.0 if name != "mean" else 1.0 / count if count else math.nan
        launch_reduction(kind, x, axis, y, place, scale=scale)

    def batching(xp: Any, x: Any, axis: int | None, keepdims: bool) -> Any:
        if axis is not None:
            return xp(made, x, axis + 1 if axis >= 0 else axis, keepdims=keepdims)
        y = xp(made, x.reshape((x.shape[0], -1)), 1)
        return y.reshape((x.shape[0], *[1] * (len(x.shape) - 1))) if keepdims else y

    stub.__name__ = stub.__qualname__ = name
    stub.__doc__ = doc
    made = op(
        operands={"x": ""},
        results={"y": result},
        types=TYPES,
        launch=launch,
        checks={"axis": NONE | whole(), "keepdims": a(bool)},
        gradients={"x": gradient} if gradient else None,
        batching=batching,
    )(stub)
    return made


sum = _reduction(
    "sum",
    "sum",
    """Return the sum along an axis, of x's type.

    x         an array of float16, bfloat16 or float32, with any strides
    axis      the axis, negative from the last one; None: all elements
    keepdims  whether the axis stays, with size 1
    out       an array of the result's shape and type to write to; allocated by default
    target, stream
              as for any kernel

    Sums are float32. The order of additions depends only on the shape, so results are reproducible.
    x is read once; if its last dimension is not contiguous, it is copied first. Raises SpecError
    for an axis that x does not have.

    >>> sum(np.ones((2, 3), np.float32), 0, target="sim")
    array([2., 2., 2.], dtype=float32)
    """,
    _sum_gradient,
)
mean = _reduction(
    "mean",
    "sum",
    """Return the mean along an axis, of x's type; NaN for an axis without elements. Parameters and
    errors are those of `sum`.

    >>> mean(np.ones((2, 3), np.float32), target="sim")
    array([1., 1.], dtype=float32)
    """,
    lambda xp, x, axis, grad_y: _sum_gradient(xp, x, axis, grad_y / _count(x, axis)),
)
max = _reduction(
    "max",
    "max",
    """Return the largest element along an axis, or NaN if one is NaN. The gradient is shared
    equally by all elements that are the largest, as in ``torch.amax``. Parameters and errors are
    those of `sum`; an axis without elements is an error.

    >>> max(np.array([[1, 5], [7, 2]], np.float32), target="sim")
    array([5., 7.], dtype=float32)
    """,
    _max_gradient,
)
argmax = _reduction(
    "argmax",
    "argmax",
    """Return the int32 index of the largest element along an axis: of the first NaN if there is
    one, otherwise of the first largest element. With axis None, the index is into the flat array.
    Parameters and errors are those of `sum`; an axis without elements is an error.

    >>> argmax(np.array([[1, 5], [7, 2]], np.float32), target="sim")
    array([1, 0], dtype=int32)
    """,
)
