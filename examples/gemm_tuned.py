"""A matrix product with everything that makes it fast said in a Config: tile, slots, staging, schedule, order of tiles.

    python examples/gemm_tuned.py                                    every config, on the GPU if there is one, else simulated
    python examples/gemm_tuned.py --shape 8192,8192,512 --config "ping-pong 128x192"
    python examples/gemm_tuned.py --shape 4096,14336,4096 --tune     measure all, remember the fastest on disk
    python examples/gemm_tuned.py --target sim --shape 300,200,136 --dtype bf16

One kernel source for both schedules. Cooperative: the two compute warpgroups of a CTA have half the rows of its tile each.
Ping-pong: they take turns on whole tiles, and one stores its tile while the other multiplies.

On a GPU: speed of each config and of cuBLAS, in turn under load, and the error against float64. Simulated: the error.
"""

from __future__ import annotations

import argparse
import functools
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import numpipe
from gemm import DTYPES, Shape, inputs, relative_error, shape_of, spell
from numpipe import BlockSpec, CompilerParams, bench, cdiv, ds, launch, model, orders

GPU_SHAPES = ((4096, 4096, 4096), (8192, 8192, 8192), (8192, 8192, 1024), (8192, 8192, 512), (1024, 4096, 4096))
SIM_SHAPES = ((256, 256, 256), (200, 392, 72))


@dataclass(frozen=True)
class Config:
    """How the product is cut and scheduled. Sizes are in elements.

    tm, tn    tile of the output: a CTA's (cooperative), or a compute warpgroup's (ping-pong)
    tk        depth of a step
    slots     steps in shared memory at once; None: as many as fit beside the staging panels
    schedule  "cooperative" or "pingpong"
    panels    staging panels (64 x 64 elements, 8 KB) of each compute warpgroup for tiles on their way out, 1…8; None: what `slots`
              leaves, up to a tile's
    group     rows of tiles that share blocks of b in L2: 1000 to 2000 rows of the output
    policy    what L2 does with the output's lines; "evict_first" leaves room for inputs
    dynamic   CTAs take tiles from a counter, so that quicker ones compute more
    """

    tm: int = 128
    tn: int = 256
    tk: int = 64
    slots: int | None = 3
    schedule: str = "cooperative"
    panels: int | None = None
    group: int = 16
    policy: str | None = None
    dynamic: bool = False

    @property
    def depth(self) -> int:
        """The slots of the ring, for 16-bit types."""
        if self.slots is not None:
            return self.slots
        return numpipe.fit_slots(((self.tm, self.tk), np.float16), ((self.tn, self.tk), np.float16), store_slots=self.panels or 1)


CONFIGS = {
    "cooperative 128x256": Config(policy="evict_first"),
    "ping-pong 64x256": Config(64, 256, slots=5, schedule="pingpong", panels=1, group=32, policy="evict_first"),
    "ping-pong 128x192": Config(128, 192, slots=4, schedule="pingpong", panels=2, policy="evict_first"),
    "ping-pong 128x128": Config(128, 128, slots=5, schedule="pingpong", panels=4, policy="evict_first"),
}
"""what each is good for: many steps, and the least power; few steps; large products; tiles of equal sides"""


@functools.cache
def kernel(cfg: Config) -> numpipe.Kernel:
    """The kernel for a config."""

    @numpipe.kernel(
        out_type=lambda a, b: numpipe.ArrayType((a.shape[0], b.shape[0]), a.dtype), signature="(m,k),(n,k)->(m,n)",
        grid=numpipe.persistent(), schedule=cfg.schedule, num_compute_wgs=2, wg_axis="wg", memory_registers=40,
        compiler_params=CompilerParams(store_slots=cfg.panels or 0, store_eviction_policy=cfg.policy))
    def matmul(a, b, c):
        """c = a @ b.T, for a (M, K) and b (N, K) of a 16-bit type, summed in float32."""
        wg = numpipe.axis_index("wg")
        rows = cfg.tm // numpipe.axis_size("wg")  # those of this warpgroup: half the tile's, or all where it has the tile alone
        for m, n in numpipe.tiles(cdiv(a.shape[0], cfg.tm), cdiv(b.shape[0], cfg.tn), order="grouped", group=cfg.group,
                                  dynamic=cfg.dynamic):
            acc = numpipe.zeros((rows, cfg.tn), np.float32)
            pipe = numpipe.pipeline(grid=(cdiv(a.shape[1], cfg.tk),), max_concurrent_steps=cfg.depth, in_specs=(
                BlockSpec((cfg.tm, cfg.tk), lambda k: (m, k)), BlockSpec((cfg.tn, cfg.tk), lambda k: (n, k))))
            for (k,), (a_tile, b_tile) in pipe(a, b):
                acc = numpipe.wgmma(acc, a_tile.at[ds(wg * rows, rows), :], b_tile.T)
            c[ds(m * cfg.tm + wg * rows, rows), ds(n * cfg.tn, cfg.tn)] = acc.astype(c.dtype)

    made: numpipe.Kernel = matmul
    return made


@functools.lru_cache(maxsize=1024)
def choose(m: int, n: int, k: int, sms: int = model.H200.sms) -> Config:
    """The one of CONFIGS that the model (`numpipe.model.product`) predicts to be the fastest at these sizes."""
    if 0 in (m, n, k):
        return next(iter(CONFIGS.values()))
    device = replace(model.H200, sms=sms)
    return min(CONFIGS.values(), key=lambda cfg: model.product(
        (m, n, k), tile=(cfg.tm, cfg.tn), depth=cfg.tk, slots=cfg.depth, schedule=cfg.schedule, order=orders.Grouped(cfg.group),
        store_slots=cfg.panels or 1, device=device).seconds)


def matmul(a: Any, b: Any, *, cfg: Config | None = None, **options: Any) -> Any:
    """``a @ b.T`` for arrays of a 16-bit type; `options`: ``out=``, ``target=``, ``stream=`` of a kernel's call.

    Without `cfg` the model chooses one; `numpipe.autotune(kernel, CONFIGS, a, b)` measures.
    """
    if cfg is None:
        device = launch.gpu_state().device
        sms = device.sm_count if device else model.H200.sms
        cfg = choose(a.shape[0], b.shape[0], a.shape[-1], sms)  # what is no matrix the kernel refuses
    return kernel(cfg)(a, b, **options)


# ---- running it
def measure(a: np.ndarray, b: np.ndarray, configs: dict[str, Config], cublas: bench.Cublas | None,
            plan: bench.Plan | None = None) -> bench.Sample:
    """Seconds a call of each config, and of cuBLAS, on arrays that stay on the GPU, in turn under load."""
    x, y = launch.DeviceArray.from_host(a), launch.DeviceArray.from_host(b)
    outputs = {name: launch.DeviceArray((len(a), len(b)), a.dtype) for name in [*configs, "cuBLAS"]}
    competitors: dict[str, Callable[[int], object]] = {
        name: lambda _, cfg=cfg, out=outputs[name]: matmul(x, y, cfg=cfg, out=out)  # type: ignore[misc]
        for name, cfg in configs.items()}
    if cublas:
        competitors["cuBLAS"] = lambda _: cublas(x, y, outputs["cuBLAS"])
    [sample] = bench.compare(competitors, reference="cuBLAS" if cublas else next(iter(configs)), protocols=("interleaved",),
                             plan=plan or bench.Plan(load=0.3, rounds=20))
    return sample


def on_gpu(shapes: list[Shape], dtype: np.dtype, configs: dict[str, Config]) -> None:
    """Speed and error of each config at each shape, a line each."""
    cublas = bench.cublas()
    print(f"\n{'M,N,K':>16}  {'config':<22} {'speed':>12}  {'ratio':>5}  {'error':>7}")
    for shape in shapes:
        a, b = inputs(shape, dtype)
        sample = measure(a, b, configs, cublas)
        for name in sample.times:
            error = f"{relative_error(a, b, matmul(a, b, cfg=configs[name], target='gpu')):>7.1e}" if name in configs else ""
            chosen = "  <- chosen" if configs.get(name) == choose(*shape) else ""
            print(f"{spell(shape):>16}  {name:<22} {2e-12 * np.prod(shape) / sample.seconds(name):>5.0f} TFLOPS  "
                  f"{sample.ratio(name):>5.2f}  {error}{chosen}", flush=True)


def simulated(shapes: list[Shape], dtype: np.dtype, configs: dict[str, Config], target: str | None) -> None:
    """Error of each config at each shape."""
    print(f"\n{'M,N,K':>16}  {'config':<22} {'error':>7}")
    for shape in shapes:
        a, b = inputs(shape, dtype)
        for name, cfg in configs.items():
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # that this is simulated has been said
                error = relative_error(a, b, matmul(a, b, cfg=cfg, target=target))
            print(f"{spell(shape):>16}  {name:<22} {error:>7.1e}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", choices=("sim", "gpu"), help="default: the GPU if there is one")
    parser.add_argument("--shape", type=shape_of, action="append", metavar="M,N,K", help="may be repeated")
    parser.add_argument("--dtype", choices=DTYPES, default="bf16", help="of a, b and c (default: %(default)s)")
    parser.add_argument("--config", choices=CONFIGS, action="append", help="may be repeated (default: all)")
    parser.add_argument("--tune", action="store_true", help="on a GPU: numpipe.autotune over the configs, at each shape")
    options = parser.parse_args()

    configs = {name: CONFIGS[name] for name in options.config or CONFIGS}
    choice = launch.choose_target(options.target)
    print(f"target: {choice.target} ({choice.why})")
    if options.tune:
        for shape in options.shape or GPU_SHAPES:
            print(f"{spell(shape)}: {numpipe.autotune(kernel, configs, *inputs(shape, DTYPES[options.dtype]))}", flush=True)
    elif choice.target == "gpu":
        on_gpu(options.shape or list(GPU_SHAPES), DTYPES[options.dtype], configs)
    else:
        simulated(options.shape or list(SIM_SHAPES), DTYPES[options.dtype], configs, options.target)


if __name__ == "__main__":
    try:
        main()
    except numpipe.NumpipeError as error:
        sys.exit(f"error: {error}")
