"""Reductions of an axis of an array: sums, maxima, and indices of maxima.

A CTA walks along the axis with a tile of a few rows and columns in registers and combines all tiles
element by element, in float32, so that only one tile is reduced across lanes. If there would be too
few CTAs, several share the axis, and a second launch combines their partial results, always in the
same order. That launch takes 1.5 us on an H200, as long as reading 6 MB, so small matrices and wide
ones are reduced in one. The size of x's last dimension is a compile-time constant.

=========  =====================  ========================
`down`     x                      y
=========  =====================  ========================
False      (1, rows, n)           (1, parts, rows)
True       (batch, n, columns)    (batch, parts, columns)
=========  =====================  ========================

Columns of large matrices are reduced from rings of tiles in shared memory, which TMA loads, so that
many bytes are in flight. All lanes of a warpgroup share each row of a tile, so that a lane has the
same columns of all rows, and lanes exchange nothing before the last tile is combined. `_ring`
chooses tiles and shares by the time that they would take. For other matrices, lanes load a tile in
registers themselves. The warpgroups of a CTA share the rows, and the first one combines their
results. For the argmax of 16-bit elements, lanes first find the maxima of a whole tile, and keep
the tile's elements of each column whose maximum has risen: 1.5 instructions instead of 6 for two
columns of a row. In the end, they look for the row of the maximum in the elements they have kept.

TMA copies must begin at multiples of 16 bytes, but rows of odd length do not. `fold` such rows are
therefore read as one, an x of (batch, n / fold, fold columns). There are two ways to combine them:

narrow rows  A tile is a line of whole rows of x, as they are in memory. In the end, the first
             warpgroup combines `fold` rows. Rows of even length are folded too, so that all lanes
             have columns.
others       Each warpgroup has one of the `fold` rows, whose tiles begin up to `shift` columns
             early. Their results are aligned in shared memory.

The last rows of the matrix, fewer than `fold`, belong to the first warpgroups. TMA loads them, too:
lanes would wait for them before the first tile, for as long as all tiles take to arrive.

The rows of most matrices are reduced by another kernel, `row_reducer`, which loads rows that begin
at any address.
"""

# tiles in kernels have no types
# mypy: disable-error-code="no-untyped-def, attr-defined, operator, call-overload, index, arg-type"

from __future__ import annotations

import functools
import itertools
import math
from typing import Any

import numpy as np

from ..arch.dimensions import Ints, round_up
from ..core.arith import cdiv
from ..core.functions import Function
from ..core.static_range import static_range
from ..kernels.decorator import kernel as numpipe_kernel
from ..kernels.kernel import Kernel
from ..kernels.row_kernels import RowKernel, loadable
from ..kernels.row_kernels import rows as numpipe_rows
from ..language.memory.copies import copy_gmem_to_smem, meet
from ..language.memory.scratch import scratch
from ..language.pipeline.operand_barriers import barrier_arrive, barrier_wait
from ..language.tiles.conversions import layout_cast
from ..language.tiles.elementwise import full, iota
from ..language.tiles.load import load_tile
from ..language.tiles.mathematics import differ
from ..language.tiles.refs import ds
from ..launch.array_info import ArrayInfo
from ..launch.windows import merged, strided
from ..plan.allocations import SMEM, Barrier
from ..plan.context import axis_index, program_id
from ..plan.params import CompilerParams
from ..plan.specs import Static
from .combining import combiner
from .op_outputs import Place, allocated
from .over_rows import lacking
from .tiled import dense, reshaped, with_fitting

ENOUGH = 1584
"""CTAs from which on the axis is not shared: two rounds of 6 on each of an H200's SMs"""
ROWS, LONG = 64, 1 << 19
"""`row_reducer` may reduce a matrix with at least ROWS rows, or with rows of at most LONG bytes: if
the rows are few and longer, its CTAs have too few bytes in flight"""
ODD = 4096
"""most bytes of odd rows of 16-bit elements that products with a vector load as sums do, without
more registers (measured on an H200: rows of 3554 bytes take 0.7 of the time, of 6002 bytes 1.4)"""
WIDE, BROAD, NARROW = 256, 1280, 2048
"""most columns of a tile, most bytes of aligned rows that a tile has as a whole, and of others that
are read as one because they are narrow"""
SMS = 132
"""SMs of an H200, each of which has a CTA or two if columns are loaded by TMA"""
ROOM, FLIGHT = 225_000, 128_000
"""bytes of all tiles in shared memory of an SM, and of those of narrow rows: with more, the lanes
that issue all copies are late for the first tile"""
LARGE = 1 << 22
"""bytes of a matrix from which on TMA loads columns, and rows are folded"""
LAUNCH, FIXED, EDGE, TURN = 4 << 20, 8192, 64, 512
"""bytes that TMA loads in the time of a second launch, on all SMs, and of a warpgroup's start and
end, on one, more bytes in a row of a tile that begins anywhere, and bytes in the time in which a
warpgroup waits for a tile"""
KEPT = 40960
"""16-bit elements that an SM has registers for, in addition to the tiles that it compares"""
TALL = (8, 7, 6, 5, 4)
"""rows of narrow tiles, the longest preferred"""
LENGTHS = (5, *range(8, 17))
"""rows that a tile may have, so many numbers that CTAs have nearly equal shares of the axis"""


@functools.cache
def reducer(
    kind: str,
    down: bool,
    step: int,
    across: int,
    length: int,
    fold: int,
    short: bool,
    exact: bool,
    slots: int,
    wgs: int,
    ctas: int,
    shift: int,
    by_tile: bool,
    finish: Function | None,
    *present: str,
) -> Kernel:
    """Return the kernel ``(x, rest, weights, places, y, found)`` of a reduction (`combiner`), with
    the arrays that are `present`.

    step, across  elements of a tile along the axis and across it
    length  elements along the axis that are loaded at once
    fold    rows of the original array in each row of x; `rest` are the last rows, fewer than `fold`
    short   whether elements of the last tile after the axis are left out of maxima
    exact   whether sums include what additions have rounded away
    slots   tiles in shared memory of each warpgroup, which TMA loads, and of which all lanes share
            each row (`step` is 1); 0: lanes load them
    wgs     warpgroups of a CTA, which share its elements of the axis
    ctas    CTAs that an SM must have registers for; 0: as many as have no spills
    shift   columns by which tiles may begin early, if each warpgroup has one of `fold` rows; 0 if a
            tile has all columns of x
    by_tile whether lanes keep the tile that has each maximum, and look for its row in the end
    finish  function of the reduced vector

    x may have maxima, whose indices in the original array are `places`. If another launch combines
    the maxima y, `found` has their indices. Scalars are `parts`, the CTAs that share the axis, and
    `scale`, a factor of the result.
    """
    whole, axis = ((length, across), 0) if down else ((across, length), 1)
    index, sums, again = kind == "argmax", kind in ("sum", "dot"), "places" in present
    lowest = -np.inf if "max" in kind else 0.0
    # warpgroups that each have other rows of `fold`, and where a shifted tile may begin
    apart, line = (fold, shift) if shift else (1, 1)
    tall = fold // apart  # rows whose columns meet in the end; a tile is a line of memory
    width, pitch, spare = across - shift, across + shift, round_up(across, WIDE)
    deep = round_up(length, 8)  # tiles in shared memory are groups of 8 rows
    # without TMA, a CTA loads nothing while it compares
    ctas = ctas or max((5 if exact or index else 6) // wgs, 1)
    # TMA copies to multiples of 128 bytes
    slot_size = round_up(length * across, 64)
    combined, reduced, final = combiner(kind, None if slots else axis, exact, finish, again)
    merged, meet_columns, _ = combiner(kind, axis, False, finish, True)

    @numpipe_kernel(
        grid=lambda x, parts: (x.shape[0] * cdiv(x.shape[2 - axis] // apart, width), parts),
        warp_specialized=False,
        num_compute_wgs=wgs,
        without=lacking(present, "rest", "weights", "places", "found"),
        # safe: a slot is loaded again after all warps have read it, and results are read after a
        # barrier
        compiler_params=CompilerParams(ctas_per_sm=ctas, unsafe_no_auto_barriers=True),
        static_dims=dict.fromkeys(("x", "weights", "places", "y", "found"), (-1,)),
    )
    def reduce_axis(x, rest, weights, places, y, found, parts, scale):
        columns, n = x.shape[2 - axis] // fold, x.shape[axis + 1]
        blocks = cdiv(x.shape[2 - axis] // apart, width)
        batch, left = program_id(0) // blocks, program_id(0) % blocks * width
        wg = axis_index("wg") if wgs > 1 else 0
        part, share = program_id(1), program_id(1) * wgs + wg
        first, stride = share // apart * length, parts * wgs // apart * length
        begin = share % apart * columns + left
        own = ds(begin // line * line, across)
        # maxima may see elements twice: the last tile ends where the axis does
        most = n if sums or short else n - length

        def loaded(of, start):
            if down:
                return of[batch, ds(start, length), own]
            return of[batch, own, ds(start, length, most=most)]

        def piece(of, k):
            along = ds(k, step)
            part = of[along, :] if down else of[:, along]
            return part.reshape(across) if slots else part

        def filled(value, dtype):
            """Return a piece with equal elements."""
            return full((across,), value, dtype) if slots else piece(full(whole, value, dtype), 0)

        broad = columns if tall > 1 else width
        if wgs > 1:
            kept = (wgs * pitch,)
            results, indices, written = scratch(
                (SMEM(kept, np.float32), SMEM(kept, np.int32), Barrier(num_arrivals=wgs))
            )

            def stored(k, lanes, columns):
                """Return what warpgroup k has stored, as a tile of so many columns."""
                own = ds(k * pitch + shift, tall * broad)
                at = load_tile(indices.at[own], lanes, columns) if index else 0
                return load_tile(results.at[own], lanes, columns), at

        if slots:
            every = wgs * slots
            # of a line, boxes of equal size and one of the other elements
            size = length * across
            boxes, ends = size // WIDE * WIDE, size % WIDE if tall > 1 else 0
            # with room for two CTAs, those of the next launch would not be spread over all SMs
            lines = max(every * slot_size, FLIGHT // x.dtype.itemsize)
            height = ds(0, length)
            buffer, landed = scratch(
                (
                    SMEM((lines,) if tall > 1 else (every, deep, across), x.dtype),
                    Barrier(num_arrivals=1 + (ends > 0), num_barriers=every),
                )
            )

            def load(k, slot):
                """Load the tile that begins at row k."""
                if k < n:
                    if tall > 1:
                        begin, to = min(k, most) * across, slot * slot_size

                        def fetch(start, count):
                            source = x.flat.at[ds(begin + start, count)]
                            target = buffer.at[ds(to + start, count)]
                            copy_gmem_to_smem(source, target, landed.at[slot])

                        fetch(0, boxes)
                        if ends:
                            fetch(boxes, ends)
                    else:
                        source = x.at[batch, ds(min(k, most), length), own]
                        copy_gmem_to_smem(source, buffer.at[slot, height, :], landed.at[slot])

            for slot in range(slots):
                load(first + slot * stride, wg * slots + slot)
        if rest is not None:
            # whole boxes; elements after the last row are zeros
            ending, ended = scratch((SMEM((wgs * spare,), x.dtype), Barrier(num_barriers=wgs)))
            if first == 0:
                source = rest.at[batch, ds(own.start, spare)]
                copy_gmem_to_smem(source, ending.at[ds(wg * spare, spare)], ended.at[wg])

        # pieces of a tile, whose lanes keep its rows
        total = filled(lowest, np.float32 if sums or again else x.dtype)
        at = filled(0, np.float32 if sums else np.int32)
        if by_tile:
            # in the layout of `tiles`, which full alone does not have
            lowest_row = layout_cast(filled(lowest, x.dtype), "row 128")
            best_tile = lowest_row + full((length, 1), 0.0, x.dtype)
        # without divisions, which would take longer than the sums of a tile
        row, current = first, 0
        while row < n:
            start = min(row, most)
            if slots:
                slot = wg * slots + current
                barrier_wait(landed.at[slot])
                if tall > 1:
                    rows = buffer.at[ds(slot * slot_size, size)]
                    tiles: Any = load_tile(rows, "rows 128", across)
                else:
                    tiles = load_tile(buffer.at[slot, height, :], "rows 128")
                meet()
                load(row + slots * stride, slot)
                current = (current + 1) % slots
            else:
                tiles = loaded(x, start)  # one load for all pieces
            if again:
                numbers = loaded(places, start)
            if kind == "dot":
                factors = weights[batch, ds(start, length)].astype(np.float32)
                factors = factors[:, None] if down else factors[None, :]
                tiles = tiles.astype(np.float32) * factors
            partial = pair = filled(0.0, np.float32)
            before = total
            for k in static_range(0, length, step):
                place, tile = start + k, piece(tiles, k)
                if short:
                    along = filled(k, np.int32) if slots else piece(iota(whole, axis), k)
                    tile = np.where(along + start < n, tile, lowest)
                if again:
                    place = piece(numbers, k)
                if sums:
                    # sums of few elements lose fewer digits: adjacent pieces are added first
                    second, value = k // step % 2, tile.astype(np.float32)
                    pair = pair + value if second else value
                    if second or k + step == length:
                        partial = partial + pair
                elif by_tile:
                    total = np.maximum(total, tile)
                else:
                    total, at = combined(total, at, tile, place)
            if sums:
                total, at = combined(total, at, partial, 0)
            if by_tile:
                # -0 becomes 0, so that equal numbers have equal bits
                total = total + 0.0
                higher = differ(total, before)
                at, best_tile = np.where(higher, start, at), np.where(higher, tiles, best_tile)
            row += stride
        if index and not (again or slots):
            at = at + piece(iota(whole, axis), 0)
        if by_tile:
            own_row = filled(0, np.int32)
            for k in static_range(length - 1, -1, -1):
                own_row = np.where(differ(piece(best_tile, k) + 0.0, total), own_row, k)
            at = at + own_row
        result, at = reduced(total, at)
        column = iota(across) + own.start
        if rest is not None and first == 0:
            barrier_wait(ended.at[wg])
            last = load_tile(ending.at[ds(wg * spare, across)], "rows 128", across)
            last = last.reshape(across).astype(np.float32)
            values = np.where(column < rest.shape[1], last, lowest)
            result, at = merged(result, at, values, n)
        if index and fold > 1:
            at = at * fold + column // columns

        def store(result, at):
            to = ds(left, broad)
            if found is not None:
                found[batch, part, to] = at
                y[batch, part, to] = result
            else:
                y[batch, part, to] = final(result, at, scale)

        if wgs == 1:
            store(result, at)
        else:
            place = wg * pitch + shift - begin % line
            results[ds(place, across)] = result
            if index:
                indices[ds(place, across)] = at
            barrier_arrive(written)
            barrier_wait(written)
            if wg == 0:
                best, best_at = stored(0, "rows 128", tall * broad)
                for k in static_range(1, wgs):
                    others, others_at = stored(k, "rows 128", tall * broad)
                    best, best_at = merged(best, best_at, others, others_at)
                if tall > 1:
                    # now that there is one line, lanes have registers for its rows
                    results[ds(0, across)] = best.reshape(across)
                    if index:
                        indices[ds(0, across)] = best_at.reshape(across)
                    meet()
                    best, best_at = stored(0, "auto", broad)
                best, best_at = meet_columns(best, best_at)
                store(best, best_at)

    return reduce_axis  # type: ignore[no-any-return]


@functools.cache
def row_reducer(kind: str, finish: Function | None, held: int = 0) -> RowKernel:
    """Return the kernel of a reduction (`reducer`) of the rows of a matrix, wherever they begin,
    which has registers for `held` more rows."""
    final = combiner(kind, 1, False, finish)[2]

    @numpipe_rows(once=True, held=held, without=() if kind == "dot" else ("weights",))
    def reduce_rows(x, weights, y, *, scale, row: Static):
        for k in row.blocks(x):
            # 16-bit elements are compared in pairs
            dtype = np.float32 if kind in ("sum", "dot") else x.dtype
            value, _ = row.load(k, x, dtype=dtype)

            def of(j):
                if kind == "dot":
                    factors = weights[j]  # before the wait for the row
                    return value(j) * factors.astype(np.float32)
                return np.abs(value(j)) if kind == "top" else value(j)

            if kind == "argmax":
                result = row.argmax(of, dtype)
            else:
                result = row.sum(of) if kind in ("sum", "dot") else row.max(of, dtype)
            row.put(k, y, final(result, result, scale))

    return reduce_rows


def view_of(x: ArrayInfo, axis: int | None) -> tuple[ArrayInfo, bool] | None:
    """Return (the array that a kernel reads, `down`), or None if it needs a copy."""
    if axis is None:
        return view_of(reshaped(x, math.prod(x.shape)), 0) if dense(x) else None
    if 0 in x.shape:
        x = reshaped(x, *x.shape)
    size, after = x.dtype.itemsize, axis % len(x.shape) + 1
    shape = (*x.shape[:after], math.prod(x.shape[after:]))
    view = merged(strided(x, shape, (*x.strides[:after], size)))
    if view is None or not dense(strided(x, x.shape[after:], x.strides[after:])):
        return None
    if shape[-1] > 1:
        return view, True
    (rows, n, _), (far, near, _) = view.shape, view.strides
    return (strided(x, (1, rows, n), (0, far, size)), False) if near == size or n == 1 else None


def _folded(view: ArrayInfo, kind: str) -> tuple[int, int]:
    """Return (how many rows of a view are read as one if columns are reduced, the columns by which
    a tile may be shifted; 0 if it has all columns): so many rows that TMA can load them, and that
    narrow ones are wide."""
    batch, rows, columns = view.shape
    row, size = columns * view.dtype.itemsize, view.dtype.itemsize
    line = 16 // math.gcd(row, 16)
    if view.strides[1] != row or kind == "dot" or rows < 2 * line:
        return 1, 0
    # no fold of a single aligned row, which a tile has as it is
    folds = range(max(line, 2), NARROW // row + 1, line)
    if (row % 128 == 0 and columns >= WIDE - 64) or batch > 1 or not folds or rows < 8 * folds[-1]:
        return line, 16 // size if line > 1 else 0

    def used(fold: int) -> tuple[int, int]:
        """The part of the lanes' columns inside a row, in steps of 1 / 16, and how close a row is
        to four columns of each lane."""
        width = fold * columns
        return 16 * width // round_up(width, WIDE), -abs(width - 2 * WIDE)

    return max(folds, key=used), 0


def _room_for_best(across: int, length: int, wgs: int, ctas: int) -> bool:
    """Return whether lanes also have registers for the 16-bit tiles with their maxima."""
    return length * round_up(across, WIDE) * wgs * ctas < KEPT


def _many_tiles(rows: int, length: int) -> bool:
    """Return whether a warpgroup with so many rows has enough tiles that comparing each as a whole
    is worth looking for the rows of the maxima in the end."""
    return rows > 2 * length


@functools.lru_cache(maxsize=1024)
def _ring(shape: Ints, itemsize: int, fold: int, shift: int, index: bool) -> tuple[int, ...]:
    """Return (across, length, wgs, ctas, slots, parts) of columns that TMA loads (`reducer`,
    `schedule`), which take the least time.

    >>> _ring((1, 16384, 16384), 2, 1, 0, False)
    (256, 16, 4, 1, 6, 2)
    """
    batch, n, columns = shape
    apart = fold if shift else 1
    if fold > apart:
        # CTAs have nearly equal shares
        length = min(TALL, key=lambda length: cdiv(n, 4 * length * SMS) * length)
        slots = max(FLIGHT // (4 * length * columns * itemsize), 2)
        tiles = cdiv(n, 4 * length)
        return columns, length, 4, 1, slots, cdiv(tiles, cdiv(tiles, SMS))
    whole = round_up(columns // apart + shift, 64)

    def choice(across: int, parts: int, length: int) -> tuple[float, int, int, Ints]:
        """Return the bytes that all SMs load in the time of a choice, and the choice."""
        each = cdiv(batch * cdiv(columns // apart, across - shift) * parts, SMS)
        # an SM has registers for 16 warpgroups
        wgs = max(min(16 // each, 4) // apart, 1) * apart
        rows = cdiv(n, parts * wgs // apart * length) * length
        size, filled = round_up(length, 8) * across * itemsize, round_up(across, WIDE)
        results = 8 * (across + shift) + filled * itemsize
        places = max(min(each, 16 // wgs, ROOM // (wgs * (2 * size + results))), 1)
        slots = min((ROOM // places // wgs - results) // size, 32 // wgs)
        # lanes without columns take time, too
        idle = EDGE if shift else (filled - across) * itemsize // 4
        row = across * itemsize + idle + TURN // length
        time = SMS * each * (wgs * rows * row + max(wgs, 4) * FIXED)
        if parts > 1:
            time += (1 + index) * (LAUNCH + 16 * parts * batch * columns)
        # with room for one more, CTAs of the next launch would be on an SM while another has none
        crowded = (places + 1) * wgs * (slots * size + results) < ROOM
        # measured: long tiles of narrow rows, and rounds of CTAs with few tiles that begin late
        long = length > 8 and (length > n or (shift > 0 and across * itemsize < NARROW // 4))
        late = (cdiv(each, places) - 1) * (rows < 5 * length)
        # measured: rows of a tile that are compared one by one
        room = itemsize != 2 or _room_for_best(across, length, wgs, places)
        by_row = 0.1 * (index and not room and _many_tiles(rows, length))
        cost = time * (1 + crowded + long + late + by_row) if slots > 1 else math.inf
        return cost, across, -length, (across, length, wgs, places, slots, parts)

    even = round_up(cdiv(columns, cdiv(columns * itemsize, BROAD)), 64)
    fit = min(WIDE, even, key=lambda across: round_up(columns, across))
    wide = {min(whole, x) for x in (WIDE - 64, WIDE, WIDE + 64, WIDE if shift else fit)}
    choices = itertools.product(wide, range(1, SMS + 1), LENGTHS)
    return min(itertools.starmap(choice, choices))[-1]


def schedule(
    shape: Ints,
    down: bool,
    itemsize: int,
    kind: str = "sum",
    again: bool = False,
) -> tuple[int, int, int, int, int]:
    """Return (step, across, length, wgs, parts) of a reduction: the elements of a tile along the
    axis and across it, those that are loaded at once along the axis, and the warpgroups of a CTA
    and the CTAs that share the axis. `again`: combine the parts of a reduction.

    >>> schedule((1, 40, 1 << 20), False, 2, kind="dot"), schedule((1, 40, 1 << 20), False, 2)
    ((64, 8, 512, 1, 316), (512, 1, 8192, 1, 39))
    >>> schedule((1, 9000, 72), True, 2)
    (16, 32, 80, 4, 28)
    """
    n, others = shape[1:] if down else shape[:0:-1]
    n, wgs = max(n, 1), 1
    tiles = lambda across: shape[0] * cdiv(others, across)
    if down:
        # narrow tiles, so that few columns have many CTAs
        across, step = (16, 32) if others <= 64 else (32, 16)
        if again:
            across, step = (16, 16) if n <= 16 else (8, 64)
        if n <= 8 or tiles(across) > 4 * SMS:
            across, step = min(round_up(cdiv(others, 4 * SMS), 64), WIDE), 8
        # further warpgroups would start later than one loads parts (measured on an H200)
        wgs = min(cdiv(n, 5 * step), 4)
        length = step * min(cdiv(n, step * wgs) | 1, 5)
    else:
        across = 8 if kind == "dot" and others > 4 else 1  # several rows share weights
        step = 512 // across
        fits = n // step if "max" in kind else cdiv(n, step)
        length = step * max(min((32 if across == 1 else 16) // itemsize, fits), 1)
    parts = min(ENOUGH // tiles(across), n // (length * wgs))
    if again or (down and parts < 3):
        parts = 1  # a second launch would take longer
    return step, across, length, wgs, max(parts, 1)


def launch_reduction(
    kind: str,
    x: ArrayInfo,
    axis: int | None,
    y: ArrayInfo,
    place: Place,
    **options: Any,
) -> None:
    """Reduce an axis of x, or all of x, to y: to indices for "argmax". `options`: those of
    `launch_on_view`."""

    def run(arrays: dict[str, ArrayInfo]) -> None:
        view, down = view_of(arrays["x"], axis)  # type: ignore[misc]
        launch_on_view(kind, view, down, arrays["y"], place, **options)

    fits = lambda info: dense(info) if info is y else view_of(info, axis)
    with_fitting({"x": x}, {"y": y}, fits, place, run)


def launch_on_view(
    kind: str,
    view: ArrayInfo,
    down: bool,
    y: ArrayInfo,
    place: Place,
    scale: float = 1.0,
    finish: Function | None = None,
    weights: ArrayInfo | None = None,
    again: bool = False,
    places: ArrayInfo | None = None,
) -> None:
    """Reduce the middle dimension of a view if `down`, else the last one, to y without gaps.

    scale, finish  a factor of the result, and a function of a vector of results
    weights        for "dot": (batch, elements along the axis)
    again, places  whether x has partial results, and their indices
    """
    (batch, rows, columns), (far, near, _), size = view.shape, view.strides, view.dtype.itemsize
    others = columns if down else rows
    inputs = {} if weights is None else {"weights": weights}
    enough = rows >= ROWS or columns * size <= LONG
    if batch == 1 and enough and columns > 0 and not (down or again):
        matrix = strided(view, (rows, columns), (near, size))
        held = 0
        if weights is not None:
            inputs["weights"] = reshaped(weights, columns)
            # lanes load short odd rows of 16-bit elements quickly if they have more columns of them
            held = int(columns * size > ODD or columns * size % 4 == 0)
        reduce = row_reducer(kind, finish, held)
        reduce(matrix, **inputs, y=reshaped(y, rows), scale=scale, **place)
        return
    large = down and not again and batch * rows * columns * size >= LARGE
    fold, shift = _folded(view, kind) if large else (1, 0)
    # without the last rows, a single matrix is contiguous
    whole = rows // fold * fold
    strides = whole * near if batch == 1 else far, fold * near, size
    x = strided(view, (batch, rows // fold, fold * columns), strides)
    # narrow rows are loaded as a line
    ring = large and loadable(x)[fold > 1 and not shift]
    if ring:
        *tile, wgs, ctas, slots, parts = 1, *_ring(x.shape, size, fold, shift, kind == "argmax")
    else:
        fold, shift, slots, ctas, x = 1, 0, 0, 0, view
        *tile, wgs, parts = schedule(x.shape, down, size, kind, again)
    made = {"y": reshaped(y, batch, 1, others)}
    if parts > 1:
        new = lambda dtype: allocated(y, (batch, parts, others), place, dtype)
        made = {"y": new(np.float32)} | ({"found": new(np.int32)} if kind == "argmax" else {})
    if places is not None:
        inputs["places"] = reshaped(places, *view.shape)
    if whole < rows and ring:
        count = (rows - whole) * columns
        inputs["rest"] = strided(view, (batch, count), (strides[0], size), (0, whole))
    n, sums = x.shape[1 if down else 2], kind in ("sum", "dot")
    exact = sums and size == 4 and tile[2] < n
    # a last tile that ends where the axis does would load a large part of few rows twice
    short = not sums and n % tile[2] > 0 and n < (1 + ring) * tile[2]
    # float32 elements would not take fewer instructions
    by_tile = (
        ring
        and kind == "argmax"
        and size == 2
        and _room_for_best(tile[1], tile[2], wgs, ctas)
        and _many_tiles(x.shape[1] * (fold if shift else 1) // (parts * wgs), tile[2])
    )
    how = fold, short, exact, slots, wgs, ctas, shift, by_tile, None if parts > 1 else finish
    kernel = reducer(kind, down, *tile, *how, *inputs, *made)
    kernel(x, **inputs, **made, parts=parts, scale=scale, **place)
    if parts > 1:
        way = {"top": "max", "dot": "sum"}.get(kind, kind)
        launch_reduction(
            way,
            made["y"],
            1,
            y,
            place,
            finish=finish,
            places=made.get("found"),
            again=True,
        )
