"""`numpipe.rows`: kernels over the rows of matrices, with a schedule that is chosen for each call.

Such a kernel reads each row once, computes in registers, and writes each row once. Its source is
the same for all schedules, and it takes its schedule as a Static:

==========  ==========================  ==========================================================
rows are    a row belongs to            sums over a row
==========  ==========================  ==========================================================
short       lanes of one warp           shuffles
long        a warpgroup                 shuffles, then shared memory of the warpgroup
longer      warpgroups of a CTA         shuffles, then shared memory of the CTA
longest     the CTAs of a cluster       the same, then shared memory of all CTAs of the cluster
==========  ==========================  ==========================================================
"""

# tiles and schedules in kernels have no types
# mypy: disable-error-code="no-untyped-def, attr-defined, operator, arg-type, call-overload"

from __future__ import annotations

import dataclasses
import functools
import inspect
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ..core.arith import cdiv
from ..core.functions import Function, function
from ..core.static_range import static_range
from ..diagnostics.errors import SpecError
from ..language.memory.remote import async_store_smem
from ..language.memory.scratch import scratch
from ..language.pipeline.operand_barriers import barrier_arrive, barrier_wait
from ..language.tiles.elementwise import full, iota
from ..language.tiles.random_numbers import philox
from ..language.tiles.refs import ds
from ..language.tiles.warp_parts import PARTS, STEP, join_row, split_row
from ..plan.allocations import SMEM, Barrier, ClusterBarrier
from ..plan.context import axis_index, num_programs, program_id
from ..plan.params import CompilerParams
from .decorator import kernel

if TYPE_CHECKING:
    from .kernel import Kernel

__all__ = ["Rows", "rows"]

PART = 8192
"""most columns of a warpgroup's part of a row: 64 elements per lane leave an SM room for several
CTAs (measured on an H200)"""
MOST_WARPGROUPS, MOST_CTAS = 4, 8
"""that share a row: warpgroups of a CTA, and CTAs of a cluster"""
LOWEST = float(np.finfo(np.float32).min)
"""lower bound of the maximum of a part of a row: for a part of all -inf, exp(-inf - LOWEST) is 0
rather than NaN"""
AGAIN, SOFTMAX, MOMENTS = range(3)
PLACES = 3
"""places in shared memory for what warps and CTAs exchange: one for functions that may be called
again, and one each for two that are called once, which saves a barrier"""
SENT = 64
"""elements of the smallest vector that a CTA can send to another"""


@dataclass(frozen=True)
class Rows:
    """A schedule of a kernel over rows.

    height   rows of a warpgroup's tile; 1: a tile is a part of one row
    columns  columns of a warpgroup's tile
    wgs      warpgroups of a CTA that share a row
    cluster  CTAs that share a row
    whole    leading columns of the tile that are inside the row in every CTA
    ctas     CTAs that an SM has registers for, at least
    loops    whether a CTA computes several blocks of rows

    A kernel over rows calls its functions; a row has n columns:

    ===============================  ==============================================================
    ``i, j = row.block()``           the index of the tile: ``x[i, j]``, and ``gamma[j]`` for a
                                     vector along the columns
    ``row.sum(tile, n)``,            the sum or the maximum of each row, (rows, 1)
    ``row.max(tile, n)``
    ``row.sums(a, b, n)``            the sums of two tiles, exchanged once
    ``row.moments(tile, n)``         (tile minus the mean of its row, variance of its row)
    ``row.softmax(tile, n)``         (softmax of each row, log(sum(exp(tile))) of each row)
    ``row.column()``                 the column of each element, (1, columns), int32
    ``row.random(seed)``             random float32 numbers in [0, 1), which depend on the seed, row
                                     and column alone; ``row.random(seed, k)`` for block k
    ``row.get(v)``, ``row.put(v,     load and store an element of a vector for each row, (rows, 1)
    values)``
    ``row.start()``, ``row.step()``  the program's first block of rows, and the distance to its next
                                     one: see `rows`
    ``row.blocks(count)``            how many blocks `count` rows are
    ``row.zeros()``                  a float32 tile of the block's shape
    ===============================  ==============================================================

    Elements of a tile from column n on are undefined; these functions leave them out, and stores
    skip them.
    """

    _same_stores: ClassVar[bool] = True
    """whether the functions of all values store to the same arguments"""
    height: int
    columns: int
    wgs: int = 1
    cluster: int = 1
    whole: int = 0
    ctas: int = 1
    loops: bool = field(default=False, repr=False)

    def __getattr__(self, name: str) -> Function[..., Any]:
        # a schedule that is being unpickled has no fields yet
        if name.startswith("_") or name not in (known := functions(self)):
            raise AttributeError(f"a schedule of rows has no function '{name}'")
        return known[name]


@functools.cache
def functions(rows: Rows) -> dict[str, Function[..., Any]]:
    """Return the functions of a schedule, by name."""
    height, columns, wgs, cluster = rows.height, rows.columns, rows.wgs, rows.cluster
    shared, ranks, whole = height == 1, wgs * cluster, rows.whole
    loops = rows.loops

    @function
    def rank():
        # the masks tell the compiler the range of the number
        number = 0
        if wgs > 1:
            number = axis_index("wg") & (wgs - 1)
        if cluster > 1:
            number = number + (axis_index("part") & (cluster - 1)) * wgs
        return number

    @function
    def start():
        return program_id(0) // cluster

    @function
    def step():
        return num_programs(0) // cluster

    @function
    def blocks(rows):
        return cdiv(rows, height)

    @function
    def block(number=None):
        if number is None:
            number = program_id(0) // cluster
        return (
            ds(number * height, height),
            ds(rank() * columns, columns, most=(ranks - 1) * columns),
        )

    @function
    def zeros():
        return full((height, columns), 0.0, np.float32)

    @function
    def column():
        return iota((1, columns), 1) + rank() * columns

    @function
    def random(seed, number=None):
        if number is None:
            number = program_id(0) // cluster
        across = column().astype(np.uint32)
        first = np.int32(number * height)
        down = (iota((height, 1), 0) + first).astype(np.uint32)
        zero = across * 0
        key = (zero.astype(np.int32) + seed).astype(np.uint32)
        bits, _, _, _ = philox((key, zero), (across, down, zero, zero))
        return (bits >> 8).astype(np.float32) * 2.0**-24

    @function
    def get(v):
        i, _ = block()
        return v[i][:, None]

    @function
    def put(v, values):
        i, _ = block()
        if ranks == 1 or rank() == 0:
            v[i] = values.reshape(-1)

    @function
    def kept(tile, n, other):
        """The tile, with `other` from column n on."""
        if whole < columns:
            rest = iota((1, columns - whole), 1) + (rank() * columns + whole)
            last = np.where(rest < n, tile[:, whole:columns], other)
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
    def from_ctas(first, second, n, place, top):
        """Combine two numbers of each CTA: for AGAIN to their sums, or with `top` to the largest
        first; for SOFTMAX (maximum, sum of exponentials) and for MOMENTS (mean, sum of squares
        about it) to those of the whole row."""
        values, landed, read = scratch(
            (
                SMEM((PLACES * 2 * SENT * cluster,), np.float32),
                Barrier(num_arrivals=2 * cluster),
                ClusterBarrier("part", num_arrivals=wgs),
            )
        )
        begin = place * 2 * SENT * cluster
        pair = full(SENT, first, np.float32), full(SENT, second, np.float32)
        if wgs == 1 or axis_index("wg") == 0:
            for to in range(cluster):
                for which in static_range(2):
                    at = begin + SENT * (2 * axis_index("part") + which)
                    async_store_smem(
                        pair[which],
                        values.at[ds(at, SENT)],
                        landed,
                        cluster_idx=to,
                        cluster_dim="part",
                    )
        barrier_wait(landed)
        a, b = values[ds(begin, SENT)], values[ds(begin + SENT, SENT)]
        if place == MOMENTS:
            size = wgs * columns
            a = a * min(n, size)
            for number in range(1, cluster):
                own = float(min(max(n - number * size, 0), size))
                a = a + values[ds(begin + 2 * SENT * number, SENT)] * own
            a = a / n
            b = full(SENT, 0.0, np.float32)
            for number in range(cluster):
                own = float(min(max(n - number * size, 0), size))
                off = values[ds(begin + 2 * SENT * number, SENT)] - a
                b = b + values[ds(begin + SENT * (2 * number + 1), SENT)] + off * off * own
        elif place == SOFTMAX:
            for number in range(1, cluster):
                a = np.maximum(a, values[ds(begin + 2 * SENT * number, SENT)])
            b = b * np.exp(values[ds(begin, SENT)] - a)
            for number in range(1, cluster):
                own = values[ds(begin + SENT * (2 * number + 1), SENT)]
                b = b + own * np.exp(values[ds(begin + 2 * SENT * number, SENT)] - a)
        else:
            for number in range(1, cluster):
                other = values[ds(begin + 2 * SENT * number, SENT)]
                a = np.maximum(a, other) if top else a + other
                b = b + values[ds(begin + SENT * (2 * number + 1), SENT)]
        if loops or place == AGAIN:
            barrier_arrive(read)
            barrier_wait(read)
        return a.max(), b.max()

    @function
    def together(first, second, n, top):
        """Return the sums over a row of two tiles, or with `top` the maximum of the first, as tiles
        (rows, 1)."""
        if not shared:
            if top:
                return first.max(axis=1)[:, None], 0.0
            return first.sum(axis=1)[:, None], second.sum(axis=1)[:, None]
        one, two = split_row(first), split_row(second)
        if top:
            firsts, seconds = from_warps(one.max(axis=1), two.max(axis=1), AGAIN)
            a, b = firsts.max(), 0.0
        else:
            firsts, seconds = from_warps(one.sum(axis=1), two.sum(axis=1), AGAIN)
            a, b = firsts.sum(), seconds.sum()
        if cluster > 1:
            a, b = from_ctas(a, b, n, AGAIN, top)
        return full((1, 1), a, np.float32), full((1, 1), b, np.float32)

    @function
    def sums(first, second, n):
        return together(kept(first, n, 0.0), kept(second, n, 0.0), n, False)

    @function
    def added(tile, n):
        tile = kept(tile, n, 0.0)
        total, _ = together(tile, tile, n, False)
        return total

    @function
    def largest(tile, n):
        tile = kept(tile, n, -np.inf)
        top, _ = together(tile, tile, n, True)
        return top

    @function
    def softmax(tile, n):
        tile = kept(tile, n, -np.inf)
        if not shared:
            top = tile.max(axis=1)[:, None]
            e = np.exp(tile - top)
            total = e.sum(axis=1)[:, None]
            return e * (1.0 / total), top + np.log(total)
        parts = split_row(tile)
        own = np.maximum(parts.max(axis=1), LOWEST)
        e = np.exp(parts - own[:, None])
        tops, totals = from_warps(own, e.sum(axis=1), SOFTMAX)
        top = tops.max()
        total = (totals * np.exp(tops - top)).sum()
        if cluster > 1:
            top, total = from_ctas(top, total, n, SOFTMAX, False)
        scale = np.exp(own - top) * (1.0 / total)
        lse = full((1, 1), top, np.float32) + np.log(full((1, 1), total, np.float32))
        return join_row(e * scale[:, None]), lse

    @function
    def counts(n, first, parts):
        """Return how many elements of the row some parts of the CTA's tiles have, as float32."""
        if whole == columns:
            return full(parts, columns / PARTS, np.float32)
        half = columns // 2
        part = iota(parts) + first
        begin = (part >> 2) * half
        if cluster > 1:
            begin = begin + axis_index("part") * (wgs * columns)
        left = np.clip(n - begin, 0, half)
        last = np.clip((left & 255) - (part & 3) * 64, 0, 64)
        return ((left >> 8) * 64 + last).astype(np.float32)

    @function
    def moments(tile, n):
        if not shared:
            centered = tile - kept(tile, n, 0.0).sum(axis=1)[:, None] / n
            own = kept(centered, n, 0.0)
            return centered, (own * own).sum(axis=1)[:, None] / n
        sizes = np.maximum(counts(n, axis_index("wg") * PARTS, PARTS), 1.0)
        own = split_row(kept(tile, n, 0.0)).sum(axis=1) / sizes
        apart = split_row(tile) - own[:, None]
        if whole < columns:
            apart = split_row(kept(join_row(apart), n, 0.0))
        means, spreads = from_warps(own, (apart * apart).sum(axis=1), MOMENTS)
        sizes = counts(n, 0, PARTS * wgs)
        mean = (means * sizes).sum() / max(sizes.sum(), 1.0)
        off = means - mean
        spread = (spreads + sizes * off * off).sum()
        if cluster > 1:
            mean, spread = from_ctas(mean, spread, n, MOMENTS, False)
        return tile - mean, full((1, 1), spread / n, np.float32)

    return {
        "start": start,
        "step": step,
        "blocks": blocks,
        "block": block,
        "zeros": zeros,
        "column": column,
        "random": random,
        "get": get,
        "put": put,
        "sum": added,
        "sums": sums,
        "max": largest,
        "moments": moments,
        "softmax": softmax,
    }


@functools.lru_cache(maxsize=1024)
def choose(columns: int, operands: int = 1) -> Rows:
    """Return the schedule for rows of this many columns.

    operands  matrices whose rows a kernel has in registers at the same time

    Raises SpecError for rows that are too long for the registers of a cluster.

    >>> choose(1024)
    Rows(height=8, columns=1024, wgs=1, cluster=1, whole=1024, ctas=4)
    >>> choose(16384)
    Rows(height=1, columns=8192, wgs=2, cluster=1, whole=8192, ctas=2)
    >>> choose(65536).cluster
    2
    """
    if columns <= 2048 // operands:
        height = 8
        while height * columns < 2048 and height < 32:
            height *= 2
        # Lanes have pairs of columns; all pairs but those of the last group of lanes are inside. 8
        # lanes share a row whose columns are an odd multiple of 16, which suits narrow rows.
        group = 16 if columns <= 80 else 64
        wide = columns + columns % 2 if columns > 80 else 16 * (-(-columns // 16) | 1)
        whole = columns if wide == columns else columns // group * group
        if 80 < columns < wide:
            wide = -(-columns // 64) * 64
        live = height * wide * operands // 128
        return Rows(height, wide, whole=whole, ctas=max(1, 512 // (live + 40)))
    part, ranks = PART // operands, 1
    while columns > part * ranks:
        ranks *= 2
    wgs = min(ranks, MOST_WARPGROUPS)
    if ranks > wgs * MOST_CTAS:
        raise SpecError(
            f"rows have at most {part * MOST_WARPGROUPS * MOST_CTAS} elements with {operands} of "
            f"them in registers, got {columns}"
        )
    wide = -(-columns // (STEP * ranks)) * STEP
    inside = max(0, columns - (ranks - 1) * wide)
    whole = inside if inside >= wide else inside // 256 * 256
    ctas = max(1, 512 // (wide * operands // 128 + 24 + 16 * operands) // wgs)
    return Rows(1, wide, wgs, ranks // wgs, whole, ctas)


class RowKernel:
    """A kernel over rows, as `rows` makes it: one kernel for each schedule, chosen for each call by
    the length of the first array's rows."""

    def __init__(
        self,
        body: Callable[..., Any],
        operands: int,
        programs: str,
        options: Mapping[str, Any],
    ) -> None:
        functools.update_wrapper(self, body)
        self.body, self.operands, self.options = body, operands, options
        self.programs = programs
        parameters = inspect.signature(body).parameters
        if "row" not in parameters or not parameters:
            raise SpecError(
                f"kernel {body.__name__}: a kernel over rows takes its schedule as a parameter "
                f"'row', got {', '.join(parameters)}; fix: end the parameters with *, row: "
                "numpipe.Static"
            )
        self.first = next(iter(parameters))
        self.scheduled = functools.cache(self._scheduled)

    def _scheduled(self, row: Rows) -> Kernel:
        """Return the kernel for a schedule."""
        body = self.body
        function = types.FunctionType(
            body.__code__, body.__globals__, body.__name__, body.__defaults__, body.__closure__
        )
        function.__kwdefaults__ = {**(body.__kwdefaults__ or {}), "row": row}
        for name in ("__annotations__", "__module__", "__qualname__", "__doc__"):
            setattr(function, name, getattr(body, name))

        def grid(**arguments: Any) -> tuple[int]:
            (array,) = arguments.values()
            height = 1 if row.loops else row.height
            return (-(-array.shape[0] // height) * row.cluster,)

        name = self.programs or self.first
        parameter = inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        grid.__signature__ = inspect.Signature([parameter])
        shared = {"cluster": row.cluster, "cluster_names": "part"} if row.cluster > 1 else {}
        params = CompilerParams(
            approx_math=True, ctas_per_sm=row.ctas, unsafe_no_auto_barriers=True
        )
        options = {
            "grid": grid,
            "num_compute_wgs": row.wgs,
            "compiler_params": params,
            **shared,
            **self.options,
        }
        made: Kernel = kernel(function, warp_specialized=False, static_dims=(-1,), **options)
        return made

    def kernel(self, x: Any, *_: Any, **__: Any) -> Kernel:
        """Return the kernel that a call with these arguments runs, for `numpipe.verify`,
        ``inspect`` and others. Raises SpecError for rows that are too long."""
        _, columns = x.shape
        row = choose(int(columns), self.operands)
        return self.scheduled(dataclasses.replace(row, loops=bool(self.programs)))

    def __call__(self, x: Any, *args: Any, **named: Any) -> Any:
        """Run the kernel on a matrix x and other arrays."""
        return self.kernel(x)(x, *args, **named)


def rows(
    *, operands: int = 1, programs: str = "", **options: Any
) -> Callable[[Callable[..., Any]], RowKernel]:
    """Turn a Python function over arrays into a kernel over the rows of matrices.

        @numpipe.rows(out_type=lambda x: ArrayType(x.shape, x.dtype))
        def layer_norm(x, gamma, beta, y, *, eps=1e-5, row: numpipe.Static):
            i, j = row.block()
            centered, variance = row.moments(x[i, j].astype(np.float32), x.shape[1])
            y[i, j] = centered * numpipe.rsqrt(variance + eps) * gamma[j] + beta[j]

        y = layer_norm(x, gamma, beta)

    operands  matrices whose rows the kernel has in registers at the same time, 1 or more
    programs  "": a program computes one block of rows. Or the name of an array with a row for each
              program, which then loops over blocks, ``for k in range(row.start(), row.blocks(rows),
              row.step())``, and has the index ``row.block(k)``: for sums along the columns
    options   options of `numpipe.kernel`, such as out_type

    The first parameter is a matrix; the length of its rows selects the schedule, which the function
    receives as `row` (see `Rows`). Each row length is a separate compile. The kernel for a call is
    ``layer_norm.kernel(x)``, a `Kernel`.

    Functions of the schedule that exchange data run in all CTAs that share a row, so they must not
    stand in an `if` on run-time values; `softmax` and `moments` are called at most once each.
    Automatic barriers of shared memory are off: a kernel that uses shared memory itself needs its
    own.

    Raises SpecError for a function without a parameter `row`, and, when it is called, for rows that
    do not fit in the registers of a cluster of 8 CTAs.
    """
    return lambda body: RowKernel(body, operands, programs, options)
