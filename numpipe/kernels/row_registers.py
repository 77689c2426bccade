"""The functions of `Rows` for rows in registers, read once."""

# tiles in kernels have no types
# mypy: disable-error-code="no-untyped-def, attr-defined, operator, arg-type, call-overload"

from __future__ import annotations

from typing import Any

import numpy as np

from ..core.arith import cdiv
from ..core.functions import Function, function
from ..language.memory.scratch import scratch
from ..language.pipeline.operand_barriers import barrier_arrive, barrier_wait
from ..language.tiles.elementwise import full, iota
from ..language.tiles.indices import index
from ..language.tiles.random_numbers import philox_2x32
from ..language.tiles.refs import ds
from ..language.tiles.warp_parts import GROUP, PARTS, join_row, split_row, with_rows
from ..plan.allocations import SMEM, Barrier
from ..plan.context import axis_index, num_programs, program_id

LOWEST = float(np.finfo(np.float32).min)
"""lower bound of the maximum of a part of a row: for a part of all -inf, exp(-inf - LOWEST) is 0
rather than NaN"""
AGAIN, SOFTMAX, MOMENTS = range(3)
PLACES = 3
"""places in shared memory for what warps exchange: one for functions that may be called again, and
one each for two that are called once, which saves a barrier"""


def common(height: int, n: int) -> dict[str, Function[..., Any]]:
    """Return the functions that do not depend on where a row is."""
    across = cdiv(n, GROUP)

    @function
    def column(j):
        return iota((1, j.size), 1) + j.start

    @function
    def random(k, j, seed):
        # a lane has both columns of a pair, which begins at an even column, and draws once for both
        place = iota((1, j.size), 1)
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
    def put(k, v, values):
        if height > 1 or axis_index("wg") == 0:
            v[ds(k * height, height)] = values.reshape(-1)

    @function
    def put_groups(k, v, values, j):
        group, number = j.start // GROUP, iota(values.shape[0])
        if height == 1:
            v[ds(k * across + group, values.shape[0], stop=(k + 1) * across)] = values
        else:
            # groups of the same columns of the rows of four warps follow each other
            count = j.size // GROUP
            group, row = (number >> 2) % count, number // (4 * count) * 4 + (number & 3)
            at = (k * height + row) * across + group
            v[index(np.where(group < across, at, -1), "zero")] = values

    @function
    def groups(tile, j):
        if n % GROUP:
            tile = np.where(column(j) < n, tile, 0.0)
        return with_rows(tile, 0)

    @function
    def joined(tile):
        return with_rows(tile, height)

    return {
        "column": column,
        "random": random,
        "get": get,
        "put": put,
        "put_groups": put_groups,
        "groups": groups,
        "joined": joined,
    }


def functions(rows: Any) -> dict[str, Function[..., Any]]:
    """Return the functions of a schedule, a `Rows`, by name."""
    n, height, width, wgs = rows.n, rows.height, rows.width, rows.wgs
    shared, whole, loops = height == 1, rows.whole, rows.loops

    @function
    def blocks(x):
        if loops:
            return range(program_id(0), cdiv(x.shape[0], height), num_programs(0))
        return range(program_id(0), program_id(0) + 1)

    @function
    def columns():
        # the mask tells the compiler the range of the number
        number = axis_index("wg") & (wgs - 1) if wgs > 1 else 0
        return ds(number * width, width, most=(wgs - 1) * width)

    @function
    def zeros():
        return full((height, width), 0.0, np.float32)

    @function
    def load(k, x, y=None, z=None):
        i, j = ds(k * height, height), columns()
        first = x[i, j]

        def one(j):
            return first.astype(np.float32)

        if y is not None:
            second = y[i, j]

            def two(j):
                return second.astype(np.float32)

            if z is not None:
                third = z[i, j]

                def three(j):
                    return third.astype(np.float32)

                return one, two, three, k
            return one, two, k
        return one, k

    @function
    def store(k, x, f, y=None, g=None, z=None, h=None):
        i, j = ds(k * height, height), columns()
        x[i, j] = f(j)
        if y is not None:
            y[i, j] = g(j)
        if z is not None:
            z[i, j] = h(j)

    @function
    def kept(tile, other):
        """The tile, with `other` from column n on."""
        if whole < width:
            first = axis_index("wg") * width if wgs > 1 else 0
            rest = iota((1, width - whole), 1) + (first + whole)
            last = np.where(rest < n, tile[:, whole:width], other)
            tile = np.concatenate((tile[:, 0:whole], last), axis=1) if whole > 0 else last
        return tile

    @function
    def from_warps(first, second, place):
        """Return two vectors (PARTS x wgs,), of which each warp of the CTA has two elements, in all
        lanes. Calls with the same place may follow each other only if it is AGAIN."""
        size = PARTS * wgs
        firsts, seconds, written, read = scratch(
            (
                SMEM((PLACES * size,), np.float32),
                SMEM((PLACES * size,), np.float32),
                Barrier(num_arrivals=wgs),
                Barrier(num_arrivals=wgs),
            )
        )
        own = ds(place * size + axis_index("wg") * PARTS, PARTS)
        firsts[own], seconds[own] = first, second
        barrier_arrive(written)
        barrier_wait(written)
        found = firsts[ds(place * size, size)], seconds[ds(place * size, size)]
        if loops or place == AGAIN:
            barrier_arrive(read)
            barrier_wait(read)
        return found

    @function
    def added(first, second):
        if not shared:
            return first.sum(axis=1)[:, None], second.sum(axis=1)[:, None]
        one, two = split_row(first).sum(axis=1), split_row(second).sum(axis=1)
        firsts, seconds = from_warps(one, two, AGAIN)
        return (
            full((1, 1), firsts.sum(), np.float32),
            full((1, 1), seconds.sum(), np.float32),
        )

    @function
    def sums(f, g):
        j = columns()
        return added(kept(f(j), 0.0), kept(g(j), 0.0))

    @function
    def sum_of(f):
        tile = kept(f(columns()), 0.0)
        total, _ = added(tile, tile)
        return total

    @function
    def largest(f):
        tile = kept(f(columns()), -np.inf)
        if not shared:
            return tile.max(axis=1)[:, None]
        tops = split_row(tile).max(axis=1)
        firsts, _ = from_warps(tops, tops, AGAIN)
        return full((1, 1), firsts.max(), np.float32)

    @function
    def softmax(f):
        tile = kept(f(columns()), -np.inf)
        if not shared:
            top = tile.max(axis=1)[:, None]
            e = np.exp(tile - top)
            total = e.sum(axis=1)[:, None]
            made = e * (1.0 / total)
            lse = top + np.log(total)
        else:
            parts = split_row(tile)
            own = np.maximum(parts.max(axis=1), LOWEST)
            e = np.exp(parts - own[:, None])
            tops, totals = from_warps(own, e.sum(axis=1), SOFTMAX)
            top = tops.max()
            total = (totals * np.exp(tops - top)).sum()
            scale = np.exp(own - top) * (1.0 / total)
            made = join_row(e * scale[:, None])
            lse = full((1, 1), top, np.float32) + np.log(full((1, 1), total, np.float32))

        def p(j):
            return made

        return p, lse

    @function
    def counts(first, parts):
        """Return how many elements of the row some parts of the CTA's tiles have, as float32."""
        if whole == width:
            return full(parts, width / PARTS, np.float32)
        size = width // PARTS
        part = iota(parts) + first
        left = np.clip(n - (part >> 3) * width, 0, width)
        # a warp has 128 of every 512 columns
        own = (left >> 9) * 128 + np.clip((left & 511) - (part & 3) * 128, 0, 128)
        return np.clip(own - (part >> 2 & 1) * size, 0, size).astype(np.float32)

    @function
    def moments(f):
        tile = f(columns())
        if not shared:
            mean = kept(tile, 0.0).sum(axis=1)[:, None] / n
            own = kept(tile - mean, 0.0)
            return mean, (own * own).sum(axis=1)[:, None] / n
        sizes = np.maximum(counts(axis_index("wg") * PARTS, PARTS), 1.0)
        own = split_row(kept(tile, 0.0)).sum(axis=1) / sizes
        near = split_row(tile) - own[:, None]
        if whole < width:
            near = split_row(kept(join_row(near), 0.0))
        means, spreads = from_warps(own, (near * near).sum(axis=1), MOMENTS)
        sizes = counts(0, PARTS * wgs)
        mean = (means * sizes).sum() / max(sizes.sum(), 1.0)
        off = means - mean
        variance = (spreads + sizes * off * off).sum() / n
        return full((1, 1), mean, np.float32), full((1, 1), variance, np.float32)

    return common(height, n) | {
        "blocks": blocks,
        "columns": columns,
        "load": load,
        "store": store,
        "zeros": zeros,
        "sum": sum_of,
        "sums": sums,
        "max": largest,
        "moments": moments,
        "softmax": softmax,
    }
