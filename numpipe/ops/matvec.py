"""``matvec(a, x)``: products of matrices and vectors that read each matrix once.

A warpgroup walks along k with a tile of a few rows in registers, so that one load of x serves
several rows; sums stay in registers until the end. A matrix that is contiguous along m is read in
its own order, with the roles of rows and columns exchanged. If there are too few rows for all SMs,
k is split, and `reduce_axis` adds the parts.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from ..core.arith import cdiv
from ..core.static_range import static_range
from ..kernels.decorator import kernel as numpipe_kernel
from ..kernels.kernel import Kernel
from ..language.tiles.refs import ds
from ..language.tiles.tile import zeros
from ..launch.array_info import ArrayInfo
from ..launch.windows import merged, strided, transposed
from ..plan.context import program_id
from ..plan.params import CompilerParams
from .declaration import op
from .op_outputs import allocated
from .operands import copied
from .reduce_axis import launch_reduction
from .tiled import with_fitting

__all__ = ["matvec"]

WIDE = 256
"""columns of a tile"""
LONG = 4096
"""columns of a tile of one row"""
CTAS = 1024
"""CTAs that keep all SMs of a GPU busy, about 8 each"""
FLOAT32 = np.dtype(np.float32)


@functools.cache
def along_rows(height: int, columns: int) -> Kernel:
    """Return the kernel ``(a, x, y)`` for matrices that are contiguous along k.

    height, columns  of a tile; height is 1 or a multiple of 8

    a is (batch, m, k), x (batch, k), and y (parts, batch, m): the sums over each part of k.
    """
    step = 64 if height > 1 else columns

    @numpipe_kernel(
        grid=lambda a, y: (cdiv(a.shape[1], height), a.shape[0], y.shape[0]),
        warp_specialized=False,
        compiler_params=CompilerParams(ctas_per_sm=8),
        static_dims=(-1,),
    )
    def matvec_rows(a, x, y):  # type: ignore[no-untyped-def]
        block, batch, part = program_id(0), program_id(1), program_id(2)
        i, k = ds(block * height, height), a.shape[2]
        whole = k // columns
        count = cdiv(whole, y.shape[0])
        first = part * count
        sums = zeros((height, step), np.float32)

        def added(sums, j):  # type: ignore[no-untyped-def]
            tile = a[batch, i, j].astype(np.float32) * x[batch, j][None, :].astype(np.float32)
            for start in static_range(0, columns, step):
                sums = sums + tile[:, start : start + step]
            return sums

        for number in range(first, min(first + count, whole)):
            sums = added(sums, ds(number * columns, columns, most=max(whole - 1, 0) * columns))
        if k % columns > 0 and part == y.shape[0] - 1:
            sums = added(sums, ds(whole * columns, columns))
        if height > 1:
            y[part, batch, i] = sums.sum(axis=1)  # type: ignore[attr-defined]
        else:
            y[part, batch, block] = sums.sum()  # type: ignore[attr-defined]

    return matvec_rows  # type: ignore[no-any-return]


@functools.cache
def along_columns(height: int) -> Kernel:
    """Return the kernel ``(a, x, y)`` for matrices that are contiguous along m: a is
    (batch, k, m), x (batch, k), and y (parts, batch, m)."""

    @numpipe_kernel(
        grid=lambda a, y: (cdiv(a.shape[2], WIDE), a.shape[0], y.shape[0]),
        warp_specialized=False,
        compiler_params=CompilerParams(ctas_per_sm=4),
    )
    def matvec_columns(a, x, y):  # type: ignore[no-untyped-def]
        block, batch, part = program_id(0), program_id(1), program_id(2)
        j, blocks = ds(block * WIDE, WIDE), cdiv(a.shape[1], height)
        count = cdiv(blocks, y.shape[0])
        first = part * count
        sums = zeros((height, WIDE), np.float32)
        for number in range(first, min(first + count, blocks)):
            i = ds(number * height, height)
            sums = sums + a[batch, i, j].astype(np.float32) * x[batch, i][:, None].astype(
                np.float32
            )
        y[part, batch, j] = sums.sum(axis=0)  # type: ignore[attr-defined]

    return matvec_columns  # type: ignore[no-any-return]


def choose(rows: int, k: int, batches: int = 1, transposed: bool = False) -> tuple[int, int]:
    """Return (rows of a tile, parts of k) for matrices of `rows` rows. `transposed` means that they
    are contiguous along m.

    >>> choose(16384, 16384), choose(4096, 4096), choose(8, 1 << 20)
    ((8, 1), (8, 2), (1, 128))
    """
    if transposed:
        return 16, max(1, min(CTAS // (batches * -(-rows // WIDE)), k // 128))
    fewest = (16, 2 * CTAS), (8, CTAS // 2), (1, 0)
    height = next(high for high, ctas in fewest if batches * -(-rows // high) >= ctas)
    least = 4 * (WIDE if height > 1 else LONG // 2)
    return height, max(1, min(CTAS // (batches * -(-rows // height)), k // least))


def _launch(a: ArrayInfo, x: ArrayInfo, y: ArrayInfo, target: str | None, stream: Any) -> None:
    batches, (rows, k) = math.prod(a.shape[:-2]), a.shape[-2:]
    size = a.dtype.itemsize
    matrices = merged(a)
    across = matrices is not None and matrices.strides[2] != size == matrices.strides[1] and k > 1
    if matrices is None or (matrices.strides[2] != size and k > 1 and not across):
        matrices = merged(copied(a, target, stream))
    assert matrices is not None
    vectors = _vectors(x) or _vectors(copied(x, target, stream))
    height, parts = choose(rows, k, batches, across)
    kernel = along_columns(height) if across else along_rows(height, WIDE if height > 1 else LONG)
    arrays = transposed(matrices) if across else matrices, vectors
    place = {"target": target, "stream": stream}
    if parts > 1:
        sums = allocated("matvec", y._replace(dtype=FLOAT32), (parts, batches, rows), stream)
        kernel(*arrays, sums, **place)
        launch_reduction("matvec", "sum", sums, 0, y, target, stream, again=True)
        return

    def run(found: dict[str, ArrayInfo]) -> None:
        result = _vectors(found["y"])
        kernel(*arrays, strided(result, (1, *result.shape), (0, *result.strides)), **place)

    with_fitting("matvec", {}, {"y": y}, _vectors, target, stream, run)


def _vectors(info: ArrayInfo) -> ArrayInfo | None:
    """Return the vectors (batch, n) of an array (…, n), or None if they are no view of it."""
    view, size = merged(info, 1), info.dtype.itemsize
    return view if view is not None and (view.strides[1] == size or view.shape[1] <= 1) else None


def _gradient_of_x(xp: Any, a: Any, grad_y: Any) -> Any:
    return xp(matvec, xp.transposed(a), grad_y)


@op(
    operands={"a": "... m k", "x": "... k"},
    results={"y": "... m"},
    types=("float16", "bfloat16", "float32"),
    launch=_launch,
    gradients={
        "a": lambda x, grad_y: grad_y[..., None] * x[..., None, :],
        "x": _gradient_of_x,
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

    >>> matvec(np.ones((2, 3), np.float32), np.arange(3, dtype=np.float32), target="sim")
    array([3., 3.], dtype=float32)
    """
