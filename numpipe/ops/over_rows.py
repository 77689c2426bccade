"""Launches of kernels over rows (`numpipe.rows`) on arrays of any dimensions and strides."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from typing import Any

from ..launch.array_info import ArrayInfo
from ..launch.windows import merged, strided
from .op_outputs import Arrays, Place
from .tiled import TYPES, rows_of, with_fitting

__all__ = ["COLUMNS", "MATRIX", "ROWS", "TYPES", "flat", "given", "lacking", "launch_over_rows"]

MATRIX, COLUMNS, ROWS = "matrix", "columns", "rows"


def given(kind: str, **arrays: ArrayInfo | None) -> dict[str, tuple[str, ArrayInfo]]:
    """Return (kind, array) of the arrays that are not None."""
    return {name: (kind, info) for name, info in arrays.items() if info is not None}


def lacking(present: Collection[str], *names: str) -> list[str]:
    """Return the names that are not present."""
    return [name for name in names if name not in present]


def launch_over_rows(
    kernel: Callable[..., Any],
    inputs: Mapping[str, tuple[str, ArrayInfo]],
    results: Mapping[str, tuple[str, ArrayInfo]],
    place: Place,
    **scalars: Any,
) -> None:
    """Launch a kernel over rows, or call a function that launches kernels.

    inputs, results  (kind, array) of each parameter of the kernel. The kinds: "matrix", (…, n): the
                     rows of a matrix; "columns", (n,): an element for each column; "rows", (…): an
                     element for each row
    scalars          further arguments of the kernel

    Arrays that have no such view are copied (`with_fitting`).
    """
    every = {**inputs, **results}
    kinds = {id(info): kind for kind, info in every.values()}

    def run(arrays: Arrays) -> None:
        views = {name: flat(kind, arrays[name]) for name, (kind, _) in every.items()}
        kernel(**views, **place, **scalars)

    read, written = (
        {name: info for name, (_, info) in arrays.items()} for arrays in (inputs, results)
    )
    with_fitting(read, written, lambda info: flat(kinds[id(info)], info), place, run)


def flat(kind: str, info: ArrayInfo) -> Any:
    """Return the view that the kernel takes, or None if there is none: the elements of a row are
    not adjacent, or the rows are not evenly spaced."""
    size = info.dtype.itemsize
    if kind == MATRIX:
        return rows_of(info)
    if kind == COLUMNS:
        return info if info.strides[-1] == size or info.shape[-1] < 2 else None
    count = math.prod(info.shape)
    view = merged(strided(info, (*info.shape, 1), (*info.strides, size)), 1)
    return None if view is None else strided(view, (count,), view.strides[:1])
