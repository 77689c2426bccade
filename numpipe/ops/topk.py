"""``topk(x, k)``: the k largest elements along the last dimension, in descending order.

==================  ================================================================================
rows                how
==================  ================================================================================
short, k <= 32      some rows in the registers of a CTA; one launch
up to 8192          a row in the registers of a CTA; one launch
longer              one launch reads x for the maximum of each group of columns, the next one finds
                    the k groups with the largest maxima, and the last the k largest of their
                    members. Maxima that are still too many have groups themselves
==================  ================================================================================
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..core.arith import cdiv
from ..diagnostics.argument_checks import whole
from ..diagnostics.errors import SpecError
from ..launch.array_info import ArrayInfo
from ..launch.windows import strided
from ..plan.specs import ArrayType
from .declaration import op
from .op_outputs import allocated
from .reduce_axis import launch_reduction
from .tiled import TYPES, reshaped, rows_of, with_fitting
from .topk_kernels import MOST, picker, short, stride

__all__ = ["topk"]

SHORT, FEW = 1024, 32
"""most columns of short rows, and largest k"""


def kept_of(k: int) -> int:
    """Return the size of vectors that hold k elements."""
    return max(8, 1 << (k - 1).bit_length())


def _launch(
    x: ArrayInfo, values: ArrayInfo, indices: ArrayInfo, k: int, target: str | None, stream: Any
) -> None:
    kept = kept_of(k)
    size = max(512, min(MOST, 32 * kept))
    members = size // (kept + 1)

    def run(arrays: dict[str, ArrayInfo]) -> None:
        whole: dict[str, Any] = {name: rows_of(info) for name, info in arrays.items()}
        x = whole.pop("x")
        (rows, n), levels = x.shape, [x]
        if n <= SHORT and k <= FEW:
            short(max(64, kept_of(n)), k)(x, **whole, target=target, stream=stream)
            return
        while n > MOST:
            n, step = stride(n, members), x.dtype.itemsize
            lines = strided(x, (rows, members, n), (x.strides[0], n * step, step))
            x = reshaped(allocated("topk", x, (rows, n), stream), rows, n)
            launch_reduction("topk", "max", lines, 1, x, target, stream)
            levels.append(x)
        groups: dict[str, Any] = {}
        while levels:
            chosen = allocated("topk", indices, (rows, k + 1), stream)
            last, x = len(levels) == 1, levels.pop()
            count = size if groups else cdiv(n, 512) * 512
            pick = picker(count, kept, members if groups else 0, last)
            given = groups | {"chosen": chosen} | (whole if last else {})
            pick(x, **given, k=k, target=target, stream=stream)
            groups = {"groups": chosen}

    results = {"values": values, "indices": indices}
    with_fitting("topk", {"x": x}, results, rows_of, target, stream, run)


def _result(x: Any, k: int, dtype: Any) -> ArrayType:
    if k > x.shape[-1]:
        raise SpecError(
            f"topk: k={k} for rows of {x.shape[-1]} elements, x {tuple(x.shape)}; fix: pass k <= "
            f"{x.shape[-1]}"
        )
    return ArrayType((*x.shape[:-1], k), dtype)


@op(
    operands={"x": "... n"},
    results={
        "values": lambda x, k: _result(x, k, x.dtype),
        "indices": lambda x, k: _result(x, k, np.int32),
    },
    types=TYPES,
    launch=_launch,
    checks={"k": whole(1, 1024)},
    gradients={"x": lambda xp, x, indices, grad_values: xp.scattered(x, indices, grad_values)},
    batching="leading",
)
def topk(x: Any, k: int, *, out: Any = None, target: str | None = None, stream: Any = None) -> Any:
    """Return (the k largest elements along the last dimension in descending order, their int32
    indices).

    x    (…, n) of float16, bfloat16 or float32, with any n and any strides
    k    1 to 1024, at most n
    out  arrays (…, k) of x's type and of int32 to write to; allocated by default
    target, stream
         as for any kernel

    NaN are the largest, as in torch.topk. Of equal elements, any may be returned, and in any order,
    but the same in each call. x is read once; if its last dimension is not contiguous, it is copied
    first. Raises SpecError for other element types and for k outside 1…n.

    >>> topk(np.array([3, 1, 4, 1, 5], np.float32), 2, target="sim")
    (array([5., 4.], dtype=float32), array([4, 2], dtype=int32))
    """
