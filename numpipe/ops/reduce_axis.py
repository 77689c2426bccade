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

Columns of large matrices that TMA can address are reduced from rings of tiles in shared memory, so
that many bytes are in flight. For other matrices, lanes load a tile in registers themselves. The
warpgroups of a CTA share the rows, and the first one combines their results.

TMA copies must begin at multiples of 16 bytes, but rows of odd length do not. `fold` such rows are
therefore read as one, which gives the kernel an x of (batch, n / fold, fold columns) and results of
(batch, parts, fold columns). The last rows, fewer than `fold`, are read by the first warpgroups.
Narrow rows are folded too, so that all lanes have columns. If a tile has all columns, a CTA of
several warpgroups, which has shared memory for it, also combines the rows that are read as one, and
results are (batch, parts, columns).

The rows of most matrices are reduced by another kernel, `row_reducer`, which loads rows that begin
at any address.
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
from ..kernels.row_kernels import RowKernel, loadable
from ..kernels.row_kernels import rows as numpipe_rows
from ..language.memory.copies import copy_gmem_to_smem, meet
from ..language.memory.scratch import scratch
from ..language.pipeline.operand_barriers import barrier_arrive, barrier_wait
from ..language.tiles.elementwise import full, iota
from ..language.tiles.load import load_tile
from ..language.tiles.refs import ds
from ..language.tiles.tile import bitcast
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
NARROW = 128
"""columns up to which columns are not loaded by TMA"""
ROWS, LONG = 64, 1 << 19
"""`row_reducer` may reduce a matrix with at least ROWS rows, or with rows of at most LONG bytes: if
the rows are few and longer, its CTAs have too few bytes in flight"""
WIDE, SLIM = 256, 64
"""WIDE: most columns of a tile, and of several rows that are read as one only because they are
narrow. SLIM: columns of a tile if wider tiles would be too few for all SMs: fewer CTAs share the
axis then"""
SMS = 132
"""SMs of an H200, each of which has a CTA or two if columns are loaded by TMA"""
SLOTS, TILE = 4, 8192
"""tiles in shared memory of each warpgroup of such a CTA, and bytes of one"""
LARGE = 1 << 22
"""bytes of a matrix from which on TMA loads columns, and rows are folded"""


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
    ring: bool,
    wgs: int,
    columns: int,
    finish: Function | None,
    *present: str,
) -> Kernel:
    """Return the kernel ``(x, rest, weights, places, y, found)`` of a reduction (`combiner`), with
    the arrays that are `present`.

    step, across  elements of a tile along the axis and across it
    length  elements along the axis that are loaded at once
    fold    rows of the original array in each row of x; `rest` are the last rows, fewer than `fold`
    short   whether the axis has fewer elements than `length`
    exact   whether sums include what additions have rounded away
    ring    whether TMA loads tiles to shared memory; otherwise, lanes load them
    wgs     warpgroups of a CTA, which share its elements of the axis
    columns columns of the original array if the CTA combines those of `fold` rows, else 0
    finish  function of the reduced vector

    x may have maxima, whose indices in the original array are `places`. If another launch combines
    the maxima y, `found` has their indices. Scalars are `parts`, the CTAs that share the axis, and
    `scale`, a factor of the result.
    """
    whole, axis = ((length, across), 0) if down else ((across, length), 1)
    index, sums, again = kind == "argmax", kind in ("sum", "dot"), "places" in present
    lowest = -np.inf if "max" in kind else 0.0
    plane = (wgs + 1) * across  # results of each warpgroup, and of all
    # without spills; as many as possible, because a CTA loads nothing while it compares
    ctas = max((4 if ring else 5 if exact or index else 6) // wgs, 1)
    combined, reduced, final = combiner(kind, axis, exact, finish, again)
    merged = combiner(kind, axis, False, finish, True)[0]

    @numpipe_kernel(
        grid=lambda x, parts: (x.shape[0] * cdiv(x.shape[2 - axis], across), parts),
        warp_specialized=False,
        num_compute_wgs=wgs,
        without=lacking(present, "rest", "weights", "places", "found"),
        # safe: a slot is loaded again after all warps have read it, and results are read after a
        # barrier
        compiler_params=CompilerParams(ctas_per_sm=ctas, unsafe_no_auto_barriers=ring or wgs > 1),
        static_dims=(-1,),
    )
    def reduce_axis(x, rest, weights, places, y, found, parts, scale):
        blocks, n = cdiv(x.shape[2 - axis], across), x.shape[axis + 1]
        batch, own = program_id(0) // blocks, ds(program_id(0) % blocks * across, across)
        wg = axis_index("wg") if wgs > 1 else 0
        part, stride = program_id(1), parts * wgs * length
        first = (part * wgs + wg) * length
        # maxima may see elements twice: the last tile ends where the axis does
        most = n if sums or short else n - length

        def loaded(of, start):
            along = ds(start, length)
            if down:
                return of[batch, along, own]
            if not (sums or short):
                along = ds(start, length, most=most)
            return of[batch, own, along]

        def piece(of, k):
            along = ds(k, step)
            return of[along, :] if down else of[:, along]

        if wgs > 1:
            results, stored = scratch(
                (SMEM(((1 + index) * plane,), np.float32), Barrier(num_arrivals=wgs))
            )

            def write(result, at, place):
                results[ds(place, across)] = result
                if index:
                    results[ds(plane + place, across)] = bitcast(at, np.float32)

        if ring:
            buffer, landed = scratch(
                (SMEM((wgs * SLOTS, length, across), x.dtype), Barrier(num_barriers=wgs * SLOTS))
            )

            def load(k, slot):
                """Load the tile that begins at row k."""
                if k < n:
                    source = x.at[batch, ds(min(k, most), length), own]
                    copy_gmem_to_smem(source, buffer.at[slot], landed.at[slot])

            for slot in static_range(0, SLOTS):
                load(first + slot * stride, wg * SLOTS + slot)

        # pieces of a tile, whose lanes keep its rows
        total = piece(full(whole, lowest, np.float32 if sums or again else x.dtype), 0)
        at = piece(full(whole, 0, np.float32 if sums else np.int32), 0)
        if fold > 1:
            last_rows = rest[batch, own, 0]
        # without divisions, which would take longer than the sums of a tile
        row, current = first, 0
        while row < n:
            start = min(row, most)
            if ring:
                slot = wg * SLOTS + current
                barrier_wait(landed.at[slot])
                tiles = load_tile(buffer.at[slot])
                meet()
                load(row + SLOTS * stride, slot)
                current = (current + 1) % SLOTS
            else:
                tiles = loaded(x, start)  # one load for all pieces
            if again:
                indices = loaded(places, start)
            if kind == "dot":
                factors = weights[batch, ds(start, length)].astype(np.float32)
                factors = factors[:, None] if down else factors[None, :]
                tiles = tiles.astype(np.float32) * factors
            partial = piece(full(whole, 0.0, np.float32), 0)
            for k in static_range(0, length, step):
                place, tile = start + k, piece(tiles, k)
                if short:
                    tile = np.where(piece(iota(whole, axis), k) + start < n, tile, lowest)
                if again:
                    place = piece(indices, k)
                if sums:
                    partial = partial + tile.astype(np.float32)
                else:
                    total, at = combined(total, at, tile, place)
            if sums:
                # sums of few elements lose fewer digits
                total, at = combined(total, at, partial, 0)
            row += stride
        if index and not again:
            at = at + piece(iota(whole, axis), 0)
        result, at = reduced(total, at)

        def store(result, at, to):
            for k in static_range(1, wgs):
                others = at
                if index:
                    others = bitcast(results[ds(plane + k * across, across)], np.int32)
                result, at = merged(result, at, results[ds(k * across, across)], others)
            if fold > 1:
                column = iota(across) + own.start
                end = rest.shape[1] if part == 0 else 0
                values = np.where(column < end, last_rows.astype(np.float32), lowest)
                result, at = merged(result, at, values, x.shape[1])
                if index:
                    at = at * fold + column // (x.shape[2] // fold)
            if columns:
                # the same columns of the rows that are read as one
                write(result, at, wgs * across)
                meet()
                first, count = wgs * across, fold * columns
                tile = load_tile(results.at[ds(first, count)], columns=columns)
                places: Any = 0
                if index:
                    places = load_tile(results.at[ds(plane + first, count)], columns=columns)
                    places = bitcast(places, np.int32)
                result, at = reduced(tile, places)
                to = ds(0, columns)
            if found is not None:
                found[batch, part, to] = at
                y[batch, part, to] = result
            else:
                y[batch, part, to] = final(result, at, scale)

        if wgs > 1:
            write(result, at, wg * across)
            barrier_arrive(stored)
            barrier_wait(stored)
        if wg == 0:
            store(result, at, own)

    return reduce_axis  # type: ignore[no-any-return]


@functools.cache
def row_reducer(kind: str, finish: Function | None) -> RowKernel:
    """Return the kernel of a reduction (`reducer`) of the rows of a matrix, wherever they begin."""
    final = combiner(kind, 1, False, finish)[2]

    @numpipe_rows(once=True, held=int(kind == "dot"), without=() if kind == "dot" else ("weights",))
    def reduce_rows(x, weights, y, *, scale, row: Static):
        for k in row.blocks(x):
            # 16-bit elements are compared in pairs
            dtype = np.float32 if kind in ("sum", "dot") else x.dtype
            value, _ = row.load(k, x, dtype=dtype)

            def of(j):
                if kind == "dot":
                    factors = weights[0, j]  # before the wait for the row
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


def _folded(view: ArrayInfo, kind: str) -> int:
    """Return how many rows of a view are read as one if columns are reduced: so many that TMA can
    load them and that they are wide."""
    _, rows, columns = view.shape
    row = columns * view.dtype.itemsize
    line = 16 // math.gcd(row, 16)
    fold = max(WIDE // columns // line, 1) * line
    # few rows would have partial results of nearly as many bytes
    fits = view.strides[1] == row and kind != "dot" and rows >= 16 * fold
    return fold if fits else 1


def schedule(
    shape: Ints,
    down: bool,
    itemsize: int,
    kind: str = "sum",
    again: bool = False,
    ring: bool = False,
) -> tuple[int, int, int, int, int]:
    """Return (step, across, length, wgs, parts) of a reduction: the elements of a tile along the
    axis and across it, those that are loaded at once along the axis, and the warpgroups of a CTA
    and the CTAs that share the axis. `again`: combine the parts of a reduction.

    >>> schedule((1, 40, 1 << 20), False, 2, kind="dot"), schedule((1, 40, 1 << 20), False, 2)
    ((64, 8, 512, 1, 316), (512, 1, 8192, 1, 39))
    >>> schedule((1, 16384, 16384), True, 2, ring=True), schedule((1, 9000, 72), True, 2)
    ((32, 64, 96, 2, 1), (16, 32, 80, 4, 28))
    """
    n, others = shape[1:] if down else shape[:0:-1]
    n, wgs, nbytes = max(n, 1), 1, math.prod(shape) * itemsize
    tiles = lambda across: shape[0] * cdiv(others, across)
    small = down and not ring and (again or nbytes < LARGE)
    if small:
        # narrow tiles, so that few columns have many CTAs
        across, step, deep = (8, 64, 1) if again else (16, 32, 5) if others <= 64 else (32, 16, 5)
        if n <= 8:
            across, step = min(round_up(cdiv(others, 4 * SMS), 64), WIDE), 8
        wgs = min(cdiv(n, deep * step), 4)
        length = step * min(cdiv(n, step * wgs) | 1, 5)
    elif down:
        across = round_up(cdiv(others, cdiv(others, WIDE)), 64) if others > 32 else 32
        # pieces of whole lines of 128 bytes; otherwise, only instead of CTAs that share the axis
        few = 100 if others * itemsize % 128 else 12
        if ring and tiles(WIDE) < SMS and tiles(SLIM) >= few:
            across = SLIM
        step = 2048 // across // 8 * 8
        # an odd number: tiles of a multiple of 64 rows would be accumulators
        steps = min(cdiv(n, step) | 1, 3)
        if ring:
            # and few rows at the end of the axis, which maxima see twice
            steps = TILE // itemsize // across // step | (across == SLIM) if n >= 12 * step else 1
        length = step * steps
    else:
        across = 8 if kind == "dot" and others > 4 else 1  # several rows share weights
        step = 512 // across
        fits = n // step if "max" in kind else cdiv(n, step)
        length = step * max(min((32 if across == 1 else 16) // itemsize, fits), 1)
    count = tiles(across)
    if ring:
        ctas = 2 * SMS if nbytes >= 8 * LARGE else SMS
        parts = min(ctas // count, n // ((4 if across == SLIM else 8) * length))
        # indices take more instructions, which four warpgroups overlap with loads
        several = kind == "argmax" and 1 < parts <= min(SMS // count, n // (12 * length))
        wgs = 4 if several else 2 if count <= 2 * SMS else 1
    else:
        parts = min(ENOUGH // count, n // (length * wgs))
        if again or (small and parts < 3):
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
    (batch, rows, columns), (far, near, size) = view.shape, view.strides
    n, others = (rows, columns) if down else (columns, rows)
    inputs = {} if weights is None else {"weights": weights}
    enough = rows >= ROWS or columns * size <= LONG
    if batch == 1 and enough and columns > 0 and not (down or again):
        matrix = strided(view, (rows, columns), (near, size))
        row_reducer(kind, finish)(matrix, **inputs, y=reshaped(y, rows), scale=scale, **place)
        return
    large = down and not again and batch * rows * columns * size >= LARGE
    fold = _folded(view, kind) if large else 1
    x = strided(view, (batch, rows // fold, fold * columns), (far, fold * near, size))
    ring = large and x.shape[2] > NARROW and loadable(x)[0]
    *tile, wgs, parts = schedule(x.shape, down, size, kind, again, ring)
    narrow = columns if wgs > 1 and fold > 1 and fold * columns <= tile[1] else 0
    outer = 1 if narrow else fold
    last = parts * outer == 1
    made = {"y": y}
    if not last:
        new = lambda dtype: allocated(y, (batch, parts * outer, others), place, dtype)
        made = {"y": new(np.float32)} | ({"found": new(np.int32)} if kind == "argmax" else {})
    if places is not None:
        inputs["places"] = reshaped(places, *view.shape)
    if fold > 1:
        whole = rows // fold * fold
        count, first = (rows - whole) * columns, (0, min(whole, rows - 1))
        inputs["rest"] = strided(view, (batch, count, 1), (far, size, size), first)
    sums = kind in ("sum", "dot")
    exact, short = sums and size == 4 and tile[2] < n, not sums and tile[2] > n
    how = fold, short, exact, ring, wgs, narrow, finish if last else None
    kernel = reducer(kind, down, *tile, *how, *inputs, *made)
    results = {name: reshaped(info, batch, parts, outer * others) for name, info in made.items()}
    scalars = {"parts": parts, "scale": scale if last else 1.0}
    kernel(x, **inputs, **results, **scalars, **place)
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
