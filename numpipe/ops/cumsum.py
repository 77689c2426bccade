"""``cumsum(x)``: running sums along the last dimension.

==================  ================================================================================
rows                how
==================  ================================================================================
short               a row is in the registers of a warp (`numpipe.rows`)
long                a CTA walks along a row in chunks. The warps scan segments of 64 columns, and
                    exchange the totals of all segments through shared memory once for each chunk
long, and few of    rows are split among CTAs: one kernel sums each part, and the next one starts
them                each part with the sums of the previous parts. It reads x twice
==================  ================================================================================
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..core.arith import cdiv
from ..core.functions import function
from ..core.static_range import static_range
from ..kernels.decorator import kernel as numpipe_kernel
from ..kernels.row_kernels import rows as numpipe_rows
from ..language.memory.scratch import scratch
from ..language.pipeline.operand_barriers import barrier_arrive, barrier_wait
from ..language.tiles.elementwise import full, iota
from ..language.tiles.refs import ds
from ..language.tiles.tile import zeros
from ..language.tiles.warp_parts import STEP, join_row, split_row
from ..launch.array_info import ArrayInfo
from ..launch.windows import merged
from ..plan.allocations import SMEM, Barrier
from ..plan.context import program_id
from ..plan.params import CompilerParams
from ..plan.specs import Static
from .declaration import op
from .op_outputs import allocated
from .operands import copied, move
from .over_rows import launch_over_rows

__all__ = ["cumsum"]

SHORT = 2048
"""most columns of a row in the registers of a warp"""
CHUNK = 4096
"""columns that a CTA scans at a time"""
SEGMENTS = CHUNK // 64
CTAS = 528
"""CTAs that keep all SMs of a GPU busy, 4 each"""
PARTS = 1024
"""length of the vector that holds the sums of a row's parts, at least CTAS"""
PARAMS = CompilerParams(ctas_per_sm=4)


@function
def chunks_of(x, sums):  # type: ignore[no-untyped-def]
    """Return the first chunk of this CTA's part of a row, and the one after its last."""
    part, parts, chunks = program_id(1), sums.shape[1], cdiv(x.shape[1], CHUNK)
    return part * chunks // parts, (part + 1) * chunks // parts


@numpipe_rows()
def cumsum_short(x, y, *, row: Static):  # type: ignore[no-untyped-def]
    for k in row.blocks(x):  # type: ignore[attr-defined]
        value, block = row.load(k, x)  # type: ignore[attr-defined]
        row.store(block, y, lambda j: np.cumsum(value(j), axis=1))  # type: ignore[attr-defined]


@numpipe_kernel(
    grid=lambda x, sums: (x.shape[0], sums.shape[1]),
    warp_specialized=False,
    compiler_params=PARAMS,
)
def part_sums(x, sums):  # type: ignore[no-untyped-def]
    """Sum each part of the rows of x (rows, n) to sums (rows, parts)."""
    i, part = program_id(0), program_id(1)
    first, end = chunks_of(x, sums)
    total = zeros((1, CHUNK), np.float32)
    for chunk in range(first, end):
        total = total + x[ds(i, 1), ds(chunk * CHUNK, CHUNK)].astype(np.float32)
    sums[i, part] = total.sum()  # type: ignore[attr-defined]


@numpipe_kernel(
    grid=lambda x, sums: (x.shape[0], sums.shape[1]),
    warp_specialized=False,
    # safe: two barriers for each chunk separate all stores to shared memory from loads
    compiler_params=CompilerParams(ctas_per_sm=4, unsafe_no_auto_barriers=True),
)
def cumsum_long(x, sums, y):  # type: ignore[no-untyped-def]
    """Compute the running sums y of the rows of x, both (rows, n), from the sums (rows, parts) of
    the parts. With one part, they are not read."""
    i, part = program_id(0), program_id(1)
    first, end = chunks_of(x, sums)
    # the sum of what comes before the chunk, then the totals of its segments
    totals, before, written, placed = scratch(
        (
            SMEM((SEGMENTS + 8,), np.float32),
            SMEM((SEGMENTS + 8,), np.float32),
            Barrier(),
            Barrier(),
        )
    )
    carry = 0.0
    if sums.shape[1] > 1:
        previous = np.where(iota(PARTS) < part, sums[i, ds(0, PARTS)], 0.0)
        carry = previous.sum()
    totals[ds(0, 8)] = full(8, carry, np.float32)
    ahead = x[ds(i, 1), ds(first * CHUNK, CHUNK)]
    for chunk in range(first, end):
        tile = ahead.astype(np.float32)
        # the next chunk is loaded while this one is scanned
        ahead = x[ds(i, 1), ds((chunk + 1) * CHUNK, CHUNK, stop=end * CHUNK)]
        for number in static_range(CHUNK // STEP):
            segments = split_row(tile[:, number * STEP : (number + 1) * STEP])
            totals[ds(8 * number + 8, 8)] = segments.sum(axis=1)  # type: ignore[attr-defined]
        barrier_arrive(written)
        barrier_wait(written)
        running = totals[...]
        running = np.cumsum(np.where(iota(SEGMENTS + 8) < 7, 0.0, running))  # type: ignore[operator]
        before[...] = running
        barrier_arrive(placed)
        barrier_wait(placed)
        for number in static_range(CHUNK // STEP):
            segments = np.cumsum(split_row(tile[:, number * STEP : (number + 1) * STEP]), axis=1)  # type: ignore[call-overload]
            own = before[ds(8 * number + 7, 8)]
            y[ds(i, 1), ds(chunk * CHUNK + number * STEP, STEP)] = join_row(segments + own[:, None])
        totals[ds(0, 8)] = before[ds(SEGMENTS, 8)]


def parts_of(rows: int, columns: int) -> int:
    """Return how many CTAs share a row.

    >>> parts_of(4096, 16384), parts_of(1, 1 << 26)
    (1, 528)
    """
    return max(1, min(CTAS // rows, columns // (2 * CHUNK)))


def _launch(x: ArrayInfo, y: ArrayInfo, target: str | None, stream: Any) -> None:
    if x.shape[-1] <= SHORT:
        arrays = {"x": ("matrix", x)}, {"y": ("matrix", y)}
        launch_over_rows("cumsum", cumsum_short, *arrays, target, stream)
        return
    source = matrix(x) or matrix(copied(x, target, stream))
    result = matrix(y)
    fresh = y if result is not None else allocated("cumsum", y, y.shape, stream)
    result = result or matrix(fresh)
    assert source is not None and result is not None
    parts = parts_of(*source.shape)
    shape = (source.shape[0], parts)
    sums = allocated("cumsum", y._replace(dtype=np.dtype(np.float32)), shape, stream)
    place = {"target": target, "stream": stream}
    if parts > 1:
        part_sums(source, sums, **place)
    cumsum_long(source, sums, result, **place)
    if fresh is not y:
        move(fresh, y, target, stream)


def matrix(info: ArrayInfo) -> ArrayInfo | None:
    """Return the rows of an array (…, n) as a matrix, or None if they are no view of it."""
    view = merged(info, 1)
    return view if view is not None and view.strides[1] == info.dtype.itemsize else None


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

    Sums are float32, rounded once to the result's type. x is read once, except for a few long rows,
    such as an array of one dimension: they are read twice. An array whose rows are not contiguous
    is copied first. Raises SpecError for other element types, and for an `out` of another shape or
    type.

    >>> cumsum(np.arange(5, dtype=np.float32), target="sim")
    array([ 0.,  1.,  3.,  6., 10.], dtype=float32)
    """
