"""Kernels of the gradients of attention, and their launches.

With P = exp(scale * Q K^T - lse), where lse are the logarithms of the sums, and
dS = P * (dO V^T - sum(dO * O)), the gradients are::

    dV = P^T dO        dK = scale * dS^T Q        dQ = scale * dS K

Three kernels compute them: `prepare` the sums of dO * O, `of_keys` all three products in one pass
over the queries, and `convert` rounds dQ, to which CTAs have added in float32 in any order.
If that order must be fixed, `of_keys` leaves dQ out, and `of_queries` computes P and dS again. So
it does with score and mask functions (`attention_function_gradients`).
"""

# tiles in kernels have no types
# mypy: disable-error-code="no-untyped-def, attr-defined, operator, arg-type, index, var-annotated"

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ..arch.targets import DEFAULT
from ..core.arith import cdiv
from ..core.functions import Function, function
from ..kernels.decorator import kernel as numpipe_kernel
from ..kernels.kernel import Kernel
from ..language.memory.copies import commit_smem
from ..language.memory.remote import async_store_smem
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
from ..plan.allocations import SMEM, Barrier, ClusterBarrier
from ..plan.context import axis_index, program_id
from ..plan.params import CompilerParams
from ..plan.specs import BlockSpec, Element
from .attention_configs import L2, Form
from .attention_function_gradients import launch_function_gradients, scores
from .attention_functions import nth, visible_blocks
from .op_outputs import Arrays, Place, allocated
from .operands import loaded
from .reduce_axis import launch_reduction
from .tiled import reshaped

LINES = 64 * 64 // 32
"""rows in register order of 64 x 64 elements of dQ, the part of a warpgroup. Parts of 64 queries
follow each other"""


BLOCK = 128
"""queries of a block of `prepare` and `convert`"""


def grid_of_blocks(form: Form, parts: int) -> Any:
    """Return the number of CTAs of `over_queries`."""
    if form.ranges:
        return lambda x, table: table.shape[0] * x.shape[form.heads] * parts
    return lambda x: x.shape[0] * x.shape[form.heads] * cdiv(x.shape[form.positions], BLOCK) * parts


@functools.cache
def over_queries(form: Form, parts: int) -> tuple[Function, dict[str, Any]]:
    """Return (at, options) of kernels that have `parts` CTAs for each block of 128 queries of
    each head and sequence.

    ``at(x, table, count)`` returns, for an array x of the shape of q: whether the CTA has a block,
    its batch, head, first query, the end of its sequence, its place in `stats`, `delta` and dq,
    where all blocks are whole, and the number of the part.
    """

    @function
    def at(x, table, count):
        end = x.shape[form.positions]
        blocks = table.shape[0] if form.ranges else cdiv(end, BLOCK)
        # the last heads first: the kernel after this one finds what was stored or read last in L2
        head = x.shape[0] * x.shape[form.heads] - 1 - program_id(0) // (blocks * parts)
        i = program_id(0) // parts % blocks
        there, first, place = True, i * BLOCK, i * BLOCK
        if form.ranges:
            there = i < count[0]
            if there:
                first, end = table[i, 0], table[i, 1]
                place = place_of(table, i, 0)
        b, h = head // x.shape[form.heads], head % x.shape[form.heads]
        return there, b, h, first, end, place, program_id(0) % parts

    params = CompilerParams(ctas_per_sm=8, approx_math=True)
    return at, {
        "grid": grid_of_blocks(form, parts),
        "warp_specialized": False,
        "compiler_params": params,
    }


@function
def place_of(table, i, column):
    """Return the place of a query where all sequences have whole blocks."""
    # the sum of rounded lengths is at most the rounded sum and a block for each sequence
    return (table[i, column] // BLOCK + table[i, 5]) * BLOCK


@functools.cache
def prepare(form: Form, *absent: str) -> Kernel:
    """Return the kernel of what the others read of each query: `stats`, the logarithm of its sum in
    powers of two, and `delta`, sum(grad * x) - grad_lse, where x is the result of attention. It
    also stores zeros in dq, which is in register order. What is in a block after the end of a
    sequence has no weights."""
    height, place = 2048 // form.depth, form.place
    at, options = over_queries(form, BLOCK // height)

    @numpipe_kernel(without=[*absent, *form.unlisted], **options)
    def attention_gradient_sums(x, lse, grad, grad_lse, table, count, stats, delta, dq):
        there, b, h, first, end, row, part = at(x, table, count)
        if not there:
            return
        first, row = first + part * height, row + part * height
        if dq is not None:  # before the loads, which the stores need not wait for
            line = ((b * x.shape[form.heads] + h) * stats.shape[2] + row) * (form.depth // 32)
            dq[ds(line, 64), ds(0, 32)] = to_register_order(zeros((64, 32), np.float32))
        s, mine = ds(first, height, stop=end), ds(row, height)
        tile = place(b, h, s, ds(0, form.depth))
        total = (x[tile].astype(np.float32) * grad[tile].astype(np.float32)).sum(axis=1)
        if grad_lse is not None:
            total = total - grad_lse[b, h, s]
        delta[b, h, mine] = total
        logarithm = lse[b, h, s] * math.log2(math.e)
        # a query that sees no key: exp2(s - inf) is 0
        none = (iota(height) >= end - first) | (logarithm == -np.inf)
        stats[b, h, mine] = np.where(none, np.inf, logarithm)

    return attention_gradient_sums  # type: ignore[no-any-return]


@functools.cache
def convert(form: Form) -> Kernel:
    """Return the kernel of x = total * scale, where `total` is dQ in register order."""
    across, place = form.depth // 64, form.place
    at, options = over_queries(form, BLOCK // 64 * across)

    @numpipe_kernel(without=form.unlisted, **options)
    def attention_gradient_converted(total, table, count, x, *, scale):
        there, b, h, first, end, row, part = at(x, table, count)
        if not there:
            return
        first, d = first + part // across * 64, ds(part % across * 64, 64)
        s = ds(first, 64, stop=end) if form.ranges else ds(first, 64)
        of_head = total.shape[0] // (x.shape[0] * x.shape[form.heads])
        line = (b * x.shape[form.heads] + h) * of_head + (row // 64 * across + part) * LINES
        found = load_tile(total.at[ds(line, LINES), ds(0, 32)])
        found = from_register_order(found, (64, 64)) * scale
        x[place(b, h, s, d)] = found.astype(x.dtype)

    return attention_gradient_converted  # type: ignore[no-any-return]


OUTSIDE = 1 << 30
"""a row beyond those of dQ in register order"""
STEP = 64
"""queries of a step of the kernels of keys, and keys of a CTA of `of_keys_wide`"""


def keys_of(form: Form) -> int:
    """Return the number of keys of a CTA of `of_keys`, or of a cluster of two."""
    return 192 if form.depth == 64 else 128


@functools.cache
def visible(form: Form) -> Function:
    """Return the kernel function ``seen(s, key, left, least)`` that makes scores -inf that no query
    sees: keys from `left` on, and if causal, those of queries before ``key + least``."""

    @function
    def seen(s, key, left, least):
        # a first query for each key: a last key for each query takes more registers
        begin = np.where(key < left, key + least if form.causal else 0, STEP)
        return np.where(iota(STEP) >= begin[:, None], s, -np.inf)

    return seen


class Work(NamedTuple):
    """The keys of a CTA, and the blocks of queries that it loops over.

    there     whether there is anything to do
    b, hk     batch and head of the keys; `head` is the first of the CTA's `heads` heads of q, which
              share the keys
    sums      the batch of its sums in dk and dv
    row       the first key in the array, and `end_row` the end of its sequence there
    least     the first query that sees the first key
    query     the first query of the sequence in the array, and `place` its place in `stats`,
              `delta` and dq
    steps     the number of blocks that see some of the keys; those from `whole` on see all
    entry     the block that the loop begins with; `direction` is 1 or -1
    """

    there: Any
    b: Any
    hk: Any
    head: Any
    heads: Any
    sums: Any
    row: Any
    end_row: Any
    least: Any
    query: Any
    place: Any
    steps: Any
    whole: Any
    entry: Any
    direction: Any


@functools.cache
def work(form: Form) -> Function:
    """Return the kernel function of the `Work` of a CTA's keys."""
    size = keys_of(form)

    @function
    def of_cta(q, k, dk, table, count, diagonal, group, number):
        heads, keys, queries = k.shape[form.heads], k.shape[form.positions], q.shape[form.positions]
        parts = dk.shape[0] // k.shape[0]
        own = q.shape[form.heads] // (heads * parts)
        blocks = max(1, count[0] if form.ranges else cdiv(keys, size))
        head, j = number // blocks, number % blocks
        if form.causal or form.ranges:
            head, j = interleaved(blocks, dk.shape[0] * heads, group, number)
        there = head < dk.shape[0] * heads
        row, end_row, query, place = j * size, keys, 0, 0
        least = row - diagonal
        if form.ranges:
            there = there and count[0] > 0
            if there:
                row, end_row, query, queries = table[j, 0], table[j, 1], table[j, 2], table[j, 3]
                least, place = table[j, 4], place_of(table, j, 2)
        end = cdiv(queries, STEP)
        start = max(0, min(end - 1, least // STEP)) if form.causal else 0
        whole = cdiv(max(0, least + size - 1), STEP) if form.causal else 0
        whole = whole if size <= end_row - row else end
        sums, hk = head // heads, head % heads
        b, part = sums % k.shape[0], sums // k.shape[0]
        # CTAs that begin together go down from the end. The others begin one after another, each
        # with a later block, as CTAs end: going up, they meet those that began before
        up = form.causal and 2 * j >= blocks
        entry, direction = start if up else end - 1, 1 if up else -1
        return Work(
            there,
            b,
            hk,
            (hk * parts + part) * own,
            own,
            sums,
            row,
            end_row,
            least,
            query,
            place,
            end - start,
            whole,
            entry,
            direction,
        )

    return of_cta


@function
def interleaved(blocks, heads, group, number):
    """Return the head and the block of keys of a CTA: heads of a group side by side, so that what
    they read stays in L2, and blocks of keys that most queries see first."""
    above, rest = number // (blocks * group), number % (blocks * group)
    size = max(1, min(group, heads - above * group))
    return above * group + rest % size, rest // size


@function
def line_of(cta, stats, h, row, depth):
    """Return where the queries from `row` of a CTA's head h begin in dq."""
    head = cta.b * stats.shape[1] + cta.head + h
    return (head * stats.shape[2] + cta.place + row) * (depth // 32)


@function
def block_of(cta, i):
    """Return the block of queries of step i of a CTA."""
    return cta.entry + i * cta.direction


def grid_of(form: Form, ctas: int = 1) -> Any:
    """Return the number of CTAs for tiles of keys, or for as many as a list may have."""
    size = keys_of(form)
    if form.ranges:
        return lambda dk, table: table.shape[0] * dk.shape[form.heads] * dk.shape[0] * ctas
    return lambda dk: (
        cdiv(dk.shape[form.positions], size) * dk.shape[form.heads] * dk.shape[0] * ctas
    )


@function
def add(dq, part, at):
    """Add 64 x 64 elements to dq, from row `at` in register order."""
    atomic_add(dq.at[ds(at, LINES), ds(0, 32)], to_register_order(part))


@functools.cache
def stored(form: Form) -> Function:
    """Return the kernel function ``store(x, cta, row, sums)`` of the gradients of 64 keys."""

    place = form.place

    @function
    def store(x, cta, row, sums):
        d = ds(0, form.depth)
        if not form.ranges or row + 64 <= cta.end_row:
            x[place(cta.sums, cta.hk, ds(row, 64), d)] = sums.astype(x.dtype)
        else:
            inside = ds(row, 64, stop=cta.end_row)
            x[place(cta.sums, cta.hk, inside, d)] = sums.astype(x.dtype)

    return store


@functools.cache
def of_keys(form: Form, with_dq: bool) -> Kernel:
    """Return the kernel of dK, dV and, `with_dq`, of what is added to dq / scale.

    A warpgroup owns 64 keys and loops over blocks of 64 queries, and in each over the heads that
    share its keys, or a part of them (`parts_of`), so that CTAs at the same block read the same
    data and add to the same part of dQ while these are in L2 (`work`). The products S^T = K Q^T and
    dP^T = V dO^T have keys as rows, so P^T and dS^T are A operands in registers for dV and dK. dS^T
    passes through shared memory for dQ = dS K alone, which is a step late, and which lanes add in
    register order. A warpgroup begins after the first exponentials of the previous one: from then
    on, some compute while others have products.

    At depth 64, registers suffice for three warpgroups: more of them overlap, and dQ of more keys
    is added at once. They compute dQ of a block in turn. At depth 128 there are two, and each has
    half of the columns of dQ.
    """
    if form.depth > 128:
        return of_keys_wide(form, with_dq)
    depth, place, n, size = form.depth, form.place, STEP, keys_of(form)
    wgs, turns = size // 64, depth == 64
    slots = 256 // depth
    seen, work_of, store = visible(form), work(form), stored(form)
    rows_of_q, keys_of_k = form.block(Element(n)), form.block(Element(size))

    @numpipe_kernel(
        grid=grid_of(form),
        num_compute_wgs=wgs,
        wg_axis="wg",
        memory_registers=24,
        without=[*form.unlisted, *([] if with_dq else ["dq"])],
        static_dims={"dq": (-1,)},
        compiler_params=CompilerParams(approx_math=True, unsafe_no_auto_barriers=True),
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
        wg = axis_index("wg")
        cta = work_of(q, k, dk, table, count, diagonal, group, program_id(0))
        if not cta.there:
            return

        def vector(i, h):
            return cta.b, cta.head + h, cta.place + block_of(cta, i) * n

        matrix = BlockSpec(
            rows_of_q,
            lambda i, h: place(cta.b, cta.head + h, cta.query + block_of(cta, i) * n, 0),
            buffer_count=slots,
        )
        kv = pipeline(
            grid=(1,),
            in_specs=(BlockSpec(keys_of_k, lambda _: place(cta.b, cta.hk, cta.row, 0)),) * 2,
        )
        exchanged = scratch(SMEM((3, size, n), q.dtype))
        written = scratch(Barrier(num_arrivals=wgs, num_barriers=3))
        started = scratch(Barrier(num_arrivals=1, num_barriers=wgs - 1))
        own = ds(wg * 64, 64)
        numbers = BlockSpec((None, None, Element(n)), vector, buffer_count=slots)
        main = pipeline(
            grid=(cta.steps, cta.heads),
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
            if dq is not None:
                k_part = k_tile if turns else k_tile.at[:, own]
                exchanged.at[before, own, :][...] = full((64, n), 0.0, np.float32).astype(q.dtype)
                commit_smem(meet=False)
                barrier_arrive(written.at[before])
            if wg > 0 and cta.steps > 0:
                barrier_wait(started.at[wg - 1])
            for (
                (i, h),
                (q_tile, stats_tile, delta_tile, do_tile),
                (q_ready, stats_ready, delta_ready, do_ready),
                (q_free, stats_free, delta_free, do_free),
            ) in main(q, stats, delta, grad):
                barrier_wait(q_ready)
                s = wgmma(None, k_own, q_tile.T)
                s = wgmma_wait(s)
                barrier_wait(stats_ready)
                block = block_of(cta, i)
                if block < cta.whole:
                    s = seen(s, iota(64) + wg * 64, cta.end_row - cta.row, cta.least - block * n)
                p = np.exp2(fma(s, scale_log2, -stats_tile[...][None, :]))
                schedule_fence(after=p)
                if i + h == 0 and wg < wgs - 1:
                    barrier_arrive(started.at[wg])
                barrier_wait(do_ready)
                dp = wgmma(None, v_own, do_tile.T)
                barrier_wait(delta_ready)
                if not turns:
                    dv_acc = wgmma(dv_acc, p.astype(q.dtype), do_tile)
                dp = wgmma_wait(dp)
                grad_s = (p * (dp - delta_tile[...][None, :])).astype(q.dtype)
                if turns:  # only now: registers do not suffice for both products
                    dv_acc = wgmma(dv_acc, p.astype(q.dtype), do_tile)
                if dq is not None:
                    barrier_wait(written.at[before])
                    exchanged.at[now, own, :][...] = grad_s
                dk_acc = wgmma(dk_acc, grad_s, q_tile)
                if dq is not None:
                    commit_smem(meet=False)
                    barrier_arrive(written.at[now])
                    if not turns:
                        part = wgmma(None, exchanged.at[before].T, k_part)
                barrier_arrive(stats_free)
                barrier_arrive(delta_free)
                dv_acc = wgmma_wait(dv_acc)
                barrier_arrive(do_free)
                dk_acc = wgmma_wait(dk_acc)
                barrier_arrive(q_free)
                if dq is not None:
                    if not turns:
                        add(dq, wgmma_wait(part), at_before)
                    elif now == wg:
                        late = wgmma(None, exchanged.at[before].T, k_part)
                        add(dq, wgmma_wait(late), at_before)
                    at_before = line_of(cta, stats, h, block * n, depth)
                    at_before = at_before + (0 if turns else wg * LINES)
                    now, before, last = last, now, before
            if dq is not None:
                barrier_wait(written.at[before])
                if not turns or now == wg:
                    rest = wgmma(None, exchanged.at[before].T, k_part)
                    add(dq, wgmma_wait(rest), at_before)
        # computed again, after the loop: values and addresses kept from before it would be spilled
        done = work_of(q, k, dk, table, count, diagonal, group, program_id(0))
        store(dk, done, done.row + wg * 64, dk_acc * scale)
        store(dv, done, done.row + wg * 64, dv_acc)

    return attention_gradients  # type: ignore[no-any-return]


def of_keys_wide(form: Form, with_dq: bool) -> Kernel:
    """Return the kernel of `of_keys` for depths above 128, where registers do not have room for
    both sums of 64 keys.

    A CTA owns 64 keys, a cluster of two 128. The first warpgroup of a CTA computes P and sums up
    dV, the second one dS and dK. P passes through shared memory in float32 to the second one. The
    CTAs of a cluster send each other dS, and each adds dQ of half of the columns for the keys of
    both: additions of one CTA for its own keys alone would take longer than all products. dQ is a
    step late, so that what is sent has arrived. Loading Q and dO for each other gains nothing.
    """
    depth, place, half = form.depth, form.place, form.depth // 2
    seen, work_of, store = visible(form), work(form), stored(form)
    side = Element(STEP)
    block = form.block(side)
    block_of_half = (*block[:3], half)

    @numpipe_kernel(
        grid=grid_of(form, 2),
        cluster=2,
        cluster_names="pair",
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
        wg = axis_index("wg")
        rank = axis_index("pair")
        cta = work_of(q, k, dk, table, count, diagonal, group, program_id(0) // 2)
        if not cta.there:
            return
        row = cta.row + rank * STEP

        def vector(i, h):
            return cta.b, cta.head + h, cta.place + block_of(cta, i) * STEP

        def matrix(i, h):
            return place(cta.b, cta.head + h, cta.query + block_of(cta, i) * STEP, 0)

        # the second CTA may have no keys
        mine, others = (
            BlockSpec(block, lambda _: place(cta.b, cta.hk, row, 0), mode="zero"),
            BlockSpec(
                block_of_half,
                lambda _: place(cta.b, cta.hk, cta.row + (1 - rank) * STEP, rank),
                mode="zero",
            ),
        )
        kv = pipeline(grid=(1,), in_specs=(mine, mine, others))
        numbers = BlockSpec((None, None, side), vector, buffer_count=1)
        main = pipeline(
            grid=(cta.steps, cta.heads),
            in_specs=(
                BlockSpec(block, matrix, buffer_count=2),
                numbers,
                numbers,
                BlockSpec(block, matrix, buffer_count=1),
            ),
            manual_produced_barriers=True,
            manual_consumed_barriers=True,
        )
        weights = scratch(SMEM((STEP, STEP), np.float32))
        slopes, received = scratch((SMEM((STEP, STEP), q.dtype), SMEM((STEP, STEP), q.dtype)))
        weighed, written = scratch((Barrier(num_arrivals=2), Barrier(num_arrivals=1)))
        landed, free = scratch((Barrier(num_arrivals=1), ClusterBarrier("pair", num_arrivals=2)))

        def share(left):
            """Write dS of these keys, which the second warpgroup has, to both CTAs."""
            if dq is not None:
                slopes[...] = left
                commit_smem(meet=False)
            # all warps have read P, too
            barrier_arrive(written)
            if dq is not None:
                async_store_smem(left, received, landed, cluster_idx=1 - rank, cluster_dim="pair")

        acc = zeros((STEP, depth), np.float32)
        for _, (k_tile, v_tile, k_other) in kv(k, v, k):
            at_before = OUTSIDE
            if dq is not None:
                k_part = k_tile.at[:, ds(rank * half + wg * 64, 64)]
                k_rest = k_other.at[:, ds(wg * 64, 64)]
                # the first step adds zeros outside of dq
                if wg != 0:
                    share(full((STEP, STEP), 0.0, np.float32).astype(q.dtype))
                barrier_wait(written)
            for (
                (i, h),
                (q_tile, stats_tile, delta_tile, do_tile),
                (q_ready, stats_ready, delta_ready, do_ready),
                (q_free, stats_free, delta_free, do_free),
            ) in main(q, stats, delta, grad):
                step = block_of(cta, i)
                barrier_wait(q_ready)
                if wg == 0:
                    x = wgmma(None, k_tile, q_tile.T)
                else:
                    barrier_wait(do_ready)
                    x = wgmma(None, v_tile, do_tile.T)
                if dq is not None:
                    barrier_wait(landed)
                    rest = received.T[...]
                    barrier_arrive(free)
                    part = wgmma(None, slopes.T, k_part)
                    part = wgmma(part, rest, k_rest)
                x = wgmma_wait(x)
                barrier_wait(stats_ready)
                barrier_wait(delta_ready)
                # what has one slot is released as soon as possible
                if wg == 0:
                    barrier_arrive(q_free)
                    barrier_arrive(delta_free)
                    if step < cta.whole:
                        least = cta.least + (rank - step) * STEP
                        x = seen(x, iota(STEP), cta.end_row - row, least)
                    x = np.exp2(fma(x, scale_log2, -stats_tile[...][None, :]))
                    barrier_arrive(stats_free)
                    weights[...] = x
                    if dq is not None:
                        part = wgmma_wait(part)
                    barrier_arrive(weighed)
                    left = x.astype(q.dtype)
                else:
                    barrier_arrive(stats_free)
                    if dq is not None:
                        part = wgmma_wait(part)
                        add(dq, part, at_before)
                    # all warps have read dS
                    barrier_arrive(weighed)
                    barrier_wait(weighed)
                    left = (weights[...] * (x - delta_tile[...][None, :])).astype(q.dtype)
                    barrier_arrive(delta_free)
                    if dq is not None:
                        barrier_wait(free)
                    share(left)
                barrier_wait(do_ready)
                if wg != 0:
                    barrier_arrive(do_free)
                if wg == 0:  # noqa: SIM108
                    acc = wgmma(acc, left, do_tile)
                else:
                    acc = wgmma(acc, left, q_tile)
                if dq is not None and wg == 0:
                    add(dq, part, at_before)
                barrier_wait(written)
                acc = wgmma_wait(acc)
                if wg == 0:
                    barrier_arrive(do_free)
                else:
                    barrier_arrive(q_free)
                if dq is not None:
                    at_before = line_of(cta, stats, h, step * STEP, depth)
                    at_before = at_before + (rank * 2 + wg) * LINES
            if dq is not None:
                barrier_wait(landed)
                rest = received.T[...]
                part = wgmma(None, slopes.T, k_part)
                part = wgmma(part, rest, k_rest)
                add(dq, wgmma_wait(part), at_before)
        if wg == 0:
            store(dv, cta, row, acc)
        else:
            store(dk, cta, row, acc * scale)

    return wide_attention_gradients  # type: ignore[no-any-return]


QUERIES = {64: (3, 96, (3, 2)), 128: (2, 64, (3, 2)), 256: (2, 32, (2, 2))}
"""depth -> (warpgroups, keys of a step, slots of K and V) of `of_queries`"""


def queries_and_keys(form: Form) -> tuple[int, int, tuple[int, int]]:
    """Return the row of `QUERIES` for a form. Functions need registers."""
    return QUERIES[max(form.depth, 128) if form.functions else form.depth]


@functools.cache
def of_queries(form: Form) -> Kernel:
    """Return the kernel of dq. Each warpgroup has 64 queries and loops over blocks of keys."""
    depth, place, (weights, slopes) = form.depth, form.place, scores(form)
    wgs, n, (slots, slots_of_v) = queries_and_keys(form)
    rows = 64 * wgs
    rows_of_q, keys_of_k = form.block(rows), form.block(n)

    @numpipe_kernel(
        grid=lambda q: cdiv(q.shape[form.positions], rows) * q.shape[form.heads] * q.shape[0],
        num_compute_wgs=wgs,
        wg_axis="wg",
        memory_registers=40 if form.mask is not None else 24,
        without=form.absent,
        compiler_params=CompilerParams(approx_math=True),
    )
    def attention_gradient_of_queries(
        q,
        k,
        v,
        grad,
        stats,
        delta,
        blocks,
        score_0,
        score_1,
        score_2,
        mask_0,
        mask_1,
        mask_2,
        seeds,
        dq,
        *,
        scale,
        diagonal,
    ):
        queries, keys, heads = q.shape[form.positions], k.shape[form.positions], q.shape[form.heads]
        tiles = cdiv(queries, rows)
        head, i = program_id(0) // tiles, program_id(0) % tiles
        if form.causal:  # the longest first
            i = tiles - 1 - i
        b, h = head // heads, head % heads
        hk, first = h * k.shape[form.heads] // heads, i * rows + axis_index("wg") * 64
        last = min(keys, max(0, (i + 1) * rows + diagonal)) if form.causal else keys
        # keys that all queries see
        whole = min(keys, max(0, i * rows + diagonal + 1)) if form.causal else keys
        steps, parts = cdiv(last, n), 0
        if blocks is not None:
            bm, hm = b % blocks.shape[0], h % blocks.shape[1]
            parts = blocks[bm, hm, i, 0]
            steps = parts + blocks[bm, hm, i, 1]

        def block(j):
            return j if blocks is None else nth(blocks, bm, hm, i, j)

        # a score function would read its arrays outside
        beyond = form.score is not None and first + 64 > queries
        own, mine = ds(axis_index("wg") * 64, 64), ds(first, 64)
        offset = layout_cast(stats[b, h, mine], "column")[:, None]
        total = layout_cast(delta[b, h, mine], "column")[:, None]
        acc = zeros((64, depth), np.float32)
        queries_of = pipeline(
            grid=(1,), in_specs=(BlockSpec(rows_of_q, lambda _: place(b, h, i, 0)),) * 2
        )

        def matrix(count, delay):
            return BlockSpec(
                keys_of_k,
                lambda j: place(b, hk, block(j), 0),
                buffer_count=count,
                delay_release=delay,
            )

        main = pipeline(grid=(steps,), in_specs=(matrix(slots, slots - 2), matrix(slots_of_v, 0)))
        for _, (q_tile, do_tile) in queries_of(q, grad):
            for (j,), (k_tile, v_tile) in main(k, v):
                s = wgmma(None, q_tile.at[own, :], k_tile.T)
                dp = wgmma(None, do_tile.at[own, :], v_tile.T)
                s = wgmma_wait(s)
                column = block(j) * n
                p, slope = weights(
                    s,
                    offset,
                    j < parts or column + n > whole or beyond,
                    b,
                    h,
                    (iota(64) + first)[:, None],
                    (iota(n) + column)[None, :],
                    (queries, keys, heads, diagonal, scale),
                    (score_0, score_1, score_2, mask_0, mask_1, mask_2, seeds),
                )
                dp = wgmma_wait(dp)
                grad_s = slopes(p, dp, total, slope)
                acc = wgmma(acc, grad_s.astype(q.dtype), k_tile)
        dq[place(b, h, mine, ds(0, depth))] = (acc * scale).astype(dq.dtype)

    return attention_gradient_of_queries  # type: ignore[no-any-return]


def parts_of(ctas: int, sharing: int, queries: int, causal: bool) -> int:
    """Return among how many CTAs to divide the heads that share keys, given the number of CTAs if
    they are not divided: the divisor of `sharing` for which all waves of CTAs take least time.

    >>> parts_of(10, 8, 624, False), parts_of(512, 8, 4096, False)
    (8, 1)
    """

    def time(parts: int) -> Any:
        # in steps: a CTA also loads keys and stores, which takes some 3 steps. In float32, and with
        # the sums added up, it took 12 (288 CTAs of 96 and of 152 steps, on an H200)
        steps = sharing // parts * cdiv(queries, STEP) + (3 if parts == 1 else 12)
        # a causal mask leaves half of the steps, and the longest CTAs begin first
        waves = ctas * parts / DEFAULT.sms
        return steps * (max(1.0, waves / 2) if causal else math.ceil(waves))

    return min((n for n in range(1, sharing + 1) if sharing % n == 0), key=time)


def launch_gradients(
    arrays: Arrays,
    form: Form,
    diagonal: int,
    scale: float | None,
    deterministic: bool,
    place: Place,
    of_k: tuple = (),
    of_q: tuple = (),
    of_functions: Sequence[ArrayInfo] = (),
) -> None:
    """Compute dq, dk and dv from the operands and results of `attention_backward`. `of_k` and
    `of_q` are the lists of the tiles of keys and queries, and their numbers, if there is a list;
    `of_functions` are the arrays of the form's functions."""
    operands = {name: arrays[name] for name in ("q", "k", "v", "grad_o")}
    q, k, v, grad = loaded(operands, place)
    o, lse, grad_lse, dq, dk, dv = map(arrays.get, ("o", "lse", "grad_lse", "dq", "dk", "dv"))
    batches, heads, depth = q.shape[0], q.shape[form.heads], q.shape[3]
    scale = depth**-0.5 if scale is None else float(scale)
    queries, keys = q.shape[form.positions], k.shape[form.positions]
    deterministic = deterministic or form.functions
    places = (of_q[0].shape[0] if form.ranges else cdiv(queries, BLOCK)) * BLOCK
    stats, delta = (allocated(q, (batches, heads, places), place, np.float32) for _ in range(2))
    lines = batches * heads * places * form.depth // 32
    dq_total = () if deterministic else (allocated(q, (lines, 32), place, np.float32),)
    of_lse = () if grad_lse is None else (grad_lse,)
    absent = ["grad_lse"] * (grad_lse is None) + ["dq"] * deterministic
    prepare(form, *absent)(o, lse, grad, *of_lse, *of_q, stats, delta, *dq_total, **place)
    # beyond these, the mask hides all or nothing
    diagonal = max(-queries, min(diagonal, keys))
    scalars = {"scale": scale, "diagonal": diagonal, **place}
    # of one head of queries: a CTA loops over those that share its keys
    bytes_of_head = max(1, 8 * queries * depth)
    group = max(1, min(batches * k.shape[form.heads], L2 // bytes_of_head))
    read = q, k, v, grad, stats, delta
    if keys and form.functions:
        launch_function_gradients(read, dk, dv, form, of_functions, diagonal, scale, place)
    elif keys:
        shared, parts = k.shape[form.heads], 1
        if not form.ranges:  # else steps are known on the GPU alone
            ctas = cdiv(keys, keys_of(form)) * batches * shared * (1 if depth <= 128 else 2)
            parts = parts_of(ctas, heads // shared, queries, form.causal)
        sums = [
            x if parts == 1 else allocated(q, (parts * batches, *k.shape[1:]), place, np.float32)
            for x in (dk, dv)
        ]
        log2 = scale * math.log2(math.e)
        run = of_keys(form, not deterministic)
        run(*read, *of_k, *dq_total, *sums, group=group, scale_log2=log2, **scalars)
        for each, x in zip(sums, (dk, dv), strict=True):
            if parts > 1:
                launch_reduction("sum", reshaped(each, parts, *k.shape), 0, x, place)
    if deterministic:
        wgs, n, _ = queries_and_keys(form)
        lists = visible_blocks(q, k, form, of_functions, 64 * wgs, n, place)
        of_queries(form)(*read, *lists, *of_functions, dq, **scalars)
    else:
        convert(form)(*dq_total, *of_q, dq, scale=scale, **place)
