"""Kernels on vectors, parts, atomics, tiles by rows and limits, which other tests simulate, compile
and pass the build gate."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from numpipe import ArrayType
from tests.kernels import (
    limit_kernels,
    row_kernels,
    shared_atomic_kernels,
    slice_kernels,
    vector_kernels,
)
from tests.kernels.compilers import compiles


def of(dtype: Any, *shapes: tuple[int, ...]) -> tuple[ArrayType, ...]:
    return tuple(ArrayType(shape, dtype) for shape in shapes)


SQUARE, LINE, I32 = (4096, 4096), (4096,), np.int32
# with more, some registers are spilled
CASES: dict[str, tuple[Any, tuple[Any, ...], dict[str, Any]]] = {
    "rows": (row_kernels.normalised, of(np.float32, SQUARE, LINE, SQUARE, SQUARE), {}),
    "all atomics": (
        shared_atomic_kernels.all_kinds,
        (*of(I32, SQUARE, SQUARE, LINE), *of(np.float32, SQUARE)),
        {},
    ),
    "atomics by rows": (shared_atomic_kernels.by_rows, of(I32, SQUARE, LINE, LINE, SQUARE), {}),
    "atomics of lanes": (shared_atomic_kernels.by_lanes, of(I32, SQUARE, LINE), {}),
    "two warpgroups": (shared_atomic_kernels.shared_by_two, of(I32, SQUARE, LINE), {}),
    "stored anywhere": (slice_kernels.stored_anywhere, (*of(np.float32, SQUARE, SQUARE), 1, 1), {}),
    "stored by two warps": (slice_kernels.stored_by_two_warps, of(I32, SQUARE, LINE), {}),
    "by hand": (vector_kernels.by_hand, of(np.float32, LINE, LINE), {}),
    "lanes of a vector": (vector_kernels.through_lanes, of(np.float32, LINE, LINE), {}),
    "grouped": (
        limit_kernels.grouped,
        (*of(np.float16, SQUARE, SQUARE), *of(np.float32, SQUARE), 1, 1),
        {},
    ),
    "scattered": (limit_kernels.scattered, (*of(np.float32, SQUARE, SQUARE), 1), {}),
    **{
        f"limits of {np.dtype(dtype)}, {m} rows": (
            limit_kernels.limited,
            (*of(dtype, SQUARE, SQUARE, SQUARE), 1, 1),
            {"m": m},
        )
        for dtype in (np.float32, np.int8)
        for m in (64, 8)
    },
    **{
        f"vectors of {dtype}": (vector_kernels.copied, of(dtype, LINE, LINE, LINE), {})
        for dtype in vector_kernels.DTYPES
    },
    **{
        f"parts of {np.dtype(dtype)}": (
            slice_kernels.anywhere,
            (*of(dtype, SQUARE, SQUARE), 1, 1),
            {},
        )
        for dtype in (np.float32, np.float16, np.int8)
    },
    **{
        f"{dtype} through registers, {m} x {n}": (
            row_kernels.through_registers,
            of(dtype, SQUARE, SQUARE),
            {"m": m, "n": n},
        )
        for dtype in row_kernels.DTYPES
        for m, n in row_kernels.SHAPES
        if m * n <= 1 << 14
    },
    **{
        f"{dtype} through shared memory, {m} x {n}": (
            row_kernels.through_shared,
            of(dtype, SQUARE, SQUARE),
            {"m": m, "n": n},
        )
        for dtype in row_kernels.DTYPES
        for m, n in row_kernels.SHAPES
        if n * dtype.itemsize % 16 == 0
    },
    **{
        f"reduced, {m} x {n}": (
            row_kernels.reduced,
            of(np.float32, SQUARE, SQUARE, SQUARE, LINE),
            {"m": m, "n": n},
        )
        for m, n in row_kernels.SHAPES
        if m * n <= 1 << 13
    },
    **{
        f"cast {m} x {n} to {lanes} lanes": (
            row_kernels.cast,
            of(np.float32, SQUARE, SQUARE, LINE),
            {"m": m, "n": n, "to": row_kernels.names(lanes, (m, n))},
        )
        for m, n, lanes in ((64, 128, 32), (24, 16, 4), (24, 128, 16))
    },
}


@pytest.mark.variants(1, thorough=5)
@compiles
@pytest.mark.parametrize(
    "name",
    [
        name if number % 4 == 0 else pytest.param(name, marks=pytest.mark.soak)
        for number, name in enumerate(CASES)
    ],
)
def test_it_passes_the_build_gate(name: str) -> None:
    kernel, arguments, options = CASES[name]
    assert kernel.inspect("gate", *arguments, **options) == ()
