"""Kernels of the gradients of attention, and their launches.

With P = exp(scale * Q K^T - lse), where lse are the logarithms of the sums, and
dS = P * (dO V^T - sum(dO * O)), the gradients are::

    dV = P^T dO        dK = scale * dS^T Q        dQ = scale * dS K

Three kernels compute them: `prepare` the sums of dO * O, `of_keys` all three products in one pass
over the queries, and `convert` rounds dQ, to which CTAs have added in float32 in any order.
If that order must be fixed, `of_keys` leaves dQ out, and `of_queries` computes P and dS again.
"""

# tiles in kernels have no types
# mypy: disable-error-code="no-untyped-def, attr-defined, operator, arg-type, index, var-annotated"

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ..arch.dimensions import round_up
from ..core.arith import cdiv
from ..core.functions import Function, function
from ..kernels.decorator import kernel as numpipe_kernel
from ..kernels.kernel import Kernel
from ..language.memory.copies import commit_smem
from ..language.memory.scratch import scratch
from ..language.pipeline.operand_barriers import barrier_arrive, barrier_wait
from ..language.pipeline.pipelines import pipeline
from ..language.pipeline.schedule_fences import schedule_fence
from ..language.tiles.atomics import atomic_add
from ..language.tiles.conversions import layout_cast
from ..language.tiles.elementwise import full, iota
from ..language.tiles.load import load_tile
from ..language.tiles.mathematics import fma
from ..language.tiles.mma import wgmma, wgmma_wait
from ..language.tiles.refs import ds
from ..language.tiles.register_order import from_register_order, to_register_order
from ..language.tiles.tile import zeros
from ..launch.array_info import ArrayInfo
from ..launch.windows import strided
from ..plan.allocations import SMEM, Barrier
from ..plan.context import axis_index, program_id
from ..plan.params import CompilerParams
from ..plan.specs import BlockSpec, Element
from .attention_configs import Form
from .attention_function_gradients import launch_function_gradients
from .op_outputs import Place, allocated

L2 = 32 << 20  # most bytes of queries that a group of interleaved heads may have


@functools.cache
def over_positions(form: Form) -> tuple[Function, dict[str, Any]]:
    """Return (at, options) of kernels that have a CTA for each 2048 elements of each head of an
    array x, up to a multiple of 64 positions: ``at(x)`` returns the batch, head and positions of a
    CTA, and the index of its tile."""
    height = 2048 // form.depth

    @function
    def at(x):
        blocks = cdiv(x.shape[form.positions], 64) * (64 // height)
        head, s = program_id(0) // blocks, ds(program_id(0) % blocks * height, height)
        b, h, d = head // x.shape[form.heads], head % x.shape[form.heads], ds(0, form.depth)
        return b, h, s, ((b, h, s, d) if form.layout == "bhsd" else (b, s, h, d))

    def grid(x):
        return x.shape[0] * x.shape[form.heads] * cdiv(x.shape[form.positions], 64) * 64 // height

    params = CompilerParams(ctas_per_sm=8, approx_math=True)
    return at, {"grid": grid, "warp_specialized": False, "compiler_params": params}


@functools.cache
def prepare(form: Form, *present: str) -> Kernel:
    """Return the kernel of what the others read of each query: `stats`, the logarithm of its sum in
    powers of two, and `delta`, sum(grad * x) - grad_lse, where x is the result of attention. It
    also stores zeros in dq, which is in register order."""
    at, options = over_positions(form)
    absent = [name for name in ("grad_lse", "dq") if name not in present]

    @numpipe_kernel(without=absent, **options)
    def attention_gradient_sums(x, lse, grad, grad_lse, stats, delta, dq):
        b, h, s, tile = at(x)
        total = (x[tile].astype(np.float32) * grad[tile].astype(np.float32)).sum(axis=1)
        if grad_lse is not None:
            total = total - grad_lse[b, h, s]
        delta[b, h, s] = total
        logarithm = lse[b, h, s] * math.log2(math.e)
        # a query that sees no key: exp2(s - inf) is 0
        stats[b, h, s] = np.where(logarithm == -np.inf, np.inf, logarithm)
        if dq is not None:
            of_head = dq.shape[0] // (x.shape[0] * x.shape[form.heads])
            first = (b * x.shape[form.heads] + h) * of_head + s.start * form.depth // 32
            dq[ds(first, 64), ds(0, 32)] = zeros((64, 32), np.float32)

    return attention_gradient_sums  # type: ignore[no-any-return]


def part_of_dq(depth: int) -> tuple[int, int]:
    """Return how many columns of dQ a warpgroup of `of_keys` has, of 64 rows, and how many rows
    these are in register order. Parts of a block of queries follow each other."""
    columns = 64 if depth <= 128 else 128
    return columns, 64 * columns // 32


@functools.cache
def convert(form: Form) -> Kernel:
    """Return the kernel of dq = x * scale, where x is in register order."""
    columns, lines = part_of_dq(form.depth)
    across, by_head = form.depth // columns, form.layout == "bhsd"

    @numpipe_kernel(
        grid=lambda dq: (
            dq.shape[0] * dq.shape[form.heads] * cdiv(dq.shape[form.positions], 64) * across
        ),
        warp_specialized=False,
        compiler_params=CompilerParams(ctas_per_sm=4),
    )
    def attention_gradient_converted(x, dq, *, scale):
        parts = cdiv(dq.shape[form.positions], 64) * across
        head, part = program_id(0) // parts, program_id(0) % parts
        b, h = head // dq.shape[form.heads], head % dq.shape[form.heads]
        s, d = ds(part // across * 64, 64), ds(part % across * columns, columns)
        of_head = x.shape[0] // (dq.shape[0] * dq.shape[form.heads])
        total = load_tile(x.at[ds(head * of_head + part * lines, lines), ds(0, 32)])
        total = from_register_order(total, (64, columns)) * scale
        dq[(b, h, s, d) if by_head else (b, s, h, d)] = total.astype(dq.dtype)

    return attention_gradient_converted  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Schedule:
    """How `of_keys` is tiled for a depth.

    rows        queries of a step
    late        whether the product dV begins after dS: otherwise registers do not suffice
    by_hand     whether its barriers of shared memory are the only ones; numpipe's gain 6 % at
                depth 64
    """

    rows: int
    late: bool
    by_hand: bool


SCHEDULES = {64: Schedule(128, True, False), 128: Schedule(64, False, True)}
"""depth -> its schedule; without dQ, always the last one"""
OUTSIDE = 1 << 30
"""a row beyond those of dQ in register order"""
KEYS = 128
"""keys of a CTA of `of_keys`"""


def keys_and_queries(depth: int) -> tuple[int, int]:
    """Return how many keys a CTA of `of_keys` has without dQ, and how many queries a step."""
    return (WIDE, WIDE) if depth > max(SCHEDULES) else (KEYS, SCHEDULES[128].rows)


@functools.cache
def visible(form: Form, n: int) -> Function:
    """Return the kernel function ``seen(s, key, left, least, low, high)`` that makes scores -inf
    that no query sees: keys from `left` on, if causal, those of queries before ``key + least``, and
    in a sequence among others, all of queries that are not in ``low <= query < high``."""

    @function
    def seen(s, key, left, least, low, high):
        # a first query for each key: a last key for each query takes more registers
        begin = np.where(key < left, key + least if form.causal else 0, n)
        if form.ranges:
            begin = np.maximum(begin, low)
            s = np.where(iota(n) < high, s, -np.inf)
        return np.where(iota(n) >= begin[:, None], s, -np.inf)

    return seen


ALIGNED = 4
"""queries; TMA can load the numbers of queries from a multiple of it on"""


class Work(NamedTuple):
    """The keys of a CTA, and the blocks of queries that it loops over.

    there     whether there is anything to do
    b, hk     batch and head of the keys
    row       the first key in the array, and `end_row` the end of its sequence there
    first     its number in its sequence, which has `keys` keys
    query     where block 0 of the queries begins in the array. Its first `skipped` queries are of
              another sequence; `queries` and `diagonal` count them
    start     blocks before it see none of the keys, and those from `whole` on all. `end` is the
              number of blocks, at least 1
    """

    there: Any
    b: Any
    hk: Any
    row: Any
    end_row: Any
    first: Any
    keys: Any
    query: Any
    skipped: Any
    queries: Any
    diagonal: Any
    start: Any
    end: Any
    whole: Any


@functools.cache
def work(form: Form, size: int, n: int) -> Function:
    """Return the kernel function of a CTA's `Work`: `size` keys, in blocks of `n` queries."""

    @function
    def of_cta(q, k, table, count, diagonal, group):
        heads, keys, queries = k.shape[form.heads], k.shape[form.positions], q.shape[form.positions]
        blocks = max(1, count[0] if form.ranges else cdiv(keys, size))
        head, j = program_id(0) // blocks, program_id(0) % blocks
        if form.causal or form.ranges:
            head, j = interleaved(blocks, k.shape[0] * heads, group)
        there, first = head < k.shape[0] * heads, j * size
        row, end_row, query, skipped = first, keys, 0, 0
        if form.ranges:
            there = there and count[0] > 0
            if there:
                row, end_row, first = table[j, 0], table[j, 1], table[j, 5]
                keys, skipped = end_row - row + first, table[j, 2] % ALIGNED
                query, queries = table[j, 2] - skipped, table[j, 3] + skipped
                # the first query that sees the first key
                diagonal = first - table[j, 4] - skipped
        end = max(1, cdiv(queries, n))
        start = min(end - 1, max(0, first - diagonal) // n) if form.causal else 0
        whole = cdiv(max(0, first + size - 1 - diagonal), n) if form.causal else 0
        whole = whole if first + size <= keys else end
        b, hk = head // heads, head % heads
        return Work(
            there,
            b,
            hk,
            row,
            end_row,
            first,
            keys,
            query,
            skipped,
            queries,
            diagonal,
            start,
            end,
            whole,
        )

    return of_cta


@function
def interleaved(blocks, heads, group):
    """Return the head and the block of keys of a CTA: heads of a group side by side, so that what
    they read stays in L2, and blocks of keys that most queries see first."""
    above, rest = program_id(0) // (blocks * group), program_id(0) % (blocks * group)
    size = max(1, min(group, heads - above * group))
    return above * group + rest % size, rest // size


@function
def outside(first, n, least, end):
    """Return whether some of the n positions from `first` on are not in ``least <= i < end``."""
    return first < least or first + n > end


def grid_of(form: Form, size: int) -> Any:
    """Return the number of tiles of `size` keys, or as many as a list may have."""
    if form.ranges:
        return lambda k, table: table.shape[0] * k.shape[form.heads]
    return lambda k: cdiv(k.shape[form.positions], size) * k.shape[form.heads] * k.shape[0]


@functools.cache
def of_keys(form: Form, with_dq: bool) -> Kernel:
    """Return the kernel of dK, dV and, `with_dq`, of what is added to dq / scale.

    A CTA owns 128 keys and loops over blocks of queries. The products S^T = K Q^T and
    dP^T = V dO^T have keys as rows, so P^T and dS^T are A operands in registers for dV and dK. dS^T
    passes through shared memory for dQ = dS K alone, which is issued a step later, and which lanes
    add in register order. The second warpgroup begins after the first exponentials of the first
    one: from then on, one computes while the other has products.
    """
    if form.depth > max(SCHEDULES):
        return of_keys_wide(form, with_dq)
    depth, by_head = form.depth, form.layout == "bhsd"
    how = SCHEDULES[depth if with_dq else 128]
    n = how.rows
    by_rows = n >= 128  # a warpgroup has rows of dQ, else columns
    _, lines = part_of_dq(depth)
    seen, work_of = visible(form, n), work(form, KEYS, n)
    rows_of_q, keys_of_k = (
        (None, None, Element(size), depth) if by_head else (None, Element(size), None, depth)
        for size in (n, KEYS)
    )

    @numpipe_kernel(
        grid=grid_of(form, KEYS),
        num_compute_wgs=2,
        wg_axis="wg",
        memory_registers=24,
        without=[*form.unlisted, *([] if with_dq else ["dq"])],
        static_dims={"dq": (-1,)},
        compiler_params=CompilerParams(approx_math=True, unsafe_no_auto_barriers=how.by_hand),
    )
    def attention_gradients(
        q,
        k,
        v,
        grad,
        stats,
        delta,
        table,
        count,
        dq,
        dk,
        dv,
        *,
        scale,
        scale_log2,
        diagonal,
        group,
    ):
        wg, sharing = axis_index("wg"), q.shape[form.heads] // k.shape[form.heads]
        cta = work_of(q, k, table, count, diagonal, group)
        if not cta.there:
            return

        def place(h, s, d):
            return (cta.b, h, s, d) if by_head else (cta.b, s, h, d)

        def add(part, at):
            if dq is not None:
                atomic_add(dq.at[ds(at, lines), ds(0, 32)], to_register_order(part))

        def vector(h, i):
            return cta.b, cta.hk * sharing + h, cta.query + (cta.start + i) * n

        matrix = BlockSpec(
            rows_of_q,
            lambda h, i: place(cta.hk * sharing + h, cta.query + (cta.start + i) * n, 0),
            buffer_count=2,
        )
        kv = pipeline(
            grid=(1,), in_specs=(BlockSpec(keys_of_k, lambda _: place(cta.hk, cta.row, 0)),) * 2
        )
        exchanged = scratch(SMEM((3, KEYS, n), q.dtype))
        written = scratch(Barrier(num_arrivals=2, num_barriers=3))
        started = scratch(Barrier(num_arrivals=1))
        own, every = ds(wg * 64, 64), ds(0, 64)
        # queries and columns of this warpgroup's part of dQ
        s_part, d_part = (own, every) if by_rows else (every, own)
        numbers = BlockSpec((None, None, Element(n)), vector, buffer_count=2)
        main = pipeline(
            grid=(sharing, cta.end - cta.start),
            in_specs=(matrix, numbers, numbers, matrix),
            manual_produced_barriers=True,
            manual_consumed_barriers=True,
        )
        dk_acc = zeros((64, depth), np.float32)
        dv_acc = zeros((64, depth), np.float32)
        for _, (k_tile, v_tile) in kv(k, v):
            k_own, v_own = k_tile.at[own, :], v_tile.at[own, :]
            # the first step adds zeros outside of dq
            now, before, last, at_before = 0, 2, 1, OUTSIDE
            # counted up: to divide the number of a step takes a tenth of the step
            block, base, begun = cta.start, 0, False
            if dq is not None:
                k_part = k_tile.at[:, d_part]
                of_head = dq.shape[0] // (q.shape[0] * q.shape[form.heads])
                base = (cta.b * q.shape[form.heads] + cta.hk * sharing) * of_head + wg * lines
                exchanged.at[before, own, :][...] = full((64, n), 0.0, np.float32).astype(q.dtype)
                commit_smem(meet=False)
                barrier_arrive(written.at[before])
            if wg == 1:
                barrier_wait(started)
            for (
                _,
                (q_tile, stats_tile, delta_tile, do_tile),
                (q_ready, stats_ready, delta_ready, do_ready),
                (q_free, stats_free, delta_free, do_free),
            ) in main(q, stats, delta, grad):
                barrier_wait(q_ready)
                s = wgmma(None, k_own, q_tile.T)
                s = wgmma_wait(s)
                barrier_wait(stats_ready)
                i_first = block * n
                if block < cta.whole or (
                    form.ranges and outside(i_first, n, cta.skipped, cta.queries)
                ):
                    least = cta.first - cta.diagonal - i_first
                    low, high = cta.skipped - i_first, cta.queries - i_first
                    s = seen(s, iota(64) + wg * 64, cta.keys - cta.first, least, low, high)
                p = np.exp2(fma(s, scale_log2, -stats_tile[...][None, :]))
                schedule_fence(after=p)
                if not begun and wg == 0:
                    barrier_arrive(started)
                barrier_wait(do_ready)
                dp = wgmma(None, v_own, do_tile.T)
                barrier_wait(delta_ready)
                if how.late:
                    dp = wgmma_wait(dp)
                    pb = p.astype(q.dtype)
                    grad_s = (p * (dp - delta_tile[...][None, :])).astype(q.dtype)
                    dv_acc = wgmma(dv_acc, pb, do_tile)
                else:
                    dv_acc = wgmma(dv_acc, p.astype(q.dtype), do_tile)
                    dp = wgmma_wait(dp)
                    grad_s = (p * (dp - delta_tile[...][None, :])).astype(q.dtype)
                if dq is not None:
                    barrier_wait(written.at[before])
                    exchanged.at[now, own, :][...] = grad_s
                dk_acc = wgmma(dk_acc, grad_s, q_tile)
                if dq is not None:
                    commit_smem(meet=False)
                    barrier_arrive(written.at[now])
                    part = wgmma(None, exchanged.at[before].T.at[s_part, :], k_part)
                barrier_arrive(stats_free)
                barrier_arrive(delta_free)
                dv_acc = wgmma_wait(dv_acc)
                barrier_arrive(do_free)
                dk_acc = wgmma_wait(dk_acc)
                barrier_arrive(q_free)
                if dq is not None:
                    part = wgmma_wait(part)
                    add(part, at_before)
                    at_before = base + block * 2 * lines
                    now, before, last = last, now, before
                block, begun = block + 1, True
                if block == cta.end:
                    block = cta.start
                    if dq is not None:
                        base += of_head
            if dq is not None:
                barrier_wait(written.at[before])
                part = wgmma(None, exchanged.at[before].T.at[s_part, :], k_part)
                add(wgmma_wait(part), at_before)
        # after the loop, in which the compiler would compute all addresses before it
        if not form.ranges or cta.row + KEYS <= cta.end_row:
            mine = ds(cta.row + wg * 64, 64)
            dk[place(cta.hk, mine, ds(0, depth))] = (dk_acc * scale).astype(dk.dtype)
            dv[place(cta.hk, mine, ds(0, depth))] = dv_acc.astype(dv.dtype)
        else:
            inside = ds(cta.row + wg * 64, 64, stop=cta.end_row)
            dk[place(cta.hk, inside, ds(0, depth))] = (dk_acc * scale).astype(dk.dtype)
            dv[place(cta.hk, inside, ds(0, depth))] = dv_acc.astype(dv.dtype)

    return attention_gradients  # type: ignore[no-any-return]


WIDE = 64
"""keys of a CTA, and queries of a step, of `of_keys_wide`"""


def of_keys_wide(form: Form, with_dq: bool) -> Kernel:
    """Return the kernel of `of_keys` for depths above 128, where registers do not have room for
    both sums of 64 keys.

    A CTA owns 64 keys. Its first warpgroup computes P and sums up dV, the second one dS and dK. P
    passes through shared memory in float32 to the second one, and dS for dQ, of which each has half
    of the columns.
    """
    depth, by_head = form.depth, form.layout == "bhsd"
    half, lines = part_of_dq(depth)
    seen, work_of, side = visible(form, WIDE), work(form, WIDE, WIDE), Element(WIDE)
    block = (None, None, side, depth) if by_head else (None, side, None, depth)

    @numpipe_kernel(
        grid=grid_of(form, WIDE),
        num_compute_wgs=2,
        wg_axis="wg",
        memory_registers=24,
        without=[*form.unlisted, *([] if with_dq else ["dq"])],
        static_dims={"dq": (-1,)},
        compiler_params=CompilerParams(approx_math=True, unsafe_no_auto_barriers=True),
    )
    def wide_attention_gradients(
        q,
        k,
        v,
        grad,
        stats,
        delta,
        table,
        count,
        dq,
        dk,
        dv,
        *,
        scale,
        scale_log2,
        diagonal,
        group,
    ):
        wg, sharing = axis_index("wg"), q.shape[form.heads] // k.shape[form.heads]
        cta = work_of(q, k, table, count, diagonal, group)
        if not cta.there:
            return

        def place(h, s, d):
            return (cta.b, h, s, d) if by_head else (cta.b, s, h, d)

        def vector(h, i):
            return cta.b, cta.hk * sharing + h, cta.query + (cta.start + i) * WIDE

        def matrix(h, i):
            return place(cta.hk * sharing + h, cta.query + (cta.start + i) * WIDE, 0)

        kv = pipeline(
            grid=(1,), in_specs=(BlockSpec(block, lambda _: place(cta.hk, cta.row, 0)),) * 2
        )
        numbers = BlockSpec((None, None, side), vector, buffer_count=2)
        main = pipeline(
            grid=(sharing, cta.end - cta.start),
            in_specs=(
                BlockSpec(block, matrix, buffer_count=2),
                numbers,
                numbers,
                BlockSpec(block, matrix, buffer_count=1),
            ),
            manual_produced_barriers=True,
            manual_consumed_barriers=True,
        )
        weights = scratch(SMEM((WIDE, WIDE), np.float32))
        slopes = scratch(SMEM((2, WIDE, WIDE), q.dtype))
        weighed = scratch(Barrier(num_arrivals=1))
        written = scratch(Barrier(num_arrivals=1, num_barriers=2))
        acc = zeros((WIDE, depth), np.float32)
        for _, (k_tile, v_tile) in kv(k, v):
            now = 0
            if dq is not None:
                k_part = k_tile.at[:, ds(wg * half, half)]
                of_head = dq.shape[0] // (q.shape[0] * q.shape[form.heads])
                base = (cta.b * q.shape[form.heads] + cta.hk * sharing) * of_head + wg * lines
            for (
                (h, i),
                (q_tile, stats_tile, delta_tile, do_tile),
                (q_ready, stats_ready, delta_ready, do_ready),
                (q_free, stats_free, delta_free, do_free),
            ) in main(q, stats, delta, grad):
                barrier_wait(q_ready)
                barrier_wait(do_ready)
                if wg == 0:  # noqa: SIM108 - products are statements
                    x = wgmma(None, k_tile, q_tile.T)
                else:
                    x = wgmma(None, v_tile, do_tile.T)
                x = wgmma_wait(x)
                barrier_wait(stats_ready)
                barrier_wait(delta_ready)
                if wg == 0:
                    i_first = (cta.start + i) * WIDE
                    if cta.start + i < cta.whole or (
                        form.ranges and outside(i_first, WIDE, cta.skipped, cta.queries)
                    ):
                        least = cta.first - cta.diagonal - i_first
                        low, high = cta.skipped - i_first, cta.queries - i_first
                        x = seen(x, iota(WIDE), cta.keys - cta.first, least, low, high)
                    x = np.exp2(fma(x, scale_log2, -stats_tile[...][None, :]))
                    weights[...] = x
                    barrier_arrive(weighed)
                    left = x.astype(q.dtype)
                else:
                    barrier_wait(weighed)
                    left = (weights[...] * (x - delta_tile[...][None, :])).astype(q.dtype)
                    slopes.at[now][...] = left
                    commit_smem(meet=False)
                    barrier_arrive(written.at[now])
                barrier_arrive(stats_free)
                barrier_arrive(delta_free)
                if wg == 0:  # noqa: SIM108
                    acc = wgmma(acc, left, do_tile)
                else:
                    acc = wgmma(acc, left, q_tile)
                # then the second warpgroup has read P, too
                barrier_wait(written.at[now])
                if dq is not None:
                    part = wgmma(None, slopes.at[now].T, k_part)
                acc = wgmma_wait(acc)
                barrier_arrive(do_free)
                barrier_arrive(q_free)
                if dq is not None:
                    part = to_register_order(wgmma_wait(part))
                    at = ds(base + h * of_head + (cta.start + i) * 2 * lines, lines)
                    atomic_add(dq.at[at, ds(0, 32)], part)
                now = 1 - now
        if not form.ranges or cta.row + WIDE <= cta.end_row:
            at = place(cta.hk, ds(cta.row, WIDE), ds(0, depth))
            if wg == 0:
                dv[at] = acc.astype(dv.dtype)
            else:
                dk[at] = (acc * scale).astype(dk.dtype)
        else:
            at = place(cta.hk, ds(cta.row, WIDE, stop=cta.end_row), ds(0, depth))
            if wg == 0:
                dv[at] = acc.astype(dv.dtype)
            else:
                dk[at] = (acc * scale).astype(dk.dtype)

    return wide_attention_gradients  # type: ignore[no-any-return]


def grid_of_queries(form: Form, rows: int) -> Any:
    if form.ranges:
        return lambda q, table: table.shape[0] * q.shape[form.heads]
    return lambda q: cdiv(q.shape[form.positions], rows) * q.shape[form.heads] * q.shape[0]


QUERIES = {64: (3, 96, (3, 2)), 128: (2, 64, (3, 2)), 256: (2, 32, (2, 2))}
"""depth -> (warpgroups, keys of a step, slots of K and V) of `of_queries`"""


@functools.cache
def of_queries(form: Form) -> Kernel:
    """Return the kernel of dq, whose sums are added in the order of the keys. Each warpgroup has 64
    queries, and dS stays in registers."""
    depth, by_head = form.depth, form.layout == "bhsd"
    wgs, n, slots = QUERIES[depth]
    rows, delay = 64 * wgs, slots[0] - 2
    rows_of_q, keys_of_k = (
        (None, None, Element(size), depth) if by_head else (None, Element(size), None, depth)
        for size in (rows, n)
    )

    @numpipe_kernel(
        grid=grid_of_queries(form, rows),
        without=form.unlisted,
        num_compute_wgs=wgs,
        wg_axis="wg",
        memory_registers=24,
        compiler_params=CompilerParams(approx_math=True),
    )
    def attention_gradient_of_queries(
        q, k, v, grad, stats, delta, table, count, dq, *, scale, scale_log2, diagonal
    ):
        keys, heads, own_row = k.shape[form.positions], q.shape[form.heads], axis_index("wg") * 64
        if form.ranges:
            b, h, i = 0, program_id(0) % heads, program_id(0) // heads
            if i >= count[0]:
                return
            row, key, keys, sees = table[i, 0], table[i, 2], table[i, 3], table[i, 4]
            mine = ds(row + own_row, 64, stop=table[i, 1])
        else:
            blocks = cdiv(q.shape[form.positions], rows)
            head, i = program_id(0) // blocks, program_id(0) % blocks
            if form.causal:  # the longest first
                i = blocks - 1 - i
            b, h, row, key = head // heads, head % heads, i * rows, 0
            sees, mine = row + diagonal + 1, ds(row + own_row, 64)
        hk = h * k.shape[form.heads] // heads
        steps = cdiv(min(keys, max(0, sees + rows - 1)) if form.causal else keys, n)
        # keys that all queries see
        whole = min(keys, max(0, sees)) if form.causal else keys

        def place(h, s, d):
            return (b, h, s, d) if by_head else (b, s, h, d)

        def block(count, delay):
            return BlockSpec(
                keys_of_k,
                lambda j: place(hk, key + j * n, 0),
                buffer_count=count,
                delay_release=delay,
            )

        own = ds(own_row, 64)
        offset = layout_cast(stats[b, h, mine], "column")[:, None]
        total = layout_cast(delta[b, h, mine], "column")[:, None]
        acc = zeros((64, depth), np.float32)
        queries = pipeline(
            grid=(1,), in_specs=(BlockSpec(rows_of_q, lambda _: place(h, row, 0)),) * 2
        )
        main = pipeline(grid=(steps,), in_specs=(block(slots[0], delay), block(slots[1], 0)))
        for _, (q_tile, do_tile) in queries(q, grad):
            for (j,), (k_tile, v_tile) in main(k, v):
                s = wgmma(None, q_tile.at[own, :], k_tile.T)
                dp = wgmma(None, do_tile.at[own, :], v_tile.T)
                s = wgmma_wait(s)
                if (j + 1) * n > whole:
                    last = (
                        np.minimum(iota(64) + (sees + own_row), keys)[:, None]
                        if form.causal
                        else keys
                    )
                    s = np.where(iota(n) + j * n < last, s, -np.inf)
                p = np.exp2(fma(s, scale_log2, -offset))
                dp = wgmma_wait(dp)
                acc = wgmma(acc, (p * (dp - total)).astype(q.dtype), k_tile)
        dq[place(h, mine, ds(0, depth))] = (acc * scale).astype(dq.dtype)

    return attention_gradient_of_queries  # type: ignore[no-any-return]


def launch_gradients(
    q: ArrayInfo,
    k: ArrayInfo,
    v: ArrayInfo,
    o: ArrayInfo,
    lse: ArrayInfo,
    grad: ArrayInfo,
    grad_lse: ArrayInfo | None,
    dq: ArrayInfo,
    dk: ArrayInfo,
    dv: ArrayInfo,
    form: Form,
    diagonal: int,
    scale: float,
    deterministic: bool,
    place: Place,
    of_k: tuple = (),
    of_q: tuple = (),
    of_functions: Sequence[ArrayInfo] = (),
) -> None:
    """Compute dq, dk and dv. TMA can load q, k, v and grad. `of_k` and `of_q` are the lists of the
    tiles of keys and queries, and their numbers, if there is a list; `of_functions` are the arrays
    of the form's functions."""
    batches, heads, depth = q.shape[0], q.shape[form.heads], q.shape[3]
    queries, keys = q.shape[form.positions], k.shape[form.positions]
    stats, delta = (
        strided(made, (batches, heads, queries), made.strides)
        for made in (
            allocated(q, (batches, heads, round_up(queries, 4)), place, np.float32)
            for _ in range(2)
        )
    )
    deterministic = deterministic or form.functions
    dq_total: tuple[ArrayInfo, ...] = ()
    if not deterministic:
        lines = batches * heads * round_up(queries, 128) * form.depth // 32
        dq_total = (allocated(q, (lines, 32), place, np.float32),)
    of_lse = () if grad_lse is None else (grad_lse,)
    present = ["grad_lse"] * len(of_lse) + ["dq"] * len(dq_total)
    prepare(form, *present)(o, lse, grad, *of_lse, stats, delta, *dq_total, **place)
    scalars = {"scale": scale, "scale_log2": scale * math.log2(math.e)}
    # beyond these, the mask hides all or nothing
    scalars["diagonal"] = max(-queries, min(diagonal, keys))
    # of one head of queries: a CTA loops over those that share its keys
    bytes_of_head = max(1, 8 * queries * depth)
    group = max(1, min(batches * k.shape[form.heads], L2 // bytes_of_head))
    read = q, k, v, grad, stats, delta
    if form.functions:
        numbers = scalars["diagonal"], scale
        launch_function_gradients(read, dq, dk, dv, form, of_functions, *numbers, place)
        return
    if keys:
        run = of_keys(form, not deterministic)
        run(*read, *of_k, *dq_total, dk, dv, group=group, **scalars, **place)
    if deterministic:
        of_queries(form)(*read, *of_q, dq, **scalars, **place)
    else:
        convert(form)(*dq_total, dq, scale=scale, **place)
