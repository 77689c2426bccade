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
(batch, parts, fold columns, 1). The last rows, fewer than `fold`, are read by the first CTAs.
Narrow rows are folded too, so that all lanes have columns; if a tile has all columns, the CTA adds
up the rows that are read as one, and results are (batch, parts, columns, 1).

If rows of odd length are themselves reduced, two are read as one, (1, rows / fold, fold n), so that
elements are loaded in pairs; results are (1, parts, rows / fold, fold). The last of an odd number
of rows has a launch of its own.

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
from ..language.memory.copies import copy_gmem_to_smem
from ..language.memory.scratch import scratch
from ..language.pipeline.operand_barriers import barrier_wait
from ..language.tiles.elementwise import full, iota
from ..language.tiles.load import load_tile
from ..language.tiles.refs import ds
from ..launch.array_info import ArrayInfo
from ..launch.windows import merged, strided
from ..plan.allocations import SMEM, Barrier
from ..plan.context import program_id
from ..plan.params import CompilerParams
from .combining import combiner
from .op_outputs import Place, allocated
from .operands import move
from .reduce_columns import column_reducer, column_schedule
from .tiled import dense, reshaped, with_fitting

ENOUGH = 1584
"""CTAs from which on the axis is not shared: two rounds of 6 on each of an H200's SMs"""
NARROW = 128
"""columns below which rows have a kernel of their own, and columns are not loaded by TMA"""
WIDE = 256
"""most columns of a tile, and of several rows that are read as one only because they are narrow"""
FOLDED = 1 << 20
"""bytes from which on rows are read several at a time"""
PIECE = 64
"""rows of `narrow_reducer` that are in registers at a time"""


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
    exact: bool = False,
    last: bool = True,
    finish: Function | None = None,
) -> Kernel:
    """Return the kernel of a reduction (`combining`).

    step, across  elements of a tile along the axis and across it
    length  elements along the axis that are loaded at once
    fold    rows of the original array in each row of x
    short   whether the axis has fewer elements than `length`
    again   x has maxima, and `places` their indices in the original array
    exact   whether sums are rounded only once
    last    whether there is no further launch: y has indices, and no `found` has them
    finish  function of the reduced vector, if there is no further launch

    Scalars are `parts`, the CTAs that share the axis, and `scale`, a factor of the result.
    """
    whole, axis = ((length, across), 0) if down else ((across, length), 1)
    index, sums = kind == "argmax", kind in ("sum", "dot")
    lowest = -np.inf if "max" in kind else 0.0
    unused = {"weights": kind != "dot", "places": not again, "found": last or not index}
    ctas = 5 if index and down else 6  # without spills
    combined, reduced, deliver = combiner(kind, axis, exact, last, finish, again)

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

        def along(start):
            if down or short or (sums and fold == 1):
                return ds(early + start, length)
            if sums:
                return ds(early + start, length, stop=(number + 1) * n)
            return ds(early + start, length, most=x.shape[2] - length)

        def loaded(of, start):
            return of[batch, along(start), own] if down else of[batch, own, along(start)]

        def piece(of, k):
            along = ds(k, step)
            return of[along, :] if down else of[:, along]

        # pieces of a tile, whose lanes keep its rows
        total = piece(full(whole, lowest, np.float32 if sums or index else x.dtype), 0)
        at = piece(full(whole, 0, np.float32 if sums else np.int32), 0)
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
                factors = weights[batch, along(start)].astype(np.float32)
                factors = factors[:, None] if down else factors[None, :]
                tiles = tiles.astype(np.float32) * factors
            partial = piece(full(whole, 0.0, np.float32), 0)
            for k in static_range(0, length, step):
                place, tile = start + k, piece(tiles, k)
                if short or (fold > 1 and (k == 0 or k == length - step)):
                    inside = (piece(iota(whole, axis), k) + (start - number)).astype(np.uint32)
                    tile = np.where(inside < np.uint32(n), tile, lowest)
                if again and index:
                    place = piece(indices, k)
                if sums:
                    partial = partial + tile.astype(np.float32)
                else:
                    total, at = combined(total, at, tile, place)
            if sums:
                # sums of few elements lose fewer digits
                total, at = combined(total, at, partial, 0)
        if index and not again:
            at = np.maximum(at + piece(iota(whole, axis), 0) - number, 0)
        result, at = reduced(total, at)
        deliver(y, found, batch, part, own, number, result, at, scale)

    return reduce_axis  # type: ignore[no-any-return]


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
        across = round_up(cdiv(others, cdiv(others, WIDE)), 64)
        across = (16 if n > 16 else 64) if again else across if others > 32 else 32
        step = max((512 if again else 2048) // across // 8, 1) * 8
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
    parts = 1 if again and n < 1024 else min(ENOUGH // tiles, n // length)
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
    if batch == 1 and columns < NARROW and rows * near >= FOLDED and not (down or again):
        matrix = strided(view, (rows, columns), (near, size))
        if loadable(matrix)[1]:
            fits = (many for many in (256, 128) if many * columns * size <= 16384)
            kernel = narrow_reducer(kind, columns, next(fits, PIECE), finish)
            kernel(matrix, **inputs, y=reshaped(y, rows), scale=scale, **place)
            return
    index, gapless = kind == "argmax", near == columns * size
    large = rows * columns * size >= FOLDED
    odd = gapless and large and columns * size % 4 and (batch == 1 or rows % 2 == 0)
    fold = 2 if odd and rows > 1 and not (down or again) else 1
    if fold > 1 and rows % 2:
        # the last row of an odd number has a launch of its own
        for begin, end in (0, rows - 1), (rows - 1, rows):
            part = strided(view, (batch, end - begin, columns), view.strides, (0, begin))
            result = strided(reshaped(y, rows), (end - begin,), (y.dtype.itemsize,), (begin,))
            launch_on_view(kind, part, down, result, place, scale, finish, weights)
        return
    if fold > 1 and weights is not None:
        # what is multiplied with a row begins as far from a multiple of 4 bytes as the row
        twice = strided(weights, (batch, 2, columns), (weights.strides[0], 0, size))
        made = allocated(view, twice.shape, place)
        move(twice, made, place)
        inputs["weights"] = reshaped(made, batch, 2 * columns)
    folded = lambda n: strided(view, (batch, rows // n, n * columns), (far, n * near, size))
    of = None
    if down and not again:
        of = column_schedule(batch, rows, columns, size, gapless and large and kind != "dot")
    if of and loadable(x := folded(of[0][0] * of[0][1]))[0]:
        (narrow, lines, *tile), parts = of
        if narrow * lines > 1:
            whole = x.shape[1] * narrow * lines
            count, first = (rows - whole) * columns, (0, min(whole, rows - 1))
            inputs["rest"] = strided(view, (batch, count, 1), (far, size, size), first)
        kernel = column_reducer(kind, size, columns, narrow, lines, *tile, parts == 1, finish)
        sizes = (columns, 1)
    else:
        x = folded(fold)
        *tile, parts = schedule(x.shape, down, size, fold, kind, again)
        sizes = (columns, 1) if down else (rows // fold, fold)
        exact = kind in ("sum", "dot") and size == 4
        short = kind not in ("sum", "dot") and tile[2] > (rows if down else columns)
        kernel = reducer(kind, down, *tile, fold, short, again and index, exact, parts == 1, finish)
    last = parts == 1
    new = lambda dtype: allocated(y, (batch, parts, columns if down else rows), place, dtype)
    made = {"y": y if last else new(np.float32)}
    if index and not last:
        made["found"] = new(np.int32)
    if places is not None:
        inputs["places"] = reshaped(places, *view.shape)
    results = {name: reshaped(info, batch, parts, *sizes) for name, info in made.items()}
    kernel(x, **inputs, **results, parts=parts, scale=scale, **place)
    if not last:
        way = {"top": "max", "dot": "sum"}.get(kind, kind)
        launch_reduction(
            way,
            made["y"],
            1,
            y,
            place,
            scale=scale,
            finish=finish,
            places=made.get("found"),
            again=True,
        )
