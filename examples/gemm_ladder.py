"""From a plain loop to the fastest kernel: a matrix product in nine steps, each of which adds one
thing.

    # all rungs, on the GPU if there is one, else simulated
    python examples/gemm_ladder.py
    python examples/gemm_ladder.py --shape 8192,8192,512 --rung "store panels" --rung ping-pong

It prints the error against float64, and on a GPU the speed next to that of cuBLAS.
docs/matrix_products.md explains the rungs.
"""

from __future__ import annotations

import argparse
import functools
import warnings
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import numpipe
from cublas import load_cublas
from gemm import DTYPES, inputs, relative_error, shape_of, spell
from numpipe import BlockSpec, CompilerParams, bench, cdiv, ds, launch


@dataclass(frozen=True)
class Config:
    """A rung: tile of the output (tm x tn) and depth of a step (tk), in elements; steps in shared
    memory at once; and further options.

    specialized   a memory role loads for two compute warpgroups; otherwise one warpgroup does its
                  own loads
    persistent    one CTA per SM goes through many tiles; otherwise one CTA per tile
    order, group  order of the tiles (`numpipe.tiles`)
    panels        panels of the store ring, for each compute warpgroup; 0: as many as a tile has, or
                  as fit
    policy        L2 eviction policy of the output
    """

    tm: int = 128
    tn: int = 128
    tk: int = 64
    slots: int = 1
    specialized: bool = False
    persistent: bool = False
    order: str = "row"
    group: int = 16
    panels: int = 1
    policy: str | None = None
    schedule: str = "cooperative"


_plain = Config()
_slots = replace(_plain, slots=4)
_roles = replace(_slots, specialized=True)
_tile = replace(_roles, tn=256)
_persistent = replace(_tile, persistent=True)
_panels = replace(_persistent, slots=3, panels=4)
_grouped = replace(_panels, order="grouped")
_policy = replace(_grouped, policy="evict_first")
_pingpong = replace(_policy, tn=192, slots=4, panels=2, schedule="pingpong")

RUNGS = {
    "plain loop": _plain,
    "slots": _slots,
    "memory role": _roles,
    "larger tile": _tile,
    "persistent": _persistent,
    "store panels": _panels,
    "grouped tiles": _grouped,
    "eviction policy": _policy,
    "ping-pong": _pingpong,
}


@functools.cache
def kernel(cfg: Config) -> numpipe.Kernel:
    """Return the kernel of a rung."""

    def tiles(a, b):
        return (cdiv(a.shape[0], cfg.tm) * cdiv(b.shape[0], cfg.tn),)

    options = {
        "out_type": lambda a, b: numpipe.ArrayType((a.shape[0], b.shape[0]), a.dtype),
        "signature": "(m,k),(n,k)->(m,n)",
        "grid": numpipe.persistent() if cfg.persistent else tiles,
        "compiler_params": CompilerParams(store_slots=cfg.panels, store_eviction_policy=cfg.policy),
    }

    @numpipe.kernel(**options, warp_specialized=False, num_compute_wgs=1)
    def single(a, b, c):
        """c = a @ b.T; the warpgroup loads each step's blocks and waits for them."""
        for m, n in numpipe.tiles(
            cdiv(a.shape[0], cfg.tm), cdiv(b.shape[0], cfg.tn), order=cfg.order, group=cfg.group
        ):
            acc = numpipe.emit_pipeline(
                lambda indices, a_tile, b_tile, acc: numpipe.wgmma(acc, a_tile, b_tile.T),
                grid=(cdiv(a.shape[1], cfg.tk),),
                max_concurrent_steps=cfg.slots,
                delay_release=min(1, cfg.slots - 1),
                in_specs=(
                    BlockSpec((cfg.tm, cfg.tk), lambda k: (m, k)),
                    BlockSpec((cfg.tn, cfg.tk), lambda k: (n, k)),
                ),
                init_carry=numpipe.zeros((cfg.tm, cfg.tn), np.float32),
            )(a, b)
            c[ds(m * cfg.tm, cfg.tm), ds(n * cfg.tn, cfg.tn)] = acc.astype(c.dtype)

    @numpipe.kernel(
        **options, schedule=cfg.schedule, num_compute_wgs=2, wg_axis="wg", memory_registers=40
    )
    def specialized(a, b, c):
        """c = a @ b.T; a memory role loads, two warpgroups multiply."""
        wg = numpipe.axis_index("wg")
        rows = cfg.tm // numpipe.axis_size("wg")
        for m, n in numpipe.tiles(
            cdiv(a.shape[0], cfg.tm), cdiv(b.shape[0], cfg.tn), order=cfg.order, group=cfg.group
        ):
            acc = numpipe.zeros((rows, cfg.tn), np.float32)
            pipe = numpipe.pipeline(
                grid=(cdiv(a.shape[1], cfg.tk),),
                max_concurrent_steps=cfg.slots,
                in_specs=(
                    BlockSpec((cfg.tm, cfg.tk), lambda k: (m, k)),
                    BlockSpec((cfg.tn, cfg.tk), lambda k: (n, k)),
                ),
            )
            for (k,), (a_tile, b_tile) in pipe(a, b):
                acc = numpipe.wgmma(acc, a_tile.at[ds(wg * rows, rows), :], b_tile.T)
            c[ds(m * cfg.tm + wg * rows, rows), ds(n * cfg.tn, cfg.tn)] = acc.astype(c.dtype)

    return specialized if cfg.specialized else single


def speeds(a: np.ndarray, b: np.ndarray, rungs: dict[str, Config]) -> bench.Sample:
    """Return the seconds per call of each rung and of cuBLAS, on arrays that stay on the GPU,
    measured in turn under load."""
    x, y = launch.DeviceArray.from_host(a), launch.DeviceArray.from_host(b)
    outputs = {name: launch.DeviceArray((len(a), len(b)), a.dtype) for name in [*rungs, "cuBLAS"]}
    calls: dict[str, Any] = {
        name: lambda _, cfg=cfg, out=outputs[name]: kernel(cfg)(x, y, out=out)
        for name, cfg in rungs.items()
    }
    if cublas := load_cublas():
        calls["cuBLAS"] = lambda _: cublas(x, y, outputs["cuBLAS"])
    [sample] = bench.compare(
        calls,
        reference=list(calls)[-1],
        protocols=("interleaved",),
        plan=bench.Plan(load=0.3, rounds=20),
    )
    return sample


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", choices=("sim", "gpu"), help="default: the GPU if there is one")
    parser.add_argument("--shape", type=shape_of, metavar="M,N,K")
    parser.add_argument(
        "--rung", choices=RUNGS, action="append", help="may be repeated (default: all)"
    )
    options = parser.parse_args()
    rungs = {name: RUNGS[name] for name in options.rung or RUNGS}
    choice = launch.choose_target(options.target)
    shape = options.shape or ((8192, 8192, 8192) if choice.target == "gpu" else (200, 392, 136))
    a, b = inputs(shape, DTYPES["bf16"])
    print(f"{spell(shape)} on {choice.target} ({choice.why})")
    sample = speeds(a, b, rungs) if choice.target == "gpu" else None
    for name, cfg in rungs.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it has already been said that this is simulated
            error = relative_error(a, b, kernel(cfg)(a, b, target=choice.target))
        speed = (
            f"{2e-12 * np.prod(shape) / sample.seconds(name):>6.0f} TFLOPS  "
            f"{sample.ratio(name):.2f}"
            if sample
            else ""
        )
        print(f"{name:<16} error {error:.1e} {speed}", flush=True)


if __name__ == "__main__":
    main()
