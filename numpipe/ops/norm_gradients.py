"""Kernels of the gradients of rms_norm and layer_norm.

The statistics of a row are 1 / sqrt(variance + eps) and, for layer_norm, its mean: an array
(rows, 1) or (rows, 2), which the forward kernel stores.
"""

# tiles and schedules in kernels have no types
# mypy: disable-error-code="no-untyped-def, attr-defined, operator, arg-type, call-overload, index"

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from ..arch.dimensions import round_up
from ..core.arith import cdiv
from ..core.functions import function
from ..core.static_range import static_range
from ..kernels.decorator import kernel
from ..kernels.kernel import Kernel
from ..kernels.row_kernels import RowKernel, Rows, loadable, rows
from ..kernels.row_registers import BOX
from ..kernels.row_schedules import CLUSTER, PHASES, Needs
from ..language.memory.copies import async_prefetch, commit_smem, copy_gmem_to_smem, meet
from ..language.memory.remote import async_store_smem
from ..language.memory.scratch import scratch
from ..language.pipeline.operand_barriers import barrier_arrive, barrier_wait
from ..language.tiles.elementwise import full, iota
from ..language.tiles.load import load_tile
from ..language.tiles.refs import ds
from ..language.tiles.row_layouts import LANES, lanes_for
from ..language.tiles.warp_parts import PARTS, SPREAD, STEP, split_row
from ..launch.windows import strided
from ..plan.allocations import SMEM, Barrier
from ..plan.context import axis_index, num_programs, program_id
from ..plan.params import CompilerParams
from ..plan.specs import Static
from .op_outputs import Place, allocated
from .over_rows import COLUMNS, MATRIX, ROWS, flat, given, lacking, launch_over_rows
from .tiled import rows_of


@function
def numbers(statistics, i):
    """Return 1 / sqrt(variance + eps) and the mean, or 0, of some rows."""
    mean = statistics[i, ds(1, 1)] if statistics.shape[1] == 2 else 0.0
    return statistics[i, ds(0, 1)], mean


@function
def gradient(own, tile, sums, statistics, inverse, n):
    """Return the gradient of a tile: `tile` has the normed rows, `own` the gradient * weight, and
    `sums` are those of own * tile and of own."""
    along, total = sums
    less = tile * (along * inverse / n)
    if statistics.shape[1] == 2:
        less = less + total * inverse / n
    return own * inverse - less


@function
def store_sums(dweight, dbias, i, j, of_weight, of_bias):
    """Store the sums of the columns of two tiles to row i."""
    if dweight is not None:
        dweight[i, j] = of_weight.sum(axis=0)[None, :]
    if dbias is not None:
        dbias[i, j] = of_bias.sum(axis=0)[None, :]


@functools.cache
def of_rows(tile: tuple[int, int], *present: str) -> RowKernel:
    """Return the kernel of the gradients that are `present`. Further warpgroups add up columns, a
    tile of rows and columns at a time. With dresidual, which is the gradient of the total, dx is
    that of x before elements were dropped."""
    absent = lacking(present, "weight", "grad_total", "dresidual", "dweight", "dbias")
    height, width = tile

    def grid(x, parts, row):
        tasks = cdiv(parts * cdiv(x.shape[1], width), row.wgs * row.cluster)
        return ((cdiv(x.shape[0], row.height) + tasks) * row.cluster,)

    @rows(operands=2, grid=grid, without=absent)
    def norm_gradient(
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
        parts,
        dropout,
        scale,
        seed,
        row: Static,
    ):
        task = program_id(0) - cdiv(x.shape[0], row.height) * row.cluster
        if task < 0:  # the same for all warpgroups that share a row
            for k in row.blocks(x):
                value, grads, block = row.load(k, x, grad)
                i, n = ds(k * row.height, row.height), x.shape[1]
                inverse, mean = numbers(statistics, i)

                def tile(j):
                    return (value(j) - mean) * inverse

                def own(j):
                    return grads(j) if weight is None else grads(j) * weight[j].astype(np.float32)

                sums = row.sums(lambda j: own(j) * tile(j), own)

                def made(j):
                    found = gradient(own(j), tile(j), sums, statistics, inverse, n)
                    if grad_total is not None:
                        found = found + grad_total[i, j].astype(np.float32)
                    return found

                def dropped(j):
                    return np.where(row.random(k, j, seed) < dropout, 0.0, made(j) * scale)

                if dresidual is None:
                    row.store(block, dx, made)
                else:
                    row.store(block, dx, dropped, dresidual, made)
        else:
            # add up some columns of each of `parts` sets of blocks of rows
            task = task * row.wgs + axis_index("wg")
            at, j = ds(task % parts, 1), ds(task // parts * width, width)
            of_weight = of_bias = full((height, width), 0.0, np.float32)
            for c in range(task % parts, cdiv(x.shape[0], height), parts):
                few = ds(c * height, height)
                inverses, means = numbers(statistics, few)
                part = grad[few, j].astype(np.float32)
                of_bias = of_bias + part
                of_weight = of_weight + part * ((x[few, j].astype(np.float32) - means) * inverses)
            store_sums(dweight, dbias, at, j, of_weight, of_bias)

    return norm_gradient


@functools.cache
def of_short_rows(
    layout: str,
    height: int,
    slots: int,
    ahead: int,
    run: int,
    late: bool,
    teams: int,
    *present: str,
) -> RowKernel:
    """Return the kernel of all gradients for contiguous rows, shared by lanes of a warp as `layout`
    says. Each of a CTA's `teams`, which are warpgroups, computes many blocks of rows, some of them
    half a block at a time, and stores a row of sums.

    Rows begin anywhere: TMA loads blocks as parts of flat arrays, `ahead` of them at a time, of the
    `slots` that a team has room for: CTAs fill shared memory. A lane has `run` adjacent columns of
    aligned rows, which it stores itself. With a run of 2, lanes store dx in shared memory, where
    they have read x; from there it is copied in memory order. With `late`, the last rows of a block
    are added to the sums after dx is computed; until then, lanes keep their gradients in registers.
    """
    absent = lacking(present, "grad_total", "dresidual", "dbias")
    vector = layout.replace("rows", "row")

    @rows(
        operands=2,
        grid=lambda dweight: (dweight.shape[0] // teams,),
        num_compute_wgs=teams,
        without=absent,
    )
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
        n, j, half, step = x.shape[1], row.columns(), row.height, num_programs(0) * teams
        team = axis_index("wg") if teams > 1 else 0
        number, first = program_id(0) * teams + team, team * slots
        size = height * row.n
        room = cdiv(size, BOX) * BOX
        ring = SMEM((teams * slots * room,), x.dtype)
        xs, grads = scratch((ring, ring))
        landed = scratch(Barrier(num_barriers=teams * slots, num_arrivals=2))

        def fetch(k, slot):
            if k * height < x.shape[0]:
                to, block = ds(slot * room, room), ds(k * size, room)
                copy_gmem_to_smem(x.flat.at[block], xs.at[to], landed.at[slot])
                copy_gmem_to_smem(grad.flat.at[block], grads.at[to], landed.at[slot])
                if run == 2:
                    # the few instructions for longer runs would wait for this one
                    own = height * statistics.shape[1]
                    async_prefetch(statistics.flat.at[ds(k * own, own)])

        def held(ring, slot):
            return load_tile(ring.at[ds(slot * room, size)], layout, columns=row.n)

        def numbers_of(k):
            """The numbers of the first and of the last rows of a block."""
            upper, lower = ds(k * height, half), ds((k + 1) * height - half, half)
            return numbers(statistics, upper), numbers(statistics, lower)

        for k in range(ahead):
            fetch(number + k * step, first + k)
        following, gain = numbers_of(number), load_tile(weight.at[j], vector)
        # zeros in the layout of the rows that are added, which full alone does not have
        of_weight = of_bias = np.where(gain < 0.0, 0.0, full((half, 1), 0.0, np.float32))

        def norm(row_numbers, tile):
            inverse, mean = row_numbers
            return tile.astype(np.float32) * inverse - mean * inverse

        def computed(k, row_numbers, own, tile):
            """Return the gradients of the k-th tile of rows."""
            i, (inverse, _) = ds(k * half, half), row_numbers
            own = own * gain.astype(np.float32)
            slope = own * tile
            sums = row.sums(lambda j: slope, lambda j: own)
            made = gradient(own, tile, sums, statistics, inverse, n)
            if grad_total is not None:
                made = made + load_tile(grad_total.at[i, j], layout).astype(np.float32)
            if dresidual is not None:
                dresidual[i, j] = made
                made = np.where(row.random(k, j, seed) < dropout, 0.0, made * scale)
            if run > 2:
                dx[i, j] = made
            return made.astype(dx.dtype)

        slot = first
        for k in range(number, cdiv(x.shape[0], height), step):
            # loads of the next statistics overlap the arithmetic of this block. If the block is
            # refilled before that, they are issued after the refill, which would wait for them
            if run == 2:
                (upper, lower), following = following, numbers_of(k + step)
            barrier_wait(landed.at[slot])
            own, tile = held(grads, slot), held(xs, slot)
            if run > 2:
                meet()
                fetch(k + ahead * step, slot)
                (upper, lower), following = following, numbers_of(k + step)
            part, normed = own[0:half, :].astype(np.float32), norm(upper, tile[0:half, :])
            if half < height or not late:
                of_weight, of_bias = of_weight + part * normed, of_bias + part
            made = computed(k * height // half, upper, part, normed)
            if half < height:
                part, normed = own[half:, :].astype(np.float32), norm(lower, tile[half:, :])
                if not late:
                    of_weight, of_bias = of_weight + part * normed, of_bias + part
                made = np.concatenate((made, computed(2 * k + 1, lower, part, normed)), 0)
            if late:
                of_weight, of_bias = of_weight + part * normed, of_bias + part
            if run == 2:
                block = xs.at[ds(slot * room, size)]
                block[...] = made
                commit_smem()
                lines = load_tile(block, "runs")
                meet()
                fetch(k + ahead * step, slot)
                dx.flat[ds(k * size, size)] = lines
            slot = slot + 1 if slot + 1 < first + ahead else first
        store_sums(dweight, dbias, ds(number, 1), j, of_weight, of_bias)

    return norm_gradient_of_short_rows


@functools.cache
def of_parts(n: int, height: int, *present: str) -> Kernel:
    """Return the kernel that adds up the sums of columns of at most `height` programs. `parts` has
    a row of each for dweight, then a row of each for dbias."""
    width, terms = 1 << (TILE // height).bit_length() - 1, len(present)
    # kilobytes of shared memory, so that no SM gets more CTAs than another: many might start early
    # on SMs where the other kernel has no cluster
    share = (SHARED // cdiv(cdiv(n, width) * terms, SMS) - OTHER - 16 * width) // 1024

    @kernel(
        grid=(cdiv(n, width), terms),
        warp_specialized=False,
        without=lacking(present, "dweight", "dbias"),
    )
    def norm_gradient_of_parts(parts, dweight, dbias):
        scratch(SMEM((256 * max(share, 1),), np.float32))
        count, term, j = parts.shape[0] // terms, program_id(1), ds(program_id(0) * width, width)
        rows = ds(term * count, height, stop=(term + 1) * count)
        total = parts[rows, j].sum(axis=0)
        if dweight is not None and term == 0:
            dweight[0, j] = total
        elif dbias is not None:
            dbias[0, j] = total

    return norm_gradient_of_parts  # type: ignore[no-any-return]


SHARED, OTHER = 233472, 4096
"""bytes of shared memory of an SM, and most of what each CTA takes in addition to rows and sums"""
WARPGROUPS = 4
"""warpgroups of a CTA"""
LONGEST, SHORTER = 26624, 19968
"""most bytes of a CTA's part of the rows that its teams compute at the same time, if it has one
team and if it has several: shared memory has room for three or four of x and of the gradient, and
registers for the sums of their columns"""
FLIGHT = 57344
"""bytes that a CTA requests ahead, in whole rows of each team; of short rows, bytes that all CTAs
of an SM request ahead, in whole blocks. Rows that are requested together arrive together, so that a
CTA that requested more would start later (measured on an H200)"""
ROW, EXCHANGE = 1152, 128
"""columns that take a warpgroup as long as its work per row, and as each further CTA of the row"""
BYTE = 1 / 400
"""columns that take a warpgroup as long as the transfer of a byte of each of x, grad and dx"""
SUM = 1 / 256
"""columns of a row that take as long as the sum of a column of one program, in both launches"""
AHEAD = 4
"""rows whose sums warps may exchange at the same time, a power of two"""
MARKS = 32
"""float32 elements of a slot of shared memory for the statistics of a row"""
PROGRAMS = {1: 132, 2: 66, 4: 30, 8: 15}
"""clusters that an H100 or H200 runs at the same time (`choice.gpu`), by their number of CTAs, for
each CTA that an SM has room for"""


def shares(n: int, itemsize: int, count: int, sums: int) -> tuple[int, int]:
    """Return the CTAs of a cluster, and the warpgroups of a CTA, that share a row of n columns, so
    that `count` rows and the sums of their columns take the shortest time. More than `CLUSTER` CTAs
    mean that rows are too long for any cluster, or shorter than a piece.

    >>> shares(4096, 2, 65536, 1), shares(50257, 2, 4096, 2), shares(7797, 2, 1024, 2)
    ((1, 2), (4, 4), (2, 2))
    """

    def time(split: tuple[int, int]) -> Any:
        ctas, wgs = split
        programs, width = PROGRAMS[ctas], round_up(cdiv(n, ctas * wgs), STEP)
        at_once = programs * (WARPGROUPS // wgs)
        busy = width + ROW + EXCHANGE * (ctas - 1)
        row = math.hypot(busy, at_once * n * itemsize * BYTE)
        # two rows arrive before the first is computed
        return (cdiv(count, at_once) + 2) * row + programs * n * sums * SUM

    splits = (
        (ctas, wgs)
        for ctas in PROGRAMS
        for wgs, most in ((1, SHORTER), (2, SHORTER), (WARPGROUPS, LONGEST))
        if WARPGROUPS * n * itemsize <= ctas * wgs * most and n >= STEP * ctas * wgs
    )
    return min(splits, key=time, default=(2 * CLUSTER, WARPGROUPS))


@functools.cache
def in_ring(
    centered: bool, n: int, itemsize: int, flat: bool, ctas: int, wgs: int, *present: str
) -> Kernel:
    """Return the kernel of all gradients for rows of n columns that TMA can load.

    Each warpgroup has adjacent pieces of each row, of STEP columns: as many as its tile has, or one
    less. If fewer than WARPGROUPS share a row, a CTA has several teams, each with rows of its own,
    which add up their sums of columns at the end, one after another. The parts of several rows wait
    in shared memory, and the exchange of the sums of a row overlaps the next row::

        step k    add up the part of row k, send its sums to all warpgroups
                  load a next row, in place of row k - 2, which all warpgroups have stored
                  add the sums of row k - 1, store its part

    If x and grad are `flat`, rows follow each other, and begin anywhere.
    """
    teams = WARPGROUPS // wgs
    unit, terms = 16 // itemsize, 1 + centered
    # a lane's pairs of columns are aligned in memory if each second row begins one column early
    shifts = n % 2 if flat else 0
    pieces, parts = cdiv(n + shifts, STEP), ctas * wgs
    width = cdiv(pieces, parts) * STEP
    # leading columns of a tile that belong to its warpgroup and are inside the row in all of them
    whole = width if n == parts * width else width - STEP
    # columns that a CTA loads, from a multiple of 16 bytes on
    more = BOX if flat and n % unit else 0
    # from the first piece of its first warpgroup to the first one of its last, and a tile
    span = ((wgs - 1) * pieces + parts - wgs) // parts * STEP + width + more
    shared = parts * PARTS
    vector = f"row {lanes_for(shared)}"
    # leading columns of this vector, two for each lane
    few = min(shared, 2 * lanes_for(shared))
    # the sums of columns of a warpgroup
    room = width * (1 + ("dbias" in present))
    fixed = teams * (OTHER + 4 * AHEAD * shared) + 4 * wgs * room * (teams > 1)
    row = 2 * span * itemsize * teams
    # the row that is computed, the row that is stored, and those that are requested
    slots = min(2 + cdiv(FLIGHT, row), (SHARED - fixed) // row)

    @kernel(
        grid=lambda dweight: (dweight.shape[0] * ctas,),
        cluster=ctas,
        cluster_names="cluster",
        num_compute_wgs=WARPGROUPS,
        warp_specialized=False,
        static_dims=(-1,),
        without=lacking(present, "grad_total", "dbias"),
        compiler_params=CompilerParams(approx_math=True, unsafe_no_auto_barriers=True),
    )
    def norm_gradient_in_ring(x, grad, statistics, weight, grad_total, dx, dweight, dbias):
        wg, rank = axis_index("wg") % wgs, axis_index("cluster")
        team = axis_index("wg") // wgs if teams > 1 else 0
        program, programs = program_id(0) // ctas, num_programs(0) // ctas
        at, step = program + team * programs, teams * programs
        count = cdiv(x.shape[0] - at, step)
        marks = scratch(SMEM((teams * slots * MARKS,), np.float32))
        xs = scratch(SMEM((teams * slots * span,), x.dtype))
        grads = scratch(SMEM((teams * slots * span,), x.dtype))
        landed = scratch(Barrier(num_barriers=teams * slots, num_arrivals=3))
        sums = scratch(SMEM((teams * AHEAD * shared,), np.float32))
        sent = scratch(Barrier(num_barriers=teams * AHEAD, num_arrivals=ctas * wgs))
        stored = scratch(Barrier(num_barriers=teams * AHEAD, num_arrivals=wgs))
        # the same for all rows of a program, because the number of programs is even
        shift = at & 1 if shifts else 0
        number = rank * wgs + wg

        def first_of(number):
            return number * pieces // parts * STEP - shift

        begin, first, stop = first_of(rank * wgs), first_of(number), first_of(number + 1)
        most = (parts - 1) * pieces // parts * STEP
        leading = ds(first, whole, most=most, least=-shifts)
        last = ds(first + whole, STEP, stop=stop)
        j = ds(first, width, least=-shifts)
        of_weight = of_bias = full((1, width), 0.0, np.float32)
        # loads that followed those of the rows would land after them
        gain = weight[j]

        def slot_of(k):
            return team * slots + k % slots

        def place_of(k):
            """The place of row k among those whose sums are exchanged."""
            return team * AHEAD + k % AHEAD

        def load(array, ring, k):
            i, slot = at + k * step, slot_of(k)
            if flat:
                view = array.flat.at[ds((i * n + begin) // unit * unit, span)]
            else:
                view = array.at[i, ds(begin, span)]
            copy_gmem_to_smem(view, ring.at[ds(slot * span, span)], landed.at[slot])

        def fetch(k):
            if k < count:
                load(x, xs, k)
                load(grad, grads, k)
                slot, view = slot_of(k), statistics.at[ds((at + k * step) * terms // 4 * 4, 4)]
                copy_gmem_to_smem(view, marks.at[ds(slot * MARKS, 4)], landed.at[slot])

        def numbers_of(k):
            """1 / sqrt(variance + eps) and the mean, or 0, of row k."""
            place = slot_of(k) * MARKS + (at + k * step) * terms % 4
            inverse = marks[ds(place, 1)][:, None]
            return inverse, marks[ds(place + 1, 1)][:, None] if centered else 0.0

        def held(ring, k):
            place = first - begin + (((at + k * step) * n - shift) % unit if more else 0)
            part = ring.at[ds(slot_of(k) * span + place, width)]
            return load_tile(part, SPREAD)[None, :].astype(np.float32)

        def inside(tile):
            """The tile with 0 outside the row, and in columns of another warpgroup."""
            column = iota(tile.shape, 1)
            own = (column < whole) | (column < min(stop, n) - first)
            return np.where(own & (column >= shift * (number == 0)), tile, 0.0)

        def put(to, i, tile):
            if whole > 0:
                to[i, leading] = tile[:, :whole]
            if whole < width:
                to[i, last] = tile[:, whole:]

        def folded(tile):
            """The sum of the pieces of a tile."""
            total = tile[:, :STEP]
            for c in static_range(STEP, width, STEP):
                total = total + tile[:, c : c + STEP]
            return total

        def send(k, own):
            """Send the sums of this warpgroup's parts of row k to all warpgroups."""
            place = sums.at[ds(place_of(k) * shared + number * PARTS, PARTS)]
            if ctas > 1:
                async_store_smem(
                    own, place, sent.at[place_of(k)], cluster_idx=None, cluster_dim="cluster"
                )
            else:
                place[...] = own
                barrier_arrive(sent.at[place_of(k)])

        def sums_of(k):
            """The means over row k of gradient * weight * normed x, and of gradient * weight."""
            barrier_wait(sent.at[place_of(k)])
            received = load_tile(sums.at[ds(place_of(k) * shared, shared)], vector)[None, :]
            part = received[:, :few]
            for c in static_range(few, shared, few):
                part = part + received[:, c : c + few]
            part = part * (1.0 / n)
            if not centered:
                return part.sum(), 0.0
            first = (iota(part.shape, 1) & 4) == 0
            return np.where(first, part, 0.0).sum(), np.where(first, 0.0, part).sum()

        if wg == 0:
            for k in range(slots - 2):
                fetch(k)
        for k in range(count + 1):
            if k < count:
                barrier_wait(landed.at[slot_of(k)])
                inverse, mean = numbers_of(k)
                own = inside(held(grads, k))
                tile = inside(held(xs, k) * inverse - mean * inverse)
                of_weight, of_bias = of_weight + own * tile, of_bias + own
                own = own * gain.astype(np.float32)
                slopes, total = folded(own * tile), folded(own)
                both = np.concatenate((slopes, total), 1) if centered else slopes
                send(k, split_row(both).sum(axis=1))
                if k % wgs == wg:
                    if 1 < k < count + 2 - slots:
                        barrier_wait(stored.at[place_of(k - 2)])
                    fetch(k - 2 + slots)
            if k > 0:
                # dx = inverse * (own - tile * mean(own * tile) - mean(own)) of the row
                along, mean_own = sums_of(k - 1)
                scale, mean_of = numbers_of(k - 1)
                slope = along * scale * scale
                offset = slope * mean_of - mean_own * scale
                i = ds(at + (k - 1) * step, 1)
                made = held(grads, k - 1) * gain.astype(np.float32) * scale
                made = made + (offset - held(xs, k - 1) * slope)
                if grad_total is not None:
                    made = made + grad_total[i, j].astype(np.float32)
                put(dx, i, made)
                if k - 1 + slots < count:
                    barrier_arrive(stored.at[place_of(k - 1)])

        every: Any = of_weight if dbias is None else np.concatenate((of_weight, of_bias), 1)
        if teams > 1:
            totals = scratch(SMEM((wgs * room,), np.float32))
            added_up = scratch(Barrier(num_barriers=teams - 1, num_arrivals=wgs))
            part = totals.at[ds(wg * room, room)]
            if team > 0:
                barrier_wait(added_up.at[team - 1])
                every = every + load_tile(part, SPREAD)[None, :]
            if team < teams - 1:
                part[...] = every.reshape(-1)
                barrier_arrive(added_up.at[team])

        if team == teams - 1:
            put(dweight, ds(program, 1), every[:, :width])
            if dbias is not None:
                put(dbias, ds(program, 1), every[:, width:])

    return norm_gradient_in_ring  # type: ignore[no-any-return]


WIDE, TALL = (16, 64), (128, 8)
"""rows and columns of the tiles that are added up along their columns"""
TILE = 4608
"""elements of a tile of sums: all programs load theirs at the same time"""
SHORT = 1024
"""columns up to which rows are few if there are at most four times FEW"""
WIDTH, ROOM = 20, 256
"""of `of_short_rows`: columns of a row that a lane has, at most twice as many if 32 lanes share it;
and rows of a block, if a lane had a whole row"""
CTAS = 2
"""CTAs of short rows that an SM has. Their blocks fill its shared memory, so that no SM gets more
than another. Three would not find enough adjacent registers where CTAs of another launch are still
running (measured on an H200)"""
LIVE = 220
"""most registers of a lane for tiles; with more, others would spill. If tiles take half as many, a
CTA has two warpgroups, because 8 warps do not keep an SM's memory busy (measured on an H200)"""
SMS = 132
"""programs that add up rows, per CTA that an SM has room for"""
FEW = 128
"""most rows, or a quarter of those of short rows, for which one program sums a column: partial sums
need another launch"""
LARGE = 1 << 20
"""elements of a matrix from which a program would take long to sum a column, however few rows"""


def scaling(dropout: float, seed: int) -> dict[str, Any]:
    """Return the scalars of kernels for dropout."""
    return {"dropout": dropout, "scale": 1 / (1 - dropout) if dropout < 1 else 0.0, "seed": seed}


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
    place: Place,
) -> None:
    """Compute the gradient of a norm, in one kernel if a CTA has room for the sums of columns."""
    inputs = given(MATRIX, x=x, grad=grad, statistics=statistics, grad_total=grad_total)
    inputs |= given(COLUMNS, weight=weight)
    results = given(MATRIX, dx=dx, dresidual=dresidual)
    totals = given(MATRIX, dweight=dweight, dbias=dbias)
    names, options = (*inputs, *results, *totals), scaling(dropout, seed)
    n, size, count = x.shape[-1], x.dtype.itemsize, math.prod(x.shape[:-1])
    few = FEW if n > SHORT else 4 * FEW
    many = dweight is not None and (count > few or count * n > LARGE)
    aligned, anywhere = loadable(rows_of(x), rows_of(grad), flat(ROWS, statistics))
    ctas, wgs = shares(n, size, count, len(totals))

    # lanes have two rows, or a longer one; 8 rows of a warp would share their banks if rows were a
    # multiple of 128 bytes
    least = max(4 if n * size % 128 else 8, n / WIDTH)
    lanes = next((lanes for lanes in LANES[::-1] if lanes >= least), 32)
    tile = ROOM // lanes >> (n > 32 * WIDTH)
    # a block begins at a multiple of 16 bytes
    height = tile << (tile * n * size % 16 > 0)
    # longer runs take fewer instructions, but lanes may have columns outside the row; random
    # numbers are drawn for pairs of columns
    runs = (2,) if n * size % 16 or dresidual is not None else (2, 4, 16 // size)
    run = min(runs, key=lambda run: round_up(n, lanes * run) * (1 + 1 / run))
    # rows in a lane's registers: one for each array but two, and the weight
    held = tile * lanes // 128 * (len(names) - 2) + 1
    live = round_up(n, lanes * run) // lanes * held
    block = 2 * size * height * n
    room = block + 2 * size * BOX
    slots = min(PHASES, (SHARED // CTAS - OTHER - 16 * n) // room)
    # a team has slots for four blocks, and many more to compute; pairs of columns are aligned
    many_blocks = min(slots, count // (2 * height * SMS * CTAS)) >= 8
    teams = 1 + (2 * live <= LIVE and many_blocks and n * size % 4 == 0)
    slots //= teams
    # with a run of 2, a block is loaded again after its dx is stored, so it is not requested ahead
    ahead = FLIGHT // (CTAS * teams * block) + (run == 2)
    # a single team with many blocks and runs of 16 bytes keeps all slots: 131,072 x 1024 (bfloat16)
    # had 0.98 of a copy's speed with five, 0.95 with two (on an H200, in different processes)
    if teams == 1 and run * size == 16 and count > slots * height * SMS * CTAS:
        ahead = slots
    ahead = min(slots, max(2, ahead))

    # short rows are stored as parts of a flat array, too
    if many and anywhere and loadable(rows_of(dx))[1] and n <= 64 * WIDTH and slots > 1:
        layout = f"rows {lanes}" + f" {run}" * (run > 2)
        two = Needs(operands=2)
        row = Rows(n, tile, n, ctas=CTAS, whole=n, flat=True, loops=True, needs=two, layout=layout)
        short = of_short_rows(layout, height, slots, ahead, run, live <= LIVE, teams, *names)
        kernel: Kernel | RowKernel = short.scheduled(row)
        programs = teams * min(cdiv(count, height * teams), SMS * CTAS)
    elif many and dresidual is None and ctas <= CLUSTER and (aligned or anywhere):
        kernel = in_ring(statistics.shape[-1] > 1, n, size, anywhere, ctas, wgs, *names)
        inputs |= given(ROWS, statistics=statistics)
        # all rows of a program begin at an even element, or all at an odd one
        even = 1 + n % 2
        programs, options = min(count, PROGRAMS[ctas]) // even * even, {}
    else:
        kernel = of_rows(WIDE if count <= WIDE[0] else TALL, *names)
        programs = (min(count // few, SMS * 64 // n, 4 * SMS) or 1) if totals else 0
        options["parts"] = programs
    if programs < 2:
        launch_over_rows(kernel, inputs, results | totals, place, **options)
        return
    # each row of sums begins at a multiple of 16 bytes, so that lanes load pairs
    height = len(totals) * programs
    every = allocated(x, (height, round_up(n, 4)), place, np.float32)
    parts = strided(every, (height, n), every.strides)
    for number, name in enumerate(totals):
        results[name] = MATRIX, strided(parts, (programs, n), parts.strides, (number * programs, 0))
    launch_over_rows(kernel, inputs, results, place, **options)
    # all lanes have rows of a narrow tile if those are a multiple of 64
    adder = of_parts(n, round_up(programs, 16 if programs < 2 * SMS else 64), *totals)
    launch_over_rows(adder, given(MATRIX, parts=parts), totals, place)
