"""The functions of `Rows` for longer rows, of which a CTA computes one at a time, in steps.

Each warpgroup has chunks of a row in a ring of slots in shared memory, where every pass over the
row finds them. When the result of a chunk has been stored, TMA refills its slot with a chunk of a
next row. The first chunks of rows that do not fit, and all chunks without a ring, are read from the
array in each pass: later passes find them in L2.
"""

# tiles in kernels have no types
# mypy: disable-error-code="no-untyped-def, attr-defined, operator, arg-type, call-overload, index"

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from ..core.functions import Function, function
from ..core.static_range import static_range
from ..language.memory.copies import copy_gmem_to_smem, meet
from ..language.memory.phases import next_phase
from ..language.memory.scratch import scratch
from ..language.pipeline.operand_barriers import barrier_wait
from ..language.tiles.elementwise import full
from ..language.tiles.load import load_tile
from ..language.tiles.refs import ds
from ..language.tiles.warp_parts import STEP
from ..plan.allocations import SMEM, Barrier
from ..plan.context import axis_index, num_programs, program_id
from . import row_registers
from .row_registers import LOWEST

LINE = 128
"""bytes of which each tile in shared memory is a multiple"""


def functions(rows: Any) -> dict[str, Function[..., Any]]:
    """Return the functions of a schedule, a `Rows`, by name."""
    n, width, wgs, steps, slots = rows.n, rows.width, rows.wgs, rows.steps, rows.slots
    operands, dtype = rows.operands, rows.dtype
    direct = max(0, steps - slots)
    # pairs of columns are aligned in memory if each second row begins one column before its first
    shifts = rows.flat and n % 2
    held, across, whole = steps - direct, wgs * width, n // (wgs * width)
    # a warpgroup's columns of the step in which the row ends
    end = -(-(n + shifts - whole * across) // (wgs * STEP)) * STEP
    # a chunk that begins anywhere is copied from a multiple of 16 bytes on, and 16 bytes more
    unit = 16 // dtype.itemsize
    room, least = (size + rows.flat * LINE // dtype.itemsize for size in (width, end))
    # if a slot has the same step of each row, the last one may be small
    region = (slots - 1) * room + (least if slots == steps and whole < steps else room)
    # the numbers of all lanes, as a row in the registers of the CTA
    lanes = row_registers.functions(
        dataclasses.replace(
            rows, n=STEP * wgs, width=STEP, whole=STEP, steps=0, slots=0, loops=True
        )
    )
    sum_of_lanes, largest_of_lanes = lanes["sum"], lanes["max"]
    shared = row_registers.common(1)
    column = shared["column"]

    @function
    def programs():
        """The distance between the rows of a program. If rows shift, it is even: all rows of a
        program shift, or none."""
        return num_programs(0) // 2 * 2 if shifts else num_programs(0)

    @function
    def blocks(x):
        if slots:
            first = program_id(0) if program_id(0) < programs() else x.shape[0]
            return range(first, x.shape[0], programs())
        return range(program_id(0), program_id(0) + 1)

    @function
    def shift():
        return program_id(0) % 2 if shifts else 0

    @function
    def columns(step):
        """The columns of a step that are all inside the row."""
        start = (step * wgs + axis_index("wg")) * width - shift()
        return ds(start, width, most=(max(whole, 1) * wgs - 1) * width, least=-shifts)

    @function
    def last():
        """The columns of the step in which the row ends."""
        start = whole * across
        most = start + (wgs - 1) * end
        return ds(start - shift() + axis_index("wg") * end, end, most=most, least=-shifts)

    @function
    def ring():
        return scratch(
            (
                SMEM((wgs * operands * region,), dtype),
                Barrier(num_arrivals=operands * (1 + rows.flat), num_barriers=wgs * slots),
            )
        )

    @function
    def place(at, which):
        """The slot of the chunk number `at` of this warpgroup, and where it begins."""
        wg, slot = axis_index("wg"), at % slots
        return wg * slots + slot, (wg * operands + which) * region + slot * room

    @function
    def copy(x, k, j, first, barrier):
        buffer, _ = ring()
        if rows.flat:
            begin = (k * n + j.start) // unit * unit
            view = x.flat.at[ds(begin, j.size)]
            more = x.flat.at[ds(begin + j.size, unit)]
            copy_gmem_to_smem(more, buffer.at[ds(first + j.size, unit)], barrier)
        else:
            view = x.at[k, j]
        copy_gmem_to_smem(view, buffer.at[ds(first, j.size)], barrier)

    @function
    def fetch(at, x, which):
        """Load a chunk, unless this program has no such row."""
        _, landed = ring()
        number = at // held
        k = program_id(0) + number * programs()
        if k < x.shape[0]:
            slot, first = place(at, which)
            step = direct + at - number * held
            if step < whole:
                copy(x, k, columns(step), first, landed.at[slot])
            elif whole < steps:
                copy(x, k, last(), first, landed.at[slot])

    @function
    def fetch_all(at, x, y, z):
        fetch(at, x, 0)
        if y is not None:
            fetch(at, y, 1)
        if z is not None:
            fetch(at, z, 2)

    @function
    def in_ring(k, j, which):
        buffer, landed = ring()
        at = k // programs() * held + (j.start + shifts) // across - direct
        slot, first = place(at, which)
        # the first value of the chunk waits for it
        if next_phase(landed.at[slot]) & 1 == at // slots & 1:
            barrier_wait(landed.at[slot])
        if rows.flat:
            first = first + (k * n + j.start) % unit
        return load_tile(buffer.at[ds(first, j.size)], "row 128")[None, :]

    @function
    def chunk(k, x, j, which):
        """A chunk of row k as float32."""
        if held == 0:
            tile = x[ds(k, 1), j]
        elif direct == 0:
            tile = in_ring(k, j, which)
        elif j.start + shifts < direct * across:
            tile = x[ds(k, 1), j]
        else:
            tile = in_ring(k, j, which)
        return tile.astype(np.float32)

    @function
    def store_chunk(k, j, x, f, y, g, z, h):
        x[ds(k, 1), j] = f(j)
        if y is not None:
            y[ds(k, 1), j] = g(j)
        if z is not None:
            z[ds(k, 1), j] = h(j)

    @function
    def load(k, x, y=None, z=None):
        first = k // programs() * held
        if slots and k == program_id(0):
            for at in range(slots):
                fetch_all(at, x, y, z)

        def one(j):
            return chunk(k, x, j, 0)

        def refill(step):
            """Load what comes next to the slot of a chunk."""
            if slots and step >= direct:
                meet()
                fetch_all(first + step - direct + slots, x, y, z)

        if y is not None:

            def two(j):
                return chunk(k, y, j, 1)

            if z is not None:

                def three(j):
                    return chunk(k, z, j, 2)

                return one, two, three, (k, refill)
            return one, two, (k, refill)
        return one, (k, refill)

    @function
    def store(block, x, f, y=None, g=None, z=None, h=None):
        k, refill = block
        for number in range(whole):
            # without a ring in reverse: the last chunks that were read are still in L2
            step = number if slots else whole - 1 - number
            store_chunk(k, columns(step), x, f, y, g, z, h)
            refill(step)
        if whole < steps:
            store_chunk(k, last(), x, f, y, g, z, h)
            refill(whole)

    @function
    def kept(tile, j, other):
        """The tile, with `other` outside the row."""
        return np.where((column(j) >= 0) & (column(j) < n), tile, other)

    @function
    def each_lane(number):
        return full((1, STEP), number, np.float32)

    def lane_steps(size: int, inside: bool) -> Any:
        """Return the functions that add a chunk of `size` columns, all `inside` the row or not, to
        the numbers of lanes."""

        @function
        def part(tile, j, c, other):
            """Columns c … c + STEP of a tile, with `other` outside the row."""
            tile = tile[:, c : c + STEP]
            return tile if inside and c >= shifts else kept(tile, ds(j.start + c, STEP), other)

        @function
        def added(tile, j, totals):
            for c in static_range(0, size, STEP):
                totals = totals + part(tile, j, c, 0.0)
            return totals

        @function
        def both(tiles, j, totals):
            (one, other), (first, second) = tiles, totals
            return added(one, j, first), added(other, j, second)

        @function
        def higher(tile, j, tops):
            for c in static_range(0, size, STEP):
                tops = np.maximum(tops, part(tile, j, c, -np.inf))
            return tops

        @function
        def online(tile, j, numbers):
            """Add to maxima and to sums of exp(tile - maximum)."""
            tops, totals = numbers
            highest = higher(tile, j, tops)
            totals = totals * np.exp(tops - highest)
            for c in static_range(0, size, STEP):
                totals = totals + np.exp(part(tile, j, c, -np.inf) - highest)
            return highest, totals

        @function
        def spread(tile, j, numbers):
            """Add to the sums of (tile - near) and of its squares."""
            near, totals, squares = numbers
            for c in static_range(0, size, STEP):
                off = tile[:, c : c + STEP] - near
                if not inside or c < shifts:
                    off = kept(off, ds(j.start + c, STEP), 0.0)
                totals, squares = totals + off, squares + off * off
            return near, totals, squares

        return added, both, higher, online, spread

    added, both, higher, online, spread = lane_steps(width, True)
    added_last, both_last, higher_last, online_last, spread_last = lane_steps(end, False)

    @function
    def fold(f, add, add_last, numbers):
        """Add a value's chunks to the numbers of lanes."""
        for step in range(whole):
            numbers = add(f(columns(step)), columns(step), numbers)
        if whole < steps:
            numbers = add_last(f(last()), last(), numbers)
        return numbers

    @function
    def total_of(totals):
        return sum_of_lanes(lambda j: totals)

    @function
    def sum_of(f):
        return total_of(fold(f, added, added_last, each_lane(0.0)))

    @function
    def sums(f, g):
        def pair(j):
            return f(j), g(j)

        first, second = fold(pair, both, both_last, (each_lane(0.0), each_lane(0.0)))
        return total_of(first), total_of(second)

    @function
    def largest(f):
        tops = fold(f, higher, higher_last, each_lane(-np.inf))
        return largest_of_lanes(lambda j: tops)

    @function
    def softmax(f):
        tops, totals = fold(f, online, online_last, (each_lane(LOWEST), each_lane(0.0)))
        top = largest_of_lanes(lambda j: tops)
        total = total_of(totals * np.exp(tops - top))
        scale = 1.0 / total

        def p(j):
            return np.exp(f(j) - top) * scale

        return p, top + np.log(total)

    @function
    def moments(f):
        # differences from a mean of some of the lane's own elements lose few digits
        if whole > 0:
            near = added(f(columns(0)), columns(0), each_lane(0.0)) * (STEP / width)
        else:
            near = added_last(f(last()), last(), each_lane(0.0)) * (STEP / end)
        _, totals, squares = fold(f, spread, spread_last, (near, each_lane(0.0), each_lane(0.0)))
        ones = lambda j: full((1, j.size), 1.0, np.float32)
        counts = fold(ones, added, added_last, each_lane(0.0))
        inverse = 1.0 / np.maximum(counts, 1.0)
        mean = total_of(near * counts + totals) / n
        off = near + totals * inverse - mean
        inner = np.maximum(squares - totals * totals * inverse, 0.0)
        return mean, total_of(inner + counts * off * off) / n

    return shared | {
        "blocks": blocks,
        "load": load,
        "store": store,
        "sum": sum_of,
        "sums": sums,
        "max": largest,
        "moments": moments,
        "softmax": softmax,
    }
