"""``attention(q, k, v)``: softmax(scale * Q K^T) V in one pass (FlashAttention), for arrays with
any strides.

Scores stay in registers, and the running sums are rescaled as blocks of keys are processed. A CTA
handles 64 rows of Q per compute warpgroup and iterates over K and V in blocks. While a warpgroup
computes the softmax of one block of scores, the tensor cores work on its product with the previous
block of V and on the other warpgroups' products, so exponentials and products overlap.

The fastest Config depends on the head depth, the mask and the number of rows; see `choose`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import launch
from ..arch.targets import DEFAULT
from ..core.arith import cdiv
from ..core.functions import Function, function
from ..diagnostics.argument_checks import FLAG, FRACTION, NONE, a, finite, whole, word
from ..diagnostics.errors import SpecError
from ..kernels.decorator import kernel as numpipe_kernel
from ..kernels.kernel import Kernel
from ..language.grid.tile_loop import tiles
from ..language.pipeline.operand_barriers import barrier_arrive, barrier_wait
from ..language.pipeline.pipelines import pipeline
from ..language.pipeline.schedule_fences import schedule_fence
from ..language.pipeline.warpgroup_order import turn
from ..language.tiles.conversions import layout_cast
from ..language.tiles.elementwise import full, iota, positions
from ..language.tiles.mathematics import fma
from ..language.tiles.mma import wgmma, wgmma_wait
from ..language.tiles.reduce import partial_max, partial_sum
from ..language.tiles.refs import ds
from ..language.tiles.strips import map_columns
from ..language.tiles.tile import zeros
from ..launch.array_info import ArrayInfo
from ..launch.windows import strided
from ..plan.context import axis_index
from ..plan.params import CompilerParams
from ..plan.specs import ArrayType, BlockSpec, Element, persistent
from .attention_configs import CONFIGS as CONFIGS
from .attention_configs import DEPTHS, L2, WIDTHS, Config, Form, choose, with_functions
from .attention_configs import FITTING as FITTING
from .attention_configs import SMALLER as SMALLER
from .attention_functions import (
    blocks_of,
    caller,
    check_function,
    kept,
    nth,
    visible_blocks,
)
from .attention_gradients import launch_gradients
from .attention_short import kernel as short_kernel
from .declaration import Operand, op
from .derivatives import derivative
from .op_outputs import Arrays, Place
from .operands import loaded

# how far, in powers of two, scores may exceed the maximum in use before a lazy config rescales
RISE = 8.0
STRIP = 32
"""most columns of scores that functions are applied to at once: the values that they load and
compute occupy registers for one strip of columns at a time"""


WRONG_SCORE = (
    "a score function must return a float32 tile of its first argument's shape; fix: return score "
    "+ bias, or (…).astype(np.float32)"
)


@functools.cache
def kernel(config: Config, form: Form) -> Kernel:
    """Return the kernel for a config and a form."""
    if config.alone:
        return short_kernel(config, form)
    place, order = form.place, "products" if config.turns else None
    score = form.score and caller("score", form.score, form.arrays[0])
    mask = form.mask and caller("mask", form.mask, form.arrays[1])
    width = math.gcd(config.keys, STRIP)
    rows_of_q, keys_of_k = (form.block(Element(n)) for n in (config.rows, config.keys))

    @numpipe_kernel(
        out_type=form.results,
        without=[*form.absent, *form.unlisted, *([] if form.sums else ["lse"])],
        grid=persistent(),
        num_compute_wgs=config.wgs,
        wg_axis="wg",
        # lists, masks and counters need more than 24
        memory_registers=40 if config.registers == 24 and not form.even else config.registers,
        compiler_params=CompilerParams(approx_math=True),
    )
    def attend(  # type: ignore[no-untyped-def]
        q,
        k,
        v,
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
        o,
        lse,
        *,
        scale,
        diagonal,
        group,
    ):
        """Compute o = softmax2(scale q k^T) v, with powers of two, and lse, the logarithms of the
        sums. `group` is the number of heads whose tiles are interleaved."""
        wg, group = axis_index("wg"), group if form.uneven else 1
        # scores are in units of `scale`, and in natural units if there is a function of them
        unit = math.log2(math.e) if form.score is not None else scale
        heads = q.shape[form.heads]
        keys = k.shape[form.positions]
        height = count[0] if form.ranges else cdiv(q.shape[form.positions], config.rows)
        for above, n, below in tiles(  # type: ignore[var-annotated]
            q.shape[0] * heads // group,
            height,
            group,
            dynamic=config.dynamic and not form.even,
        ):
            b, h = (above * group + below) // heads, (above * group + below) % heads
            # several query heads share one head of keys and values
            hk = h * k.shape[form.heads] // heads
            # the first query, the first key, the number of keys, and how many the first query sees
            if form.ranges:
                row, first_key, keys, seen = table[n, 0], table[n, 2], table[n, 3], table[n, 4]
                own = ds(row + wg * 64, 64, stop=table[n, 1])
            else:
                i = height - 1 - n if form.causal else n  # the longest tiles first
                if blocks is not None:
                    bm, hm = b % blocks.shape[0], h % blocks.shape[1]
                    i = blocks[bm, hm, n, blocks.shape[3] - 1]
                row, first_key = i * config.rows, 0
                own, seen = ds(row + wg * 64, 64), row + diagonal + 1
                if blocks is not None:
                    own = ds(row + wg * 64, 64, stop=q.shape[form.positions])
            if blocks is not None:
                parts, wholes = blocks[bm, hm, i, 0], blocks[bm, hm, i, 1]
                steps = parts + wholes
                rest = min(wholes, max(0, steps - 1))
            else:
                steps = cdiv(
                    min(keys, max(0, seen + config.rows - 1)) if form.causal else keys, config.keys
                )
                # keys visible to every row of the tile
                whole = min(keys, max(0, seen)) if form.causal else keys
                rest = max(0, min(steps - 1, whole // config.keys))  # steps without a mask

            # returns the block of keys of step p
            def block(p):
                return steps - 1 - p if blocks is None else nth(blocks, bm, hm, i, p)

            # returns the scores of block n of the keys, in units of `unit`. If `guarded`, they are
            # -inf where the mask, or the end of the keys, hides a key
            def scored(s, n, guarded):
                query, size = iota(64) + (row + wg * 64), q.shape[form.positions]
                # masks alone convert no positions to float32, and were slower with `positions` (16
                # documents on an H200: 1.36 in place of 1.42 times FlexAttention)
                if score is None:
                    query = np.minimum(query, size - 1)[:, None]
                else:
                    query = positions(query[:, None], size)
                last = guarded and (n + 1) * config.keys > keys

                def strip(x, first_column):
                    first = n * config.keys + first_column
                    key = iota(width) + first
                    if score is None:
                        if last:
                            key = np.minimum(key, keys - 1)
                        key = key[None, :]
                    else:
                        key = positions(key[None, :], keys)
                        x = score(x * scale, b, h, query, key, score_0, score_1, score_2)
                        assert x.shape == (64, width) and x.dtype == np.float32, WRONG_SCORE
                    if mask is not None and guarded:
                        visible = mask(b, h, query, key, mask_0, mask_1, mask_2)
                        x = np.where(visible, x, -np.inf)
                        if last:
                            x = np.where(iota(width) < keys - first, x, -np.inf)
                    return x

                return map_columns(strip, s, width)

            top = layout_cast(full(64, -np.inf, np.float32), "column")
            total = full((64, 8), 0.0, np.float32)
            acc = zeros((64, form.depth), np.float32)

            # returns the product rescaled to the new maxima, P for block n of the keys, the maxima
            # and the sums
            def softmax(s, n, acc, top, total, v_consumed, guarded):
                risen = not config.lazy or np.any(partial_max(s) > (top + RISE / unit)[:, None])
                change = layout_cast(full(64, 1.0, np.float32), "column")
                if risen:
                    new = np.maximum(top, s.max(axis=1))
                    change = np.exp2(
                        np.where(new == -np.inf, 0.0, (top - new) * unit)
                        if guarded
                        else (top - new) * unit
                    )
                    total = total * change[:, None]
                    top = new
                # e = 0 for a row in which every key is masked
                offset = np.where(top == -np.inf, 0.0, top * -unit) if guarded else top * -unit

                def exponentials(x, first_column):
                    x = np.exp2(fma(x, unit, offset[:, None]))
                    if config.early and first_column == 0:
                        schedule_fence(after=x)
                    return x

                if config.mixed:
                    early, depth = config.early, form.depth
                    middle = (early + config.keys) // 2
                    e = exponentials(s[:, 0:early], 0)
                    acc = wgmma_wait(acc)
                    barrier_arrive(v_consumed)
                    third = exponentials(s[:, early:middle], early)
                    left = acc[:, 0 : depth // 2] * change[:, None]
                    schedule_fence(after=left)
                    last = exponentials(s[:, middle : config.keys], middle)
                    acc = np.concatenate((left, acc[:, depth // 2 : depth] * change[:, None]), 1)
                    e = np.concatenate((e, third, last), 1)
                    total = total + partial_sum(e)
                else:
                    e = map_columns(exponentials, s, config.early or config.keys)
                    total = total + partial_sum(e)
                    acc = wgmma_wait(acc)
                    barrier_arrive(v_consumed)
                    if risen:
                        acc = acc * change[:, None]
                if form.dropout:  # after the sums: the others do not weigh more

                    def dropped(x, first_column):
                        query = (iota(64) + (row + wg * 64))[:, None]
                        key = (iota(width) + (n * config.keys + first_column))[None, :]
                        keep = kept(seeds, form.dropped, b * heads + h, query, key)
                        return np.where(keep, x, 0.0)

                    e = map_columns(dropped, e, width)
                # cast only now: the product in flight read the registers that p will occupy
                return acc, e.astype(q.dtype), top, total

            # a step computes the scores of one block, and the product of the previous one
            outside = k.shape[form.positions]

            def kv(first):
                def keys_at(p):
                    # a block that no step needs is outside of the array, so nothing is read
                    needed = p >= 0 and p < steps
                    s = first_key + block(p) * config.keys if needed else outside
                    return place(b, hk, s, 0)

                def spec(lag):
                    return BlockSpec(
                        keys_of_k,
                        lambda j: keys_at(first + j - lag),
                        buffer_count=config.slots,
                        mode="zero",
                    )

                return spec(0), spec(1)

            q_spec = BlockSpec(
                rows_of_q, lambda _: place(b, h, row, 0), buffer_count=config.q_slots
            )
            queries = pipeline(grid=(1,), in_specs=(q_spec,), manual_consumed_barriers=True)
            # Three pipelines on the same slots: blocks with a mask, blocks without, the last
            # product. V of the first step and K of the last are out of range
            head = pipeline(
                grid=(steps - rest,),
                in_specs=kv(0),
                manual_produced_barriers=True,
                manual_consumed_barriers=True,
            )
            main = pipeline(
                grid=(rest,),
                in_specs=kv(steps - rest),
                manual_produced_barriers=True,
                manual_consumed_barriers=True,
            )
            tail = pipeline(
                grid=(1,),
                in_specs=kv(steps),
                manual_produced_barriers=True,
                manual_consumed_barriers=True,
            )
            slots = head.get_allocations(k, v)
            for _, (q_tile,), (q_consumed,) in queries(q):
                p = full((64, config.keys), 0.0, np.float32).astype(q.dtype)
                for (j,), (k_tile, v_tile), (k_ready, v_ready), (k_consumed, v_consumed) in head(
                    k, v
                ):
                    n = block(j)
                    barrier_wait(k_ready)
                    with turn(order):
                        s = wgmma(None, q_tile.at[ds(wg * 64, 64), :], k_tile.T)
                        barrier_wait(v_ready)
                        if j > 0:
                            acc = wgmma(acc, p, v_tile)
                            s = wgmma_wait(s)
                        else:
                            s = wgmma_wait(s)
                    barrier_arrive(k_consumed)
                    if form.functions:
                        s = scored(s, n, True)
                    if mask is None:
                        key = iota(config.keys) + n * config.keys
                        end = (
                            np.minimum(iota(64) + (seen + wg * 64), keys)[:, None]
                            if form.causal
                            else keys
                        )
                        s = np.where(key < end, s, -np.inf)
                    # keeps the compiler from storing the 32 conditions of a row in registers
                    schedule_fence()
                    acc, p, top, total = softmax(s, n, acc, top, total, v_consumed, True)
                for (j,), (k_tile, v_tile), (k_ready, v_ready), (k_consumed, v_consumed) in main(
                    k, v, allocations=slots
                ):
                    n = block(steps - rest + j)
                    barrier_wait(k_ready)
                    with turn(order):
                        s = wgmma(None, q_tile.at[ds(wg * 64, 64), :], k_tile.T)
                        barrier_wait(v_ready)
                        acc = wgmma(acc, p, v_tile)
                    s = wgmma_wait(s)  # leaves the product with V in flight
                    barrier_arrive(k_consumed)
                    # a score function may hide all keys seen so far
                    hiding = score is not None
                    if hiding:
                        s = scored(s, n, False)
                    acc, p, top, total = softmax(s, n, acc, top, total, v_consumed, hiding)
                barrier_arrive(q_consumed)
                for _, (_, v_tile), (_, v_ready), (k_consumed, v_consumed) in tail(
                    k, v, allocations=slots
                ):
                    barrier_arrive(k_consumed)
                    barrier_wait(v_ready)
                    acc = wgmma_wait(wgmma(acc, p, v_tile))
                    barrier_arrive(v_consumed)
            weight = total.sum(axis=1)
            out = (acc * np.where(weight > 0.0, form.share / weight, 0.0)[:, None]).astype(o.dtype)
            o[place(b, h, own, ds(0, form.depth))] = out
            if lse is not None:
                lse[b, h, own] = (top * unit + np.log2(weight)) * math.log(2)

    return attend  # type: ignore[no-any-return]


def _result(
    q: Any,
    k: Any,
    score: tuple | None,
    mask: tuple | None,
    layout: str,
    causal: bool,
    diagonal: int,
    dropout: float,
    seed: Any = None,
    lse: Any = None,
    blocks: Any = None,
    exact: bool = True,
    batch_invariant: bool = False,
) -> ArrayType:
    """Return the shape and type of the result. Raises SpecError if the operands do not match, for
    options that contradict each other, and for functions that take other arguments."""
    check_invariant("attention", exact, batch_invariant)
    if diagonal and not causal:
        raise SpecError(
            f"attention: diagonal={diagonal} moves the causal mask, but causal is False; fix: pass "
            "causal=True, or leave diagonal out"
        )
    if causal and mask is not None:
        raise SpecError(
            "attention: causal=True and a mask; fix: leave causal out, and let the mask function "
            "return query >= key too"
        )
    if batch_invariant and mask is not None:
        raise SpecError(
            "attention: batch_invariant=True and a mask, which other queries share; fix: leave "
            "batch_invariant out"
        )
    if dropout > 0 and (seed is None or tuple(seed.shape) != (1,)):
        raise SpecError(
            f"attention: dropout={dropout} needs a seed, an int32 array of one element on the "
            "device of q; fix: seed=np.array([7], np.int32)"
        )
    wanted = _sums(q, layout, True).shape  # type: ignore[union-attr]
    if lse is not None and tuple(lse.shape) != wanted:
        raise SpecError(
            f"attention_backward: 'lse' must have the shape {wanted}, got "
            f"{tuple(lse.shape)}; fix: pass what attention(…, return_lse=True) returns"
        )
    check_heads(q, k, layout)
    check_function("score", score)
    check_function("mask", mask)
    if blocks is not None:
        if mask is None:
            raise SpecError("attention: blocks without their mask; fix: pass mask= too")
        wanted = blocks_of(q, k, mask[0], layout).shape
        if tuple(blocks.shape) != wanted:
            raise SpecError(
                f"attention: blocks {tuple(blocks.shape)} must have the shape {wanted}; fix: pass "
                "what attention_blocks returns for q, k and the same mask, and leave config out"
            )
    return ArrayType(q.shape, q.dtype)


def check_invariant(op: str, exact: bool, batch_invariant: bool) -> None:
    """Raise SpecError if rows may depend on each other but must not."""
    if batch_invariant and not exact:
        raise SpecError(
            f"{op}: with exact=False, the sums of a row are rescaled when another row needs it, so "
            "batch_invariant=True is not possible; fix: leave out exact=False"
        )


def _sums(q: Any, layout: str, return_lse: bool) -> ArrayType | None:
    return Form(0, False, layout, True).results(q)[1] if return_lse else None


def _launch(
    arrays: Arrays,
    score: tuple | None,
    mask: tuple | None,
    causal: bool,
    diagonal: int,
    scale: float | None,
    layout: str,
    exact: bool,
    batch_invariant: bool,
    dropout: float,
    config: Config | None,
    place: Place,
) -> None:
    """Launch attention for operands with any layout."""
    q, k, blocks = (arrays[name] for name in ("q", "k", "blocks"))
    form, of_functions = Form.of(
        q.shape[3],
        causal,
        layout,
        arrays["lse"] is not None,
        score=score,
        mask=mask,
        dropout=dropout,
        seed=arrays["seed"],
    )
    if config is None or batch_invariant:
        heads = q.shape[0] * q.shape[form.heads]
        counts = q.shape[form.positions], k.shape[form.positions], heads
        config = fitting(form, exact, batch_invariant, *counts)
    elif config.alone and form.functions:
        raise SpecError(
            "attention: a config with alone=True has no score, mask or dropout; fix: leave config "
            "out"
        )
    sizes = config.rows, config.keys
    lists = [blocks] if blocks else visible_blocks(q, k, form, of_functions, *sizes, place)
    launch_kernel(config, form, arrays, [*lists, *of_functions], scale, diagonal, place)


def launch_kernel(
    config: Config,
    form: Form,
    arrays: Arrays,
    more: Sequence[ArrayInfo],
    scale: float | None,
    diagonal: int,
    place: Place,
) -> None:
    """Launch the kernel of a config and a form; `more` are the arrays between v and o."""
    q, k, v, o, lse = (arrays[name] for name in ("q", "k", "v", "o", "lse"))
    if k.strides[form.heads] == v.strides[form.heads] == 0:  # all heads are views of the same one
        shape = [1 if axis == form.heads else size for axis, size in enumerate(k.shape)]
        k, v = (strided(info, shape, info.strides) for info in (k, v))
    q, k, v = loaded({"q": q, "k": k, "v": v}, place)
    batches, heads, depth = q.shape[0], q.shape[form.heads], q.shape[3]
    scale = depth**-0.5 if scale is None else float(scale)
    of_head = 4 * k.shape[form.positions] * depth
    kernel(config, form)(
        *(q, k, v, *more),
        out=o if lse is None else (o, lse),
        scale=scale * math.log2(math.e) if form.score is None else scale,
        diagonal=diagonal,
        group=_turns(batches * heads, heads // k.shape[form.heads], of_head),
        **place,
    )


def fitting(
    form: Form,
    exact: bool,
    batch_invariant: bool,
    queries: int,
    keys: int,
    heads: int,
) -> Config:
    """Return the config for a form and for the number of queries, keys and heads."""
    if form.functions:
        alone = not (form.mask or form.dropout or batch_invariant)
        return with_functions(form.depth, exact, alone, form.causal)
    if batch_invariant:
        return choose(form.depth)
    device = launch.gpu_state().device
    sms = device.sm_count if device else DEFAULT.sms
    return choose(form.depth, form.causal, exact, queries, keys, heads, sms, not form.ranges)


CHECKS = {
    **dict.fromkeys(("score", "mask", "score_gradient"), a(Function) | NONE),
    "causal": FLAG,
    "diagonal": whole(),
    "scale": finite(above=0) | NONE,
    "layout": word("bhsd", "bshd"),
    "deterministic": FLAG,
    "dropout": FRACTION,
}
INTEGERS = Operand("", ("int32",))
TYPES, SUMS = ("float16", "bfloat16"), Operand("batch m n", ("float32",))
QUERIES, KEYS = "batch i j depth", "batch k l depth"


def _launch_backward(
    arrays: Arrays,
    seed: ArrayInfo | None,
    score: tuple | None,
    mask: tuple | None,
    score_gradient: Function | None,
    causal: bool,
    diagonal: int,
    scale: float | None,
    layout: str,
    deterministic: bool,
    dropout: float,
    place: Place,
) -> None:
    slope = score_gradient or (score and derivative(score[0]))
    form, of_functions = Form.of(
        arrays["q"].shape[3],
        causal,
        layout,
        depths=DEPTHS,
        score=score,
        mask=mask,
        slope=slope,
        dropout=dropout,
        seed=seed,
    )
    launch_gradients(arrays, form, diagonal, scale, deterministic, place, of_functions=of_functions)


@op(
    operands={
        **{"q": QUERIES, "k": KEYS, "v": KEYS, "o": QUERIES, "lse": SUMS},
        **{"grad_o": QUERIES, "grad_lse": SUMS, "seed": INTEGERS},
    },
    results={"dq": _result, "dk": KEYS, "dv": KEYS},
    types=TYPES,
    launch=_launch_backward,
    functions=("score", "mask"),
    checks=CHECKS,
    batching="merge",
    operations=lambda q, k, layout: 10.0 * math.prod(q.shape) * k.shape[layout.index("s")],
)
def attention_backward(
    q: Any,
    k: Any,
    v: Any,
    o: Any,
    lse: Any,
    grad_o: Any,
    grad_lse: Any = None,
    seed: Any = None,
    *,
    score: Any = None,
    mask: Any = None,
    score_gradient: str | Function | None = None,
    causal: bool = False,
    diagonal: int = 0,
    scale: float | None = None,
    layout: str = "bhsd",
    deterministic: bool = False,
    dropout: float = 0.0,
) -> Any:
    """Return the gradients of q, k and v, given the results (o, lse) of attention with return_lse,
    and their gradients."""


@op(
    operands={"q": QUERIES, "k": KEYS, "v": KEYS, "blocks": INTEGERS, "seed": INTEGERS},
    results={"o": _result, "lse": _sums},
    types=TYPES,
    launch=_launch,
    functions=("score", "mask"),
    checks=CHECKS
    | {"exact": FLAG, "return_lse": FLAG, "batch_invariant": FLAG, "config": a(Config) | NONE},
    gradients={"q k v": attention_backward},
    composite="return_lse",
    batching="merge",
    operations=lambda q, k, layout: 4.0 * math.prod(q.shape) * k.shape[layout.index("s")],
)
def attention(
    q: Any,
    k: Any,
    v: Any,
    *,
    score: Any = None,
    mask: Any = None,
    score_gradient: str | Function | None = None,
    blocks: Any = None,
    causal: bool = False,
    diagonal: int = 0,
    scale: float | None = None,
    layout: str = "bhsd",
    exact: bool = True,
    return_lse: bool = False,
    deterministic: bool = False,
    batch_invariant: bool = False,
    dropout: float = 0.0,
    seed: Any = None,
    out: Any = None,
    config: Config | None = None,
    target: str | None = None,
    stream: Any = None,
) -> Any:
    """Return ``softmax(scale * q @ k.T) @ v`` for each head, for float16 or bfloat16 arrays with
    any strides.

    q           (batches, heads, queries, depth), depth up to 256
    k, v        (batches, key heads, keys, depth); the number of heads of q must be a multiple of
                the number of key heads
    score       function of (score, batch, head, query, key) that returns another score: a
                `numpipe.function`, or a tuple of it and up to three arrays, which it takes too
    mask        function of (batch, head, query, key) that returns whether the query sees the key,
                alone or in a tuple with arrays
    score_gradient
                derivative of `score`, a function of the same arguments; by default derived from its
                source
    blocks      what `attention_blocks` returns for the mask; by default computed in each call
    causal      query i sees keys 0…i + diagonal; a query that sees no key gives 0
    diagonal    offset of the causal mask; keys - queries lets the last query see all keys
    scale       positive; None means depth ** -0.5
    layout      "bshd" means (batches, positions, heads, depth), for the result too
    exact       False rescales sums only when a maximum has risen enough, which is faster and rounds
                P a little more coarsely
    return_lse  return (result, lse) with the logarithms of the sums of exponentials, float32
                (batches, heads, queries); -inf where a query sees no key
    deterministic
                add up the gradient of q in a fixed order, which is slower. Otherwise its last bits
                differ from run to run; all other results are always reproducible
    batch_invariant
                let the bits of a row of the result and its sum depend only on its query, and on
                the keys and values that it sees: not on the number of queries, heads and batches,
                nor on a mask that hides nothing from it. The config is then the same for all shapes
                of a depth. The gradients of k and v add up queries, so they have no such option
    dropout     probability with which a weight is dropped after the softmax; the others are divided
                by 1 - dropout. It is rounded to a multiple of 2**-16; kernels are compiled for each
    seed        int32 array of one element, on the device of q, which dropout needs. What is dropped
                depends on it and on the batch, head, query and key alone
    out         array for the result, or with return_lse a pair of arrays; allocated by default
    config      by default what `choose` returns
    target, stream
                as for any kernel

    Functions get scale * q @ k.T as float32 tiles; query and key are int32 tiles of one row and one
    column, so that arrays can be indexed by them as in NumPy: ``bias[head, query, key]``. Blocks of
    keys that a mask leaves out are not loaded, and it is evaluated again only in blocks of which it
    hides a part. There are no gradients of the functions' arrays: PyTorch
    raises SpecError for one that requires a gradient, and JAX for one that is differentiated.

    An operand that TMA cannot address is copied once (see `numpipe.ops`). Depths of 32, 64, 96,
    128, 192 and 256 are computed as they are, other depths as the next larger one, padded with
    zeros. Gradients of q, k and v compute the scores again, and have no gradients themselves.
    Raises SpecError if shapes do not match, for other element types, and for arrays of different
    types or on different devices.

    >>> q, k = np.ones((1, 8, 72, 64), np.float16), np.ones((1, 2, 40, 64), np.float16)
    >>> attention(q, k, k, target="sim").shape
    (1, 8, 72, 64)
    """


def _blocks(q: Any, k: Any, mask: tuple, layout: str) -> ArrayType:
    check_heads(q, k, layout)
    check_function("mask", mask)
    return blocks_of(q, k, mask[0], layout)


def _launch_blocks(
    q: ArrayInfo,
    k: ArrayInfo,
    mask: tuple,
    layout: str,
    blocks: ArrayInfo,
    place: Place,
) -> None:
    config, (form, arrays) = with_functions(q.shape[3]), Form.of(1, False, layout, mask=mask)
    visible_blocks(q, k, form, arrays, config.rows, config.keys, place, lists=blocks)


@op(
    operands={"q": QUERIES, "k": KEYS},
    results={"blocks": _blocks},
    types=TYPES,
    launch=_launch_blocks,
    functions=("mask",),
    checks={"mask": a(Function), "layout": CHECKS["layout"]},
    batching="each",
)
def attention_blocks(
    q: Any,
    k: Any,
    *,
    mask: Any = None,
    layout: str = "bhsd",
    out: Any = None,
    target: str | None = None,
    stream: Any = None,
) -> Any:
    """Return the blocks of keys that a mask leaves in for each block of queries: an int32 array for
    ``attention(…, mask=mask, blocks=blocks)``, which otherwise computes them in each call.

    q, k, mask, layout  as for `attention`; only the shapes of q and k matter
    out                 array for the result; allocated by default
    target, stream      as for any kernel

    The result may be used for all q and k of these shapes, while the arrays of the mask do not
    change. Raises SpecError for other masks and types.

    >>> @numpipe.function
    ... def window(batch, head, query, key):
    ...     return (query >= key) & (query - key < 64)
    >>> q = np.ones((2, 8, 300, 64), np.float16)
    >>> attention_blocks(q, q, mask=window, target="sim").shape
    (1, 1, 3, 6)
    """


@function
def added(score, batch, head, query, key, bias):  # type: ignore[no-untyped-def]
    return score + bias[batch, head, query, key].astype(np.float32)


@function
def shown(batch, head, query, key, visible):  # type: ignore[no-untyped-def]
    return visible[batch, head, query, key] != 0


@function
def shown_in_heads(batch, head, query, key, visible):  # type: ignore[no-untyped-def]
    return visible[batch, query, key] != 0


@function
def shown_in_all(batch, head, query, key, visible):  # type: ignore[no-untyped-def]
    return visible[query, key] != 0


def _by_heads(x: Any) -> Any:
    """Return a tensor of four dimensions: batch dimensions are flattened, and a tensor of three
    dimensions gets a single head."""
    return x.unsqueeze(1) if x.ndim == 3 else x.flatten(0, -4)


def _functions_of(attn_mask: Any, query: Any, key: Any) -> dict[str, Any]:
    """Return the `score` or `mask` option for a mask of PyTorch. Heads that share a mask share its
    list of blocks, and so do batches."""
    shape, adds = (*query.shape[:-1], key.shape[-2]), attn_mask.is_floating_point()
    try:
        x = (attn_mask if adds else attn_mask.byte()).expand(shape)
    except RuntimeError as error:
        raise SpecError(
            f"scaled_dot_product_attention: attn_mask {tuple(attn_mask.shape)} cannot be broadcast "
            f"to {shape}; fix: give it the shape (…, heads, queries, keys), or 1 where it is the "
            "same for all"
        ) from error
    x = _by_heads(x)
    if adds:
        return {"score": (added, x)}
    if x.stride(1):
        return {"mask": (shown, x)}
    return {"mask": (shown_in_heads, x[:, 0]) if x.stride(0) else (shown_in_all, x[0, 0])}


@attention.torch_front
def scaled_dot_product_attention(
    attention: Any,
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Return ``softmax(scale * query @ key.T) @ value`` for each head, as
    `torch.nn.functional.scaled_dot_product_attention` does.

    query       (…, Hq, L, E) of float16 or bfloat16, E up to 256; three dimensions (N, L, E) mean a
                single head
    key, value  (…, H, S, E) of the query's type; Hq must be H, or with enable_gqa a multiple of H
    attn_mask   of a shape that can be broadcast to (…, Hq, L, S): bool, whether a query sees a
                key, or floating point, added to the scores
    dropout_p   probability of dropping a weight; PyTorch's generator of the device gives the seed
    is_causal   row i of the query sees keys 0 to i
    scale       by default 1 / sqrt(E)
    enable_gqa  allow each head of key and value to serve Hq / H heads of the query

    The call is a single node in graphs of `torch.compile` and `torch.export` and runs on the
    current stream. There are gradients of query, key and value, but not of attn_mask. A query that
    sees no key gives 0. Raises SpecError for an attn_mask that requires a gradient, and if shapes,
    types or devices do not match. Source: PyTorch's documentation of the function,
    `numpipe.ops.attention`.

    >>> q = torch.randn(2, 8, 100, 64).bfloat16()
    >>> scaled_dot_product_attention(
    ...     q, q[:, :2], q[:, :2], is_causal=True, enable_gqa=True
    ... ).shape
    torch.Size([2, 8, 100, 64])
    """
    name = "scaled_dot_product_attention"
    shapes = f"query is {tuple(query.shape)}, key {tuple(key.shape)}, value {tuple(value.shape)}"
    batch = -3 if query.ndim > 3 else -2
    if (
        not query.ndim == key.ndim >= 3
        or query.shape[:batch] != key.shape[:batch]
        or key.shape != value.shape
        or query.shape[-1] != key.shape[-1]
    ):
        raise SpecError(
            f"{name}: {shapes}: all must have the same number of dimensions, three or more, (…, "
            "heads, length, depth), batches and depths must be equal, and key and value must have "
            "one shape; fix: expand(), transpose() or pad the arrays before the call"
        )
    heads, shared = query.shape[-3], key.shape[-3]
    if heads != shared and not enable_gqa:
        raise SpecError(
            f"{name}: query has {heads} heads, key {shared}; fix: pass "
            "enable_gqa=True if each key head serves several query heads"
        )
    q, k, v = map(_by_heads, (query, key, value))
    given = {} if attn_mask is None else _functions_of(attn_mask, query, key)
    if dropout_p:
        import torch

        seed = torch.randint(1 << 31, (1,), dtype=torch.int32, device=query.device)
        given |= {"dropout": dropout_p, "seed": seed}
    # give the result and the gradients the query's memory layout, so that callers need no copies
    heads_inside = q.stride(1) < q.stride(2)
    if heads_inside:
        (q, k, v), given["layout"] = (x.transpose(1, 2) for x in (q, k, v)), "bshd"
    made = attention(q, k, v, causal=is_causal, scale=scale, **given)
    made = made.transpose(1, 2) if heads_inside else made
    return made if query.ndim == 4 else made.reshape(query.shape)


def check_heads(q: Any, k: Any, layout: str) -> None:
    """Raise SpecError for a number of heads, or a depth, that kernels do not have."""
    if not 1 <= q.shape[-1] <= WIDTHS[-1]:
        raise SpecError(
            f"attention: the depth of a head must be 1…{WIDTHS[-1]}, 'q' {tuple(q.shape)} has "
            f"{q.shape[-1]}; fix: use more heads of fewer elements"
        )
    heads, shared = (x.shape[layout.index("h")] for x in (q, k))
    if shared == 0 or heads % shared:
        raise SpecError(
            f"attention: the {heads} heads of 'q' must be a multiple of the {shared} heads of 'k'"
        )


def _turns(heads: int, sharing: int, size: int) -> int:
    """Return how many heads to interleave: the largest divisor of `heads` for which their keys and
    values, `size` bytes per head, fit in L2."""
    return next(
        n for n in range(max(1, min(heads, L2 // max(size, 1) * sharing)), 0, -1) if heads % n == 0
    )
