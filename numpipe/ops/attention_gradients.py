"""Kernels of the gradients of attention, and their launches.

With P = exp(scale * Q K^T - lse), where lse are the logarithms of the sums, and
dS = P * (dO V^T - sum(dO * O)), the gradients are::

    dV = P^T dO        dK = scale * dS^T Q        dQ = scale * dS K

Three kernels compute them: `prepare` the sums of dO * O, `of_keys` all three products in one pass
over the queries, and `convert` rounds dQ, to which CTAs have added in float32: in any order, or in
turn (`grid.cta_turns`), so that the bits are the same in each run.
"""

# tiles in kernels have no types
# mypy: disable-error-code="no-untyped-def, attr-defined, operator, arg-type, call-arg"
# mypy: disable-error-code="index, var-annotated"

from __future__ import annotations

import functools
import math
from collections import namedtuple
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..arch.targets import DEFAULT
from ..core.arith import cdiv
from ..core.functions import Function, function
from ..kernels.decorator import kernel as numpipe_kernel
from ..kernels.kernel import Kernel
from ..language.grid.cta_turns import await_turn, end_turn, pass_turn
from ..language.grid.partials import combine
from ..language.grid.split_k import Part
from ..language.memory.copies import commit_smem
from ..language.memory.remote import async_store_smem
from ..language.memory.scratch import scratch
from ..language.pipeline.operand_barriers import barrier_arrive, barrier_wait
from ..language.pipeline.pipelines import pipeline
from ..language.pipeline.schedule_fences import schedule_fence
from ..language.tiles.atomics import atomic_add
from ..language.tiles.elementwise import full, iota
from ..language.tiles.indices import index
from ..language.tiles.layout_names import ROWS
from ..language.tiles.load import load_tile
from ..language.tiles.mathematics import fma
from ..language.tiles.mma import wgmma, wgmma_wait
from ..language.tiles.refs import ds
from ..language.tiles.register_order import from_register_order, to_register_order
from ..language.tiles.tile import zeros
from ..launch.array_info import ArrayInfo
from ..plan.allocations import SMEM, Barrier, ClusterBarrier
from ..plan.context import axis_index, num_programs, program_id
from ..plan.params import CompilerParams
from ..plan.specs import BlockSpec, Element, Workspace
from .attention_configs import L2, Form
from .attention_functions import caller, kept, visible_blocks
from .op_outputs import Arrays, Place, allocated
from .operands import loaded

LINES = 64 * 64 // 32
"""rows in register order of 64 x 64 elements of dQ, the part of a warpgroup. Parts of 64 queries
follow each other"""
HALF = LINES // 2
"""rows of dQ that a CTA of `prepare` stores zeros in; each LINES rows have a turn"""

BLOCK = 128
"""queries of a block: in `stats`, `delta` and dq all blocks are whole"""


@functools.cache
def over_queries(form: Form, rows: int, parts: int) -> tuple[Function, dict[str, Any]]:
    """Return (at, options) of kernels whose CTAs have `rows` queries of a head each, in
    `parts` parts.

    ``at(x, stats, table, count)`` returns, for an array x of the shape of q: whether the CTA has
    queries, their batch and head, the first of them, the end of their sequence, the place of the
    first one in `stats`, and the number of the part.
    """

    @function
    def at(x, stats, table, count):
        # the last heads first: the kernel after this one finds what was stored or read last in L2
        number = num_programs(0) - 1 - program_id(0)
        place = number // parts * rows
        head, row = place // stats.shape[2], place % stats.shape[2]
        first, end, place = row, x.shape[form.positions], row
        there = True
        if form.ranges:
            i, own = row // BLOCK, row % BLOCK
            there = i < count[0]
            if there:
                first, end, place = table[i, 0] + own, table[i, 1], place_of(table, i, 0) + own
        return (
            there,
            head // stats.shape[1],
            head % stats.shape[1],
            first,
            end,
            place,
            number % parts,
        )

    return at, {
        "grid": lambda stats: math.prod(stats.shape) // rows * parts,
        "warp_specialized": False,
        "compiler_params": CompilerParams(ctas_per_sm=8, approx_math=True),
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
    height, place, lanes = 2048 // form.depth, form.place, f"{ROWS} {form.depth // 8} 8"
    at, options = over_queries(form, height, 1)

    @numpipe_kernel(without=[*absent, *form.unlisted], **options)
    def attention_gradient_sums(x, lse, grad, grad_lse, table, count, stats, delta, dq, turns):
        there, b, h, first, end, row, _ = at(x, stats, table, count)
        if not there:
            return
        # before the loads, which the stores need not wait for
        line = ((b * x.shape[form.heads] + h) * stats.shape[2] + row) * (form.depth // 32)
        dq[ds(line, HALF), ds(0, 32)] = to_register_order(zeros((64, 32), np.float32))
        if turns is not None:
            turns[line // HALF] = 0
        # the last block of all may begin after the end of the array
        s, mine = ds(index(first, mode="zero"), height), ds(row, height)
        tile = place(b, h, s, ds(0, form.depth))
        # all loads before the first value is used
        of_x, of_grad = load_tile(x.at[tile], lanes), load_tile(grad.at[tile], lanes)
        logarithm = lse[b, h, s] * math.log2(math.e)
        total = (of_x.astype(np.float32) * of_grad.astype(np.float32)).sum(axis=1)
        if grad_lse is not None:
            total = total - grad_lse[b, h, s]
        # a query that sees no key: exp2(s - inf) is 0
        none = (iota(height) >= end - first) | (logarithm == -np.inf)
        stats[b, h, mine] = np.where(none, np.inf, logarithm)
        delta[b, h, mine] = np.where(none, 0.0, total)

    return attention_gradient_sums  # type: ignore[no-any-return]


@functools.cache
def stored(form: Form) -> Function:
    """Return the kernel function that stores a tile of 64 rows in head h of batch b, at `row` and
    `column`, without the rows from `end` on."""
    place = form.place

    @function
    def store(x, b, h, row, end, column, tile):
        d = ds(column, tile.shape[1])
        if not form.ranges or row + 64 <= end:
            x[place(b, h, ds(row, 64), d)] = tile.astype(x.dtype)
        else:
            x[place(b, h, ds(row, 64, stop=end), d)] = tile.astype(x.dtype)

    return store


@functools.cache
def convert(form: Form) -> Kernel:
    """Return the kernel of x = total * scale, where `total` is dQ in register order."""
    across = form.depth // 64
    (at, options), store = over_queries(form, 64, across), stored(form)

    @numpipe_kernel(without=form.unlisted, **options)
    def attention_gradient_converted(stats, total, table, count, x, *, scale):
        there, b, h, first, end, row, column = at(x, stats, table, count)
        if there:
            line = ((b * stats.shape[1] + h) * stats.shape[2] + row) * across * 2 + column * LINES
            found = load_tile(total.at[ds(line, LINES), ds(0, 32)])
            store(x, b, h, first, end, column * 64, from_register_order(found, (64, 64)) * scale)

    return attention_gradient_converted  # type: ignore[no-any-return]


OUTSIDE = 1 << 30
"""a row beyond those of dQ in register order"""
STEP = 64
"""queries of a step of the kernels of keys, and keys of a CTA of `of_keys_wide`"""


def keys_of(form: Form) -> int:
    """Return the number of keys of a CTA of `of_keys`, or of a cluster of two."""
    return 192 if form.depth == 64 and not form.functions else 128


@functools.cache
def scores(form: Form) -> tuple[Function, Function, Function]:
    """Return three kernel functions for a block of queries and 64 keys, which are rows: of (P,
    slope) for the products, the weights and the derivatives of the scores; of dS for P, dP and
    slope; and of which weights dropout keeps. P is negative where a weight is dropped."""
    of, slope_of = (
        each and caller("score", each, form.arrays[0]) for each in (form.score, form.slope)
    )
    mask_of = form.mask and caller("mask", form.mask, form.arrays[1])

    @function
    def keeps(seeds, cta, h, q, query, own):
        row, column = (iota(STEP) + query)[None, :], (iota(64) + (cta.row + own))[:, None]
        return kept(seeds, form.dropped, cta.b * q.shape[form.heads] + h, row, column)

    @function
    def weights(s, stats, cta, h, query, own, masked, q, k, scale, arrays):
        score_0, score_1, score_2, mask_0, mask_1, mask_2, seeds = arrays
        factor, slope = scale * math.log2(math.e), 1.0
        if form.functions:
            masked = masked or query + STEP > q.shape[form.positions]
            i, j = (iota(STEP) + query)[None, :], (iota(64) + (cta.row + own))[:, None]
            if masked:
                i = np.minimum(i, q.shape[form.positions] - 1)
                j = np.minimum(j, k.shape[form.positions] - 1)
        if of is not None and slope_of is not None:
            s, factor = s * scale, math.log2(math.e)
            # 16 bits: half of the registers until dP is known
            slope = slope_of(s, cta.b, h, i, j, score_0, score_1, score_2).astype(np.float16)
            s = of(s, cta.b, h, i, j, score_0, score_1, score_2)
        if masked:
            if mask_of is not None:
                s = np.where(mask_of(cta.b, h, i, j, mask_0, mask_1, mask_2), s, -np.inf)
            key, left = iota(64) + own, cta.end_row - cta.row
            if form.causal:
                # a first query for each key: a last key for each query takes more registers
                begin = np.where(key < left, key + (cta.least - query), STEP)
                seen = iota(STEP) >= begin[:, None]
            else:
                seen = (key < left)[:, None]
            s = np.where(seen, s, -np.inf)
        p = np.exp2(fma(s, factor, -stats))
        if form.dropout:
            p = np.where(keeps(seeds, cta, h, q, query, own), p, -p)
        return p, slope

    @function
    def slopes(p, dp, total, slope):
        if form.dropout:
            dp, p = np.where(p > 0.0, dp * form.share, 0.0), np.abs(p)
        return p * (dp - total) * slope.astype(np.float32)

    return weights, slopes, keeps


Work = namedtuple(
    "Work", "there b hk head heads part row end_row least query place whole entry direction number"
)
"""The keys of a CTA, and the blocks of queries that it loops over.

there     whether there is anything to do
b, hk     batch and head of the keys; `head` is the first of the CTA's `heads` heads of q, which
          share the keys
part      the CTA's `Part` of the blocks that see some of the keys (`division`)
row       the first key in the array, and `end_row` the end of its sequence there
least     the first query that sees the first key
query     the first query of the sequence in the array, and `place` its place in `stats`, `delta`
          and dq
whole     the first of the blocks that see all keys
entry     the block that the loop begins with; `direction` is 1 or -1
number    the number of the keys' block in its sequence
"""


@functools.cache
def work(form: Form, ordered: bool, divided: bool) -> Function:
    """Return the kernel function of the `Work` of a CTA's keys. Heads of a group are side by side
    if CTAs differ in length, or if they add to dQ in turn (`ordered`)."""
    size = keys_of(form)

    @function
    def of_cta(q, k, table, count, blocks, diagonal, group, whole, parts, number):
        heads, keys, queries = k.shape[form.heads], k.shape[form.positions], q.shape[form.positions]
        own = q.shape[form.heads] // heads
        tiles = max(1, count[0] if form.ranges else cdiv(keys, size))
        slot, part, share = number - whole, 0, 1
        if divided and slot >= 0:  # the last CTA of a tile adds up the sums of the others
            part, share, number = parts - 1 - slot % parts, parts, whole + slot // parts
        head, j = number // tiles, number % tiles
        if form.causal or form.ranges or ordered:
            head, j = interleaved(tiles, k.shape[0] * heads, group, number)
        there = head < k.shape[0] * heads
        row, end_row, query, place = j * size, keys, 0, 0
        least = row - diagonal
        if form.ranges:
            there = there and count[0] > 0
            if there:
                row, end_row, query, queries = table[j, 0], table[j, 1], table[j, 2], table[j, 3]
                least, place = table[j, 4], place_of(table, j, 2)
        end = cdiv(queries, STEP)
        start = max(0, min(end - 1, least // STEP)) if form.causal else 0
        open_from = cdiv(max(0, least + size - 1), STEP) if form.causal else 0
        open_from = open_from if size <= end_row - row else end
        b, hk = head // heads, head % heads
        if blocks is not None:
            start, end = 0, blocks[b % blocks.shape[0], hk % blocks.shape[1], j, 0]
        if divided:
            seen = end - start
            start, end = start + seen * part // share, start + seen * (part + 1) // share
        # CTAs that begin together go down from the end. The others begin one after another, each
        # with a later block, as CTAs end: going up, they meet those that began before
        up = form.causal and 2 * j >= tiles and not ordered
        entry, direction = start if up else end - 1, 1 if up else -1
        return Work(
            there,
            b,
            hk,
            hk * own,
            own,
            Part(part, end - start, slot, share - 1),
            row,
            end_row,
            least,
            query,
            place,
            open_from,
            entry,
            direction,
            j,
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
def step_of(cta, blocks, i):
    """Return (block of queries, whether some keys are hidden, number of CTAs that add to dQ of the
    block before) for step i of a CTA."""
    block = cta.entry + i * cta.direction
    if blocks is not None:
        b, h = cta.b % blocks.shape[0], cta.hk % blocks.shape[1]
        entry = blocks[b, h, cta.number, 2 + block]
        block = entry >> 1 & 0x7FFF
        return block, (entry & 1) > 0 or block < cta.whole, entry >> 16
    return block, block < cta.whole, cta.number


def divides(form: Form, ordered: bool) -> bool:
    """Return whether the blocks of a tile may be divided among several CTAs.

    They cannot if only the GPU knows their number (ranges and masks), or if `of_keys_wide` would
    not have enough registers.
    """
    return not (form.ranges or form.mask or (form.depth > 128 and (ordered or form.functions)))


def division(form: Form, ordered: bool, q: Any, k: Any) -> tuple[int, int, int]:
    """Return (whole, divided, parts): how many tiles of keys have one CTA each, and how many, the
    last ones, are divided among `parts` CTAs, each of which has some of the blocks of queries. If
    they were not divided, most SMs would be idle in a last wave of few tiles."""
    shared = k.shape[form.heads]
    tiles = cdiv(k.shape[form.positions], keys_of(form)) * shared * k.shape[0]
    at_once = DEFAULT.sms // (1 if form.depth <= 128 else 2)
    # with many waves, dividing gains nothing under load, where power limits (measured on an H200)
    if not divides(form, ordered) or tiles > 4 * at_once:
        return tiles, 0, 1
    # with a causal mask, the last tiles are the shortest: divide all, or none
    divided = tiles if form.causal else tiles % at_once
    blocks = cdiv(q.shape[form.positions], STEP)
    steps, waves = q.shape[form.heads] // max(1, shared), divided / at_once
    _, parts = min(
        (time_of(n, cdiv(blocks, n) * steps, waves, form.causal), n)
        for n in range(1, 17)
        if n == 1 or (n <= blocks and n * waves <= 2)
    )
    return (tiles, 0, 1) if parts == 1 else (tiles - divided, divided, parts)


def time_of(parts: int, steps: int, waves: float, causal: bool) -> float:
    """Return the time of tiles that are each divided into `parts` of at most `steps` steps, in
    steps. `waves` is their number if they are not divided, in waves of CTAs.

    >>> time_of(1, 64, 0.5, False), time_of(3, 22, 0.5, False)
    (67, 58.0)
    """
    # a CTA also loads keys and stores, and parts are added up
    longest = steps + (3 if parts == 1 else 6 + parts / 3)
    # a causal mask leaves half of the steps, and the longest tiles come first
    return longest * (max(1, parts * waves / 2) if causal else math.ceil(parts * waves))


def options_of(form: Form, ordered: bool, divided: bool, ctas: int = 1) -> dict[str, Any]:
    """Return the options of a kernel with `ctas` CTAs for each tile of keys. Its workspace is where
    parts of tiles pass on their dK and dV."""
    tile = keys_of(form), form.depth

    def grid(q, k):
        whole, rest, parts = division(form, ordered, q, k)
        return (whole + rest * parts) * ctas

    def of_list(dk, table):  # as many tiles as the list may have
        return table.shape[0] * dk.shape[form.heads] * dk.shape[0] * ctas

    def workspace(q, k):
        _, rest, parts = division(form, ordered, q, k)
        return Workspace(tile, slots=2 * rest * parts + 1)

    return {
        "grid": of_list if form.ranges else grid,
        "wg_axis": "wg",
        "memory_registers": 24,
        "without": [*form.absent, *form.unlisted, *["turns"] * (not ordered)],
        "static_dims": {"dq": (-1,)},
        "workspace": workspace if divided else Workspace(tile, None),
        "compiler_params": CompilerParams(
            approx_math=True, unsafe_no_auto_barriers=True, store_role=ordered
        ),
    }


@function
def add(dq, part, at, turns, turn, allowed, added, last=None, end=True):
    """Add 64 x 64 elements to dq, from row `at` in register order, in turn if there are `turns`.
    Then the turn is passed on: if there is a row `last`, its turn is, and this one at the `end`."""
    if turns is not None:
        await_turn(turns.at[at // HALF], turn, allowed)
        if last is not None:
            pass_turn(turns.at[last // HALF], turn)
    atomic_add(dq.at[ds(at, LINES), ds(0, 32)], to_register_order(part))
    if turns is not None:
        end_turn(added)
        if last is None or end:
            pass_turn(turns.at[at // HALF], turn)


@functools.cache
def of_keys(form: Form, ordered: bool = False, divided: bool = False) -> Kernel:
    """Return the kernel of dK, dV and of what is added to dq / scale, in turn if `ordered`.

    A warpgroup owns 64 keys and loops over blocks of 64 queries, and in each over the heads that
    share its keys, so that CTAs at the same block read the same data and add to the same part of dQ
    while these are in L2 (`work`). If `divided`, several CTAs share the blocks of the last keys
    (`division`); the last of these CTAs adds up their dK and dV, in a fixed order. The products
    S^T = K Q^T and dP^T = V dO^T have keys as rows, so P^T and dS^T are A operands in registers for
    dV and dK. dS^T passes through shared memory for dQ = dS K alone, which is a step late, and
    which lanes add in register order. A warpgroup begins after the first exponentials of the
    previous one: from then on, some compute while others have products.

    At depth 64, registers suffice for three warpgroups: more of them overlap, and dQ of more keys
    is added at once. They compute dQ of a block in turn. At depth 128 there are two, and each has
    half of the columns of dQ. With functions, there are two at depth 64, too.
    """
    if form.depth > 128:
        return of_keys_wide(form, ordered, divided)
    depth, place, n, size = form.depth, form.place, STEP, keys_of(form)
    wgs, by_turns = size // 64, depth == 64
    slots = 256 // depth
    # whether to await a turn before the last one is passed on: CTAs are then two blocks apart, and
    # stay so only if all have equally many steps
    patient = not (by_turns or form.causal or form.ranges or form.functions)
    (weights, slopes, _), work_of, store = scores(form), work(form, ordered, divided), stored(form)
    rows_of_q, keys_of_k = form.block(Element(n)), form.block(Element(size))

    @numpipe_kernel(num_compute_wgs=wgs, **options_of(form, ordered, divided))
    def attention_gradients(
        q,
        k,
        v,
        grad,
        stats,
        delta,
        table,
        count,
        blocks,
        score_0,
        score_1,
        score_2,
        mask_0,
        mask_1,
        mask_2,
        seeds,
        dq,
        turns,
        dk,
        dv,
        work,
        *,
        scale,
        diagonal,
        group,
        whole,
        parts,
    ):
        wg = axis_index("wg")
        cta = work_of(q, k, table, count, blocks, diagonal, group, whole, parts, program_id(0))
        if not cta.there:
            return

        def vector(i, h):
            return cta.b, cta.head + h, cta.place + step_of(cta, blocks, i)[0] * n

        matrix = BlockSpec(
            rows_of_q,
            lambda i, h: place(cta.b, cta.head + h, cta.query + step_of(cta, blocks, i)[0] * n, 0),
            buffer_count=slots,
        )
        kv = pipeline(
            grid=(1,),
            in_specs=(BlockSpec(keys_of_k, lambda _: place(cta.b, cta.hk, cta.row, 0)),) * 2,
        )
        exchanged, written, started, may_add, has_added = scratch(
            (
                SMEM((3, size, n), q.dtype),
                Barrier(num_arrivals=wgs, num_barriers=3),
                Barrier(num_barriers=wgs - 1),
                Barrier(num_barriers=wgs),
                Barrier(num_barriers=wgs),
            )
        )
        allowed, added = may_add.at[wg], has_added.at[wg]
        own = ds(wg * 64, 64)
        numbers = BlockSpec((None, None, Element(n)), vector, buffer_count=slots)
        main = pipeline(
            grid=(cta.part.steps, cta.heads),
            in_specs=(matrix, numbers, numbers, matrix),
            manual_produced_barriers=True,
            manual_consumed_barriers=True,
        )
        dk_acc = zeros((64, depth), np.float32)
        dv_acc = zeros((64, depth), np.float32)
        for _, (k_tile, v_tile) in kv(k, v):
            k_own, v_own = k_tile.at[own, :], v_tile.at[own, :]
            # the first step adds zeros outside of dq
            now, before, last, turn, adder = 0, 2, 1, cta.number, 0
            at_before = at_last = OUTSIDE
            k_part = k_tile if by_turns else k_tile.at[:, own]
            exchanged.at[before, own, :][...] = full((64, n), 0.0, np.float32).astype(q.dtype)
            commit_smem(meet=False)
            barrier_arrive(written.at[before])
            if wg > 0 and cta.part.steps > 0:
                barrier_wait(started.at[wg - 1])
            for (
                (i, h),
                (q_tile, stats_tile, delta_tile, do_tile),
                (q_ready, stats_ready, delta_ready, do_ready),
                (q_free, stats_free, delta_free, do_free),
            ) in main(q, stats, delta, grad):
                barrier_wait(q_ready)
                s = wgmma_wait(wgmma(None, k_own, q_tile.T))
                barrier_wait(stats_ready)
                block, masked, number = step_of(cta, blocks, i)
                p, slope = weights(
                    s,
                    stats_tile[...][None, :],
                    cta,
                    cta.head + h,
                    block * n,
                    wg * 64,
                    masked,
                    q,
                    k,
                    scale,
                    (score_0, score_1, score_2, mask_0, mask_1, mask_2, seeds),
                )
                schedule_fence(after=p)
                if i + h == 0 and wg < wgs - 1:
                    barrier_arrive(started.at[wg])
                barrier_wait(do_ready)
                dp = wgmma(None, v_own, do_tile.T)
                barrier_wait(delta_ready)
                weighed = np.maximum(p, 0.0) * form.share if form.dropout else p
                if not by_turns:
                    dv_acc = wgmma(dv_acc, weighed.astype(q.dtype), do_tile)
                dp = wgmma_wait(dp)
                if by_turns:  # all exponentials come before, while dP is in flight
                    schedule_fence()
                grad_s = slopes(p, dp, delta_tile[...][None, :], slope).astype(q.dtype)
                if by_turns:  # only now: registers do not suffice for both products
                    dv_acc = wgmma(dv_acc, weighed.astype(q.dtype), do_tile)
                barrier_wait(written.at[before])
                exchanged.at[now, own, :][...] = grad_s
                dk_acc = wgmma(dk_acc, grad_s, q_tile)
                commit_smem(meet=False)
                barrier_arrive(written.at[now])
                if not by_turns:
                    part = wgmma(None, exchanged.at[before].T, k_part)
                barrier_arrive(stats_free)
                barrier_arrive(delta_free)
                dv_acc = wgmma_wait(dv_acc)
                barrier_arrive(do_free)
                dk_acc = wgmma_wait(dk_acc)
                barrier_arrive(q_free)
                if not by_turns:
                    add(
                        dq,
                        wgmma_wait(part),
                        at_before,
                        turns,
                        turn,
                        allowed,
                        added,
                        at_last if patient else None,
                        False,
                    )
                    at_last = at_before
                elif adder == wg:
                    late = wgmma_wait(wgmma(None, exchanged.at[before].T, k_part))
                    add(dq, late, at_before, turns, turn, allowed, added)
                at_before = line_of(cta, stats, h, block * n, depth) + (
                    0 if by_turns else wg * LINES
                )
                turn = number
                adder = 0 if adder == wgs - 1 else adder + 1
                now, before, last = last, now, before
            barrier_wait(written.at[before])
            if not by_turns or adder == wg:
                rest = wgmma_wait(wgmma(None, exchanged.at[before].T, k_part))
                add(
                    dq,
                    rest,
                    at_before,
                    turns,
                    turn,
                    allowed,
                    added,
                    at_last if patient else None,
                )
        # computed again, after the loop: values and addresses kept from before it would be spilled
        done = work_of(q, k, table, count, blocks, diagonal, group, whole, parts, program_id(0))
        part = done.part
        dk_acc = combine(dk_acc, part, work)
        slot = part.slot + num_programs(0) - whole
        dv_acc = combine(dv_acc, Part(part.begin, 0, slot, part.others), work)
        if part.begin == 0:
            row = done.row + wg * 64
            store(dk, done.b, done.hk, row, done.end_row, 0, dk_acc * scale)
            store(dv, done.b, done.hk, row, done.end_row, 0, dv_acc)

    return attention_gradients  # type: ignore[no-any-return]


def of_keys_wide(form: Form, ordered: bool, divided: bool) -> Kernel:
    """Return the kernel of `of_keys` for depths above 128, where registers do not have room for
    both sums of 64 keys.

    A CTA owns 64 keys, a cluster of two 128. The first warpgroup of a CTA computes P and sums up
    dV, the second one dS and dK. P passes through shared memory in float32 to the second one. The
    CTAs of a cluster send each other dS, and each adds dQ of half of the columns for the keys of
    both: additions of one CTA for its own keys alone would take longer than all products. dQ is a
    step late, so that what is sent has arrived. Loading Q and dO for each other gains nothing.
    """
    depth, place, half = form.depth, form.place, form.depth // 2
    (weigh, _, keeps), work_of, store = scores(form), work(form, ordered, divided), stored(form)
    side = Element(STEP)
    block = form.block(side)
    block_of_half = (*block[:3], half)

    @numpipe_kernel(
        num_compute_wgs=2,
        cluster=2,
        cluster_names="pair",
        **options_of(form, ordered, divided, ctas=2),
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
        blocks,
        score_0,
        score_1,
        score_2,
        mask_0,
        mask_1,
        mask_2,
        seeds,
        dq,
        turns,
        dk,
        dv,
        work,
        *,
        scale,
        diagonal,
        group,
        whole,
        parts,
    ):
        wg, rank = axis_index("wg"), axis_index("pair")
        cta = work_of(q, k, table, count, blocks, diagonal, group, whole, parts, program_id(0) // 2)
        if not cta.there:
            return
        row = cta.row + rank * STEP

        def vector(i, h):
            return cta.b, cta.head + h, cta.place + step_of(cta, blocks, i)[0] * STEP

        def matrix(i, h):
            return place(cta.b, cta.head + h, cta.query + step_of(cta, blocks, i)[0] * STEP, 0)

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
            grid=(cta.part.steps, cta.heads),
            in_specs=(
                BlockSpec(block, matrix, buffer_count=2),
                numbers,
                numbers,
                BlockSpec(block, matrix, buffer_count=1),
            ),
            manual_produced_barriers=True,
            manual_consumed_barriers=True,
        )
        weights, slopes, received, weighed, written, may_add, has_added, landed, free = scratch(
            (
                SMEM((STEP, STEP), np.float32),
                SMEM((STEP, STEP), q.dtype),
                SMEM((STEP, STEP), q.dtype),
                Barrier(num_arrivals=2),
                Barrier(),
                Barrier(num_barriers=2),
                Barrier(num_barriers=2),
                Barrier(),
                ClusterBarrier("pair", num_arrivals=2),
            )
        )
        allowed, added = may_add.at[wg], has_added.at[wg]

        def share(left):
            """Write dS of these keys, which the second warpgroup has, to both CTAs."""
            slopes[...] = left
            commit_smem(meet=False)
            # all warps have read P, too
            barrier_arrive(written)
            async_store_smem(left, received, landed, cluster_idx=1 - rank, cluster_dim="pair")

        acc = zeros((STEP, depth), np.float32)
        for _, (k_tile, v_tile, k_other) in kv(k, v, k):
            at_before, turn = OUTSIDE, cta.number
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
                step, masked, number = step_of(cta, blocks, i)
                barrier_wait(q_ready)
                if wg == 0:
                    x = wgmma(None, k_tile, q_tile.T)
                else:
                    barrier_wait(do_ready)
                    x = wgmma(None, v_tile, do_tile.T)
                barrier_wait(landed)
                rest = received.T[...]
                barrier_arrive(free)
                part = wgmma(wgmma(None, slopes.T, k_part), rest, k_rest)
                x = wgmma_wait(x)
                barrier_wait(stats_ready)
                barrier_wait(delta_ready)
                # what has one slot is released as soon as possible
                if wg == 0:
                    barrier_arrive(q_free)
                    barrier_arrive(delta_free)
                    if form.functions:
                        part = wgmma_wait(part)
                        add(dq, part, at_before, turns, turn, allowed, added)
                    x, slope = weigh(
                        x,
                        stats_tile[...][None, :],
                        cta,
                        cta.head + h,
                        step * STEP,
                        rank * STEP,
                        masked,
                        q,
                        k,
                        scale,
                        (score_0, score_1, score_2, mask_0, mask_1, mask_2, seeds),
                    )
                    barrier_arrive(stats_free)
                    weights[...] = abs(x) * slope.astype(np.float32) if form.functions else x
                    if not form.functions:
                        part = wgmma_wait(part)
                    barrier_arrive(weighed)
                    x = np.maximum(x, 0.0) * form.share if form.dropout else x
                    left = x.astype(q.dtype)
                else:
                    barrier_arrive(stats_free)
                    part = wgmma_wait(part)
                    add(dq, part, at_before, turns, turn, allowed, added)
                    # all warps have read dS
                    barrier_arrive(weighed)
                    barrier_wait(weighed)
                    if form.dropout:
                        x = np.where(
                            keeps(seeds, cta, cta.head + h, q, step * STEP, rank * STEP),
                            x * form.share,
                            0.0,
                        )
                    left = (weights[...] * (x - delta_tile[...][None, :])).astype(q.dtype)
                    barrier_arrive(delta_free)
                    barrier_wait(free)
                    share(left)
                barrier_wait(do_ready)
                if wg != 0:
                    barrier_arrive(do_free)
                if wg == 0:  # noqa: SIM108
                    acc = wgmma(acc, left, do_tile)
                else:
                    acc = wgmma(acc, left, q_tile)
                if not form.functions and wg == 0:
                    add(dq, part, at_before, turns, turn, allowed, added)
                barrier_wait(written)
                acc = wgmma_wait(acc)
                if wg == 0:
                    barrier_arrive(do_free)
                else:
                    barrier_arrive(q_free)
                at_before = line_of(cta, stats, h, step * STEP, depth) + (rank * 2 + wg) * LINES
                turn = number
            barrier_wait(landed)
            rest = received.T[...]
            part = wgmma(wgmma(None, slopes.T, k_part), rest, k_rest)
            add(dq, wgmma_wait(part), at_before, turns, turn, allowed, added)
        # computed again, after the loop: values and addresses kept from before it would be spilled
        done = work_of(
            q, k, table, count, blocks, diagonal, group, whole, parts, (program_id(0) - rank) // 2
        )
        acc = combine(acc, done.part, work)
        if done.part.begin == 0:
            if wg == 0:
                store(dv, done.b, done.hk, done.row + rank * STEP, done.end_row, 0, acc)
            else:
                store(dk, done.b, done.hk, done.row + rank * STEP, done.end_row, 0, acc * scale)

    return wide_attention_gradients  # type: ignore[no-any-return]


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
    q, k, v, grad = loaded({name: arrays[name] for name in ("q", "k", "v", "grad_o")}, place)
    o, lse, grad_lse, dq, dk, dv = map(arrays.get, ("o", "lse", "grad_lse", "dq", "dk", "dv"))
    batches, heads, depth = q.shape[0], q.shape[form.heads], q.shape[3]
    scale = depth**-0.5 if scale is None else float(scale)
    queries, keys = q.shape[form.positions], k.shape[form.positions]
    places = (of_q[0].shape[0] if form.ranges else cdiv(queries, BLOCK)) * BLOCK
    stats, delta = (allocated(q, (batches, heads, places), place, np.float32) for _ in range(2))
    lines = batches * heads * places * form.depth // 32
    total = allocated(q, (lines, 32), place, np.float32)
    turns = [allocated(q, (lines // HALF,), place, np.int32)] if deterministic else []
    of_lse = () if grad_lse is None else (grad_lse,)
    absent = ["grad_lse"] * (grad_lse is None) + ["turns"] * (not deterministic)
    prepare(form, *absent)(o, lse, grad, *of_lse, *of_q, stats, delta, total, *turns, **place)
    # beyond these, the mask hides all or nothing
    diagonal = max(-queries, min(diagonal, keys))
    # of one head of queries: a CTA loops over those that share its keys
    group = max(1, min(batches * k.shape[form.heads], L2 // max(1, 8 * queries * depth)))
    if keys:
        seen = visible_blocks(q, k, form, of_functions, STEP, keys_of(form), place, by_keys=True)
        whole, divided, parts = division(form, deterministic, q, k)
        of_keys(form, deterministic, divided > 0)(
            *(q, k, v, grad, stats, delta, *of_k, *seen, *of_functions, total, *turns, dk, dv),
            scale=scale,
            diagonal=diagonal,
            group=group,
            whole=whole,
            parts=parts,
            **place,
        )
    convert(form)(stats, total, *of_q, dq, scale=scale, **place)
