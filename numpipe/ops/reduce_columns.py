"""Reductions of columns that TMA loads.

A CTA has some columns, and each of its warpgroups every so many tiles of some rows of them, from a
ring in shared memory. The results of the warpgroups are combined in shared memory. If several CTAs
share the rows, another launch combines theirs (`reduce_axis`).

TMA copies must begin at multiples of 16 bytes, but rows of odd length do not. A warpgroup therefore
has every second, fourth or eighth row, all of which begin equally far from such a multiple, and
loads up to 15 bytes more in front of its columns. Several narrow rows without gaps are a `line`,
which is loaded like a row. So x is (batch, n, lines columns), of which a row has `lines` lines.
The last rows, too few for one of x, are read by the first warpgroups.
"""

# tiles in kernels have no types
# mypy: disable-error-code="no-untyped-def, attr-defined, operator, call-overload, index, arg-type"

from __future__ import annotations

import functools
import math

import numpy as np

from ..arch.dimensions import Ints, round_up
from ..core.arith import cdiv
from ..core.functions import Function
from ..core.static_range import static_range
from ..kernels.decorator import kernel as numpipe_kernel
from ..kernels.kernel import Kernel
from ..language.memory.copies import copy_gmem_to_smem, meet
from ..language.memory.scratch import scratch
from ..language.pipeline.operand_barriers import barrier_arrive, barrier_wait
from ..language.tiles.elementwise import full, iota
from ..language.tiles.load import load_tile
from ..language.tiles.refs import ds
from ..language.tiles.tile import bitcast
from ..plan.allocations import SMEM, Barrier
from ..plan.context import axis_index, program_id
from ..plan.params import CompilerParams
from .combining import combiner

SMS = 132
"""SMs of an H200, among which the rows are divided"""
WGS, SLOTS, TILE = 4, 4, 8192
"""warpgroups of a CTA, tiles in the shared memory of each, and bytes of a tile"""
WIDEST = 256
"""most columns of a tile"""
STEP = 8
"""rows of a tile that are combined at once"""
LAUNCH = 65536
"""bytes that an SM could load in the time of a launch"""


def column_schedule(
    batch: int, rows: int, columns: int, size: int, folded: bool
) -> tuple[Ints, int] | None:
    """Return ((rows of a line, lines of a row of x, columns of a CTA, columns and rows of a tile),
    CTAs that share the rows), or None for too few rows or columns. `folded`: whether several rows
    may be read as one."""
    unit = 16 // size
    pad = unit * (columns % unit > 0)
    narrow = max((WIDEST - pad) // columns, 1) if folded else 1
    line = narrow * columns
    lines = unit // math.gcd(line, unit) if folded else 1
    n, blocks = rows // (narrow * lines), cdiv(line, WIDEST - pad)
    if n < STEP or line < WIDEST // 2:
        return None
    width = line if blocks == 1 else round_up(cdiv(line, blocks), unit)
    box = round_up(width + pad, 64)
    # several tiles for each warpgroup; 64 rows would be an accumulator
    length = STEP * max(min(TILE // size // box // STEP, n // (STEP * SLOTS), 7), 1)
    tiles, blocks, whole = cdiv(n, length) * lines, batch * blocks, max(lines // WGS, 1)

    def cost(parts: int) -> int:
        """Return the bytes that an SM could load until the end."""
        each = TILE * WGS * (cdiv(tiles, WGS * parts) + 1)
        others = LAUNCH + 8 * parts * batch * columns // SMS if parts > 1 else 0
        return cdiv(blocks * parts, SMS) * each + others

    waves = (max(k * SMS // blocks // whole, 1) * whole for k in range(1, 17))
    return (narrow, lines, width, box, length), min(waves, key=cost)


@functools.cache
def column_reducer(
    kind: str,
    size: int,
    columns: int,
    narrow: int,
    lines: int,
    width: int,
    box: int,
    length: int,
    last: bool,
    finish: Function | None,
) -> Kernel:
    """Return the kernel of a reduction (`combining`) of columns.

    size    bytes of an element
    narrow, lines, width, box, length
            see `column_schedule`
    last    whether there is no further launch: y has indices, and no `found` has them
    finish  function of the reduced vector, if there is no further launch

    `rest` has the elements of the last rows. Scalars are `parts`, the CTAs that share the rows, and
    `scale`, a factor of the result.
    """
    index, sums = kind == "argmax", kind in ("sum", "dot")
    lowest = -np.inf if "max" in kind else 0.0
    line, rows_of_x, planes, out = narrow * columns, narrow * lines, 1 + index, min(columns, width)
    blocks, folded = cdiv(line, width), rows_of_x > 1
    combined, reduced, deliver = combiner(kind, 0, sums and size == 4, last, finish)
    unused = {"rest": not folded, "weights": kind != "dot", "found": last or not index}

    @numpipe_kernel(
        grid=lambda x, parts: (x.shape[0] * blocks, parts),
        warp_specialized=False,
        num_compute_wgs=WGS,
        without=tuple(name for name, off in unused.items() if off),
        # safe: a slot is loaded again after all warps have read it, and other shared memory is
        # written once, and read after a barrier
        compiler_params=CompilerParams(ctas_per_sm=1, unsafe_no_auto_barriers=True),
        static_dims=(-1,),
    )
    def reduce_columns(x, rest, weights, y, found, parts, scale):
        wg, batch, part = axis_index("wg"), program_id(0) // blocks, program_id(1)
        worker, first = part * WGS + wg, program_id(0) % blocks * width
        start = worker % lines * line + first
        early, number, n = start % (16 // size), worker // lines, x.shape[1]
        own, stride = ds(start - early, box), cdiv(parts * WGS - worker % lines, lines) * length
        # maxima may see elements twice: the last tile ends where the array does
        most = n if sums else n - length
        buffer, landed = scratch(
            (SMEM((WGS * SLOTS, length, box), x.dtype), Barrier(num_barriers=WGS * SLOTS))
        )
        aligned, results, stored = scratch(
            (
                SMEM((planes * WGS * box,), np.float32),
                SMEM((planes * WGS * width,), np.float32),
                Barrier(num_arrivals=WGS),
            )
        )

        def slot(row):
            return wg * SLOTS + row // stride % SLOTS

        def load(row):
            """Load the tile that begins at a row into its slot."""
            if row < n:
                source = x.at[batch, ds(min(row, most), length), own]
                copy_gmem_to_smem(source, buffer.at[slot(row)], landed.at[slot(row)])

        def share(vector, plane):
            """Write a vector of this warpgroup, without the columns in front of its own."""
            place = plane * WGS + wg
            aligned[ds(place * box, box)] = bitcast(vector, np.float32)
            meet()
            results[ds(place * width, width)] = aligned[ds(place * box + early, width)]

        def shared(plane):
            """Return the vectors of all warpgroups as rows of a tile."""
            return load_tile(results.at[ds(plane * WGS * width, WGS * width)], columns=out)

        for k in range(SLOTS):
            load(number * length + k * stride)
        if folded:
            last_rows = rest[batch, own, 0]
        total = full((STEP, box), lowest, np.float32 if sums or index else x.dtype)
        at = full((STEP, box), 0, np.float32 if sums else np.int32)
        for k in range(number * length, n, stride):
            barrier_wait(landed.at[slot(k)])
            tiles = load_tile(buffer.at[slot(k)])
            meet()
            load(k + SLOTS * stride)
            if kind == "dot":
                factors = weights[batch, ds(k, length)].astype(np.float32)
                tiles = tiles.astype(np.float32) * factors[:, None]
            partial = full((STEP, box), 0.0, np.float32)
            for i in static_range(0, length, STEP):
                tile = tiles[ds(i, STEP), :]
                if sums:
                    partial = partial + tile.astype(np.float32)
                else:
                    total, at = combined(total, at, tile, min(k, most) + i)
            if sums:
                # sums of few elements lose fewer digits
                total, at = combined(total, at, partial, 0)
        if index:
            at = at + iota((STEP, box), 0)
        if folded:
            column = iota((STEP, box), 1) + own.start
            inside = (column < rest.shape[1]) & (iota((STEP, box), 0) + number == 0)
            tile = np.where(inside, last_rows[None, :], lowest)
            total, at = combined(total, at, tile, n)
            if index:
                at = at * rows_of_x + column // columns
        result, at = reduced(total, at)
        share(result, 0)
        if index:
            share(at, 1)
        barrier_arrive(stored)

        def end():
            barrier_wait(stored)
            indices = bitcast(shared(1), np.int32) if index else 0
            result, at = reduced(shared(0), indices)
            deliver(y, found, batch, part, ds(first, out), 0, result, at, scale)

        if wg == 0:
            end()

    return reduce_columns  # type: ignore[no-any-return]
