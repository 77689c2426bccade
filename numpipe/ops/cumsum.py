"""``cumsum(x)``: running sums along the last dimension.

============  ======================================================================================
rows          how
============  ======================================================================================
short         a row is in the registers of a warp. If rows begin at multiples of 16 bytes, a lane
              has 16 adjacent bytes at a time; others are loaded by `numpipe.rows`
long          a row is loaded into the shared memory of a CTA, or of a cluster of CTAs if it is
              longer than 32 KB or there are few: 8 parts for each warpgroup, two for each warp,
              which has them in registers. The sums of all parts are exchanged through shared
              memory once
longer,       all rows are one array, which is cut into parts of equal length, wherever rows begin.
or in place   A tile has some parts for each warp. In round k, CTA i of G has tile k G + i
============  ======================================================================================

Rows of up to 4096 columns that are in place or have gaps between them are in the registers of a
warp, too.

The CTAs of longer rows exchange the totals of their tiles (`language.grid.round_totals`). All but
one of the warpgroups add up the parts of a tile, which TMA has loaded, two rounds before they scan
them. The last one determines from sums of parts and totals of tiles what each part starts from::

    others  | add 2 | scan 0, store | add 3 | scan 1, store | add 4 | scan 2, store | …
    last            | totals of 2, starts of 1      | totals of 3, starts of 2      | …

Rounds overlap, because totals take longer than a tile to reach all CTAs.
"""

# tiles in kernels have no types
# mypy: disable-error-code="no-untyped-def, attr-defined, operator, arg-type, call-overload, index"

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from ..arch.dimensions import next_power_of_two
from ..arch.targets import DEFAULT
from ..core.arith import cdiv
from ..kernels.decorator import kernel as numpipe_kernel
from ..kernels.kernel import Kernel
from ..kernels.row_kernels import loadable
from ..kernels.row_kernels import rows as numpipe_rows
from ..kernels.row_registers import CLUSTER
from ..kernels.row_schedules import CLUSTER as MOST_CTAS
from ..language.grid.round_totals import end_launch, launch_number, publish, totals, workspace
from ..language.memory.copies import copy_gmem_to_smem, meet
from ..language.memory.remote import async_store_smem
from ..language.memory.scratch import scratch
from ..language.pipeline.operand_barriers import barrier_arrive, barrier_wait
from ..language.tiles.elementwise import full, iota
from ..language.tiles.load import load_tile
from ..language.tiles.refs import ds
from ..launch.array_info import ArrayInfo
from ..launch.windows import strided
from ..plan.allocations import SMEM, Barrier
from ..plan.context import axis_index, num_programs, program_id
from ..plan.params import CompilerParams
from ..plan.specs import Static, persistent
from .declaration import op
from .op_outputs import Arrays, Place
from .tiled import TYPES, dense, reshaped, rows_of, with_fitting

__all__ = ["cumsum"]

SHORT, MOST = 1536, 4096
"""most columns of a row in the registers of a warp; MOST: if rows begin at multiples of 16 bytes"""
HELD = 16384
"""most columns of a row in the registers of a CTA; each CTA of a cluster holds as many"""
WIDE = 6144
"""most columns of a row that a single warpgroup of a CTA has (measured on an H200)"""
FEW = 128
"""rows of which each has an SM"""
SHARE, LEAST = 32768, 10240
"""most bytes of a CTA's share of a row, for up to four CTAs; fewest bytes of a CTA with one row: an
H200 starts at most 800 CTAs in a microsecond"""
TILES = (2, 16), (4, 16), (1, 16)
"""warpgroups that add up and scan a tile, and parts that each has"""
SMALL = (1, 16), (3, 8)
"""the same of small tiles, which were compared with each other only (measured on an H200)"""
KEPT, AHEAD = 192, 64
"""KEPT: parts that shared memory holds. AHEAD: parts that a CTA requests before it adds up the
first ones; two more tiles follow while it does, so KEPT is at least AHEAD and two tiles. Requesting
all KEPT at once takes 26 instead of 23 us for 37 MB on an H200: some CTAs receive their first tile
last, and all others wait for its total"""
RING = 4
"""rounds whose sums are in shared memory"""
ROWS = 8
"""parts that a warpgroup has in registers, two for each warp"""


@numpipe_rows(held=1, once=True, scans=True)
def cumsum_short(x, y, *, row: Static):
    for k in row.blocks(x):
        value, block = row.load(k, x)
        row.store(block, y, lambda j: np.cumsum(value(j), axis=1))


@functools.cache
def aligned_rows(columns: int, run: int) -> Kernel:
    """Return the kernel whose warps have rows in registers. A lane has `run` adjacent elements at a
    time: 16 bytes of rows that begin at multiples of 16 bytes, or 2 elements of others."""
    lanes = min(32, next_power_of_two(cdiv(columns, run)))
    own = cdiv(columns, lanes * run) * run
    height = 128 // lanes * max(1, 16 // own)
    layout = f"rows {lanes} {run}"

    @numpipe_kernel(
        grid=lambda x: (cdiv(x.shape[0], height),),
        warp_specialized=False,
        static_dims=(-1,),
        compiler_params=CompilerParams(ctas_per_sm=512 // (max(16, own) + 32)),
    )
    def cumsum_aligned(x, y):
        i, j = ds(program_id(0) * height, height), ds(0, columns)
        tile = load_tile(x.at[i, j], layout)
        y[i, j] = np.cumsum(tile.astype(np.float32), axis=1)

    return cumsum_aligned  # type: ignore[no-any-return]


@functools.cache
def rows_of_parts(wgs: int, ctas: int, cluster: int, own: int, run: int, each: int) -> Kernel:
    """Return the kernel for rows that follow each other without gaps. A row has 8 parts for each of
    `wgs` warpgroups of each CTA of a cluster, and a lane has `own` adjacent elements of two parts.
    A CTA loads `each` rows at once. The first part begins with the 16 bytes, `run` elements, that
    have the first column."""
    length = 32 * own
    count, span, layout = ROWS * wgs * cluster, ROWS * length, f"rows 32 {own}"

    @numpipe_kernel(
        grid=lambda y: (cdiv(y.shape[0], each) * cluster,),
        cluster=cluster,
        cluster_names=CLUSTER,
        num_compute_wgs=wgs,
        warp_specialized=False,
        static_dims=(-1,),
        # safe: warps meet between accesses of different ones to shared memory
        compiler_params=CompilerParams(ctas_per_sm=ctas, unsafe_no_auto_barriers=True),
    )
    def cumsum_parts(x, y):
        """Compute the running sums of the rows of a matrix without gaps."""
        first, wg = program_id(0) // cluster * each, axis_index("wg")
        number = axis_index(CLUSTER) * wgs + wg
        buffer, landed, sums, written = scratch(
            (
                SMEM((each * wgs * span,), x.dtype),
                Barrier(num_barriers=each * wgs),
                SMEM((each * count,), np.float32),
                Barrier(num_arrivals=wgs * cluster, num_barriers=each),
            )
        )

        def part(i):
            return buffer.at[ds((i * wgs + wg) * span, span)]

        def shift(i):
            """How many elements of the part before it the first part has."""
            return (first + i) * y.shape[1] % run

        for i in range(each):
            source = ds((first + i) * y.shape[1] - shift(i) + number * span, span)
            copy_gmem_to_smem(x.flat.at[source], part(i), landed.at[i * wgs + wg])
        for i in range(each):
            barrier_wait(landed.at[i * wgs + wg])
            tile = load_tile(part(i), layout, columns=length)
            if (number == 0) & (shift(i) > 0):
                # the part begins with the last elements of another row
                element = iota(tile, 0) * length + iota(tile, 1)
                tile = np.where(element < shift(i), 0.0, tile)
            values = tile.astype(np.float32)
            total = values.sum(axis=1)
            at = sums.at[ds(i * count + number * ROWS, ROWS)]
            if cluster > 1:
                async_store_smem(total, at, written.at[i], cluster_idx=None, cluster_dim=CLUSTER)
            else:
                at[...] = total
                barrier_arrive(written.at[i])
            found = np.cumsum(values, axis=1)  # while other warps add up theirs
            barrier_wait(written.at[i])
            before = iota((ROWS, count), 1) < iota((ROWS, count), 0) + number * ROWS
            start = np.where(before, sums[ds(i * count, count)], 0.0).sum(axis=1)
            part(i)[...] = (found + start[:, None]).astype(x.dtype)
            meet()
            columns = ds(
                number * span - shift(i), span, most=(count // ROWS - 1) * span, least=1 - run
            )
            y[ds(first + i, 1), columns] = load_tile(part(i), "row 128")[None, :]

    return cumsum_parts  # type: ignore[no-any-return]


@functools.cache
def long_rows(wgs: int, length: int, one: bool, height: int = 16) -> Kernel:
    """Return the kernel for tiles with `height` parts of `length` elements for each of `wgs`
    warpgroups. `one`: there is a single row."""
    parts = wgs * height
    slots, ahead = KEPT // parts, AHEAD // parts
    size = parts * length

    @numpipe_kernel(
        grid=persistent(),
        num_compute_wgs=wgs + 1,
        warp_specialized=False,
        static_dims=(-1,),
        cooperative=True,
        programmatic=True,
        # safe: what warpgroups write for others is read after a barrier
        compiler_params=CompilerParams(unsafe_no_auto_barriers=True),
        workspace=lambda x: workspace(x.shape[1] // parts + 1),
    )
    def cumsum_long(x, rest, y, rest_of_y, columns, work):
        """Compute the running sums of rows of `columns` elements, given as parts (1, part,
        element) and the elements after the last part (1, element)."""
        own, programs, wg = program_id(0), num_programs(0), axis_index("wg")
        tiles = cdiv(x.shape[1] + (rest.shape[1] > 0), parts)
        rounds = cdiv(tiles - own, programs)
        buffer, landed, sums, added, starts, known = scratch(
            (
                SMEM((slots * wgs, height, length), x.dtype),
                Barrier(num_barriers=slots * wgs),
                SMEM((RING * parts,), np.float32),
                Barrier(num_arrivals=wgs, num_barriers=RING),
                SMEM((RING * parts,), np.float32),
                Barrier(num_barriers=RING),
            )
        )

        step, first = programs * size % columns, own * size % columns
        first_part = (own * size + wg * height * length) % columns
        number = iota(parts)

        def moved(offset, distance):
            """The distance from the beginning of a row, after moving from `offset` by less than a
            row."""
            beyond = offset - (columns - distance)  # the sum may be no int32
            return np.where(beyond < 0, beyond + columns, beyond)

        def after(offset):
            """How far from the beginning of its row the next round begins, if this one begins at
            `offset`."""
            return moved(offset, step)

        def in_slot(k):
            return wg * slots + k % slots

        def load(k):
            if k < rounds:
                at, slot = (k * programs + own) * parts + wg * height, in_slot(k)
                source = x.at[0, ds(at, height), ds(0, length)]
                copy_gmem_to_smem(source, buffer.at[slot], landed.at[slot])

        def piece(k, i):
            """Some parts of this warpgroup's."""
            view = buffer.at[in_slot(k), ds(i * ROWS, ROWS), :]
            return load_tile(view, "runs").astype(np.float32)

        def begin_of(offset, i):
            """How far from the beginning of its row a piece begins."""
            return moved(moved(offset, first_part), i * ROWS * length)

        def rows_meet(offset, i):
            return (columns % length > 0) & (begin_of(offset, i) > columns - ROWS * length)

        def before_next(offset, i, tile):
            """Whether elements belong to the row in which their part begins, and whether the next
            row begins in the part."""
            begin = begin_of(offset, i) - columns + iota(ROWS) * length
            end = np.where(begin < 0, -begin, columns - begin)[:, None]
            return iota(tile, 1) < end, end < length

        def add(k, offset):
            """Add up each part, from the last row that begins in it."""
            if k < rounds:
                barrier_wait(landed.at[in_slot(k)])
                for i in range(height // ROWS):
                    tile = piece(k, i)
                    if not one and rows_meet(offset, i):
                        before, ends = before_next(offset, i, tile)
                        tile = np.where(before & ends, 0.0, tile)
                    at = ds(k % RING * parts + wg * height + i * ROWS, ROWS)
                    sums[at] = tile.sum(axis=1)
                barrier_arrive(added.at[k % RING])

        def scan_tile(k, offset):
            barrier_wait(known.at[k % RING])
            for i in range(height // ROWS):
                at = wg * height + i * ROWS
                start = starts[ds(k % RING * parts + at, ROWS)][:, None]
                to = ds((k * programs + own) * parts + at, ROWS)
                tile = piece(k, i)
                found = np.cumsum(tile, axis=1) + start
                if not one and rows_meet(offset, i):
                    before, _ = before_next(offset, i, tile)
                    others = np.cumsum(np.where(before, 0.0, tile), axis=1)
                    found = np.where(before, found, others)
                y[0, to, ds(0, length)] = found

        def in_row(each, count, number, offset):
            """Sums of `count` elements each, with 0 for those from `number` on, and for those
            before the beginning of the row, which is at a distance of `offset` from `number`."""
            gap = (number - 1 - iota(each.shape[0])) * count
            return np.where(gap >= 0 if one else (gap >= 0) & (gap < offset), each, 0.0)

        def before(number, offset, others, total):
            """The sum of the elements before tile `number` of the round, from the beginning of the
            row, which is at a distance of `offset`. Those before the round have a sum of
            `total`."""
            found = in_row(others, size, number, offset).sum()
            if one or number * size < offset:
                found = found + total
            return found

        def begin(k, offset, launch):
            """Publish the total of tile k. Return the sums before its parts, from the beginning of
            the row or of the tile."""
            start = full(parts, 0.0, np.float32)
            if k < rounds:
                barrier_wait(added.at[k % RING])
                begun, each = moved(offset, first), sums[ds(k % RING * parts, parts)]
                end = moved(begun, size % columns)
                publish(work, k, in_row(each, length, parts, end).sum(), launch)
                distance = moved(begun, number * length % columns)
                start = in_row(each, length, number[:, None], distance[:, None]).sum(axis=1)
            return start

        def finish(k, offset, total, start, launch):
            """Determine the sums that parts start from, given the sum `total` before the round.
            Return the sum before the next one."""
            others = totals(work, k, min(programs, tiles - k * programs), launch)
            begun = moved(offset, first)
            earlier = before(own, begun, others, total)
            same_row = moved(begun, number * length % columns) > number * length
            start = start + (earlier if one else np.where(same_row, earlier, 0.0))
            starts[ds(k % RING * parts, parts)] = start
            barrier_arrive(known.at[k % RING])
            if (k == 0) & (own == 0):
                end_launch(work, launch)
            at = x.shape[1] - (k * programs + own) * parts
            if rest.shape[1] > 0 and at < parts:
                # all of one row, because rows are longer than parts
                every = ds(0, ROWS), ds(0, length)
                here = np.where(number == at, start, 0.0).sum()
                rest_of_y[every] = np.cumsum(rest[every].astype(np.float32), axis=1) + here
            return before(programs, after(offset), others, total)

        offset = 0
        if wg == wgs:
            launch, total = launch_number(work), 0.0
            start = begin(0, offset, launch)
            for k in range(rounds):
                next_start = begin(k + 1, after(offset), launch)
                total = finish(k, offset, total, start, launch)
                start, offset = next_start, after(offset)
        else:
            for k in range(ahead):
                load(k)
            add(0, offset)
            load(ahead)
            add(1, after(offset))
            load(ahead + 1)
            for k in range(rounds):
                add(k + 2, after(after(offset)))
                scan_tile(k, offset)
                meet()
                load(k + ahead + 2)
                offset = after(offset)

    return cumsum_long  # type: ignore[no-any-return]


def whole_lines(x: ArrayInfo, y: ArrayInfo) -> bool:
    """Return whether TMA can load rows with some elements of other rows, which nothing overwrites
    meanwhile."""
    return x.ptr != y.ptr and loadable(x, y)[1]


def over_rows(arrays: Arrays, place: Place) -> None:
    """Compute the running sums of the rows of an array. Those of more than MOST columns have no
    gaps."""
    x, y = map(rows_of, arrays.values())
    (rows, columns), size = x.shape, x.dtype.itemsize
    run = 16 // size
    # few rows have more CTAs each; longer rows were faster as tiles (measured on an H200)
    least = next_power_of_two(min(4, cdiv(columns * size, SHARE))) if columns <= 8 * WIDE else 1
    most = min(MOST_CTAS, FEW // (2 * rows), columns // 4096)
    cluster = 1 << max(most, least).bit_length() - 1
    if columns <= MOST and columns % run == 0 and loadable(x, y)[0]:
        aligned_rows(columns, run)(x, y, **place)
    elif columns <= SHORT:
        cumsum_short(x, y, **place)
    elif columns <= HELD * cluster and whole_lines(x, y):
        wgs = 1 + (rows * cluster <= FEW or (cluster < 4 and columns > WIDE * cluster))
        own = 2 * cdiv(columns + run - 1, 64 * ROWS * wgs * cluster)
        own += 2 * (own * size % 32 == 0)  # else several of eight lanes would have the same banks
        # as many as registers allow; 16384 columns of 16 bits spill 48 bytes
        ctas = min(8, 512 // (25 + 3 * cluster + own + own * size // 4) // wgs)
        each = 1
        if wgs * cluster == 1 and columns * size < LEAST:
            # up to four of many rows: a CTA starts once, and loads rows while it scans others
            each = max(2, min(4, rows // (8 * DEFAULT.sms)))
        rows_of_parts(wgs, ctas, cluster, own, run, each)(x, y, **place)
    elif columns <= MOST:
        aligned_rows(columns, 2)(x, y, **place)
    else:
        count, length = rows * columns, 1024 // size
        end = count - count % length
        # the second has the elements after the last part; all outer strides are whole 16 bytes
        of_parts = (1, end // length, length), (end * size, 1024, size)
        of_rest = (1, count - end), (end * size, size), (0, end)
        flat = [reshaped(info, 1, count) for info in (x, y)]
        views = [strided(info, *view) for info in flat for view in (of_parts, of_rest)]

        def time(tile: tuple[int, int]) -> Any:
            """Return the time of all rounds, with one more for first loads and last stores."""
            parts = math.prod(tile)
            return (cdiv(count, DEFAULT.sms * parts * length) + 1) * (parts + 8)

        tile = min(TILES, key=time)
        wgs, height = min(SMALL, key=time) if tile in SMALL else tile
        long_rows(wgs, length, rows == 1, height)(*views, columns, **place)


def _launch(x: ArrayInfo, y: ArrayInfo, place: Place) -> None:
    fits = rows_of if x.shape[-1] <= MOST else lambda info: dense(info) and info.ptr % 16 == 0
    with_fitting({"x": x}, {"y": y}, fits, place, functools.partial(over_rows, place=place))


@op(
    operands={"x": "... n"},
    results={"y": "... n"},
    types=TYPES,
    launch=_launch,
    gradients={"x": lambda xp, grad_y: xp.flip(xp("cumsum", xp.flip(grad_y, (-1,))), (-1,))},
    batching="leading",
)
def cumsum(x: Any, *, out: Any = None, target: str | None = None, stream: Any = None) -> Any:
    """Return the running sums along the last dimension: element i is the sum of elements 0 … i.

    x    (…, n) of float16, bfloat16 or float32, with any n and any strides
    out  an array of x's shape and type to write to; allocated by default. It may be x
    target, stream
         as for any kernel

    Sums are float32, rounded once to the result's type. x is read once. An array whose rows are not
    contiguous is copied first, and so is one with gaps between rows of more than 4096 columns.
    Raises SpecError for other element types, and for an `out` of another shape or type.

    >>> cumsum(np.arange(5, dtype=np.float32), target="sim")
    array([ 0.,  1.,  3.,  6., 10.], dtype=float32)
    """
