"""``matvec(a, x)``: products of matrices and vectors that read each matrix once.

They are sums with weights along an axis (`reduce_axis`): along the rows of a matrix that is
contiguous along k, and along the columns of the transposed matrix otherwise.
"""

from __future__ import annotations

import math
from typing import Any

from ..launch.array_info import ArrayInfo
from ..launch.windows import merged, transposed
from .declaration import op
from .op_outputs import Arrays, Place
from .operands import copied
from .reduce_axis import launch_on_view
from .tiled import TYPES, dense, rows_of, with_fitting

__all__ = ["matvec"]


def _launch(a: ArrayInfo, x: ArrayInfo, y: ArrayInfo, place: Place) -> None:
    size, k = a.dtype.itemsize, a.shape[-1]
    matrices = merged(a)
    if matrices is None or (k > 1 and size not in matrices.strides[1:]):
        matrices = merged(copied(a, place))
    assert matrices is not None
    down = k > 1 and matrices.strides[2] != size
    view = transposed(matrices) if down else matrices
    weights = rows_of(x) or rows_of(copied(x, place))

    def run(arrays: Arrays) -> None:
        launch_on_view("dot", view, down, arrays["y"], place, weights=weights)

    with_fitting({}, {"y": y}, dense, place, run)


@op(
    operands={"a": "... m k", "x": "... k"},
    results={"y": "... m"},
    types=TYPES,
    launch=_launch,
    gradients={
        "a": lambda x, grad_y: grad_y[..., None] * x[..., None, :],
        "x": lambda xp, a, grad_y: xp("matvec", xp.transposed(a), grad_y),
    },
    batching="leading",
    operations=lambda a: 2 * math.prod(a.shape),
)
def matvec(
    a: Any, x: Any, *, out: Any = None, target: str | None = None, stream: Any = None
) -> Any:
    """Return the product of a matrix and a vector, or of each of a batch.

    a    (…, m, k) of float16, bfloat16 or float32, with any strides
    x    (…, k) of the same type and batch
    out  an array (…, m) of a's type to write to; allocated by default
    target, stream
         as for any kernel

    Products and sums are float32, rounded once to the result's type. Each matrix is read once: in
    its own order if it is contiguous along k or along m; others are copied first. Raises SpecError
    for shapes or types that do not match, and for an `out` of another shape or type.

    >>> import numpy as np
    >>> matvec(np.ones((2, 3), np.float32), np.arange(3, dtype=np.float32), target="sim")
    array([3., 3.], dtype=float32)
    """
