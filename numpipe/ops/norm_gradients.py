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
from ..kernels.decorator import kernel
from ..kernels.kernel import Kernel
from ..kernels.row_kernels import RowKernel, choose, rows
from ..language.memory.copies import copy_gmem_to_smem, meet
from ..language.memory.scratch import scratch
from ..language.pipeline.operand_barriers import barrier_arrive, barrier_wait
from ..language.tiles.elementwise import full
from ..language.tiles.load import load_tile
from ..language.tiles.refs import ds
from ..language.tiles.warp_parts import PARTS, SPREAD, STEP, split_row
from ..launch.array_info import ArrayInfo, tma_addressable
from ..plan.allocations import SMEM, Barrier
from ..plan.context import axis_index, num_programs, program_id
from ..plan.params import CompilerParams
from ..plan.specs import Static
from .op_outputs import allocated
from .over_rows import COLUMNS, MATRIX, flat, launch_over_rows
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


SHARED = 229376
"""bytes of shared memory of an SM for rows"""
PART = 2048
"""columns of a warpgroup, 16 elements a lane"""
LONGEST = 32768
"""most bytes of a row: shared memory has room for three, of x and of the gradient"""
AHEAD = 4
"""rows whose sums the warps of a CTA may exchange at the same time"""


@functools.cache
def in_ring(centered: bool, n: int, itemsize: int, *present: str) -> tuple[Kernel, int]:
    """Return the kernel of all gradients for rows of n columns that TMA can load, and how many CTAs
    share an SM. Rows wait in shared memory, and the warps exchange the sums of a row while they add
    up those of the next."""
    wgs = 1
    while n > PART * wgs:
        wgs *= 2
    # measured on an H200: registers for several loads at a time are worth more than more lanes
    ctas = min(4, max(1, 6 // wgs), LONGEST // (n * itemsize))
    width = -(-n // (wgs * STEP)) * STEP
    slots = min(6, SHARED // ctas // (2 * wgs * width * itemsize))

    @kernel(
        grid=lambda dweight: (dweight.shape[0],),
        num_compute_wgs=wgs,
        warp_specialized=False,
        static_dims=(-1,),
        without=[name for name in ("grad_total", "dbias") if name not in present],
        compiler_params=CompilerParams(
            approx_math=True, ctas_per_sm=ctas, unsafe_no_auto_barriers=True
        ),
    )
    def norm_gradient_in_ring(x, grad, statistics, weight, grad_total, dx, dweight, dbias):
        wg, at, step = axis_index("wg"), program_id(0), num_programs(0)
        count = cdiv(x.shape[0] - at, step)
        xs = scratch(SMEM((wgs * slots * width,), x.dtype))
        grads = scratch(SMEM((wgs * slots * width,), x.dtype))
        landed = scratch(Barrier(num_barriers=wgs * slots, num_arrivals=2))
        firsts = scratch(SMEM((AHEAD * wgs * PARTS,), np.float32))
        seconds = scratch(SMEM((AHEAD * wgs * PARTS,), np.float32))
        added = scratch(Barrier(num_barriers=AHEAD, num_arrivals=wgs))
        j = ds(wg * width, width, most=(wgs - 1) * width)
        of_weight = of_bias = full((1, width), 0.0, np.float32)
        gain = weight[j]

        def fetch(k):
            if k < count:
                slot = wg * slots + k % slots
                part = ds(slot * width, width)
                copy_gmem_to_smem(x.at[at + k * step, j], xs.at[part], landed.at[slot])
                copy_gmem_to_smem(grad.at[at + k * step, j], grads.at[part], landed.at[slot])

        def held(ring, k):
            part = ring.at[ds((wg * slots + k % slots) * width, width)]
            return load_tile(part, SPREAD)[None, :].astype(np.float32)

        def numbers(k):
            row = min(at + k * step, x.shape[0] - 1)
            return statistics[row, 0], statistics[row, 1] if centered else 0.0

        for k in range(slots):
            fetch(k)
        before = now = numbers(0)
        for k in range(count + 1):
            after = numbers(k + 1)
            if k < count:
                inverse, mean = now
                barrier_wait(landed.at[wg * slots + k % slots])
                own, tile = held(grads, k), held(xs, k) * inverse - mean * inverse
                of_weight = of_weight + own * tile
                if dbias is not None:
                    of_bias = of_bias + own
                own = own * (gain if wgs < 8 else weight[j]).astype(np.float32)
                place = ds((k % AHEAD * wgs + wg) * PARTS, PARTS)
                firsts[place] = split_row(own * tile).sum(axis=1)
                seconds[place] = split_row(own).sum(axis=1)
                barrier_arrive(added.at[k % AHEAD])
            if k > 0:
                # dx = inverse * (own - tile * mean(own * tile) - mean(own)) of the row before
                scale, mean_of = before
                barrier_wait(added.at[(k - 1) % AHEAD])
                whole = ds((k - 1) % AHEAD * wgs * PARTS, wgs * PARTS)
                slope = firsts[whole].sum() / n * scale * scale
                offset = slope * mean_of
                if centered:
                    offset = offset - seconds[whole].sum() / n * scale
                made = (
                    held(grads, k - 1) * (gain if wgs < 8 else weight[j]).astype(np.float32) * scale
                )
                made = made - held(xs, k - 1) * slope + offset
                here = ds(at + (k - 1) * step, 1), j
                if grad_total is not None:
                    made = made + grad_total[here].astype(np.float32)
                dx[here] = made
                meet()
                fetch(k - 1 + slots)
            before, now = now, after
        dweight[ds(at, 1), j] = of_weight
        if dbias is not None:
            dbias[ds(at, 1), j] = of_bias

    return norm_gradient_in_ring, ctas


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
    run, height, ctas = None, HEIGHT, 8 * WIDTH / n
    views = [flat(MATRIX, info) for info in (x, grad)]
    loaded = count > 0 and all(view is not None and tma_addressable(view) is None for view in views)
    if dweight is not None and n <= SHORT:
        row, ctas = choose(n), 3
        height = 4 if n > SHORT // 2 else row.height
        row = dataclasses.replace(row, height=height, ctas=ctas, loops=True)
        run = of_short_rows(*names).scheduled(row)
    elif dweight is not None and dresidual is None and n * size <= LONGEST and loaded:
        height, options = 1, {}
        run, ctas = in_ring(statistics.shape[-1] > 1, n, size, *names)
    programs = max(1, min(-(-count // height), int(SMS * ctas)))
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
