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
import math
from typing import Any

import numpy as np

from ..core.functions import Function, function
from ..core.static_range import static_range
from ..language.memory.copies import copy_gmem_to_smem, meet
from ..language.memory.phases import next_phase
from ..language.memory.scratch import scratch
from ..language.pipeline.operand_barriers import barrier_wait
from ..language.tiles.elementwise import full, iota
from ..language.tiles.load import load_tile
from ..language.tiles.mathematics import fma
from ..language.tiles.refs import ds
from ..language.tiles.warp_parts import STEP
from ..plan.allocations import SMEM, Barrier
from ..plan.context import axis_index, num_programs, program_id
from . import row_registers
from .row_registers import LOWEST

LOG2E = math.log2(math.e)


def functions(rows: Any) -> dict[str, Function[..., Any]]:
    """Return the functions of a schedule, a `Rows`, by name."""
    n, width, wgs, steps, slots = rows.n, rows.width, rows.wgs, rows.steps, rows.slots
    operands, dtype, ctas = rows.operands, rows.dtype, rows.cluster
    direct = max(0, steps - slots)
    # 16-bit rows of odd length begin at odd addresses every other time: these are read from their
    # second element on, in pairs
    shifts = slots == 0 and n % 2 == 1 and dtype.itemsize == 2
    across = ctas * wgs * width
    held, whole = steps - direct, (n - shifts) // across
    # a warpgroup's columns of the step in which the row ends
    end = -(-(n - whole * across) // (ctas * wgs * STEP)) * STEP
    # the numbers of all lanes, as a row in the registers of the CTA
    lanes = row_registers.functions(
        dataclasses.replace(
            rows, width=STEP, whole=STEP, steps=0, slots=0, loops=True
        )
    )
    sum_of_lanes, largest_of_lanes, number = lanes["sum"], lanes["max"], lanes["number"]
    sums_of_lanes = lanes["sums"]
    softmax_of_lanes, moments_of_lanes = lanes["softmax_of"], lanes["moments_of"]
    shared = row_registers.common(1)
    column = shared["column"]

    @function
    def blocks(x):
        if slots:
            return range(program_id(0) // ctas, x.shape[0], num_programs(0) // ctas)
        return range(program_id(0), program_id(0) + 1)

    @function
    def shift():
        return program_id(0) & 1 if shifts else 0

    @function
    def columns(step):
        """The columns of a step that are all inside the row."""
        start = (step * ctas * wgs + number()) * width + shift()
        return ds(start, width, most=max(whole, 1) * across - width + shifts)

    @function
    def last():
        """The columns of the step in which the row ends."""
        start = whole * across
        most = start + (ctas * wgs - 1) * end + shifts
        return ds(start + number() * end + shift(), end, most=most)

    @function
    def leads():
        """Whether this warpgroup has the element before the first step."""
        return shifts and axis_index("wg") == 0 and shift() == 1

    @function
    def ring():
        return scratch(
            (
                SMEM((wgs * slots * operands * width,), dtype),
                Barrier(num_arrivals=operands, num_barriers=wgs * slots),
            )
        )

    @function
    def place(at, which):
        """The slot of the chunk number `at` of this warpgroup, and where it begins."""
        slot = axis_index("wg") * slots + at % slots
        return slot, (slot * operands + which) * width

    @function
    def fetch(at, x, which):
        """Load a chunk, unless this program has no such row."""
        buffer, landed = ring()
        turn = at // held
        k = (program_id(0) + turn * num_programs(0)) // ctas
        if k < x.shape[0]:
            slot, first = place(at, which)
            step = direct + at - turn * held
            if step < whole:
                view = x.at[k, columns(step)]
                copy_gmem_to_smem(view, buffer.at[ds(first, width)], landed.at[slot])
            elif whole < steps:
                copy_gmem_to_smem(x.at[k, last()], buffer.at[ds(first, end)], landed.at[slot])

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
        at = k * ctas // num_programs(0) * held + j.start // across - direct
        slot, first = place(at, which)
        # the first value of the chunk waits for it
        if next_phase(landed.at[slot]) & 1 == at // slots & 1:
            barrier_wait(landed.at[slot])
        return load_tile(buffer.at[ds(first, j.size)], "row 128")[None, :]

    @function
    def chunk(k, x, j, which):
        """A chunk of row k as float32."""
        if held == 0:
            tile = x[ds(k, 1), j]
        elif direct == 0:
            tile = in_ring(k, j, which)
        elif j.start < direct * across:
            tile = x[ds(k, 1), j]
        else:
            tile = in_ring(k, j, which)
        return tile.astype(np.float32)

    @function
    def store_chunk(k, j, to, x, f, y, g, z, h):
        """Store values of columns j to the columns `to`, the same or the first of them."""
        x[ds(k, 1), to] = f(j)
        if y is not None:
            y[ds(k, 1), to] = g(j)
        if z is not None:
            z[ds(k, 1), to] = h(j)

    @function
    def load(k, x, y=None, z=None):
        first = k * ctas // num_programs(0) * held
        if slots and k == program_id(0) // ctas:
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
        if leads():
            store_chunk(k, ds(0, STEP), ds(0, STEP, stop=1), x, f, y, g, z, h)
        for turn in range(whole):
            # without a ring in reverse: the last chunks that were read are still in L2
            step = turn if slots else whole - 1 - turn
            store_chunk(k, columns(step), columns(step), x, f, y, g, z, h)
            refill(step)
        if whole < steps:
            store_chunk(k, last(), last(), x, f, y, g, z, h)
            refill(whole)

    @function
    def kept(tile, j, other):
        """The tile, with `other` from column n on."""
        return np.where(column(j) < n, tile, other)

    @function
    def each_lane(value):
        return full((1, STEP), value, np.float32)

    @function
    def lead(f, other):
        """The element before the first step, and `other` in its place where there is none."""
        value = each_lane(other)
        if leads():
            value = np.where(column(ds(0, STEP)) < 1, f(ds(0, STEP)), other)
        return value

    def lane_steps(size: int, inside: bool) -> Any:
        """Return the functions that add a chunk of `size` columns, all `inside` the row or not, to
        the numbers of lanes."""

        @function
        def added(tile, j, totals):
            if not inside:
                tile = kept(tile, j, 0.0)
            for c in static_range(0, size, STEP):
                totals = totals + tile[:, c : c + STEP]
            return totals

        @function
        def both(tiles, j, totals):
            (one, other), (first, second) = tiles, totals
            return added(one, j, first), added(other, j, second)

        @function
        def higher(tile, j, tops):
            if not inside:
                tile = kept(tile, j, -np.inf)
            for c in static_range(0, size, STEP):
                tops = np.maximum(tops, tile[:, c : c + STEP])
            return tops

        @function
        def online(tile, j, numbers):
            """Add to maxima and to sums of exp(tile - maximum)."""
            tops, totals = numbers
            if not inside:
                tile = kept(tile, j, -np.inf)
            highest = tops
            for c in static_range(0, size, STEP):
                highest = np.maximum(highest, tile[:, c : c + STEP])
            totals = totals * np.exp(tops - highest)
            for c in static_range(0, size, STEP):
                totals = totals + np.exp(tile[:, c : c + STEP] - highest)
            return highest, totals

        @function
        def spread(tile, j, numbers):
            """Add to the sums of (tile - near) and of its squares."""
            near, totals, squares = numbers
            for c in static_range(0, size, STEP):
                off = tile[:, c : c + STEP] - near
                if not inside:
                    off = np.where(iota((1, STEP), 1) + (j.start + c) < n, off, 0.0)
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
    def sum_of(f):
        totals = fold(f, added, added_last, lead(f, 0.0))
        return sum_of_lanes(lambda j: totals)

    @function
    def sums(f, g):
        def pair(j):
            return f(j), g(j)

        first, second = fold(pair, both, both_last, (lead(f, 0.0), lead(g, 0.0)))
        return sums_of_lanes(lambda j: first, lambda j: second)

    @function
    def largest(f):
        tops = fold(f, higher, higher_last, lead(f, -np.inf))
        return largest_of_lanes(lambda j: tops)

    @function
    def softmax(f, off=0.0):
        element = lead(f, -np.inf)
        first = np.maximum(element, LOWEST)
        tops, totals = fold(f, online, online_last, (first, np.exp(element - first)))
        top, total = softmax_of_lanes(tops, totals)
        power = -np.log2(total)

        def p(j):
            return np.exp2(fma(f(j) - top, LOG2E, power))

        return p, top - off + np.log(total)

    @function
    def moments(f):
        # differences from a mean of some of the lane's own elements lose few digits
        if whole > 0:
            near = added(f(columns(0)), columns(0), each_lane(0.0)) * (STEP / width)
        else:
            near = added_last(f(last()), last(), each_lane(0.0)) * (STEP / end)
        has = np.where(column(ds(0, STEP)) < leads(), 1.0, 0.0)
        off = (lead(f, 0.0) - near) * has
        _, totals, squares = fold(f, spread, spread_last, (near, off, off * off))
        counts = has + whole * (width / STEP)
        if whole < steps:
            counts = added_last(full((1, end), 1.0, np.float32), last(), counts)
        inverse = 1.0 / np.maximum(counts, 1.0)
        inner = np.maximum(squares - totals * totals * inverse, 0.0)
        return moments_of_lanes(near + totals * inverse, inner, counts)

    @function
    def put(k, v, values):
        if number() == 0:
            v[ds(k, 1)] = values.reshape(-1)

    return shared | {
        "put": put,
        "blocks": blocks,
        "load": load,
        "store": store,
        "sum": sum_of,
        "sums": sums,
        "max": largest,
        "moments": moments,
        "softmax": softmax,
    }
