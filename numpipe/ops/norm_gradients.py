"""Kernels of the gradients of rms_norm and layer_norm.

The statistics of a row are 1 / sqrt(variance + eps) and, for layer_norm, its mean: an array
(rows, 1) or (rows, 2), which the forward kernel stores.
"""

# tiles and schedules in kernels have no types
# mypy: disable-error-code="no-untyped-def, attr-defined, operator, arg-type, call-overload, index"

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

import numpy as np

from ..core.arith import cdiv
from ..core.functions import function
from ..core.static_range import static_range
from ..kernels.decorator import kernel
from ..kernels.kernel import Kernel
from ..kernels.row_kernels import RowKernel, choose, rows
from ..language.memory.copies import copy_gmem_to_smem
from ..language.memory.remote import async_store_smem
from ..language.memory.scratch import scratch
from ..language.pipeline.operand_barriers import barrier_arrive, barrier_wait
from ..language.tiles.elementwise import full, iota
from ..language.tiles.load import load_tile
from ..language.tiles.refs import ds
from ..language.tiles.warp_parts import PARTS, SPREAD, STEP, split_row
from ..launch.array_info import ArrayInfo, tma_addressable
from ..plan.allocations import SMEM, Barrier
from ..plan.context import axis_index, num_programs, program_id
from ..plan.params import CompilerParams
from ..plan.specs import Static
from .op_outputs import allocated
from .over_rows import COLUMNS, ELEMENTS, MATRIX, flat, launch_over_rows
from .reduce_axis import launch_reduction


@function
def numbers(statistics, i):
    """Return 1 / sqrt(variance + eps) and the mean, or 0, of some rows."""
    inverse = statistics[i, ds(0, 1)]
    if statistics.shape[1] == 2:
        return inverse, statistics[i, ds(1, 1)]
    return inverse, 0.0


@function
def normed(tile, statistics):
    """Return a tile of x, normed, float32, given the `numbers` of its rows."""
    inverse, mean = statistics
    return tile.astype(np.float32) * inverse - mean * inverse


@functools.cache
def of_rows(*present: str) -> RowKernel:
    """Return the kernel of the gradient dx, with the arrays that are `present`. With dresidual,
    which is the gradient of the total, dx is that of x before elements were dropped."""
    absent = [n for n in ("weight", "grad_total", "dresidual") if n not in present]

    @rows(operands=2, without=absent)
    def norm_gradient(
        x,
        grad,
        statistics,
        weight,
        grad_total,
        dx,
        dresidual,
        *,
        dropout,
        scale,
        seed,
        row: Static,
    ):
        for k in row.blocks(x):
            value, grads, block = row.load(k, x, grad)
            i, n = ds(k * row.height, row.height), x.shape[1]
            inverse, mean = numbers(statistics, i)

            def tile(j):
                return (value(j) - mean) * inverse

            def own(j):
                if weight is not None:
                    return grads(j) * weight[j].astype(np.float32)
                else:
                    return grads(j)

            along, total = row.sums(lambda j: own(j) * tile(j), own)

            def made(j):
                slope = own(j) - tile(j) * (along / n)
                if statistics.shape[1] == 2:
                    slope = slope - total / n
                slope = slope * inverse
                if grad_total is not None:
                    slope = slope + grad_total[i, j].astype(np.float32)
                return slope

            def dropped(j):
                return np.where(row.random(k, j, seed) < dropout, 0.0, made(j) * scale)

            if dresidual is None:
                row.store(block, dx, made)
            else:
                row.store(block, dx, dropped, dresidual, made)

    return norm_gradient


@functools.cache
def of_short_rows(*present: str) -> RowKernel:
    """Return the kernel of all gradients for rows that lanes of a warp have. A program computes
    many blocks of rows, and stores a row of sums."""
    absent = [n for n in ("weight", "grad_total", "dresidual", "dbias") if n not in present]

    @rows(operands=2, programs="dweight", without=absent)
    def norm_gradient_of_short_rows(
        x,
        grad,
        statistics,
        weight,
        grad_total,
        dx,
        dresidual,
        dweight,
        dbias,
        *,
        dropout,
        scale,
        seed,
        row: Static,
    ):
        n, j, step = x.shape[1], row.columns(), num_programs(0)
        at = ds(program_id(0), 1)
        i = ds(program_id(0) * row.height, row.height)
        next_tile, next_own, next_numbers = x[i, j], grad[i, j], numbers(statistics, i)
        of_weight = of_bias = row.zeros()
        for k in row.blocks(x):
            i, after = ds(k * row.height, row.height), ds((k + step) * row.height, row.height)
            own, inverse = next_own.astype(np.float32), next_numbers[0]
            tile = normed(next_tile, next_numbers)
            # the loads of the next block overlap the arithmetic of this one
            next_tile, next_own = x[after, j], grad[after, j]
            next_numbers = numbers(statistics, after)
            of_weight = of_weight + own * tile
            of_bias = of_bias + own
            # not kept, so that an SM has registers for more CTAs
            factor = 1.0 if weight is None else weight[j].astype(np.float32)
            weighted = own * factor
            slope = weighted * tile
            along, total = row.sums(lambda j: slope, lambda j: weighted)
            made = weighted - tile * (along / n)
            if statistics.shape[1] == 2:
                made = made - total / n
            made = made * inverse
            if grad_total is not None:
                made = made + grad_total[i, j].astype(np.float32)
            if dresidual is not None:
                dresidual[i, j] = made
                made = np.where(row.random(k, j, seed) < dropout, 0.0, made * scale)
            dx[i, j] = made
        dweight[at, j] = of_weight.sum(axis=0)[None, :]
        if dbias is not None:
            dbias[at, j] = of_bias.sum(axis=0)[None, :]

    return norm_gradient_of_short_rows


SHARED = 231424
"""bytes of shared memory of an SM for rows"""
PART, WARPGROUPS = 2048, 4
"""columns of a warpgroup, 16 elements a lane, up to which a CTA has fewer than all WARPGROUPS"""
LONGEST = 26624
"""most bytes of a CTA's part of a row: shared memory has room for four, of x and of the gradient,
and registers for the sums of their columns"""
CLUSTER = 8
"""most CTAs of a cluster"""
PROGRAMS = {1: 132, 2: 66, 4: 30, 8: 15}
"""clusters that an H100 or H200 runs at the same time (`choice.gpu`), by their number of CTAs, for
each CTA that an SM has room for"""
AHEAD = 4
"""rows whose sums the warps of a cluster may exchange at the same time"""
SENT = 64
"""numbers that all lanes of a warp have two of"""


def shares(n: int, itemsize: int) -> tuple[int, int]:
    """Return the CTAs of a cluster, and the warpgroups of a CTA, that share a row of n columns.

    >>> shares(4096, 2), shares(50257, 2)
    ((1, 2), (4, 4))
    """
    ctas = 1 << ((n * itemsize - 1) // LONGEST).bit_length()
    return ctas, min(WARPGROUPS, 1 << ((n - 1) // (PART * ctas)).bit_length())


@functools.cache
def in_ring(
    centered: bool, n: int, itemsize: int, kind: str, ctas: int, wgs: int, *present: str
) -> tuple[Kernel, int]:
    """Return the kernel of all gradients for rows of n columns that TMA can load, and the number of
    its programs.

    Each warpgroup has `own` columns of each row. Its parts of several rows wait in shared memory,
    and the exchange of the sums of a row overlaps the next rows::

        step k    load a next row in place of row k - 3, which all warpgroups have stored
                  add the sums of row k - 2, store its part
                  add up the part of row k, send its sums to all warpgroups

    Where one or two CTAs share a row, a warpgroup adds up the sums of row k - 1 for the others.

    x and grad are matrices, or if `kind` is ELEMENTS vectors, whose rows begin anywhere.
    """
    of_sm = WARPGROUPS // wgs
    unit, elements = 16 // itemsize, kind == ELEMENTS
    # a lane's four columns are aligned in memory if rows begin up to three columns early
    shifts = 3 if elements and n % 4 else 0
    own = -(-(n + shifts) // (ctas * wgs * unit)) * unit
    width = -(-own // STEP) * STEP
    # columns that a CTA loads, and their room in shared memory
    span = -(-((wgs - 1) * own + width) // STEP) * STEP
    room = span + elements * 128 // itemsize
    adds = ctas <= 2
    shared = wgs * PARTS if adds else ctas * wgs * PARTS
    size = min(shared, SENT)
    slots = min(
        8, (SHARED // of_sm - 4 * AHEAD * (shared + adds * ctas * SENT)) // (2 * room * itemsize)
    )
    last = (n + shifts - 1) // own
    # columns that are inside in all warpgroups
    whole = min(own, n - last * own) // STEP * STEP

    @kernel(
        grid=lambda dweight: (dweight.shape[0] * ctas,),
        cluster=ctas,
        cluster_names="cluster",
        num_compute_wgs=wgs,
        warp_specialized=False,
        static_dims=(-1,),
        without=[name for name in ("grad_total", "dbias") if name not in present],
        compiler_params=CompilerParams(
            approx_math=True, ctas_per_sm=of_sm, unsafe_no_auto_barriers=True
        ),
    )
    def norm_gradient_in_ring(x, grad, statistics, weight, grad_total, dx, dweight, dbias):
        wg, rank = axis_index("wg"), axis_index("cluster")
        at, step = program_id(0) // ctas, num_programs(0) // ctas
        count = cdiv(statistics.shape[0] - at, step)
        xs = scratch(SMEM((slots * room,), x.dtype))
        grads = scratch(SMEM((slots * room,), x.dtype))
        landed = scratch(Barrier(num_barriers=slots, num_arrivals=2 << elements))
        sums = scratch(SMEM((AHEAD * shared,), np.float32))
        added = scratch(Barrier(num_barriers=AHEAD, num_arrivals=wgs if adds else ctas * wgs))
        if adds:
            totals = scratch(SMEM((AHEAD * ctas * SENT,), np.float32))
            known = scratch(Barrier(num_barriers=AHEAD, num_arrivals=ctas))
        else:
            stored = scratch(Barrier(num_barriers=AHEAD, num_arrivals=wgs))
        # the same for all rows of a program, because the number of programs is a multiple of four
        shift = at * n % 4 if shifts else 0
        number = rank * wgs + wg
        start, first = number * own - shift, rank * wgs * own - shift
        stop = min(start + own, n)
        j = ds(start, width, stop=stop, least=-shifts)
        of_weight = of_bias = full((1, width), 0.0, np.float32)
        gain = weight[ds(start, width, most=last * own, least=-shifts)]

        def load(array, ring, slot, row):
            part = ring.at[ds(slot * room, span)]
            if elements:
                # from a multiple of 16 bytes on, and 16 bytes more
                begin = (row * n + first) // unit * unit
                rest = ring.at[ds(slot * room + span, unit)]
                copy_gmem_to_smem(array.at[ds(begin, span)], part, landed.at[slot])
                copy_gmem_to_smem(array.at[ds(begin + span, unit)], rest, landed.at[slot])
            else:
                copy_gmem_to_smem(array.at[row, ds(first, span)], part, landed.at[slot])

        def fetch(k):
            if k < count:
                load(x, xs, k % slots, at + k * step)
                load(grad, grads, k % slots, at + k * step)

        def held(ring, k):
            begin = ((at + k * step) * n + first) % unit if elements else 0
            part = ring.at[ds(k % slots * room + begin + wg * own, width)]
            return load_tile(part, SPREAD)[None, :].astype(np.float32)

        def inside(tile):
            """The tile, with 0 for what is not a column of this warpgroup."""
            if own == width and not elements:
                return tile
            column, begin = iota((1, width), 1), shift if number == 0 else 0
            end = own if number < last else n - last * own + shift
            return np.where((column >= begin) & (column < end), tile, 0.0)

        def folded(tile):
            """The sum of the pieces of a tile."""
            total = tile[:, :STEP]
            for c in static_range(STEP, width, STEP):
                total = total + tile[:, c : c + STEP]
            return total

        def added_up(k):
            """The two sums of row k that warpgroups have sent to this CTA."""
            barrier_wait(added.at[k % AHEAD])
            part = sums[ds(k % AHEAD * shared, size)]
            for c in static_range(size, shared, size):
                part = part + sums[ds(k % AHEAD * shared + c, size)]
            half = iota((size,), 0) & 4
            return np.where(half == 0, part, 0.0).sum(), np.where(half == 4, part, 0.0).sum()

        def send(values, buffer, place, barrier):
            if ctas > 1:
                async_store_smem(
                    values, buffer.at[place], barrier, cluster_idx=None, cluster_dim="cluster"
                )
            else:
                buffer[place] = values
                barrier_arrive(barrier)

        def sums_of(k):
            """The two sums of row k."""
            if adds:
                barrier_wait(known.at[k % AHEAD])
                along = total = full((1, 1), 0.0, np.float32)
                for cta in static_range(ctas):
                    sent = (k % AHEAD * ctas + cta) * SENT
                    along = along + totals[ds(sent, 1)][None, :]
                    total = total + totals[ds(sent + 1, 1)][None, :]
                return along, total
            return added_up(k)

        if wg == 0:
            for k in range(slots):
                fetch(k)
        earlier = before = now = after = numbers(statistics, ds(at, 1))
        for k in range(count + 2):
            if adds:
                if 0 < k <= count and (k - 1) % wgs == wg:
                    first_sum, second_sum = added_up(k - 1)
                    # all warpgroups of this CTA have stored row k - 3
                    if k > 2:
                        fetch(k - 3 + slots)
                    pair = np.where(iota((SENT,), 0) < 1, first_sum, second_sum)
                    place = ds(((k - 1) % AHEAD * ctas + rank) * SENT, SENT)
                    send(pair, totals, place, known.at[(k - 1) % AHEAD])
            elif k > 2 and k - 3 + slots < count and k % wgs == wg:
                barrier_wait(stored.at[(k - 3) % AHEAD])
                fetch(k - 3 + slots)
            if k > 1:
                # dx = inverse * (own - tile * mean(own * tile) - mean(own)) of the row
                scale, mean_of = earlier
                along, total = sums_of(k - 2)
                slope = along * (1.0 / n) * scale * scale
                offset = slope * mean_of
                if centered:
                    offset = offset - total * (1.0 / n) * scale
                made = held(grads, k - 2) * gain.astype(np.float32)
                made = made * scale + (offset - held(xs, k - 2) * slope)
                i = ds(at + (k - 2) * step, 1)
                if grad_total is not None:
                    made = made + grad_total[i, j].astype(np.float32)
                if whole > 0:
                    dx[i, ds(start, whole, most=last * own, least=-shifts)] = made[:, :whole]
                if whole < width:
                    rest = ds(start + whole, width - whole, stop=stop, least=-shifts)
                    dx[i, rest] = made[:, whole:width]
                if not adds and k - 2 + slots < count:
                    barrier_arrive(stored.at[(k - 2) % AHEAD])
            if k < count:
                inverse, mean = now
                barrier_wait(landed.at[k % slots])
                # the latency of these loads is hidden here
                after = numbers(statistics, ds(at + (k + 1) * step, 1))
                weighted = inside(held(grads, k))
                tile = inside(held(xs, k) * inverse - mean * inverse)
                of_weight = of_weight + weighted * tile
                if dbias is not None:
                    of_bias = of_bias + weighted
                weighted = weighted * gain.astype(np.float32)
                both = np.concatenate((folded(weighted * tile), folded(weighted)), 1)
                parts = split_row(both).sum(axis=1)
                if adds:
                    sums[ds(k % AHEAD * shared + wg * PARTS, PARTS)] = parts
                    barrier_arrive(added.at[k % AHEAD])
                else:
                    place = ds(k % AHEAD * shared + number * PARTS, PARTS)
                    send(parts, sums, place, added.at[k % AHEAD])
            earlier, before, now = before, now, after
        dweight[ds(at, 1), j] = of_weight
        if dbias is not None:
            dbias[ds(at, 1), j] = of_bias

    return norm_gradient_in_ring, PROGRAMS[ctas] * of_sm // (1 + shifts) * (1 + shifts)


HEIGHT, WIDTH = 32, 64
"""of the tiles that are added up along their columns"""
SHORT = 1024
"""columns up to which a lane has float32 sums of all its columns"""
SMS = 132
"""programs that add up rows, per CTA that an SM has room for"""


@functools.cache
def of_columns(*present: str) -> Kernel:
    """Return the kernel of the sums that are `present`: program (i, j) stores row i of columns j
    of the sums over its blocks of rows."""

    @kernel(
        grid=lambda x, parts: (parts, cdiv(x.shape[1], WIDTH)),
        warp_specialized=False,
        static_dims=(-1,),
        without=[name for name in ("dweight", "dbias") if name not in present],
    )
    def norm_gradient_of_columns(x, grad, statistics, dweight, dbias, *, parts):
        j = ds(program_id(1) * WIDTH, WIDTH)
        of_weight = of_bias = full((HEIGHT, WIDTH), 0.0, np.float32)
        for k in range(program_id(0), cdiv(x.shape[0], HEIGHT), parts):
            i = ds(k * HEIGHT, HEIGHT)
            own = grad[i, j].astype(np.float32)
            of_bias = of_bias + own
            of_weight = of_weight + own * normed(x[i, j], numbers(statistics, i))
        at = ds(program_id(0), 1)
        if dweight is not None:
            dweight[at, j] = of_weight.sum(axis=0)[None, :]
        if dbias is not None:
            dbias[at, j] = of_bias.sum(axis=0)[None, :]

    return norm_gradient_of_columns  # type: ignore[no-any-return]


def scaling(dropout: float, seed: int) -> dict[str, Any]:
    """Return the scalars of kernels for dropout."""
    return {"dropout": dropout, "scale": 1 / (1 - dropout) if dropout < 1 else 0.0, "seed": seed}


def given(kind: str, **arrays: ArrayInfo | None) -> dict[str, tuple[str, ArrayInfo]]:
    """Return (kind, array) of the arrays that are not None."""
    return {name: (kind, info) for name, info in arrays.items() if info is not None}


def launch_gradient(
    x: Any,
    grad: Any,
    statistics: Any,
    weight: Any,
    grad_total: Any,
    dx: Any,
    dresidual: Any,
    dweight: Any,
    dbias: Any,
    dropout: float,
    seed: int,
    target: Any,
    stream: Any,
) -> None:
    """Compute the gradient of a norm, in one kernel if a CTA has room for the sums of columns."""
    read = given(MATRIX, x=x, grad=grad, statistics=statistics)
    inputs = read | given(MATRIX, grad_total=grad_total) | given(COLUMNS, weight=weight)
    results = given(MATRIX, dx=dx, dresidual=dresidual)
    totals = given(MATRIX, dweight=dweight, dbias=dbias)
    names = *inputs, *results, *totals
    place, options = (target, stream), scaling(dropout, seed)
    n, size, count = x.shape[-1], x.dtype.itemsize, math.prod(x.shape[:-1])
    run, height, most = None, HEIGHT, int(SMS * 8 * WIDTH / n)

    if dweight is not None and n <= SHORT:
        row, ctas = choose(n), 3
        height, most = 4 if n > SHORT // 2 else row.height, SMS * ctas
        row = dataclasses.replace(row, height=height, ctas=ctas, loops=True)
        run = of_short_rows(*names).scheduled(row)
    elif dweight is not None and dresidual is None and shares(n, size)[0] <= CLUSTER and count > 0:
        for kind in (MATRIX, ELEMENTS)[: 1 + (count * n < 1 << 31)]:
            views = [flat(kind, info) for info in (x, grad)]
            if all(view is not None and tma_addressable(view) is None for view in views):
                how = statistics.shape[-1] > 1, n, size, kind, *shares(n, size)
                run, most = in_ring(*how, *names)
                height, options, inputs = 1, {}, inputs | given(kind, x=x, grad=grad)
                break
    programs = max(1, min(-(-count // (4 * height)) * 4, most))
    like = x._replace(dtype=np.dtype(np.float32))
    sums = {name: (MATRIX, allocated("norm", like, (programs, n), stream)) for name in totals}
    if run is not None:
        launch_over_rows("norm", run, inputs, results | sums, *place, **options)
    else:
        simple = of_rows(*inputs, *results)
        launch_over_rows("norm", simple, inputs, results, *place, **options)
        if sums:
            launch_over_rows("norm", of_columns(*sums), read, sums, *place, parts=programs)
    for name, (_, total) in totals.items():
        launch_reduction("norm", "sum", sums[name][1], 0, total, *place)
