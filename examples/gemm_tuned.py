"""Matrix products with each config of `numpipe.ops.matmul`: tile, slots, staging, schedule and tile
order.

    # every config, on the GPU if there is one, else simulated
    python examples/gemm_tuned.py
    python examples/gemm_tuned.py --shape 8192,8192,512 --config "ping-pong 128x192"
    # measure all, and remember the fastest on disk
    python examples/gemm_tuned.py --shape 4096,14336,4096 --tune
    python examples/gemm_tuned.py --target sim --shape 300,200,136 --dtype bf16

The kernel is in numpipe/ops/matmul.py: one source with two schedules, whose options make up a
Config. This example shows their effects.

On a GPU it prints the speed of each config and of cuBLAS, measured in turn under load, and the
error against float64; simulated, only the error.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

import numpy as np

import numpipe
from cublas import load_cublas
from gemm import DTYPES, Shape, inputs, measure, relative_error, shape_of, spell
from numpipe import launch, ops
from numpipe.launch.windows import transposed
from numpipe.ops.configs import Config, choose, space
from numpipe.ops.matmul import Form, kernel

__all__ = ["CONFIGS", "Config", "Form", "choose", "kernel", "matmul"]

CONFIGS = {
    "cooperative 128x256": Config(group=12, policy="evict_first"),
    "ping-pong 64x256": Config(
        64, 256, slots=5, schedule="pingpong", panels=1, group=32, policy="evict_first"
    ),
    "ping-pong 128x192": Config(
        128, 192, slots=4, schedule="pingpong", panels=2, policy="evict_first"
    ),
    "ping-pong 128x128": Config(
        128, 128, slots=5, schedule="pingpong", panels=4, policy="evict_first"
    ),
    "cooperative 128x256 cluster 2": Config(slots=4, panels=2, policy="evict_first", cluster=2),
    "cooperative 128x128": Config(128, 128, slots=6, panels=2, group=4, policy="evict_first"),
    "cooperative 128x128 split 2 in a cluster": Config(
        128, 128, slots=5, panels=1, group=4, split="cluster", cluster=2
    ),
    "cooperative 128x64": Config(128, 64, 128, slots=4, panels=1, group=1, policy="evict_first"),
    "64x16": Config(64, 16, 128, slots=10, panels=1, wgs=1),
    "64x32": Config(64, 32, 128, slots=9, panels=1, wgs=1),
    "64x64": Config(64, 64, slots=13, panels=1, wgs=1),
    "128x64 split 2 in a cluster": Config(128, 64, slots=8, panels=1, split="cluster", cluster=2),
}
"""What each is good for: many steps, and the least power; few steps; large products; equal sides;
rows that L2 serves badly; one tile per SM; 128 rows (two); up to 16, 32 and 64 rows or columns
(two), where reading the other operand takes all the time."""

GPU_SHAPES = (
    (4096, 4096, 4096),
    (8192, 8192, 8192),
    (8192, 8192, 1024),
    (8192, 8192, 512),
    (1024, 4096, 4096),
)
SIM_SHAPES = ((256, 256, 256), (200, 392, 72))


def matmul(a: Any, b: Any, c: Any = None, *, cfg: Config | None = None, **options: Any) -> Any:
    """Return ``a @ b.T`` for b (N, K), as in the layers of a network, or for a batch (B, N, K),
    without copying, whatever the arrays' library."""
    has_views = hasattr(b, "T") and len(b.shape) == 2 and launch.library(type(b)) != "jax"
    return ops.matmul(
        a,
        b.T if has_views else transposed(launch.describe(b, "b", "matmul")),
        c,
        config=cfg,
        **options,
    )


# ---- running it
def sweep(shapes: list[Shape], dtype: np.dtype, configs: dict[str, Config], target: str) -> None:
    """Print the error of each config at each shape, one line each, and on a GPU its speed."""
    on_gpu = target == "gpu"
    cublas = load_cublas() if on_gpu else None
    products = {
        name: lambda a, b, out, cfg=cfg: matmul(a, b, out=out, cfg=cfg)
        for name, cfg in configs.items()
    }
    print(f"\n{'M,N,K':>16}  {'config':<22} {'error':>7}" + f"  {'speed':>12}  ratio" * on_gpu)
    for shape in shapes:
        a, b = inputs(shape, dtype)
        sample = measure(a, b, products, cublas) if on_gpu else None
        for name in sample.times if sample else configs:
            error = (
                f"{relative_error(a, b, matmul(a, b, cfg=configs[name], target=target)):>7.1e}"
                if name in configs
                else ""
            )
            speed = (
                f"  {2e-12 * np.prod(shape) / sample.seconds(name):>5.0f} TFLOPS  "
                f"{sample.ratio(name):>5.2f}"
                if sample
                else ""
            )
            chosen = "  <- chosen" if configs.get(name) == choose(*shape) else ""
            print(f"{spell(shape):>16}  {name:<22} {error:>7}{speed}{chosen}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", choices=("sim", "gpu"), help="default: the GPU if there is one")
    parser.add_argument(
        "--shape", type=shape_of, action="append", metavar="M,N,K", help="may be repeated"
    )
    parser.add_argument(
        "--dtype", choices=DTYPES, default="bf16", help="of a, b and c (default: %(default)s)"
    )
    parser.add_argument(
        "--config", choices=CONFIGS, action="append", help="may be repeated (default: all)"
    )
    parser.add_argument(
        "--tune",
        action="store_true",
        help="on a GPU: numpipe.autotune over --config, or the op's space",
    )
    options = parser.parse_args()

    configs = {name: CONFIGS[name] for name in options.config or CONFIGS}
    choice = launch.choose_target(options.target)
    print(f"target: {choice.target} ({choice.why})")
    if options.tune:
        for shape in options.shape or GPU_SHAPES:
            several = list(configs.values()) if options.config else space(*shape, turned=False)
            print(
                f"{spell(shape)}: "
                f"{numpipe.autotune(kernel, several, *inputs(shape, DTYPES[options.dtype]))}",
                flush=True,
            )
    else:
        shapes = options.shape or list(GPU_SHAPES if choice.target == "gpu" else SIM_SHAPES)
        sweep(shapes, DTYPES[options.dtype], configs, choice.target)


if __name__ == "__main__":
    try:
        main()
    except numpipe.NumpipeError as error:
        sys.exit(f"error: {error}")
