"""``cumsum(x)``: running sums along the last dimension.

============  ======================================================================================
rows          how
============  ======================================================================================
short         a row is in the registers of a warp (`numpipe.rows`)
long          a row is in the registers of a CTA: 8 parts for each warpgroup, two for each warp. The
              sums of all parts are exchanged through shared memory once
longer        a row is cut into tiles, each of which a CTA computes like a long row. It adds the sum
              of the tiles before its own, whose CTAs still run: `language.grid.chained_sums`
============  ======================================================================================

The columns that remain after parts of equal length are scanned by the CTA of the row's last tile.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from ..core.arith import cdiv
from ..kernels.decorator import kernel as numpipe_kernel
from ..kernels.kernel import Kernel
from ..kernels.row_kernels import rows as numpipe_rows
from ..language.grid.chained_sums import launch_number, sum_of_earlier, workspace
from ..language.memory.scratch import scratch
from ..language.pipeline.operand_barriers import barrier_arrive, barrier_wait
from ..language.tiles.elementwise import full, iota
from ..language.tiles.refs import ds
from ..launch.array_info import ArrayInfo
from ..launch.windows import strided
from ..plan.allocations import SMEM, Barrier
from ..plan.context import axis_index, program_id
from ..plan.params import CompilerParams
from ..plan.specs import Static
from .declaration import op
from .over_rows import launch_over_rows

__all__ = ["cumsum"]

SHORT = 2048
"""most columns of a row in the registers of a warp"""
PART = 1024
"""most columns of a part of a row: 64 elements a lane"""
SUMS = 64
"""sums of parts that are exchanged, of which those beyond the last part are 0"""


@numpipe_rows()
def cumsum_short(x, y, *, row: Static):  # type: ignore[no-untyped-def]
    for k in row.blocks(x):  # type: ignore[attr-defined]
        value, block = row.load(k, x)  # type: ignore[attr-defined]
        row.store(block, y, lambda j: np.cumsum(value(j), axis=1))  # type: ignore[attr-defined]


@functools.cache
def long_rows(wgs: int, chained: bool, ctas: int) -> Kernel:
    """Return the kernel whose tiles have 8 parts for each of `wgs` warpgroups, for rows of one tile
    or, if `chained`, of several. An SM has `ctas` warpgroups of it."""
    height, zeros = 8 * wgs, SUMS // wgs - 8

    def tiles(x: Any) -> Any:
        return x.shape[0] * cdiv(x.shape[1], height)

    @numpipe_kernel(
        grid=lambda x: (tiles(x),),
        num_compute_wgs=wgs,
        warp_specialized=False,
        static_dims=(-1,),
        # safe: shared memory is written once, and read after the barrier
        compiler_params=CompilerParams(ctas_per_sm=ctas // wgs, unsafe_no_auto_barriers=True),
        **{"workspace": lambda x: workspace(tiles(x))} if chained else {"without": ("work",)},
    )
    def cumsum_long(x, rest, y, rest_of_y, work):  # type: ignore[no-untyped-def]
        """Compute the running sums of rows (row, part, column), and of the columns (row, column)
        that follow the last part."""
        count, wg = cdiv(x.shape[1], height), axis_index("wg")
        row, tile = program_id(0) // count, program_id(0) % count
        i, j = ds(tile * height + wg * 8, 8), ds(0, x.shape[2])
        sums, written = scratch((SMEM((SUMS,), np.float32), Barrier(num_arrivals=wgs)))
        parts = x[row, i, j]
        if rest.shape[1] > 0:
            every = ds(0, rest.shape[1])
            if work is None:
                end = rest[row, every]
        if work is not None:
            launch = launch_number(work)
        sums[ds(wg * 8, 8)] = parts.astype(np.float32).sum(axis=1)
        sums[ds(height + wg * zeros, zeros)] = full(zeros, 0.0, np.float32)
        barrier_arrive(written)
        barrier_wait(written)
        totals = sums[...]
        earlier = 0.0
        if work is not None:
            earlier = sum_of_earlier(work, launch, totals.sum(), tile)
        before = iota((8, SUMS), 1) < iota((8, SUMS), 0) + wg * 8
        start = np.where(before, totals, 0.0).sum(axis=1) + earlier
        y[row, i, j] = np.cumsum(parts.astype(np.float32), axis=1) + start[:, None]
        if rest.shape[1] > 0 and (tile == count - 1) & (wg == 0):
            if work is not None:
                end = rest[row, every]
            rest_of_y[row, every] = np.cumsum(end.astype(np.float32)) + (totals.sum() + earlier)

    return cumsum_long  # type: ignore[no-any-return]


def parts_of(columns: int, wgs: int) -> tuple[int, int]:
    """Return the number of parts of equal length that a row begins with, and their length. Parts of
    rows of a few tiles fill the tiles.

    >>> parts_of(5000, 1), parts_of(1 << 20, 2), parts_of((1 << 20) + 5, 2)
    ((8, 624), (1024, 1024), (1024, 1024))
    """
    count = -(-columns // (8 * wgs * PART)) * 8 * wgs
    length = PART if count > 64 else columns // count // 16 * 16
    return min(count, columns // length), length


def cut(info: ArrayInfo, count: int, length: int) -> tuple[ArrayInfo, ArrayInfo]:
    """Return the parts of the rows of a matrix, and the columns after them."""
    (rows, columns), (down, size), end = info.shape, info.strides, count * length
    array = None if info.array is None else info.array[:, end:]
    after = info._replace(ptr=info.ptr + end * size, array=array)
    down = down if rows > 1 else end * size  # a single row of odd length is aligned, too
    return (
        strided(info, (rows, count, length), (down, length * size, size)),
        strided(after, (rows, columns - end), (down, size)),
    )


def cumsum_parts(x: ArrayInfo, *, y: ArrayInfo, target: str | None, stream: Any) -> None:
    """Compute the running sums of the rows of a matrix that are not short."""
    wgs = 1 if x.shape[1] <= 8 * PART else 2
    parts = parts_of(x.shape[1], wgs)
    # what registers allow without spills
    ctas = 6 if x.dtype.itemsize == 2 else 4
    kernel = long_rows(wgs, parts[0] > 8 * wgs, ctas)
    kernel(*cut(x, *parts), *cut(y, *parts), target=target, stream=stream)


def _launch(x: ArrayInfo, y: ArrayInfo, target: str | None, stream: Any) -> None:
    kernel: Any = cumsum_short if x.shape[-1] <= SHORT else cumsum_parts
    arrays = {"x": ("matrix", x)}, {"y": ("matrix", y)}
    launch_over_rows("cumsum", kernel, *arrays, target, stream)


def _gradient(xp: Any, grad_y: Any) -> Any:
    return xp.flip(xp(cumsum, xp.flip(grad_y, (-1,))), (-1,))


@op(
    operands={"x": "... n"},
    results={"y": "... n"},
    types=("float16", "bfloat16", "float32"),
    launch=_launch,
    gradients={"x": _gradient},
    batching="leading",
)
def cumsum(x: Any, *, out: Any = None, target: str | None = None, stream: Any = None) -> Any:
    """Return the running sums along the last dimension: element i is the sum of elements 0 … i.

    x    (…, n) of float16, bfloat16 or float32, with any n and any strides
    out  an array of x's shape and type to write to; allocated by default. It may be x
    target, stream
         as for any kernel

    Sums are float32, rounded once to the result's type. x is read once. An array whose rows are not
    contiguous is copied first. Raises SpecError for other element types, and for an `out` of
    another shape or type.

    >>> cumsum(np.arange(5, dtype=np.float32), target="sim")
    array([ 0.,  1.,  3.,  6., 10.], dtype=float32)
    """
