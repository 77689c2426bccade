"""Attention, softmax(scale * Q K^T) V, in one pass: scores stay in registers, sums are corrected while keys go by (FlashAttention).

    python examples/flash_attention.py                                      every config, on the GPU if there is one, else simulated
    python examples/flash_attention.py --shape 4,16,4096,128 --causal       batches, heads, positions, depth of a head
    python examples/flash_attention.py --shape 3,32/8,4001,128 --dtype f16  32 heads of queries, 8 of keys and values

A CTA has 64 rows of Q for each compute warpgroup, and goes through K and V in blocks. While the softmax of one block of scores is
computed, the product with the V of the block before runs, and the other warpgroups' products: so exponentials and products overlap.

On a GPU: speed of each config, in turn under load, and the error against float64. Simulated: the error.
"""

from __future__ import annotations

import argparse
import functools
import math
import re
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np

import numpipe
from gemm import DTYPES
from numpipe import ArrayType, BlockSpec, CompilerParams, SpecError, bench, cdiv, ds, launch

GPU_SHAPES, SIM_SHAPES = ("4,16,4096,128", "4,16,4096,64", "4,16,4096,256"), ("1,4/2,200,64", "1,2,136,128")
DEPTHS = (64, 128, 256)
L2 = 32 << 20  # bytes of keys and values that heads whose tiles take turns may have
RISE = 8.0  # powers of two that scores may exceed the maximum in use by, where it is not always the largest one


@dataclass(frozen=True)
class Config:
    """How attention is cut and scheduled:

    keys       rows of K and V in a step
    wgs        compute warpgroups, of 64 rows of Q each
    slots      steps in shared memory at once
    lazy       sums are rescaled only where a maximum has risen by more than `RISE`; else at each step, as exact as can be
    turns      warpgroups issue their products one after another, so that one's softmax is beside the other's products
    dynamic    CTAs take tiles from a counter, the longest first: of use where tiles differ, that is with a causal mask
    registers  of each lane of the memory role
    early      keys whose exponentials come before the wait for the product with V, which ptxas would move up; None: as it likes
    q_slots    tiles of Q in shared memory at once: with two, the next one is on its way while one is in use
    """

    keys: int = 128
    wgs: int = 2
    slots: int = 2
    lazy: bool = False
    turns: bool = True
    early: int | None = None
    q_slots: int = 1
    dynamic: bool = True
    registers: int = 40

    @property
    def rows(self) -> int:
        return 64 * self.wgs


CONFIGS = {
    "2 warpgroups, 128 keys": Config(early=32, q_slots=2),
    "2 warpgroups, 128 keys, lazy": Config(lazy=True, turns=False, early=32, q_slots=2),
    "3 warpgroups, 80 keys, lazy": Config(80, 3, lazy=True, turns=False, dynamic=False, registers=32),
    "3 warpgroups, 128 keys": Config(128, 3, early=32, q_slots=2, registers=32),
    "3 warpgroups, 128 keys, lazy": Config(128, 3, lazy=True, q_slots=2, registers=32),
    "2 warpgroups, 64 keys": Config(64, early=32),
    "2 warpgroups, 64 keys, lazy": Config(64, lazy=True, early=32),
}
FITTING = {
    **{(64, causal): ("3 warpgroups, 128 keys", "3 warpgroups, 128 keys, lazy") for causal in (False, True)},
    (128, False): ("2 warpgroups, 128 keys", "3 warpgroups, 80 keys, lazy", "2 warpgroups, 128 keys, lazy"),
    (128, True): ("2 warpgroups, 128 keys", "2 warpgroups, 128 keys, lazy", "3 warpgroups, 80 keys, lazy"),
    **{(256, causal): ("2 warpgroups, 64 keys", "2 warpgroups, 64 keys, lazy") for causal in (False, True)},
}
"""(depth, causal) -> configs that fit into registers and shared memory: that for exact results, that for others, the rest"""


@dataclass(frozen=True)
class Form:
    """What is computed, beside the config.

    depth   elements of a head, one of `DEPTHS`
    causal  whether query i sees keys up to i + diagonal alone
    layout  dimensions of the arrays: "bhsd" (batch, head, position, depth) or "bshd"
    sums    whether the logarithms of the sums are stored
    """

    depth: int
    causal: bool = False
    layout: str = "bhsd"
    sums: bool = False

    @property
    def heads(self) -> int:
        return self.layout.index("h")

    @property
    def positions(self) -> int:
        return self.layout.index("s")

    def results(self, q: Any) -> tuple[ArrayType, ...]:
        sums = ArrayType((q.shape[0], q.shape[self.heads], q.shape[self.positions]), np.float32)
        return (ArrayType(q.shape, q.dtype), sums)[:1 + self.sums]


@functools.cache
def kernel(cfg: Config, form: Form) -> numpipe.Kernel:
    """The kernel for a config and a form."""
    by_head, order = form.layout == "bhsd", "products" if cfg.turns else None
    rows_of_q, keys_of_k = ((None, None, n, form.depth) if by_head else (None, n, None, form.depth) for n in (cfg.rows, cfg.keys))
    @numpipe.kernel(
        out_type=lambda q: form.results(q), without=() if form.sums else "lse", grid=numpipe.persistent(), num_compute_wgs=cfg.wgs,
        wg_axis="wg", memory_registers=cfg.registers, compiler_params=CompilerParams(approx_math=True))
    def attend(q, k, v, o, lse, *, scale, diagonal, group):  # type: ignore[no-untyped-def]
        """o = softmax2(scale q k^T) v, with powers of two; lse: logarithms of the sums; `group`: heads that take turns."""
        wg, group = numpipe.axis_index("wg"), group if form.causal else 1
        heads, keys, blocks = q.shape[form.heads], k.shape[form.positions], cdiv(q.shape[form.positions], cfg.rows)
        for above, turn, below in numpipe.tiles(q.shape[0] * heads // group, blocks, group, dynamic=form.causal and cfg.dynamic):
            b, h = (above * group + below) // heads, (above * group + below) % heads
            hk = h * k.shape[form.heads] // heads  # several heads of queries have one of keys and values
            i = blocks - 1 - turn if form.causal else turn  # the longest tiles first
            first = i * cfg.rows + wg * 64
            steps = cdiv(min(keys, max(0, (i + 1) * cfg.rows + diagonal)) if form.causal else keys, cfg.keys)
            whole = min(keys, max(0, i * cfg.rows + diagonal + 1)) if form.causal else keys  # keys that all rows of the tile see
            rest = max(0, min(steps - 1, whole // cfg.keys))  # steps without a mask
            top = numpipe.layout_cast(numpipe.full(64, -np.inf, np.float32), "column")
            total = numpipe.full((64, 8), 0.0, np.float32)
            acc = numpipe.zeros((64, form.depth), np.float32)

            def softmax(s, acc, top, total, v_consumed, guarded):  # -> the product in units of the new maxima, P, maxima, sums
                risen = not cfg.lazy or np.any(numpipe.partial_max(s) > (top + RISE / scale)[:, None])
                change = numpipe.layout_cast(numpipe.full(64, 1.0, np.float32), "column")
                if risen:
                    new = np.maximum(top, s.max(axis=1))
                    change = np.exp2(np.where(new == -np.inf, 0.0, (top - new) * scale) if guarded else (top - new) * scale)
                    total = total * change[:, None]
                    top = new
                offset = np.where(top == -np.inf, 0.0, top * -scale) if guarded else top * -scale  # e = 0 where all is masked

                def exponentials(x, first_column):
                    x = np.exp2(numpipe.fma(x, scale, offset[:, None]))
                    if cfg.early and first_column == 0:
                        numpipe.schedule_fence(after=x)
                    return x

                e = numpipe.map_columns(exponentials, s, cfg.early or cfg.keys)
                total = total + numpipe.partial_sum(e)
                acc = numpipe.wgmma_wait(acc)
                numpipe.barrier_arrive(v_consumed)
                p = e.astype(q.dtype)  # only now: its registers would be those that the product reads
                if risen:
                    acc = acc * change[:, None]
                return acc, p, top, total

            def at(head, i):
                return (b, head, i, 0) if by_head else (b, i, head, 0)
            def kv(end):  # from block end - 1 of keys to the first: the scores of one, the product of that before
                return (BlockSpec(keys_of_k, lambda j: at(hk, end - 1 - j), buffer_count=cfg.slots),
                        BlockSpec(keys_of_k, lambda j: at(hk, end - j), buffer_count=cfg.slots))

            q_spec = BlockSpec(rows_of_q, lambda _: at(h, i), buffer_count=cfg.q_slots)
            queries = numpipe.pipeline(grid=(1,), in_specs=(q_spec,), manual_consumed_barriers=True)
            # On the same slots: blocks with masks, others, the last product; V of the first step and K of the last lie outside
            head = numpipe.pipeline(
                grid=(steps - rest,), in_specs=kv(steps), manual_ready_barriers=True, manual_consumed_barriers=True)
            main = numpipe.pipeline(grid=(rest,), in_specs=kv(rest), manual_ready_barriers=True, manual_consumed_barriers=True)
            tail = numpipe.pipeline(grid=(1,), in_specs=kv(0), manual_ready_barriers=True, manual_consumed_barriers=True)
            slots = head.get_allocations(k, v)
            for _, (q_tile,), (q_consumed,) in queries(q):
                p = numpipe.full((64, cfg.keys), 0.0, np.float32).astype(q.dtype)
                for (j,), (k_tile, v_tile), (k_ready, v_ready), (k_consumed, v_consumed) in head(k, v):
                    numpipe.barrier_wait(k_ready)
                    with numpipe.turn(order):
                        s = numpipe.wgmma(None, q_tile.at[ds(wg * 64, 64), :], k_tile.T)
                        numpipe.barrier_wait(v_ready)
                        if j > 0:
                            acc = numpipe.wgmma(acc, p, v_tile)
                            s = numpipe.wgmma_wait(s)
                        else:
                            s = numpipe.wgmma_wait(s)
                    numpipe.barrier_arrive(k_consumed)
                    key = numpipe.iota(cfg.keys) + (steps - 1 - j) * cfg.keys
                    end = np.minimum(numpipe.iota(64) + (first + diagonal + 1), keys)[:, None] if form.causal else keys
                    s = np.where(key < end, s, -np.inf)
                    numpipe.schedule_fence()  # or the 32 conditions of a row are kept, as bits in registers, for the next one
                    acc, p, top, total = softmax(s, acc, top, total, v_consumed, True)
                for _, (k_tile, v_tile), (k_ready, v_ready), (k_consumed, v_consumed) in main(k, v, allocations=slots):
                    numpipe.barrier_wait(k_ready)
                    with numpipe.turn(order):
                        s = numpipe.wgmma(None, q_tile.at[ds(wg * 64, 64), :], k_tile.T)
                        numpipe.barrier_wait(v_ready)
                        acc = numpipe.wgmma(acc, p, v_tile)
                    s = numpipe.wgmma_wait(s)  # the product with V stays in flight
                    numpipe.barrier_arrive(k_consumed)
                    acc, p, top, total = softmax(s, acc, top, total, v_consumed, False)
                numpipe.barrier_arrive(q_consumed)
                for _, (_, v_tile), (_, v_ready), (k_consumed, v_consumed) in tail(k, v, allocations=slots):
                    numpipe.barrier_arrive(k_consumed)
                    numpipe.barrier_wait(v_ready)
                    acc = numpipe.wgmma_wait(numpipe.wgmma(acc, p, v_tile))
                    numpipe.barrier_arrive(v_consumed)
            weight = total.sum(axis=1)
            out = (acc * np.where(weight > 0.0, 1.0 / weight, 0.0)[:, None]).astype(o.dtype)
            o[(b, h, ds(first, 64), ds(0, form.depth)) if by_head else (b, ds(first, 64), h, ds(0, form.depth))] = out
            if lse is not None:
                lse[b, h, ds(first, 64)] = (top * scale + np.log2(weight)) * math.log(2)

    return attend  # type: ignore[no-any-return]


def choose(depth: int, causal: bool = False, exact: bool = True) -> Config:
    """The config for a depth: the first of `FITTING`, or the second."""
    return CONFIGS[FITTING[depth, causal][not exact]]


def attention(q: Any, k: Any, v: Any, *, causal: bool = False, diagonal: int = 0, scale: float | None = None, layout: str = "bhsd",
              exact: bool = True, return_lse: bool = False, out: Any = None, cfg: Config | None = None, **options: Any) -> Any:
    """``softmax(scale * q @ k.T) @ v`` of each head; `options`: ``target=``, ``stream=``.

    q           (batches, heads, queries, depth), float16 or bfloat16, depth 64, 128 or 256
    k, v        (batches, heads of keys, keys, depth): each head of them belongs to as many heads of q, the same for all
    causal      query i sees keys 0…i + diagonal; keys - queries as diagonal: the last query sees all. One that sees none gives 0
    scale       positive; None: depth ** -0.5
    layout      "bshd": (batches, positions, heads, depth), the result too
    exact       False: sums are rescaled rarely, which is faster, and rounds P a little more coarsely
    return_lse  (result, logarithms of the sums of exponentials (batches, heads, queries) in float32): -inf where no key is seen
    out         where the result goes, with return_lse a pair; else it is allocated
    cfg         by default what `choose` says

    Raises SpecError for shapes that do not fit.
    """
    form, scale, group = _asked(tuple(q.shape), tuple(k.shape), tuple(v.shape), causal, layout, return_lse, scale)
    cfg = cfg or choose(form.depth, causal, exact)
    return kernel(cfg, form)(q, k, v, out=out, scale=scale, diagonal=diagonal, group=group, **options)


@functools.lru_cache(maxsize=1024)
def _asked(q: tuple[int, ...], k: tuple[int, ...], v: tuple[int, ...], causal: bool, layout: str, sums: bool,
           scale: float | None) -> tuple[Form, float, int]:
    """(form, scale for powers of two, heads that take turns) for arrays of these shapes; SpecError where they do not fit."""
    if layout not in ("bhsd", "bshd"):
        raise SpecError(f"attention: layout must be 'bhsd' or 'bshd', got {layout!r}")
    if odd := [(name, shape) for name, shape in (("q", q), ("k", k), ("v", v)) if len(shape) != 4]:
        raise SpecError(f"attention: '{odd[0][0]}' must have 4 dimensions, {', '.join(layout)}, got shape {odd[0][1]}")
    form = Form(q[3], causal, layout, sums)
    if q[3] not in DEPTHS:
        raise SpecError(f"attention: the depth of a head must be one of {DEPTHS}, 'q' {q} has {q[3]}")
    if k != v or (k[0], k[3]) != (q[0], q[3]):
        raise SpecError(f"attention: 'k' and 'v' must have one shape, with the batches and the depth of 'q' {q}, got {k} and {v}")
    heads, shared = q[form.heads], k[form.heads]
    if shared == 0 or heads % shared:
        raise SpecError(f"attention: the {heads} heads of 'q' must be a multiple of the {shared} heads of 'k'")
    scale = q[3] ** -0.5 if scale is None else float(scale)
    if not 0 < scale < math.inf:
        raise SpecError(f"attention: scale must be a positive number, got {scale}")
    return form, scale * math.log2(math.e), _turns(q[0] * heads, heads // shared, 4 * k[form.positions] * q[3]) if causal else 1


def _turns(heads: int, sharing: int, size: int) -> int:
    """The most heads whose keys and values, `size` bytes each, stay in L2, that leave no smaller rest."""
    return next(n for n in range(max(1, min(heads, L2 // max(size, 1) * sharing)), 0, -1) if heads % n == 0)


Shape = tuple[int, int, int, int, int]  # batches, heads, heads of keys, positions, depth


def inputs(shape: Shape, dtype: np.dtype) -> list[np.ndarray]:
    """Normally distributed q, k, v, (B, H, S, D)."""
    (batches, heads, shared, positions, depth), rng = shape, np.random.default_rng(0)
    return [rng.standard_normal((batches, h, positions, depth), np.float32).astype(dtype) for h in (heads, shared, shared)]


def exactly(q: np.ndarray, k: np.ndarray, v: np.ndarray, *, causal: bool = False, diagonal: int = 0,
            scale: float | None = None, rows: Any = slice(None)) -> tuple[np.ndarray, np.ndarray]:
    """In float64: (result, logarithms of the sums) of some rows of (B, H, S, D)."""
    sharing, positions = q.shape[1] // k.shape[1], np.arange(q.shape[2])[rows]
    wide, k, v = q[:, :, rows].astype(np.float64), *(np.repeat(x.astype(np.float64), sharing, 1) for x in (k, v))
    s = wide @ k.swapaxes(2, 3) * (q.shape[3] ** -0.5 if scale is None else scale)
    if causal:
        s = np.where(np.arange(k.shape[2]) <= positions[:, None] + diagonal, s, -np.inf)
    top = s.max(axis=3, keepdims=True, initial=-1e300)
    total = (p := np.exp(s - top)).sum(axis=3, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(total > 0, p @ v / total, 0.0), (top + np.log(total))[..., 0]


def relative_error(arrays: list[np.ndarray], o: np.ndarray, causal: bool) -> float:
    """Frobenius norm, against float64; of some rows if there are many."""
    rows = np.arange(0, o.shape[2], -(-o.shape[2] // 256))
    exact = exactly(*(x[:1] for x in arrays), causal=causal, rows=rows)[0]
    return float(np.linalg.norm(o[:1, :, rows].astype(np.float64) - exact) / np.linalg.norm(exact))


def flops(shape: Shape, causal: bool) -> float:
    """Of both products; those that a mask leaves out do not count."""
    batches, heads, _, positions, depth = shape
    return 4.0 * batches * heads * depth * positions * (positions if not causal else (positions + 1) / 2)


def sweep(text: str, shape: Shape, dtype: np.dtype, causal: bool, target: str) -> None:
    """The error of each config that fits, a line each; on a GPU its speed too."""
    arrays = inputs(shape, dtype)
    configs = {name: CONFIGS[name] for name in FITTING[shape[4], causal]}
    speeds = {}
    if target == "gpu":
        on_gpu = [launch.DeviceArray.from_host(x) for x in arrays]
        outs = {name: launch.DeviceArray(arrays[0].shape, dtype) for name in configs}
        [sample] = bench.compare(
            {name: lambda _, cfg=cfg, out=outs[name]: attention(*on_gpu, causal=causal, cfg=cfg, out=out)  # type: ignore[misc]
             for name, cfg in configs.items()},
            reference=next(iter(configs)), protocols=("interleaved",), plan=bench.Plan(load=0.3, rounds=20))
        speeds = {name: f"  {1e-12 * flops(shape, causal) / sample.seconds(name):>5.0f} TFLOPS" for name in configs}
    for name, cfg in configs.items():
        error = relative_error(arrays, attention(*arrays, causal=causal, cfg=cfg, target=target), causal)
        print(f"{text:>18}  {name:<28} {error:>7.1e}{speeds.get(name, '')}", flush=True)


def shape_of(text: str) -> Shape:
    """"3,32/8,4001,128" -> (3, 32, 8, 4001, 128)."""
    found = re.fullmatch(r"(\d+),(\d+)(?:/(\d+))?,(\d+),(\d+)", text)
    if not found or not all(int(n) for n in found.groups(default="1")):
        raise argparse.ArgumentTypeError(f"{text!r} is not B,H,S,D or B,H/HK,S,D, positive integers like 4,16,4096,128")
    b, h, hk, s, d = (int(n) if n else int(found[2]) for n in found.groups())
    return b, h, hk, s, d


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", choices=("sim", "gpu"), help="default: the GPU if there is one")
    parser.add_argument("--shape", action="append", metavar="B,H,S,D", type=lambda text: (text, shape_of(text)),
                        help="B,H/HK,S,D with HK heads of keys; may be repeated")
    parser.add_argument("--dtype", choices=DTYPES, default="bf16", help="of all arrays (default: %(default)s)")
    parser.add_argument("--causal", action="store_true", help="query i sees keys 0…i")
    options = parser.parse_args()
    choice = launch.choose_target(options.target)
    print(f"target: {choice.target} ({choice.why})")
    for text, shape in options.shape or [(s, shape_of(s)) for s in (GPU_SHAPES if choice.target == "gpu" else SIM_SHAPES)]:
        sweep(text, shape, DTYPES[options.dtype], options.causal, choice.target)


if __name__ == "__main__":
    try:
        main()
    except numpipe.NumpipeError as error:
        sys.exit(f"error: {error}")
