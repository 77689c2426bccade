"""A matrix product without a memory role: each warpgroup loads its own blocks while its previous
products run.

    python examples/gemm_single.py                     on the GPU if there is one, else simulated
    python examples/gemm_single.py --target sim --shape 300,200,136

It prints the error against float64, and on a GPU the speed next to that of gemm.py, whose memory
role loads for two warpgroups.
"""

from __future__ import annotations

import argparse
import warnings
from dataclasses import dataclass

import numpy as np

import gemm
import numpipe
from numpipe import BlockSpec, bench, cdiv, ds, launch


@dataclass(frozen=True)
class Config:
    """Tile of the output of one warpgroup (tm x tn) and depth of a step (tk), in elements; slots of
    each warpgroup; rows of tiles in a group."""

    tm: int = 128
    tn: int = 128
    tk: int = 64
    slots: int = 3
    group: int = 16


@numpipe.kernel(
    out_type=lambda a, b, cfg: numpipe.ArrayType((a.shape[0], b.shape[0]), a.dtype),
    signature="(m,k),(n,k)->(m,n)",
    grid=numpipe.persistent(),
    warp_specialized=False,
    num_compute_wgs=2,
    wg_axis="wg",
)
def matmul(a, b, c, *, cfg: numpipe.Static = Config()):
    """c = a @ b.T, for a (M, K) and b (N, K) of float16 or bfloat16. The two warpgroups of a CTA
    compute adjacent tiles.

    With delay_release=1, the slot of step k - 1 is filled again while the products of step k run.
    """

    def body(indices, a_tile, b_tile, acc):
        return numpipe.wgmma(acc, a_tile, b_tile.T)

    wgs = numpipe.axis_size("wg")
    for m, pair in numpipe.tiles(
        cdiv(a.shape[0], cfg.tm), cdiv(b.shape[0], wgs * cfg.tn), order="grouped", group=cfg.group
    ):
        n = pair * wgs + numpipe.axis_index("wg")
        acc = numpipe.emit_pipeline(
            body,
            grid=(cdiv(a.shape[1], cfg.tk),),
            max_concurrent_steps=cfg.slots,
            delay_release=1,
            in_specs=(
                BlockSpec((cfg.tm, cfg.tk), lambda k: (m, k)),
                BlockSpec((cfg.tn, cfg.tk), lambda k: (n, k)),
            ),
            init_carry=numpipe.zeros((cfg.tm, cfg.tn), np.float32),
        )(a, b)
        c[ds(m * cfg.tm, cfg.tm), ds(n * cfg.tn, cfg.tn)] = acc.astype(c.dtype)


def on_gpu(a: np.ndarray, b: np.ndarray) -> None:
    """Print the speed on arrays that stay on the GPU, next to that of the kernel with a memory
    role."""
    x, y = launch.DeviceArray.from_host(a), launch.DeviceArray.from_host(b)
    outs = {
        name: launch.DeviceArray((len(a), len(b)), a.dtype)
        for name in ("memory role", "single stream")
    }
    competitors = {
        name: lambda _, kernel=kernel, out=outs[name]: kernel(x, y, out=out)
        for name, kernel in (("memory role", gemm.matmul), ("single stream", matmul))
    }
    [sample] = bench.compare(
        competitors,
        reference="memory role",
        protocols=("interleaved",),
        plan=bench.Plan(load=0.3, rounds=20),
    )
    for name in competitors:
        print(
            f"{name:>15}: {2e-12 * len(a) * len(b) * a.shape[1] / sample.seconds(name):.0f} TFLOPS"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", choices=("sim", "gpu"), help="default: the GPU if there is one")
    parser.add_argument("--shape", type=gemm.shape_of, metavar="M,N,K")
    options = parser.parse_args()
    target = launch.choose_target(options.target).target
    a, b = gemm.inputs(
        options.shape or ((4096, 4096, 4096) if target == "gpu" else (300, 200, 136)),
        np.dtype(np.float16),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the line below says that this is simulated
        print(
            f"target: {target}; error {gemm.relative_error(a, b, matmul(a, b, target=target)):.1e}"
        )
    if target == "gpu":
        on_gpu(a, b)
