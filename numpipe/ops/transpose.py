"""``transpose(x)``: exchange the last two dimensions, in one pass over memory.

The kernels are those of `ops.copy`. Where TMA can address both arrays, blocks are transposed in
swizzled shared memory, so that both sides move whole lines; for other large arrays, lanes store
whole sectors.
"""

from __future__ import annotations

from typing import Any

from .. import launch
from ..launch.array_info import ArrayInfo
from ..launch.windows import transposed
from .copy import copy_into
from .declaration import op
from .op_outputs import Place
from .tiled import TYPES

__all__ = ["transpose"]


def _launch(x: ArrayInfo, y: ArrayInfo, place: Place) -> None:
    # `check_overlap` accepts the same view: x.T as out, or x itself as out
    for view in (x, transposed(x)):
        launch.check_overlap([view, y], ["x", "out"], 1, "transpose")
    copy_into(transposed(x), y, place)


@op(
    operands={"x": "... m n"},
    results={"y": "... n m"},
    types=TYPES,
    launch=_launch,
    gradients={"x": lambda xp, grad_y: xp("transpose", grad_y)},
    batching="leading",
)
def transpose(x: Any, *, out: Any = None, target: str | None = None, stream: Any = None) -> Any:
    """Return a contiguous array with the last two dimensions of x exchanged.

    x    (…, m, n) of float16, bfloat16 or float32, with any strides
    out  an array (…, n, m) of x's type to write to; allocated by default. It must not overlap x
    target, stream
         as for any kernel

    Elements are moved as bits: NaN payloads and -0 are preserved. Rows that begin at multiples of
    16 bytes on both sides are fastest. Raises SpecError for other element types, and for an `out`
    of another shape or type or one that overlaps x.

    >>> import numpy as np
    >>> transpose(np.arange(6, dtype=np.float32).reshape(2, 3), target="sim")[2]
    array([2., 5.], dtype=float32)
    """
