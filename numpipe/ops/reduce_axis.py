"""Reductions of an axis of an array: sums, maxima, and indices of maxima.

A CTA walks along the axis with a tile of a few rows and columns in registers and combines all tiles
element by element, in float32, so that only one tile is reduced across lanes. If there would be too
few CTAs, several share the axis, and a second launch combines their partial results, always in the
same order. The size of x's last dimension is a compile-time constant.

=========  =====================  ===========================
`down`     x                      y
=========  =====================  ===========================
False      (1, rows, n)           (1, parts, rows, 1)
True       (batch, n, columns)    (batch, parts, columns, 1)
=========  =====================  ===========================

Columns of matrices that TMA can address are reduced from a ring of tiles in shared memory, so that
many bytes are in flight. For others, lanes load a tile in registers themselves.

TMA copies must begin at multiples of 16 bytes, but rows of odd length do not. `fold` such rows are
therefore read as one, which gives the kernel an x of (batch, n / fold, fold columns) and results of
(batch, parts, fold columns, 1). Narrow rows are folded too, so that all lanes have columns. If rows
of odd length are themselves reduced, two are read as one, (1, rows / fold, fold n), so that
elements are loaded in pairs; results are (1, parts, rows / fold, fold). The last rows, fewer than
`fold`, have a launch of their own.

Contiguous rows of fewer than `NARROW` columns have a kernel of their own (`narrow_reducer`): lanes
that load such rows from global memory load single elements, each with an address and a check.
"""

# tiles in kernels have no types
# mypy: disable-error-code="no-untyped-def, attr-defined, operator, call-overload, index, arg-type"

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from ..arch.dimensions import Ints, round_up
from ..core.arith import cdiv
from ..core.functions import Function
from ..core.static_range import static_range
from ..kernels.decorator import kernel as numpipe_kernel
from ..kernels.kernel import Kernel
from ..kernels.row_kernels import loadable
from ..kernels.row_schedules import SHORT_ROW, short_tile
from ..language.memory.copies import copy_gmem_to_smem, meet
from ..language.memory.scratch import scratch
from ..language.memory.remote import async_store_smem
from ..language.pipeline.operand_barriers import barrier_wait
from ..language.tiles.elementwise import full, iota
from ..language.tiles.load import load_tile
from ..language.tiles.refs import ds
from ..language.tiles.tile import bitcast
from ..launch.array_info import ArrayInfo
from ..launch.windows import merged, strided
from ..plan.allocations import SMEM, Barrier
from ..plan.context import axis_index, program_id
from ..plan.params import CompilerParams
from .op_outputs import Place, allocated
from .tiled import dense, reshaped, with_fitting

ENOUGH = 1584
"""CTAs from which on the axis is not shared: two rounds of 6 on each of an H200's SMs"""
SMS = 132
NARROW = 128
"""columns below which rows have a kernel of their own, and columns are not loaded by TMA"""
WIDE = 512
"""least elements of a row, or of several rows read as one, if TMA loads its columns"""
SLOTS, TILE = 4, 8192
"""tiles in the shared memory of a CTA, and bytes of one"""
CLUSTER = "cluster"
"""name of a CTA's place in a cluster"""
FOLDED = 1 << 20
"""bytes from which on rows are read several at a time"""
PIECE = 64
"""rows of `narrow_reducer` that are in registers at a time"""
BEYOND = 2**31 - 1
"""larger than every index"""


@functools.cache
def reducer(
    kind: str,
    down: bool,
    step: int,
    across: int,
    length: int,
    fold: int = 1,
    short: bool = False,
    again: bool = False,
    last: bool = True,
    finish: Function | None = None,
) -> Kernel:
    """Return the kernel of sums ("sum"), sums of products with weights along the axis ("dot"),
    maxima ("max"), maxima of absolute values ("top") or indices of maxima ("argmax", the first,
    where NaN is largest).

    step, across  elements of a tile along the axis and across it
    length  elements along the axis that are loaded at once
    fold    rows of the original array in each row of x
    short   whether the axis has fewer elements than `length`
    again   x has maxima, and `places` their indices in the original array
    last    whether there is no further launch: y has indices, and no `found` has them
    finish  function of the reduced vector, if there is no further launch

    Scalars are `parts`, the CTAs that share the axis, and `scale`, a factor of the result.
    """
    whole, axis = ((length, across), 0) if down else ((across, length), 1)
    index, sums = kind == "argmax", kind in ("sum", "dot")
    lowest = -np.inf if "max" in kind else 0.0
    unused = {"weights": kind != "dot", "places": not again, "found": last or not index}
    ctas = 5 if index and down else 6  # without spills

    @numpipe_kernel(
        grid=lambda x, parts: (x.shape[0] * cdiv(x.shape[2 - axis], across) * fold, parts),
        warp_specialized=False,
        without=tuple(name for name, off in unused.items() if off),
        compiler_params=CompilerParams(ctas_per_sm=ctas),
        static_dims=(-1,),
    )
    def reduce_axis(x, weights, places, y, found, parts, scale):
        blocks, n = cdiv(x.shape[2 - axis], across), x.shape[axis + 1] // fold
        block, number, part = program_id(0) // fold, program_id(0) % fold, program_id(1)
        batch, own = block // blocks, ds(block % blocks * across, across)
        # the second of two odd rows begins a column early, so that elements are loaded in pairs
        early = number * (n - 1)

        def loaded(of, start):
            if down:
                return of[batch, ds(start, length), own]
            if sums and fold > 1:
                return of[batch, own, ds(early + start, length, stop=(number + 1) * n)]
            if sums or short:
                return of[batch, own, ds(early + start, length)]
            return of[batch, own, ds(early + start, length, most=x.shape[2] - length)]

        def piece(of, k):
            along = ds(k, step)
            return of[along, :] if down else of[:, along]

        # pieces of a tile, whose lanes keep its rows
        total = piece(full(whole, lowest, np.float32 if sums or index else x.dtype), 0)
        at = piece(full(whole, 0, np.int32), 0)
        share = cdiv(cdiv(n, length), parts) * length
        begin, end = part * share, min(part * share + share, n)
        # maxima may see elements twice: the last tile ends where the axis does
        most = n if sums or short else n + fold - 1 - length

        for k in range(begin, end, length):
            start = min(k, most)
            tiles = loaded(x, start)  # one load for all pieces
            if again:
                indices = loaded(places, start)
            if kind == "dot":
                factors = weights[batch, ds(start - number, length)].astype(np.float32)
                factors = factors[:, None] if down else factors[None, :]
                tiles = tiles.astype(np.float32) * factors
            if sums:
                # sums of few elements lose fewer digits
                carried, total = total, piece(full(whole, 0.0, np.float32), 0)
            for k in static_range(0, length, step):
                place, tile = start + k, piece(tiles, k)
                if index:
                    tile = tile + 0.0  # -0 becomes 0, so that equal numbers have equal bits
                if sums or index:
                    tile = tile.astype(np.float32)
                if kind == "top":
                    tile = np.abs(tile)
                if short or (fold > 1 and (k == 0 or k == length - step)):
                    inside = (piece(iota(whole, axis), k) + (start - number)).astype(np.uint32)
                    tile = np.where(inside < np.uint32(n), tile, lowest)
                if index:
                    higher = np.maximum(total, tile)
                    changed = bitcast(higher, np.int32) != bitcast(total, np.int32)
                    if again:
                        # results of a row are in no order
                        place = piece(indices, k)
                        same = bitcast(tile, np.int32) == bitcast(total, np.int32)
                        at = np.where(same, np.minimum(at, place), at)
                    at = np.where(changed, place, at)
                total = total + tile if sums else np.maximum(total, tile)
            if sums:
                total = carried + total
        result = total.sum(axis=axis) if sums else total.max(axis=axis).astype(np.float32)
        if index:
            if not again:
                at = np.maximum(at + piece(iota(whole, axis), 0) - number, 0)
            top = result[None, :] if down else result[:, None]
            # an element that no other exceeds is -inf, as is the first of the axis
            at = np.where((total == top) | np.isnan(total), at, BEYOND).min(axis=axis)
        if index and last:
            y[batch, part, own, number] = at
        else:
            if index:
                found[batch, part, own, number] = at
            if last:
                result = result * scale
                if finish is not None:
                    result = finish(result)
            y[batch, part, own, number] = result

    return reduce_axis  # type: ignore[no-any-return]


@functools.cache
def column_reducer(
    kind: str,
    size: int,
    n: int,
    wide: int,
    width: int,
    box: int,
    fold: int,
    cluster: int,
    last: bool,
    finish: Function | None,
) -> Kernel:
    """Return the kernel of a reduction (`reducer`) of columns that TMA can load.

    A cluster has `width` columns, and each of its warpgroups every `fold`-th line of some rows,
    so that what a warpgroup loads is equally far from a multiple of 16 bytes in all of them. The
    first CTA combines their results.

    n      columns of the array
    wide   columns of a line: of a row, or of several narrow ones
    box    columns that a warpgroup loads, `width` of them from anywhere on
    fold   lines in each row of x
    """
    index, sums = kind == "argmax", kind in ("sum", "dot")
    lowest = -np.inf if "max" in kind else 0.0
    blocks, columns = cdiv(wide, width), n if wide > n else width
    unit, step = 16 // size, 2048 // round_up(box, 64) // 8 * 8
    length = max(TILE // size // box // step, 1) * step
    length -= step * (length % 64 == 0)  # tiles of 64 rows would be accumulators
    planes = 1 + index
    unused = {"weights": kind != "dot", "found": last or not index}

    @numpipe_kernel(
        grid=lambda x, parts: (x.shape[0] * blocks * cluster, parts),
        cluster=cluster,
        cluster_names=CLUSTER,
        warp_specialized=False,
        without=tuple(name for name, off in unused.items() if off),
        # safe: a slot is loaded again after the warpgroup has read it, and other shared memory is
        # written once, and read after a barrier
        compiler_params=CompilerParams(ctas_per_sm=4, unsafe_no_auto_barriers=True),
        static_dims=(-1,),
    )
    def reduce_columns(x, rest, weights, y, found, parts, scale):
        place, part, worker = program_id(0) // cluster, program_id(1), axis_index(CLUSTER)
        batch, first = place // blocks, place % blocks * width
        start = worker % fold * wide + first
        early = start % unit
        own, rows = ds(start - early, box), x.shape[1]
        number, every = part * (cluster // fold) + worker // fold, parts * (cluster // fold)
        share = cdiv(cdiv(rows, length), every) * length
        begin, end = number * share, min(number * share + share, rows)
        buffer, landed = scratch(
            (SMEM((SLOTS, length, box), x.dtype), Barrier(num_barriers=SLOTS))
        )

        def slot(row):
            return row // length % SLOTS

        def load(row):
            """Load the tile that begins at a row into its slot."""
            if row < end:
                copy_gmem_to_smem(x.at[batch, ds(row, length), own], buffer.at[slot(row)], landed.at[slot(row)])

        def combined(total, at, tile, place):
            """Combine elements with those before."""
            if sums:
                return total + tile.astype(np.float32), at
            if kind == "top":
                tile = np.abs(tile)
            if not index:
                return np.maximum(total, tile), at
            tile = (tile + 0.0).astype(np.float32)  # -0 becomes 0, so that equal numbers have equal bits
            higher = np.maximum(total, tile)
            return higher, np.where(bitcast(higher, np.int32) != bitcast(total, np.int32), place, at)

        def reduced(total, at):
            """Combine the rows of a tile."""
            if sums:
                return total.sum(axis=0), at
            result = total.max(axis=0)
            if not index:
                return result, at
            # an element that no other exceeds is -inf, as is the first of the axis
            found = (total == result[None, :]) | np.isnan(total)
            return result, np.where(found, at, BEYOND).min(axis=0)

        own_results, results, sent = scratch(
            (
                SMEM((planes * box,), np.float32),
                SMEM((planes * cluster * width,), np.float32),
                Barrier(num_arrivals=planes * cluster),
            )
        )

        def send(plane, result):
            """Send a vector to the first CTA."""
            to = plane * box
            own_results[ds(to, box)] = result
            meet()
            mine = own_results[ds(to + early, width)]
            there = results.at[ds((plane * cluster + worker) * width, width)]
            async_store_smem(mine, there, sent, cluster_idx=0, cluster_dim=CLUSTER)

        def received(plane):
            return load_tile(results.at[ds(plane * cluster * width, cluster * width)], columns=columns)

        for k in range(SLOTS):
            load(begin + k * length)
        end_of_array = rest[batch, own, 0].astype(np.float32)
        total = full((step, box), lowest, np.float32 if sums or index else x.dtype)
        at = full((step, box), 0, np.int32)
        for k in range(begin, end, length):
            barrier_wait(landed.at[slot(k)])
            tiles = load_tile(buffer.at[slot(k)])
            meet()
            load(k + SLOTS * length)
            if kind == "dot":
                factors = weights[batch, ds(k, length)].astype(np.float32)
                tiles = tiles.astype(np.float32) * factors[:, None]
            if not sums and k + length > rows:
                tiles = np.where(iota((length, box), 0) < rows - k, tiles, lowest)
            before, sum = total, full((step, box), 0.0, np.float32)
            if sums:
                # sums of few elements lose fewer digits
                total = sum
            for i in static_range(0, length, step):
                total, at = combined(total, at, tiles[ds(i, step), :], k + i)
            if sums:
                total = before + total
        # rows become rows of the array
        inside = iota(box) + own.start
        at = (at + iota((step, box), 0)) * (fold * wide // n) + (inside // n)[None, :]
        total, at = reduced(total.astype(np.float32), at)
        if number == 0:
            end_of_array = np.where(inside < rest.shape[1], end_of_array, lowest)
            total, at = combined(total, at, end_of_array, rows * (fold * wide // n) + inside // n)
        send(0, total)
        if index:
            send(1, bitcast(at, np.float32))
        if worker == 0:
            barrier_wait(sent)
            result, places = reduced(received(0), bitcast(received(planes - 1), np.int32))
            out = ds(first, columns)
            if last and not index:
                result = result * scale
                if finish is not None:
                    result = finish(result)
            if index and last:
                y[batch, part, out] = places
            else:
                y[batch, part, out] = result
            if index and not last:
                found[batch, part, out] = places

    return reduce_columns  # type: ignore[no-any-return]


@functools.cache
def narrow_reducer(kind: str, n: int, height: int, finish: Function | None) -> Kernel:
    """Return the kernel of a reduction (`reducer`) of the rows of a contiguous matrix of n columns:
    a CTA loads `height` of them with one copy, wherever they begin."""
    index, sums = kind == "argmax", kind in ("sum", "dot")
    span = height * n
    ctas = 4 if n > 64 and (index or kind == "dot") else 8  # without spills

    @numpipe_kernel(
        grid=lambda x: (cdiv(x.shape[0], height),),
        warp_specialized=False,
        without=("weights",) if kind != "dot" else (),
        # safe: shared memory is written once, and read after the barrier
        compiler_params=CompilerParams(ctas_per_sm=ctas, unsafe_no_auto_barriers=True),
        static_dims=(-1,),
    )
    def reduce_narrow_rows(x, weights, y, scale):
        first = program_id(0) * height
        rows, landed = scratch((SMEM((span,), x.dtype), Barrier()))
        copy_gmem_to_smem(x.flat.at[ds(first * n, span)], rows, landed)
        if kind == "dot":
            factors = weights[0, ds(0, n)].astype(np.float32)[None, :]
        if index:
            columns = iota(n)[None, :]
        barrier_wait(landed)
        for k in static_range(0, height, PIECE):
            tile = load_tile(rows.at[ds(k * n, PIECE * n)], columns=n)
            if sums:
                tile = tile.astype(np.float32)
            if kind == "dot":
                tile = tile * factors
            if kind == "top":
                tile = np.abs(tile)
            result = tile.sum(axis=1) if sums else tile.max(axis=1).astype(np.float32)
            if index:
                at = (tile.astype(np.float32) == result[:, None]) | np.isnan(tile)
                result = np.where(at, columns, n).min(axis=1)
            else:
                result = result * scale
                if finish is not None:
                    result = finish(result)
            y[ds(first + k, PIECE)] = result

    return reduce_narrow_rows  # type: ignore[no-any-return]


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


def _in_pairs(view: ArrayInfo) -> bool:
    """Return whether two rows of a view, of odd length and 16 bits, are read as one."""
    batch, rows, columns = view.shape
    row = columns * view.dtype.itemsize
    whole = view.strides[1] == row and (batch == 1 or rows % 2 == 0)
    return whole and row % 4 > 0 and rows > 1 and rows * row >= FOLDED


def _narrow(view: ArrayInfo) -> ArrayInfo | None:
    """Return the matrix whose rows `narrow_reducer` loads, or None."""
    (batch, rows, columns), (_, row, size) = view.shape, view.strides
    if batch != 1 or columns >= NARROW or rows * row < FOLDED:
        return None
    matrix = strided(view, (rows, columns), (row, size))
    return matrix if loadable(matrix)[1] else None


def narrow_height(n: int, itemsize: int) -> int:
    """Return how many rows of n elements a CTA of `narrow_reducer` loads.

    >>> narrow_height(24, 2), narrow_height(100, 4)
    (256, 64)
    """
    return next((rows for rows in (256, 128) if rows * n * itemsize <= 16384), PIECE)


def schedule(
    shape: Ints,
    down: bool,
    itemsize: int,
    fold: int = 1,
    kind: str = "sum",
    again: bool = False,
) -> tuple[int, int, int, int]:
    """Return (step, across, length, parts) of a reduction: of a tile, of what is loaded at once,
    and the CTAs that share the axis. `again`: combine the parts of a reduction.

    >>> schedule((1, 65536, 4096), False, 2), schedule((1, 8192, 65536), False, 2)
    ((64, 16, 512, 1), (512, 1, 8192, 1))
    >>> schedule((1, 9000, 72), True, 2)
    (16, 128, 48, 187)
    """
    n, others = shape[1:] if down else (shape[2] // fold, shape[1] * fold)
    n, sums = max(n, 1), kind in ("sum", "dot")
    if down:
        across = 64 * cdiv(others, 64 * cdiv(others, 256))
        across = (16 if n > 16 else 64) if again else across if others > 32 else 32
        step = (512 if again else 2048) // across // 8 * 8
        # an odd number of steps: tiles of a multiple of 64 rows would be accumulators
        length = step * min(cdiv(n, step) | 1, 7 if again else 3)
    else:
        # a warp has its own rows, unless they are few, or long; several rows share weights
        rows, n = shape[0] * others, n + (fold > 1)
        least = {16: ENOUGH if n > 4096 else ENOUGH // 2, 8: ENOUGH // 10 if n <= 8192 else rows}
        across = next((h for h in least if rows >= h * least[h]), 1)
        across = max(across, 8 if n <= 512 or (kind == "dot" and others > 4) else 1)
        across = 32 if n < 128 and not sums else across
        step, count = 512 if across == 1 else 64, 1
        if n <= SHORT_ROW:
            # few lanes share a short row
            across, step = short_tile(n)
        else:
            # as many steps at once as leave few for the end of the axis
            most = cdiv(n, step) if sums else max(n // step, 1)
            large, small = (min((1 + (across == 1)) * b // itemsize, most) for b in (16, 10))
            at_once = range(large, small - 1, -1)
            count = min(at_once, key=lambda count: cdiv(cdiv(n, step), count) * count)
        length = step * count
    tiles = max(shape[0] * cdiv(others, across), 1)
    parts = 1 if again and n < 512 else min(ENOUGH // tiles, n // length)
    return step, across, length, max(parts, 1)


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
    (batch, rows, columns), (far, near, size) = view.shape, view.strides
    inputs = {} if weights is None else {"weights": weights}
    if not (down or again) and (matrix := _narrow(view)):
        kernel = narrow_reducer(kind, columns, narrow_height(columns, size), finish)
        y = reshaped(y, rows)
        kernel(matrix, **inputs, y=y, scale=scale, **place)
        return
    others, index = columns if down else rows, kind == "argmax"
    fold = 1 if down or again else 1 + _in_pairs(view)
    if rows % fold:
        # the last of an odd number of rows has a launch of its own
        for begin, end in (0, rows - 1), (rows - 1, rows):
            part = strided(view, (1, end - begin, columns), view.strides, (0, begin))
            result = strided(reshaped(y, rows), (end - begin,), (y.dtype.itemsize,), (begin,))
            launch_on_view(kind, part, down, result, place, scale, finish, weights)
        return
    plan = column_plan(view, kind) if down and not again else None
    tile = schedule((batch, rows // fold, fold * columns), down, size, fold, kind, again)
    parts = plan[-1] if plan else tile[-1]
    last = parts == 1
    new = lambda dtype: allocated(y, (batch, parts, others), place, dtype)
    made = {"y": y if last else new(np.float32)}
    if index and not last:
        made["found"] = new(np.int32)
    if places is not None:
        inputs["places"] = reshaped(places, *view.shape)
    more = {"parts": parts, "scale": scale, **place}
    if plan:
        x, rest = lines_of(view, plan[0] // columns, plan[3])
        kernel = column_reducer(kind, size, columns, *plan[:-1], last, finish)
        results = {name: reshaped(info, batch, parts, columns) for name, info in made.items()}
        kernel(x, rest, **inputs, **results, **more)
    else:
        x = strided(view, (batch, rows // fold, fold * columns), (far, fold * near, size))
        short = kind not in ("sum", "dot") and tile[2] > (rows if down else columns)
        kernel = reducer(kind, down, *tile[:3], fold, short, again and index, last, finish)
        sizes = batch, parts, others // fold, fold
        kernel(x, **inputs, **{name: reshaped(info, *sizes) for name, info in made.items()}, **more)
    if not last:
        way = {"top": "max", "dot": "sum"}.get(kind, kind)
        options = {"scale": scale, "finish": finish, "places": made.get("found"), "again": True}
        partial = reshaped(made["y"], batch, parts, others)
        launch_reduction(way, partial, 1, y, place, **options)


def lines_of(view: ArrayInfo, group: int, fold: int) -> tuple[ArrayInfo, ArrayInfo]:
    """Return the rows of a view as lines of `group` rows, of which `fold` are a row of the result,
    and the elements that are left over."""
    (batch, rows, columns), (far, near, size) = view.shape, view.strides
    each = group * fold
    whole = rows // each * each
    x = strided(view, (batch, rows // each, each * columns), (far, each * near, size))
    first = (0, whole) if whole < rows else ()
    rest = strided(view, (batch, (rows - whole) * columns, 1), (far, size, size), first)
    return x, rest


def column_plan(view: ArrayInfo, kind: str) -> tuple[int, int, int, int, int, int, int] | None:
    """Return (wide, width, box, fold, cluster, group, parts) of `column_reducer`, and how many rows
    are a line, if TMA can load the columns of a view."""
    (batch, rows, columns), (_, near, size) = view.shape, view.strides
    line, whole = 16 // math.gcd(near, 16), near == columns * size and kind != "dot"
    least = max(8 // math.gcd(columns, 8), line)
    group = max(248 // columns // least * least, 1) if whole else 1
    wide, fold = group * columns, line // math.gcd(line, group)
    if fold > 1 and not whole or rows * near < FOLDED or rows < 256:
        return None
    if not loadable(lines_of(view, group, fold)[0])[0]:
        return None
    return wide, *cluster_schedule(batch, rows // group, wide, fold, size, wide > columns)


@functools.lru_cache(maxsize=1024)
def cluster_schedule(
    batch: int, lines: int, wide: int, fold: int, size: int, single: bool
) -> tuple[int, int, int, int, int]:
    """Return (width, box, fold, cluster, parts) of `column_reducer`."""
    unit, gap = 128 // size, 8 * (fold > 1)
    found = []
    for box in range(unit, 257, unit):
        width = min(box - gap, round_up(wide, 8))
        if single and width < wide:
            continue
        for cluster in (c for c in (2, 4, 8) if c >= fold):
            tiles = batch * cdiv(wide, width) * cluster
            parts = max(min(ENOUGH // 3 // tiles, lines // (32 * cluster)), 1)
            waves = max(tiles * parts / (ENOUGH // 3), 1)
            waves = cdiv(tiles * parts, ENOUGH // 3) if waves < 4 else waves + 0.5
            nbytes = waves * lines / (cluster * parts) * box * size
            found.append((nbytes / 8 + waves * 1000 + (parts > 1) * (1000 + 10 * parts), width, box, fold, cluster, parts))
        if width >= wide:
            break
    return min(found)[1:]
