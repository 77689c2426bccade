"""Launches of kernels over rows (`numpipe.rows`) on arrays of any dimensions and strides."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ..kernels.kernel import Kernel
from ..kernels.row_kernels import RowKernel
from ..launch.array_info import ArrayInfo
from ..launch.windows import merged, strided
from .op_outputs import allocated
from .operands import copied, move

TYPES = ("float16", "bfloat16", "float32")
"""element types of ops over rows"""
MATRIX, COLUMNS, ROWS = "matrix", "columns", "rows"


def launch_over_rows(
    op: str,
    kernel: RowKernel | Kernel,
    inputs: Mapping[str, tuple[str, ArrayInfo]],
    results: Mapping[str, tuple[str, ArrayInfo]],
    target: str | None,
    stream: Any,
    **scalars: Any,
) -> None:
    """Launch a kernel over rows.

    inputs, results  (kind, array) of each parameter of the kernel. The kinds: "matrix", (…, n): the
                     rows of a matrix; "columns", (n,): an element for each column; "rows", (…): an
                     element for each row
    scalars          further arguments of the kernel

    An input that is no view of that shape is copied first; such a result is computed in a new array
    and copied.
    """
    arrays = {
        name: flat(kind, info) or flat(kind, copied(info, target, stream))
        for name, (kind, info) in inputs.items()
    }
    late = []
    for name, (kind, info) in results.items():
        if (view := flat(kind, info)) is None:
            fresh = allocated(op, info, info.shape, stream)
            late.append((fresh, info))
            view = flat(kind, fresh)
        arrays[name] = view
    first, *others = arrays.values()
    names = list(arrays)[1:]
    kernel(first, **dict(zip(names, others, strict=True)), target=target, stream=stream, **scalars)
    for fresh, info in late:
        move(fresh, info, target, stream)


def flat(kind: str, info: ArrayInfo) -> ArrayInfo | None:
    """Return the view that the kernel takes, or None if there is none: the elements of a row are
    not adjacent, or the rows are not evenly spaced."""
    size = info.dtype.itemsize
    if kind == MATRIX:
        view = merged(info, 1)
        adjacent = view is not None and (
            view.strides[1] == size or view.shape[1] == 1 or 0 in view.shape
        )
        return view if adjacent else None
    if kind == COLUMNS:
        return info if info.strides[-1] == size or info.shape[-1] == 1 else None
    count = math.prod(info.shape)
    view = merged(strided(info, (*info.shape, 1), (*info.strides, size)), 1)
    return None if view is None else strided(view, (count,), view.strides[:1])
