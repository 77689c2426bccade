"""The functions of `Rows` for longer rows, which a CTA, or a cluster of them, computes in steps.

Each warpgroup has chunks of a row in shared memory, where every pass over the row finds them; each
SM has room for several CTAs, whose loads, passes and stores overlap. The first chunks of rows that
do not fit, and all chunks of rows that TMA cannot load, are read from the array in each pass: later
passes find them in L2.
"""

# tiles in kernels have no types
# mypy: disable-error-code="no-untyped-def, attr-defined, operator, arg-type, call-overload, index"

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from ..arch.dimensions import round_up
from ..core.arith import cdiv
from ..core.functions import Function, function
from ..core.static_range import static_range
from ..language.memory.copies import copy_gmem_to_smem
from ..language.memory.phases import next_phase
from ..language.memory.scratch import scratch
from ..language.pipeline.operand_barriers import barrier_wait
from ..language.tiles.elementwise import full
from ..language.tiles.load import load_tile
from ..language.tiles.refs import ds
from ..language.tiles.warp_parts import STEP
from ..plan.allocations import SMEM, Barrier
from ..plan.context import axis_index
from . import row_registers
from .row_registers import LARGEST

LOWEST = -LARGEST
"""lower bound of the maximum of a lane's elements: if all are -inf, exp(-inf - LOWEST) is 0 rather
than NaN"""


def functions(rows: Any) -> dict[str, Function]:
    """Return the functions of a schedule, a `Rows`, by name."""
    n, width, wgs, steps, slots = rows.n, rows.width, rows.wgs, rows.steps, rows.slots
    operands, dtype, ctas = rows.needs.operands, rows.dtype, rows.cluster
    direct = max(steps - slots, 0)
    shifts, across = rows.shifts, ctas * wgs * width
    whole = n // across
    # a warpgroup's columns of the step in which the row ends
    end = round_up(cdiv(n + shifts - whole * across, ctas * wgs), STEP)
    # the last chunk may be small
    region = (slots - 1) * width + (end if whole < steps >= slots else width)
    # the numbers of all lanes, as a row in the registers of the CTAs
    lanes = row_registers.functions(dataclasses.replace(rows, width=STEP, whole=STEP))
    sum_of_lanes, sums_of_lanes, largest_of_lanes, mean_of_lanes, number, shift, column = (
        lanes[name] for name in ("sum", "sums", "max", "mean", "number", "shift", "column")
    )
    exp, log, normal, raised, first_of, both_reduced, put_again = (
        lanes[name]
        for name in ("exp", "log", "normal", "higher_at", "first_of", "both_reduced", "put_again")
    )

    @function
    def columns(step):
        """The columns of a step that are all inside the row."""
        start = (step * ctas * wgs + number()) * width - shift()
        return ds(start, width, most=max(whole, 1) * across - width, least=-shifts)

    @function
    def last():
        """The columns of the step in which the row ends."""
        start = whole * across
        most = start + (ctas * wgs - 1) * end
        return ds(start - shift() + number() * end, end, most=most, least=-shifts)

    @function
    def memory():
        return scratch(
            (
                SMEM((wgs * operands * region,), dtype),
                Barrier(num_arrivals=operands, num_barriers=wgs * slots),
            )
        )

    @function
    def place(step, which):
        """The slot of this warpgroup's chunk of a step, and where it begins."""
        wg, slot = axis_index("wg"), step - direct
        return wg * slots + slot, (wg * operands + which) * region + slot * width

    @function
    def copy(x, k, j, step, which):
        buffer, landed = memory()
        slot, first = place(step, which)
        view = x.flat.at[ds(k * n + j.start, j.size)] if rows.flat else x.at[k, j]
        copy_gmem_to_smem(view, buffer.at[ds(first, j.size)], landed.at[slot])

    @function
    def fetch(x, k, which):
        """Load all chunks of row k that have a slot."""
        if slots:
            for step in range(direct, whole):
                copy(x, k, columns(step), step, which)
            if whole < steps:
                copy(x, k, last(), whole, which)

    @function
    def landed_chunk(j, which):
        buffer, landed = memory()
        # the chunks of the last step may be wider
        slot, first = place(min((j.start + shifts) // across, steps - 1), which)
        # the first value of the chunk waits for it
        if next_phase(landed.at[slot]) == 0:
            barrier_wait(landed.at[slot])
        return load_tile(buffer.at[ds(first, j.size)], "row 128")[None, :]

    @function
    def value(k, x, which, dtype):
        def of(j):
            if slots == 0 or (direct > 0 and j.start + shifts < direct * across):
                tile = x[ds(k, 1), j]
            else:
                tile = landed_chunk(j, which)
            return tile.astype(dtype)

        return of

    @function
    def store_chunk(k, j, x, f, y, g):
        # both before a store, so that what the values share is computed once
        first = f(j)
        if y is not None:
            second = g(j)
        x[ds(k, 1), j] = first
        if y is not None:
            y[ds(k, 1), j] = second

    @function
    def store(k, x, f, y=None, g=None):
        for step in range(whole):
            store_chunk(k, columns(step), x, f, y, g)
        if whole < steps:
            store_chunk(k, last(), x, f, y, g)

    @function
    def replace(k, x, own, values):
        at, inside = own + shift(), whole * across
        owner = np.where(at < inside, at // width % (ctas * wgs), (at - inside) // end)
        put_again(k, x, own, values, owner)

    @function
    def each_lane(value, size=STEP):
        return full((1, size), value, np.float32)

    @function
    def by_part(tile, j, inside, how, numbers):
        """Add a chunk to the numbers of lanes, STEP columns at a time. `how` is (add, other):
        ``add(part, start, numbers)`` adds a part, and columns outside the row are `other`, unless
        the chunk is `inside` it."""
        add, other = how
        for c in static_range(0, width if inside else end, STEP):
            part = tile[:, c : c + STEP]
            if not inside or c < shifts:
                at = column(ds(j.start + c, STEP))
                part = np.where((at >= 0) & (at < n), part, other)
            numbers = add(part, j.start + c, numbers)
        return numbers

    @function
    def plus(part, start, totals):
        return totals + part

    @function
    def higher(part, start, tops):
        return np.maximum(tops, part)

    @function
    def spread(part, start, numbers):
        """Add to the sums of (part - near) and of its squares."""
        near, totals, squares = numbers
        off = part - near
        return near, totals + off, squares + off * off

    @function
    def both(tiles, j, inside, how, totals):
        (one, other), (first, second) = tiles, totals
        return by_part(one, j, inside, how, first), by_part(other, j, inside, how, second)

    @function
    def online(tile, j, inside, how, numbers):
        """Add to maxima and to sums of exp(tile - maximum)."""
        tops, totals = numbers
        highest = by_part(tile, j, inside, how, tops)

        def add(part, start, totals):
            return totals + exp(part - highest)

        totals = totals * exp(tops - highest)
        return highest, by_part(tile, j, inside, (add, -np.inf), totals)

    @function
    def fold(f, add_chunk, how, numbers):
        """Add a value's chunks to the numbers of lanes, by `by_part`, `both` or `online`."""
        for step in range(whole):
            numbers = add_chunk(f(columns(step)), columns(step), True, how, numbers)
        if whole < steps:
            numbers = add_chunk(f(last()), last(), False, how, numbers)
        return numbers

    @function
    def chunk_added(tile, j, inside, how, totals):
        """Add the sum of a chunk: its error is less than that of adding parts one by one."""
        return totals + by_part(tile, j, inside, how, each_lane(0.0))

    @function
    def sum_of(f):
        totals = fold(f, chunk_added, (plus, 0.0), each_lane(0.0))
        return sum_of_lanes(lambda j: totals)

    @function
    def sums(f, g):
        zeros = each_lane(0.0), each_lane(0.0)
        first, second = fold(lambda j: (f(j), g(j)), both, (plus, 0.0), zeros)
        return sums_of_lanes(lambda j: first, lambda j: second)

    @function
    def largest(f, dtype="float32"):
        tops = fold(f, by_part, (higher, -np.inf), full((1, STEP), -np.inf, dtype))
        return largest_of_lanes(lambda j: tops, dtype)

    @function
    def argmax(f, dtype="float32"):
        maxima = full((1, STEP), -np.inf, dtype), full((1, STEP), 0, np.int32)
        tops, starts = fold(f, by_part, (raised, -np.inf), maxima)
        return first_of(tops, starts + column(ds(0, STEP)))

    @function
    def together(tops, totals):
        """The maximum of each row, and the sum of exp(element - maximum)."""
        top = tops.max(axis=1)
        return top, (totals * exp(tops - top[:, None])).sum(axis=1)

    @function
    def softmax(f, off=0.0):
        wide = lambda j: f(j).astype(np.float32)
        tops, totals = fold(wide, online, (higher, -np.inf), (each_lane(LOWEST), each_lane(0.0)))
        top, total = both_reduced(tops, totals, together)

        return lambda j: normal(exp(wide(j) - top), total), top - off + log(total)

    @function
    def moments(f):
        # differences from a mean of some of the lane's own elements lose few digits
        zero = each_lane(0.0)
        j = columns(0) if whole > 0 else last()
        near = by_part(f(j), j, whole > 0, (plus, 0.0), zero)
        near = near * (STEP / (width if whole > 0 else end))
        _, totals, squares = fold(f, by_part, (spread, near), (near, zero, zero))
        ones = lambda j: each_lane(1.0, j.size)
        counts = fold(ones, by_part, (plus, 0.0), zero)
        inverse = 1.0 / np.maximum(counts, 1.0)
        # of infinite squares, inf - inf would be NaN
        inner = np.maximum(squares - np.minimum(totals * totals * inverse, LARGEST), 0.0)
        own = near + totals * inverse
        average = mean_of_lanes(lambda j: own * counts)
        off = own - average
        return average, mean_of_lanes(lambda j: inner + counts * off * off)

    return (
        lanes
        | row_registers.averages(n, sum_of)
        | {
            "load": row_registers.loads(fetch, value, n, operands),
            "store": row_registers.checked(store, n),
            "replace": replace,
            "sum": sum_of,
            "sums": sums,
            "max": largest,
            "argmax": argmax,
            "moments": moments,
            "softmax": softmax,
        }
    )
