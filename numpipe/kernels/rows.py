"""`numpipe.rows`: kernels that compute each row of a matrix from the same row of others.

A schedule assigns rows to lanes and is chosen for each call, by the number and the length of the
rows:

==========  ===========================  ==========================================================
schedule    a row belongs to             sums over a row
==========  ===========================  ==========================================================
short rows  4 … 32 lanes of one warp     shuffles
long rows   a warpgroup                  shuffles, then shared memory of the warpgroup
longer      several warpgroups of a CTA  the same, then shared memory of the CTA
longest     the CTAs of a cluster        the same, then shared memory of the CTAs
==========  ===========================  ==========================================================

A kernel loads each row once, into registers, and stores it once. Its source is the same for all
schedules; it takes the schedule as a Static, whose functions load, reduce and store.
"""

from __future__ import annotations

import functools
import math
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..core.arith import cdiv
from ..core.functions import Function, function
from ..diagnostics.errors import SpecError
from ..language.memory.remote import async_store_smem
from ..language.memory.scratch import scratch
from ..language.pipeline.operand_barriers import barrier_arrive, barrier_wait
from ..language.tiles.elementwise import full, iota
from ..language.tiles.load import load_tile
from ..language.tiles.refs import ds
from ..plan.allocations import SMEM, Barrier, ClusterBarrier
from ..plan.context import axis_index, program_id
from ..plan.params import CompilerParams

LONGEST = 16 * 8192
"""most columns of a row, so that it fits in the registers of a cluster's warpgroups"""
MOST_RANKS = 16
LOWEST = float(np.finfo(np.float32).min)


@dataclass(frozen=True)
class Rows:
    """A schedule: how the rows of a matrix are distributed over the GPU.

    height   rows of a tile of a warpgroup, a multiple of 8; 1: warpgroups have parts of one row
    lanes    lanes that share a row
    columns  columns of a warpgroup's tile, at least its part of a row
    wgs      warpgroups of a CTA that share a row
    cluster  CTAs that share a row
    exact    whether no tile has more columns than its part of the row

    In a kernel, it loads, reduces and stores: `load`, `store`, `get`, `put`, `vector`, `column`,
    `sum`, `max`, `min`.
    """

    height: int
    lanes: int
    columns: int
    wgs: int = 1
    cluster: int = 1
    exact: bool = False
    safe: int = 0
    ctas: int = 1

    def __getattr__(self, name: str) -> Function[..., Any]:
        try:
            return functions(self)[name]
        except KeyError:
            raise AttributeError(name) from None


@functools.cache
def functions(rows: Rows) -> dict[str, Function[..., Any]]:
    """Return the functions of a schedule for kernels, by name."""
    height, columns, exact = rows.height, rows.columns, rows.exact
    wgs, cluster = rows.wgs, rows.cluster
    ranks, shared = wgs * cluster, height == 1
    safe = rows.safe

    @function
    def rank():  # type: ignore[no-untyped-def]
        """Which part of the row this warpgroup has. The masks tell the compiler its range, so that
        it can leave out bounds checks."""
        number = 0
        if wgs > 1:
            number = axis_index("wg") & (wgs - 1)
        if cluster > 1:
            number = number + (axis_index("part") & (cluster - 1)) * wgs
        return number

    @function
    def block():  # type: ignore[no-untyped-def]
        """The rows and columns of the tile, as an index."""
        return ds(program_id(0) // cluster * height, height), ds(
            rank() * columns, columns, most=(ranks - 1) * columns
        )

    @function
    def leads():  # type: ignore[no-untyped-def]
        """Whether this warpgroup has the first columns."""
        return rank() == 0

    @function
    def column():  # type: ignore[no-untyped-def]
        """The column of each element, (1, columns)."""
        return iota((1, columns), 1) + rank() * columns

    @function
    def kept(tile, n, other):  # type: ignore[no-untyped-def]
        """The tile with `other` in the columns from n on."""
        if not exact:
            if safe > 0:
                place = iota((1, columns - safe), 1) + (rank() * columns + safe)
                last = np.where(place < n, tile[:, safe:columns], other)
                tile = np.concatenate((tile[:, 0:safe], last), axis=1)
            else:
                tile = np.where(column() < n, tile, other)
        return tile

    @function
    def together(value, largest):  # type: ignore[no-untyped-def]
        """Combine the values of all warpgroups that share the row, in the order of their parts."""
        own = full(64, value, np.float32)
        if cluster > 1:
            values, written, read = scratch(
                (
                    SMEM((64 * ranks,), np.float32),
                    Barrier(num_arrivals=ranks),
                    ClusterBarrier("part", num_arrivals=wgs),
                )
            )
            for to in range(cluster):
                async_store_smem(
                    own, values.at[ds(64 * rank(), 64)], written, cluster_idx=to, cluster_dim="part"
                )
        else:
            values, written, read = scratch(
                (
                    SMEM((64 * ranks,), np.float32),
                    Barrier(num_arrivals=ranks),
                    Barrier(num_arrivals=ranks),
                )
            )
            values[ds(64 * rank(), 64)] = own
            barrier_arrive(written)
        barrier_wait(written)
        total = values[ds(0, 64)]
        for number in range(1, ranks):
            other = values[ds(64 * number, 64)]
            total = np.maximum(total, other) if largest else total + other
        barrier_arrive(read)
        barrier_wait(read)
        return total.max()

    @function
    def total(tile, n):  # type: ignore[no-untyped-def]
        tile = kept(tile, n, 0.0)
        if not shared:
            return tile.sum(axis=1)[:, None]
        own = tile.sum()
        if ranks > 1:
            own = together(own, False)
        return full((1, 1), own, np.float32)

    @function
    def largest(tile, n):  # type: ignore[no-untyped-def]
        tile = kept(tile, n, -np.inf)
        if not shared:
            return tile.max(axis=1)[:, None]
        own = tile.max()
        if ranks > 1:
            own = together(own, True)
        return full((1, 1), own, np.float32)

    @function
    def exchanged(a, b):  # type: ignore[no-untyped-def]
        """Send two numbers to all warpgroups that share the row; return shared memory with those of
        all, 128 elements for each. Each call in the source of this file runs once in a kernel."""
        values, written = scratch(
            (SMEM((128 * ranks,), np.float32), Barrier(num_arrivals=ranks * 2))
        )
        first, second = full(64, a, np.float32), full(64, b, np.float32)
        at = ds(128 * rank(), 64)
        then = ds(128 * rank() + 64, 64)
        if cluster > 1:
            for to in range(cluster):
                async_store_smem(
                    first, values.at[at], written, cluster_idx=to, cluster_dim="part"
                )
                async_store_smem(
                    second, values.at[then], written, cluster_idx=to, cluster_dim="part"
                )
        else:
            values[at] = first
            values[then] = second
            barrier_arrive(written)
            barrier_arrive(written)
        barrier_wait(written)
        return values

    @function
    def normalizer(tile, n):  # type: ignore[no-untyped-def]
        """Return (exp(tile - top), top, total): the sum of exp(tile - top) is total."""
        tile = kept(tile, n, -np.inf)
        if not shared:
            top = tile.max(axis=1)[:, None]
            e = np.exp(tile - top)
            total = e.sum(axis=1)[:, None]
        else:
            own = max(tile.max(), LOWEST)
            e = np.exp(tile - own)
            sum_ = e.sum()
            if ranks > 1:
                values = exchanged(own, sum_)
                tops = values[ds(0, 64)]
                for number in range(1, ranks):
                    tops = np.maximum(tops, values[ds(128 * number, 64)])
                sums = values[ds(64, 64)] * np.exp(values[ds(0, 64)] - tops)
                for number in range(1, ranks):
                    sums = sums + values[ds(128 * number + 64, 64)] * np.exp(
                        values[ds(128 * number, 64)] - tops
                    )
                peak = tops.max()
                sum_ = sums.max() * np.exp(peak - own)
            total = full((1, 1), sum_, np.float32)
        return e, total

    @function
    def moments(tile, n):  # type: ignore[no-untyped-def]
        """Return (tile - mean, variance)."""
        if not shared:
            c = tile - kept(tile, n, 0.0).sum(axis=1)[:, None] / n
            own = kept(c, n, 0.0)
            m2 = (own * own).sum(axis=1)[:, None] / n
        else:
            count = columns
            if not exact:
                count = min(columns, n - rank() * columns)
            mean = kept(tile, n, 0.0).sum() / count
            c = tile - mean
            own = kept(c, n, 0.0)
            spread = (own * own).sum()
            if ranks > 1:
                values = exchanged(mean * count, spread + mean * mean * count)
                sums = values[ds(0, 64)]
                squares = values[ds(64, 64)]
                for number in range(1, ranks):
                    sums = sums + values[ds(128 * number, 64)]
                    squares = squares + values[ds(128 * number + 64, 64)]
                whole = sums.max() / n
                c = c + (mean - whole)
                spread = squares.max() - whole * whole * n
            m2 = full((1, 1), spread / n, np.float32)
        return c, m2

    return {
        "block": block,
        "leads": leads,
        "column": column,
        "sum": total,
        "max": largest,
        "normalizer": normalizer,
        "moments": moments,
    }


@functools.lru_cache(maxsize=1024)
def choose(rows: int, columns: int, itemsize: int, operands: int = 1) -> Rows:
    """Return the schedule for a matrix of `rows` rows of `columns` elements of `itemsize` bytes.

    operands  matrices that a kernel has in registers at the same time

    >>> choose(65536, 1024, 2)
    Rows(height=8, lanes=32, columns=1024, wgs=1, cluster=1, exact=True)
    >>> choose(8192, 65536, 2).cluster
    4
    """
    if columns > {2: (3072, 1536), 4: (2048, 1024)}[itemsize][operands > 1]:
        ranks = 1
        while columns > ranks * (8192 if operands == 1 else 4096) and ranks < MOST_RANKS:
            ranks *= 2
        if columns > LONGEST:
            raise SpecError(
                f"rows have at most {LONGEST} elements, so that they fit in the registers of a "
                f"cluster; got {columns}"
            )
        wgs = min(2, ranks)
        part = -(-columns // (64 * ranks)) * 64
        if part * ranks == columns:
            return Rows(1, 128, part, wgs, ranks // wgs, True)
        part = -(-columns // (256 * ranks)) * 256
        safe = max(0, columns - (ranks - 1) * part) // 256 * 256
        return Rows(1, 128, part, wgs, ranks // wgs, False, safe)
    if columns <= 8:
        lanes, height = 4, 128
    elif columns * itemsize % 16 == 0:
        lanes = 8 if columns <= (64 if operands > 1 else 320) else 16
        lanes = 32 if columns > (320 if operands > 1 else 640) else lanes
        height = (512 if columns <= 64 else 256) // lanes
    elif columns < (65 if operands > 1 else 128):
        lanes, height = 16, 32 if operands > 1 else 64
    else:
        lanes, height = 32, 8 if operands > 1 or columns >= 256 else 16
    while height > 256 // lanes and rows < 1024 * height:
        height //= 2
    if columns % 2 == 0:
        return Rows(height, lanes, columns, exact=True)
    whole = -(-columns // 64) * 64 if columns > 32 else 1 << columns.bit_length()
    return Rows(height, lanes, whole, safe=columns // 64 * 64)


class RowKernel:
    """A kernel over rows, with a schedule that is chosen for each call."""

    def __init__(self, body: Callable[..., Any], operands: int, options: dict[str, Any]) -> None:
        functools.update_wrapper(self, body)
        self.body, self.operands, self.options = body, operands, options
        self._kernel = functools.cache(self._scheduled)

    def _scheduled(self, rows: Rows) -> Any:
        """Return the kernel for a schedule."""
        from .decorator import kernel

        body, height, cluster = self.body, rows.height, rows.cluster
        first = next(iter(self.__wrapped__.__code__.co_varnames))
        function = types.FunctionType(
            body.__code__, body.__globals__, body.__name__, body.__defaults__, body.__closure__
        )
        functools.update_wrapper(function, body, updated=())
        del function.__wrapped__
        function.__kwdefaults__ = {**(body.__kwdefaults__ or {}), "row": rows}

        def grid(x):
            return (cdiv(x.shape[0], height) * cluster,)

        grid.__signature__ = __import__("inspect").Signature(
            [__import__("inspect").Parameter(first, 1)]
        )
        if cluster > 1:
            more = {"cluster": cluster, "cluster_names": "part"}
        else:
            more = {}
        grid_of = eval(f"lambda {first}: grid({first})", {"grid": grid})
        return kernel(
            function,
            grid=grid_of,
            num_compute_wgs=rows.wgs,
            wg_axis="wg",
            warp_specialized=False,
            compiler_params=CompilerParams(approx_math=True, ctas_per_sm=rows.ctas),
            static_dims=(-1,),
            **more,
            **self.options,
        )

    def kernel(self, x: Any, *_: Any, **__: Any) -> Any:
        return self._kernel(
            choose(x.shape[0], x.shape[1], np.dtype(x.dtype).itemsize, self.operands)
        )

    def __call__(self, x: Any, *args: Any, **named: Any) -> Any:
        return self.kernel(x)(x, *args, **named)


def rows(operands: int = 1, **options: Any) -> Callable[[Callable[..., Any]], RowKernel]:
    return lambda body: RowKernel(body, operands, options)
