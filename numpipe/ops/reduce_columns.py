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
from dataclasses import dataclass

import numpy as np

from ..arch.dimensions import round_up
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
"""SMs of an H200, among which parts of the rows are divided"""
WGS, SLOTS, TILE = 4, 4, 8192
"""warpgroups of a CTA, tiles in the shared memory of each, and bytes of a tile"""
WIDEST = 256
"""most columns of a box of TMA"""
SHORTEST = 8
"""fewest rows of x"""


@dataclass(frozen=True)
class Columns:
    """How columns are divided.

    columns  columns of the array
    narrow   rows of the array in a line
    lines    lines in each row of x
    width    columns of a line that a CTA has
    box      columns that TMA loads for a warpgroup
    length   rows of x in a tile
    unit     elements of 16 bytes
    """

    columns: int
    narrow: int
    lines: int
    width: int
    box: int
    length: int
    unit: int

    @property
    def rows(self) -> int:
        """Rows of the array in each row of x."""
        return self.narrow * self.lines

    @property
    def blocks(self) -> int:
        """CTAs that have the columns of a line."""
        return cdiv(self.narrow * self.columns, self.width)

    def parts(self, batch: int, n: int) -> int:
        """Return by how many CTAs n rows of x are shared, so that the SMs take the least time."""
        tiles, blocks = cdiv(n, self.length) * self.lines, batch * self.blocks
        whole = max(self.lines // WGS, 1)

        def cost(parts: int) -> int:
            """Bytes that an SM loads or stores in the time that it takes."""
            each = TILE * (WGS * cdiv(tiles, WGS * parts) + WGS)
            others = LAUNCH + parts * 8 * batch * self.columns // SMS if parts > 1 else 0
            return cdiv(blocks * parts, SMS) * each + others

        every = (round(waves * SMS // blocks // whole) * whole for waves in range(1, 17))
        return min((max(parts, whole) for parts in every), key=cost)


LAUNCH = 65536
"""bytes that an SM could load in the time of a launch"""


def columns_for(n: int, columns: int, size: int, dense: bool, folded: bool) -> Columns | None:
    """Return how columns of a matrix are divided, or None if TMA cannot load them.

    dense   whether rows follow each other without gaps
    folded  whether several rows may be read as one
    """
    unit, row = 16 // size, columns * size
    pad = unit * (dense and row % 16 > 0)
    narrow = max((WIDEST - pad) // columns, 1) if dense and folded else 1
    lines = 16 // math.gcd(narrow * row, 16) if dense else 1
    pad = unit * (lines > 1)
    line = narrow * columns
    count = n // (narrow * lines)
    if count < SHORTEST or line < 128 or (lines > 1 and not folded):
        return None
    blocks = cdiv(line, WIDEST - pad)
    width = line if blocks == 1 else round_up(cdiv(line, blocks), unit)
    box = round_up(width + pad, 64)
    length = max(TILE // size // box // 8, 1) * 8
    length = min(length, max(count // (SLOTS * 8), 1) * 8)
    length -= 8 * (length % 64 == 0)  # tiles of 64 rows would be accumulators
    return Columns(columns, narrow, lines, width, box, length, unit)


@functools.cache
def column_reducer(kind: str, of: Columns, last: bool, finish: Function | None) -> Kernel:
    """Return the kernel of a reduction (`reduce_axis.reducer`) of columns.

    last    whether there is no further launch: y has indices, and no `found` has them
    finish  function of the reduced vector, if there is no further launch

    `rest` has the elements of the last rows. Scalars are `parts`, the CTAs that share the rows, and
    `scale`, a factor of the result.
    """
    index, sums = kind == "argmax", kind in ("sum", "dot")
    exact = sums and of.unit == 4
    lowest = -np.inf if "max" in kind else 0.0
    columns, lines, width, box, length, unit = (
        of.columns,
        of.lines,
        of.width,
        of.box,
        of.length,
        of.unit,
    )
    line, rows_of_x, blocks, planes = of.narrow * columns, of.rows, of.blocks, 1 + index
    out = min(columns, width)
    step = max(2048 // box // 8, 1) * 8
    step = step if length % step == 0 else 8
    combined, reduced = combiner(kind, 0, exact)
    unused = {"rest": rows_of_x == 1, "weights": kind != "dot", "found": last or not index}

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
        early, number, n = start % unit, worker // lines, x.shape[1]
        own, stride = ds(start - early, box), cdiv(parts * WGS - worker % lines, lines) * length
        # maxima may see elements twice: the last tile ends where the array does
        most = n if sums else n - length
        buffer, landed = scratch(
            (SMEM((WGS * SLOTS, length, box), x.dtype), Barrier(num_barriers=WGS * SLOTS))
        )
        own_results, results, stored = scratch(
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
            """Give the others a vector of this warpgroup's."""
            at = plane * WGS + wg
            own_results[ds(at * box, box)] = bitcast(vector, np.float32)
            meet()
            results[ds(at * width, width)] = own_results[ds(at * box + early, width)]

        def shared(plane):
            """Return the vectors of all warpgroups, as rows of a tile."""
            return load_tile(results.at[ds(plane * WGS * width, WGS * width)], columns=out)

        for k in range(SLOTS):
            load(number * length + k * stride)
        if rows_of_x > 1:
            last_rows = rest[batch, own, 0]
        total = full((step, box), lowest, np.float32 if sums or index else x.dtype)
        at = full((step, box), 0, np.float32 if sums else np.int32)
        for k in range(number * length, n, stride):
            barrier_wait(landed.at[slot(k)])
            tiles = load_tile(buffer.at[slot(k)])
            meet()
            load(k + SLOTS * stride)
            if kind == "dot":
                factors = weights[batch, ds(k, length)].astype(np.float32)
                tiles = tiles.astype(np.float32) * factors[:, None]
            partial = full((step, box), 0.0, np.float32)
            for i in static_range(0, length, step):
                tile = tiles[ds(i, step), :]
                if sums:
                    partial = partial + tile.astype(np.float32)
                else:
                    total, at = combined(total, at, tile, min(k, most) + i)
            if sums:
                # sums of few elements lose fewer digits
                total, at = combined(total, at, partial, 0)
        if index:
            at = at + iota((step, box), 0)
        column = iota((step, box), 1) + own.start
        if rows_of_x > 1:
            inside = (column < rest.shape[1]) & (iota((step, box), 0) + number == 0)
            tile = np.where(inside, last_rows[None, :], lowest)
            total, at = combined(total, at, tile, n)
            if index:
                at = at * rows_of_x + column // columns
        result, places = reduced(total, at)
        share(result, 0)
        if index:
            share(places, 1)
        barrier_arrive(stored)

        def end():
            """Combine the results of the warpgroups, and store them."""
            barrier_wait(stored)
            indices = bitcast(shared(planes - 1), np.int32) if index else 0
            result, at = reduced(shared(0), indices)
            to = ds(first, out)
            if index and last:
                y[batch, part, to] = at
            else:
                if index:
                    found[batch, part, to] = at
                if last:
                    result = result * scale
                    if finish is not None:
                        result = finish(result)
                y[batch, part, to] = result

        if wg == 0:
            end()

    return reduce_columns  # type: ignore[no-any-return]
