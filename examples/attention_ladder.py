"""From serial products to the fastest kernel: attention in nine steps, each of which adds one
thing.

    cd examples
    # all rungs, on the GPU if there is one, else simulated
    python attention_ladder.py
    python attention_ladder.py --shape 4,16,4096,128 --causal --rung overlapped --rung turns

It prints the error against float64, and on a GPU the speed. docs/attention.md explains the rungs.
The first five use the two kernels below; the others are configs of numpipe.ops.attention.
"""

from __future__ import annotations

import argparse
import functools
import math
import warnings
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import flash_attention
import numpipe
from gemm import DTYPES
from numpipe import ArrayType, BlockSpec, CompilerParams, bench, cdiv, ds, launch, ops
from numpipe.ops.attention import CONFIGS
from numpipe.ops.attention import Config as Tuned


@dataclass(frozen=True)
class Config:
    """One of the first five rungs.

    keys        rows of K and V in a step
    wgs         compute warpgroups, of 64 rows of Q each, which share K and V
    slots       steps in shared memory at once
    overlapped  the product with the previous step's V is in flight during the softmax; otherwise
                everything is done in sequence
    turns       warpgroups issue their products one after another, so that one warpgroup's softmax
                overlaps the others' products
    persistent  one CTA per SM goes through many tiles, with a mask those that it gets from a
                counter; otherwise one CTA per tile
    """

    keys: int = 128
    wgs: int = 1
    slots: int = 2
    overlapped: bool = False
    turns: bool = False
    persistent: bool = False

    @property
    def rows(self) -> int:
        return 64 * self.wgs


_serial = Config()
_overlapped = replace(_serial, overlapped=True)
_two = replace(_overlapped, wgs=2)
_turns = replace(_two, turns=True)
_persistent = replace(_turns, persistent=True)
_exact = CONFIGS["2 warpgroups, 128 keys"]

RUNGS: dict[str, Config | Tuned] = {
    "serial": _serial,
    "overlapped": _overlapped,
    "two warpgroups": _two,
    "turns": _turns,
    "persistent": _persistent,
    "one by one": replace(_exact, early=None),
    "schedule fence": _exact,
    "lazy rescale": CONFIGS["2 warpgroups, 128 keys, lazy"],
    "three warpgroups": CONFIGS["3 warpgroups, 80 keys, lazy"],
}
DEPTHS = (64, 128)
"""head depths for which all rungs have enough registers and shared memory"""


@numpipe.function
def softmax(s: Any, top: Any, total: Any, scale: Any) -> tuple[Any, Any, Any, Any]:
    """Return the exponentials of a block of scores minus the running maxima, the factor for
    previous sums, the maxima and the sums."""
    new = np.maximum(top, s.max(axis=1))
    change = np.exp2((top - new) * scale)
    e = np.exp2(numpipe.fma(s, scale, (new * -scale)[:, None]))
    return e, change, new, total * change[:, None] + numpipe.partial_sum(e)


@functools.cache
def kernel(cfg: Config, depth: int, causal: bool) -> numpipe.Kernel:
    """Return the kernel of one of the first five rungs; its `scale` is for powers of two."""

    def tiles(q: Any) -> tuple[int]:
        return (q.shape[0] * q.shape[1] * cdiv(q.shape[2], cfg.rows),)

    options = {
        "out_type": lambda q: ArrayType(q.shape, q.dtype),
        "grid": numpipe.persistent() if cfg.persistent else tiles,
        "num_compute_wgs": cfg.wgs,
        "wg_axis": "wg",
        "memory_registers": 40,
        "compiler_params": CompilerParams(approx_math=True),
    }
    dynamic = causal and cfg.persistent
    order = "products" if cfg.turns else None
    q_block, k_block = ((None, None, rows, depth) for rows in (cfg.rows, cfg.keys))

    @numpipe.kernel(**options)
    def serial(q, k, v, o, *, scale):  # type: ignore[no-untyped-def]
        """o = softmax2(scale q k^T) v, in sequence: scores, softmax, product with V."""
        wg = numpipe.axis_index("wg")
        keys, blocks = k.shape[2], cdiv(q.shape[2], cfg.rows)
        for b, h, turn in numpipe.tiles(q.shape[0], q.shape[1], blocks, dynamic=dynamic):
            i = blocks - 1 - turn  # the longest tiles first
            first = i * cfg.rows + wg * 64
            steps = cdiv(min(keys, (i + 1) * cfg.rows) if causal else keys, cfg.keys)
            top = numpipe.layout_cast(numpipe.full(64, -np.inf, np.float32), "column")
            # per lane, over its columns; summed to one value per row at the end
            total = numpipe.full((64, 8), 0.0, np.float32)
            acc = numpipe.zeros((64, depth), np.float32)
            queries = numpipe.pipeline(
                grid=(1,),
                max_concurrent_steps=1,
                in_specs=(BlockSpec(q_block, lambda _: (b, h, i, 0)),),
            )
            for _, (q_tile,) in queries(q):
                pipe = numpipe.pipeline(
                    grid=(steps,),
                    max_concurrent_steps=cfg.slots,
                    in_specs=(
                        BlockSpec(k_block, lambda j: (b, h, j, 0)),
                        BlockSpec(k_block, lambda j: (b, h, j, 0)),
                    ),
                )
                for (j,), (k_tile, v_tile) in pipe(k, v):
                    s = numpipe.wgmma_wait(
                        numpipe.wgmma(None, q_tile.at[ds(wg * 64, 64), :], k_tile.T)
                    )
                    column = numpipe.iota(cfg.keys) + j * cfg.keys
                    there = column < keys
                    if causal:
                        there = there & (column <= (numpipe.iota(64) + first)[:, None])
                    e, change, top, total = softmax(np.where(there, s, -np.inf), top, total, scale)
                    acc = acc * change[:, None]
                    acc = numpipe.wgmma_wait(numpipe.wgmma(acc, e.astype(q.dtype), v_tile))
            o[b, h, ds(first, 64), ds(0, depth)] = (
                acc * (1.0 / total.sum(axis=1))[:, None]
            ).astype(o.dtype)

    @numpipe.kernel(**options)
    def overlapped(q, k, v, o, *, scale):  # type: ignore[no-untyped-def]
        """The same, where each step computes the scores of one block and the product with V of the
        previous block."""
        wg = numpipe.axis_index("wg")
        keys, blocks = k.shape[2], cdiv(q.shape[2], cfg.rows)
        for b, h, turn in numpipe.tiles(q.shape[0], q.shape[1], blocks, dynamic=dynamic):
            i = blocks - 1 - turn
            first = i * cfg.rows + wg * 64
            steps = cdiv(min(keys, (i + 1) * cfg.rows) if causal else keys, cfg.keys)
            top = numpipe.layout_cast(numpipe.full(64, -np.inf, np.float32), "column")
            # per lane, over its columns; summed to one value per row at the end
            total = numpipe.full((64, 8), 0.0, np.float32)
            acc = numpipe.zeros((64, depth), np.float32)
            queries = numpipe.pipeline(
                grid=(1,),
                max_concurrent_steps=1,
                in_specs=(BlockSpec(q_block, lambda _: (b, h, i, 0)),),
            )
            for _, (q_tile,) in queries(q):
                p = numpipe.full((64, cfg.keys), 0.0, np.float32).astype(q.dtype)
                # V is one step behind: V of the first step and K of the last are out of range, and
                # loaded as zeros
                pipe = numpipe.pipeline(
                    grid=(steps + 1,),
                    max_concurrent_steps=cfg.slots,
                    in_specs=(
                        BlockSpec(k_block, lambda j: (b, h, j, 0)),
                        BlockSpec(k_block, lambda j: (b, h, j - 1, 0)),
                    ),
                )
                for (j,), (k_tile, v_tile) in pipe(k, v):
                    if j < steps:
                        with numpipe.turn(order):
                            s = numpipe.wgmma(None, q_tile.at[ds(wg * 64, 64), :], k_tile.T)
                            acc = numpipe.wgmma(acc, p, v_tile)
                        s = numpipe.wgmma_wait(s)  # leaves the product with V in flight
                        column = numpipe.iota(cfg.keys) + j * cfg.keys
                        there = column < keys
                        if causal:
                            there = there & (column <= (numpipe.iota(64) + first)[:, None])
                        e, change, top, total = softmax(
                            np.where(there, s, -np.inf), top, total, scale
                        )
                        acc = numpipe.wgmma_wait(acc)
                        # cast only now: the product in flight reads the registers that p will
                        # occupy
                        p = e.astype(q.dtype)
                        acc = acc * change[:, None]
                    else:
                        acc = numpipe.wgmma_wait(numpipe.wgmma(acc, p, v_tile))
            o[b, h, ds(first, 64), ds(0, depth)] = (
                acc * (1.0 / total.sum(axis=1))[:, None]
            ).astype(o.dtype)

    return overlapped if cfg.overlapped else serial


def attention(
    q: Any, k: Any, v: Any, *, cfg: Config | Tuned, causal: bool = False, **options: Any
) -> Any:
    """Return ``softmax(q k^T / sqrt(depth)) v`` of equally shaped (batches, heads, positions,
    depth) arrays, by a rung. `options` are those of any call, such as ``out=``."""
    if isinstance(cfg, Tuned):
        return ops.attention(q, k, v, config=cfg, causal=causal, **options)
    depth = q.shape[3]
    return kernel(cfg, depth, causal)(q, k, v, scale=depth**-0.5 * math.log2(math.e), **options)


def speeds(arrays: list[np.ndarray], causal: bool, rungs: dict[str, Any]) -> bench.Sample:
    """Return the seconds per call of each rung, on arrays that stay on the GPU, measured in turn
    under load."""
    on_gpu = [launch.DeviceArray.from_host(x) for x in arrays]
    outs = {name: launch.DeviceArray(arrays[0].shape, arrays[0].dtype) for name in rungs}
    [sample] = bench.compare(
        {
            name: lambda _, cfg=cfg, out=outs[name]: attention(
                *on_gpu, cfg=cfg, causal=causal, out=out
            )  # type: ignore[misc]
            for name, cfg in rungs.items()
        },
        reference=next(iter(rungs)),
        protocols=("interleaved",),
        plan=bench.Plan(load=0.3, rounds=20),
    )
    return sample


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", choices=("sim", "gpu"), help="default: the GPU if there is one")
    parser.add_argument("--shape", type=shape_of, metavar="B,H,S,D", help=f"D of {DEPTHS}")
    parser.add_argument("--causal", action="store_true", help="query i sees keys 0…i")
    parser.add_argument(
        "--rung", choices=RUNGS, action="append", help="may be repeated (default: all)"
    )
    options = parser.parse_args()
    rungs = {name: RUNGS[name] for name in options.rung or RUNGS}
    choice = launch.choose_target(options.target)
    shape = options.shape or shape_of("4,16,4096,128" if choice.target == "gpu" else "1,1,200,64")
    arrays = flash_attention.inputs(shape, DTYPES["bf16"])
    print(f"{shape} on {choice.target} ({choice.why})")
    sample = speeds(arrays, options.causal, rungs) if choice.target == "gpu" else None
    for name, cfg in rungs.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it has already been said that this is simulated
            o = attention(*arrays, cfg=cfg, causal=options.causal, target=choice.target)
        speed = (
            f"{1e-12 * flash_attention.flops(shape, options.causal) / sample.seconds(name):>6.0f} "
            "TFLOPS"
            if sample
            else ""
        )
        print(
            f"{name:<18} error {flash_attention.relative_error(arrays, o, options.causal):.1e} "
            f"{speed}",
            flush=True,
        )


def shape_of(text: str) -> flash_attention.Shape:
    """Parse "4,16,4096,128" into (4, 16, 16, 4096, 128)."""
    shape = flash_attention.shape_of(text)
    if shape[1] != shape[2] or shape[4] not in DEPTHS:
        raise argparse.ArgumentTypeError(
            f"{text!r}: expected as many key heads as query heads, and a depth of {DEPTHS}"
        )
    return shape


if __name__ == "__main__":
    main()
