"""The functions of `Rows` for rows in registers, read once."""

# tiles in kernels have no types
# mypy: disable-error-code="no-untyped-def, attr-defined, operator, arg-type, call-overload, index"

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..arch.dimensions import round_up
from ..core.arith import cdiv
from ..core.functions import Function, function
from ..core.static_range import static_range
from ..language.memory.copies import commit_smem, copy_gmem_to_smem, meet
from ..language.memory.phases import next_phase
from ..language.memory.remote import async_store_smem
from ..language.memory.scratch import scratch
from ..language.pipeline.operand_barriers import barrier_arrive, barrier_wait
from ..language.tiles.conversions import layout_cast
from ..language.tiles.elementwise import full, iota
from ..language.tiles.indices import index
from ..language.tiles.layout_names import ROW, ROWS
from ..language.tiles.load import load_tile
from ..language.tiles.mathematics import differ, fma
from ..language.tiles.random_numbers import philox_2x32
from ..language.tiles.refs import ds
from ..language.tiles.tile import bitcast
from ..language.tiles.warp_parts import GROUP, PARTS, STEP, split_row, with_rows
from ..plan.allocations import SMEM, Barrier
from ..plan.context import axis_index, num_programs, program_id

LOG2E = float(np.float32(math.log2(math.e)))
ONE = 1.5 * 2**23 + 127
"""a float32 number whose lowest bits are the exponent of 1.0"""
BOX = 256
"""elements that TMA copies at once"""
LARGEST = float(np.finfo(np.float32).max)
CLUSTER = "cluster"
"""axis of the CTAs that share a row"""


def averages(n: int, sum_of: Function) -> dict[str, Function]:
    """Return the functions that add up rows and divide by n."""
    n = max(n, 1)  # rows without columns may have scales
    inverse = float(np.float32(1 / n))

    @function
    def mean(f):
        total = sum_of(f)
        # total / n, rounded once; of an infinite total, inf - inf would be NaN
        return fma(total, inverse, np.clip(total, -LARGEST, LARGEST) * (1 / n - inverse))

    @function
    def moments(f):
        average = mean(f)

        def square(j):
            off = f(j) - average
            return off * off

        return average, mean(square)

    return {"mean": mean, "moments": moments}


def checked(called: Function, n: int, operands: int = 0) -> Function:
    """Refuse calls with arrays of other than n columns, second calls of functions of blocks, and
    loads of other than `operands` matrices."""
    name = f"row.{called.__name__}"

    def refusal(known: Any, again: bool) -> str:
        given = 1 + (known.get("y", 0) is not None)
        for array in known.values():
            columns = (n, *getattr(array, "sizes", ()))[-1]
            if columns != n:
                return f"{name} of an array of {columns} columns in a kernel over rows of {n}"
        if again and name != "row.vector":
            return f"a second {name} finds its memory in use; fix: pass it both matrices at once"
        if operands and operands != given:
            return (
                f"{name} loads {given}, not {operands}; fix: pass operands={given} to numpipe.rows"
            )
        return ""

    called.refusal = refusal
    return called


def loads(fetch: Function, value: Function, n: int, operands: int) -> Function:
    """Return the function that loads rows of one or two matrices as values."""

    @function
    def load(k, x, y=None, dtype="float32"):
        fetch(x, k, 0)
        if y is not None:
            assert x.shape[0] == y.shape[0], "row.load loads matrices of equally many rows"
            fetch(y, k, 1)
            return value(k, x, 0, dtype), value(k, y, 1, dtype), k
        return value(k, x, 0, dtype), k

    return checked(load, n, operands)


def functions(rows: Any) -> dict[str, Function]:
    """Return the functions of a schedule, a `Rows`, by name."""
    n, height, width, wgs, ctas = rows.n, rows.height, rows.width, rows.wgs, rows.cluster
    shared, whole, loops, parts = height == 1, rows.whole, rows.loops, PARTS * wgs * ctas
    flat, span, operands, dtype = rows.flat, height * n, rows.needs.operands, rows.dtype
    lanes, along = rows.lanes, rows.lanes.replace(ROWS, ROW)
    # short rows come in blocks; of a long row, lanes load the next one while they compute
    blocked, ahead, slots = loops and not shared, loops and shared, max(rows.slots, 1)
    step = 2 * STEP if ahead else STEP
    shifts = 0 if rows.steps else rows.shifts
    # where TMA copies to: two blocks of rows, or each warpgroup's part of a row
    copies, room = (2, round_up(span, BOX)) if blocked else (slots * wgs, width)
    boxes, ends = (span // BOX * BOX, span % BOX) if blocked else (width, 0)
    ends = round_up(ends, 16 // dtype.itemsize)
    precise, low = dtype.itemsize == 4, math.log2(math.e) - LOG2E

    @function
    def exp(x):
        """exp(x) of numbers of at most 0, within 1 ulp of float32 rows."""
        if not precise:
            return np.exp(x)
        # 2^whole, whose bits are known, times 2^rest, whose small exponent is exact
        whole = np.maximum(fma(x, LOG2E, ONE), ONE - 126)
        rest = fma(x, low, fma(x, LOG2E, ONE - whole))
        return np.exp2(rest) * bitcast(bitcast(whole, np.uint32) << 23, np.float32)

    @function
    def log(x):
        """log(x) of numbers of at least 1."""
        made = np.log(x)
        return made + fma(x, exp(-made), -1.0) if precise else made

    @function
    def term(x):
        """exp(x) of an element of a row. Errors of many terms cancel out in their sum."""
        return np.exp(x) if rows.needs.brief else exp(x)

    @function
    def normal(e, total):
        """The quotient of a tile and its sum."""
        inverse = 1.0 / total
        if not precise:
            return e * inverse
        return fma(e, inverse, e * (fma(-total, inverse, 1.0) * inverse))

    @function
    def shift():
        """How many elements are before this program's row in its first line of memory."""
        return program_id(0) // ctas * n % (rows.shifts + 1) if rows.shifts else 0

    @function
    def filled(size, value, dtype):
        """A tile (1, size) in the layout of rows."""
        tile = full((1, size), value, dtype)
        return with_rows(tile, 1, lanes) if ahead else tile

    @function
    def column(j):
        own = iota(filled(j.size, 0, np.int32), 1)
        return (layout_cast(own, lanes) if lanes and height > 1 else own) + j.start

    @function
    def random(k, j, seed):
        # a lane draws once for both columns of a pair, whose first column is even; parts of flat
        # arrays may begin with an odd one
        place = column(j) - (j.start & ~1)
        pair = (place >> 1) + (j.start >> 1)
        down = iota((height, 1), 0) + np.int32(k * height)
        key = (place * 0 + seed).astype(np.uint32)
        even, odd = philox_2x32(key, (pair.astype(np.uint32), down.astype(np.uint32)))
        bits = np.where((place & 1) == 0, even, odd)
        return (bits >> 8).astype(np.float32) * 2.0**-24

    @function
    def get(k, v):
        return v[ds(k * height, height)][:, None]

    @function
    def programs():
        return num_programs(0) // ctas

    @function
    def blocks(x):
        first = program_id(0) // ctas
        if loops:
            return range(first, cdiv(x.shape[0], height), programs())
        return range(first, first + 1)

    @function
    def columns():
        # the mask tells the compiler the range of the number
        own = axis_index("wg") & (wgs - 1) if wgs > 1 else 0
        start = (axis_index(CLUSTER) * wgs + own) * width - (shift() if shifts else 0)
        return ds(start, width, most=(ctas * wgs - 1) * width, least=-shifts)

    @function
    def place(which, after):
        """Where a block of a matrix is in shared memory, and its barrier: the block that this
        program waits for next, or with `after` 1 the other one; or this warpgroup's part of the row
        `after` this program's first."""
        # two blocks of rows, or parts of rows, of each matrix
        rows, landed = scratch(
            (
                SMEM((copies * operands * room,), dtype),
                Barrier(num_arrivals=operands * (1 + (ends > 0)), num_barriers=copies),
            )
        )
        if blocked:
            of = (next_phase(landed.at[0]) + next_phase(landed.at[1]) + after) & 1
        else:
            of = after % slots * wgs + axis_index("wg")
        return rows.at[ds((of * operands + which) * room, room)], landed.at[of]

    @function
    def copy(x, k, which, after):
        to, landed = place(which, after)
        start = k * span + columns().start
        view = x.flat.at[ds(start, boxes)] if flat else x.at[k, columns()]
        copy_gmem_to_smem(view, to.at[ds(0, boxes)], landed)
        if ends:  # no rows of other blocks, whose results may take their place
            copy_gmem_to_smem(x.flat.at[ds(start + boxes, ends)], to.at[ds(boxes, ends)], landed)

    @function
    def request(x, k, after):
        """Load a later row of this program."""
        if k < x.shape[0]:
            copy(x, k, 0, after)

    @function
    def fetch(x, k, which):
        if ahead:
            if k < programs():
                for after in range(slots):
                    request(x, k + after * programs(), after)
        elif flat and not loops:
            copy(x, k, which, 0)
        elif flat:
            following = k + num_programs(0)
            if k < num_programs(0):
                copy(x, k, which, 0)
            if which == 0:
                # all warps have read the block before this one, and its results
                commit_smem()
            if following < cdiv(x.shape[0], height):
                copy(x, following, which, 1)

    @function
    def value(k, x, which, dtype):
        if flat or ahead:
            # the second matrix has arrived with the first
            after = k // programs() if ahead else which
            rows, landed = place(which, after)
            if which == 0:
                barrier_wait(landed)
            tile = load_tile(rows.at[ds(0, height * width)], lanes, columns=width)
            if ahead:
                # all warps have read the row
                meet()
                request(x, k + slots * programs(), after)
        elif lanes:
            tile = load_tile(x.at[ds(k * height, height), columns()], lanes)
        else:
            tile = x[ds(k * height, height), columns()]

        def of(j):
            return tile.astype(dtype)

        return of

    @function
    def vector(v):
        if not loops:
            return lambda j: v[j].astype(np.float32)
        if ahead:
            # shared memory has room for vectors, where lanes find what they have stored themselves
            parts = scratch(SMEM((wgs * width,), v.dtype), of=v)
            part = parts.at[ds(axis_index("wg") * width, width)]
            part[...] = load_tile(v.at[columns()], along)
            return lambda j: load_tile(part, along)[None, :].astype(np.float32)
        tile = layout_cast(v[columns()][None, :], lanes).astype(np.float32)
        return lambda j: tile

    @function
    def put_rows(k, x, tile):
        if blocked:
            # rows are in registers by now, so their place in shared memory is free. Storing from
            # there in memory order writes whole lines
            if x.dtype == dtype:
                rows, _ = place(0, 1)
            else:
                rows = scratch(SMEM((room,), x.dtype))
            # lanes overwrite only what they have loaded: no barrier is needed before
            rows[ds(0, span)] = layout_cast(tile, lanes)
            meet()
            if span * x.dtype.itemsize % 16 == 0:
                x.flat[ds(k * span, span)] = load_tile(rows.at[ds(0, span)], "runs")
            else:
                # blocks of one-byte elements, which begin at multiples of 8 bytes
                x.flat[ds(k * span, span - 8)] = load_tile(rows.at[ds(0, span - 8)], "row 128 8")
                x.flat[ds(k * span + span - 8, 8)] = rows[ds(span - 8, 8)]
        else:
            x[ds(k * height, height), columns()] = tile

    @function
    def store(k, x, f, y=None, g=None):
        j = columns()
        put_rows(k, x, f(j))
        if y is not None:
            if blocked:
                meet()
            put_rows(k, y, g(j))

    @function
    def put_again(k, x, own, values, owner):
        """Store an element of a row after `store`, in the lane that stored it before."""
        start = (own + shift()) // step * step
        at = column(ds(0, step)) + start - shift()
        at = np.where((at == own) & (owner == number()), at, -1)
        x[k, index(at.reshape(-1), "zero")] = np.where(at < 0, 0.0, values).reshape(-1)

    @function
    def replace(k, x, own, values):
        put_again(k, x, own, values, (own + shift()) // width)

    @function
    def masked(tile, begin, end, other):
        """Columns of the tile, with `other` outside the row."""
        at = column(ds(columns().start + begin, end - begin))
        return np.where((at >= 0) & (at < n), tile[:, begin:end], other)

    @function
    def kept(tile, other):
        """The tile, with `other` outside the row."""
        if whole < width:
            last = masked(tile, whole, width, other)
            tile = np.concatenate((tile[:, 0:whole], last), axis=1) if whole > 0 else last
        if shifts and whole > 0:
            first = masked(tile, 0, STEP, other)
            tile = np.concatenate((first, tile[:, STEP:width]), axis=1)
        return tile

    @function
    def number():
        """The number of this warpgroup among those that share a row."""
        return axis_index(CLUSTER) * wgs + axis_index("wg")

    @function
    def put(k, v, values, column=None):
        i = ds(k * height, height)
        if height > 1 or number() == 0:
            if column is None:
                v[i] = values.reshape(-1)
            else:
                v[i, ds(column, 1)] = values

    @function
    def each_group(k, v, f, change):
        def of(j):
            tile = layout_cast(f(j), lanes) if lanes else f(j)
            if n % GROUP and j.start + j.size > n:
                tile = np.where(column(j) < n, tile, 0.0)
            if height == 1:
                made, numbers = change(with_rows(tile, 0))
                v[k, ds(j.start // GROUP, numbers.shape[0])] = numbers.reshape(-1)
                return with_rows(made, 1, lanes)
            parts: Any = ()
            for c in static_range(0, width, GROUP):
                part = with_rows(tile[:, c : min(c + GROUP, width)], height)
                made, numbers = change(part)
                put(k, v, numbers, c // GROUP)
                parts += (with_rows(made, height, lanes),)
            return np.concatenate(parts, axis=1)

        return of

    if rows.needs.unit != GROUP:
        each_group.refusal = lambda known, again: (
            f"row.each_group needs tiles that begin at multiples of {GROUP} columns; "
            f"fix: pass unit={GROUP} to numpipe.rows"
        )

    @function
    def memory():
        """What warps exchange: vectors (parts,), and the barriers on which they arrive, (2, 2)."""
        return scratch(
            (
                SMEM((4 * parts,), np.float32),
                Barrier(num_arrivals=wgs * ctas, num_barriers=(2, 2)),
            )
        )

    @function
    def half():
        """The half of the memory that the next exchange takes.

        Exchanges alternate between the halves. A warpgroup that writes to one has read the vectors
        of all warpgroups in the other, which they sent after they had read this one.
        """
        _, landed = memory()
        return (next_phase(landed.at[0, 0]) + next_phase(landed.at[1, 0])) & 1

    @function
    def give(half, place, own):
        """Give all warpgroups that share a row a vector (PARTS,), of which each warp has two
        elements."""
        numbers, landed = memory()
        to = ds((half * 2 + place) * parts + number() * PARTS, PARTS)
        if ctas > 1:
            async_store_smem(
                own,
                numbers.at[to],
                landed.at[half, place],
                cluster_idx=None,
                cluster_dim=CLUSTER,
            )
        else:
            numbers[to] = own

    @function
    def got(half, place):
        """Return the vectors that all warpgroups gave, (parts,), in all lanes."""
        numbers, landed = memory()
        if ctas == 1 and place == 0:
            barrier_arrive(landed.at[half, 0])
        if ctas > 1 or place == 0:
            barrier_wait(landed.at[half, place])
        return load_tile(numbers.at[ds((half * 2 + place) * parts, parts)], "row 16")

    @function
    def reduced(tile, along):
        """The reduction ``along(tile)`` of each row."""
        if shared:
            own = along(split_row(tile))
            at = half()
            give(at, 0, own)
            tile = got(at, 0)[None, :]
        return along(tile)[:, None]

    @function
    def sum_of(f):
        return reduced(kept(f(columns()), 0.0), lambda tile: tile.sum(axis=1))

    @function
    def largest(f, dtype="float32"):
        along = lambda tile: tile.max(axis=1).astype(np.float32)
        return reduced(kept(f(columns()), -np.inf), along)

    @function
    def higher_at(tile, start, maxima):
        """Add a tile to maxima and to the column in which the tile with each begins."""
        tops, starts = maxima
        # -0 becomes 0, so that equal numbers have equal bits
        highest = np.maximum(tops, tile + 0.0)
        return highest, np.where(differ(highest, tops), start, starts)

    @function
    def both_reduced(first, second, along):
        """The reductions ``along(first, second)`` of each row, exchanged at once."""
        if shared:
            one, other = along(split_row(first), split_row(second))
            at = half()
            give(at, 0, one)
            give(at, 1, other)
            first, second = got(at, 0)[None, :], got(at, 1)[None, :]
        one, other = along(first, second)
        return one[:, None], other[:, None]

    @function
    def sums(f, g):
        one, other = kept(f(columns()), 0.0), kept(g(columns()), 0.0)
        return both_reduced(one, other, lambda a, b: (a.sum(axis=1), b.sum(axis=1)))

    @function
    def highest(tops, keys):
        """The largest element of each row, or NaN, and the least key of those that are equal."""
        top = tops.max(axis=1)
        return top, np.where(differ(tops, top[:, None]), np.inf, keys).min(axis=1)

    @function
    def first_of(tops, columns):
        """The first of the columns with the largest of the maxima of a row."""
        # the bits of float32 maxima, also of NaN; positive float32 numbers have the order of theirs
        tops = tops.astype(np.float32) + 0.0
        _, key = both_reduced(tops, bitcast(columns, np.float32), highest)
        return bitcast(key, np.int32)

    @function
    def argmax(f, dtype="float32"):
        tile, start = kept(f(columns()), -np.inf), columns().start
        if not shared:
            return tile.argmax(axis=1)[:, None]
        # few numbers a lane, so that registers are left for more rows of an SM
        maxima = filled(step, -np.inf, dtype), filled(step, 0, np.int32)
        for c in static_range(0, width, step):
            maxima = higher_at(tile[:, c : c + step], start + c, maxima)
        tops, starts = maxima
        return first_of(tops, starts + column(ds(0, step)))

    @function
    def softmax(f, off=0.0):
        top = largest(f)
        e = exp(f(columns()).astype(np.float32) - top)
        total = sum_of(lambda j: e)
        made = normal(e, total)

        def p(j):
            return made

        return p, top - off + log(total)

    named: list[Function] = [
        *(log, normal, shift, column, random, get, blocks, number, put, each_group, columns),
        *(loads(fetch, value, n, operands), checked(vector, n), checked(store, n)),
        *(put_again, replace, sums, higher_at, first_of, both_reduced, argmax, softmax),
    ]
    return (
        averages(n, sum_of)
        | {each.__name__: each for each in named}
        | {"exp": term, "sum": sum_of, "max": largest}
    )
