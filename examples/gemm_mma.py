"""Matrix products with mma.sync, the tensor-core instruction of a single warp: float64, which wgmma
does not support, and float16.

    python examples/gemm_mma.py                    on the GPU if there is one, else simulated
    python examples/gemm_mma.py --target sim

Prints the relative error of one product of each type against float64.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import numpy as np

import numpipe
from numpipe import BlockSpec, CompilerParams, cdiv, ds, launch


@dataclass(frozen=True)
class Config:
    """The tile of the output (tm x tn) and the depth of a step (tk), in elements; the number of
    steps in shared memory at once (slots); and whether the warpgroups share the tile's columns
    (across) or its rows."""

    tm: int = 128
    tn: int = 128
    tk: int = 32
    slots: int = 3
    across: bool = True
    group: int = 8


def _matmul(a, b, c, *, sums: numpipe.Static = np.float64, cfg: numpipe.Static = Config()):
    """Compute c = a @ b.T for a (M, K) and b (N, K), summed in a tile of type `sums`."""
    wg = numpipe.axis_index("wg")
    parts = numpipe.axis_size("wg")
    rows = cfg.tm if cfg.across else cfg.tm // parts
    columns = cfg.tn // parts if cfg.across else cfg.tn
    row = 0 if cfg.across else wg * rows
    column = wg * columns if cfg.across else 0
    for m, n in numpipe.tiles(
        cdiv(a.shape[0], cfg.tm), cdiv(b.shape[0], cfg.tn), order="grouped", group=cfg.group
    ):
        acc = numpipe.zeros((rows, columns), sums)
        pipe = numpipe.pipeline(
            grid=(cdiv(a.shape[1], cfg.tk),),
            max_concurrent_steps=cfg.slots,
            in_specs=(
                BlockSpec((cfg.tm, cfg.tk), lambda k: (m, k)),
                BlockSpec((cfg.tn, cfg.tk), lambda k: (n, k)),
            ),
        )
        for (k,), (a_tile, b_tile) in pipe(a, b):
            left = a_tile.at[ds(row, rows), :]
            acc = numpipe.mma(acc, left, b_tile.at[ds(column, columns), :].T)
        c[ds(m * cfg.tm + row, rows), ds(n * cfg.tn + column, columns)] = acc.astype(c.dtype)


def kernel(wgs: int = 2, product: str = "mma.sync"):
    """Return the kernel with this number of compute warpgroups, compiled for a product
    instruction."""
    return numpipe.kernel(
        grid=numpipe.persistent(),
        num_compute_wgs=wgs,
        wg_axis="wg",
        memory_registers=40 if wgs == 2 else 32,
        compiler_params=CompilerParams(product=product),
    )(_matmul)


matmul = kernel()
HALF = Config(256, 128, 64, 3, False)
"""The tile of float16 products."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", choices=("sim", "gpu"), help="default: the GPU if there is one")
    target = launch.choose_target(parser.parse_args().target).target
    rng = np.random.default_rng(0)
    for dtype, sums, cfg in ((np.float64, np.float64, Config()), (np.float16, np.float32, HALF)):
        a, b = (rng.standard_normal((size, 96)).astype(dtype) for size in (300, 200))
        c = np.full((300, 200), np.nan, dtype)
        matmul(a, b, c, sums=sums, cfg=cfg, target=target)
        exact = a.astype(np.float64) @ b.astype(np.float64).T
        error = np.linalg.norm(c - exact) / np.linalg.norm(exact)
        print(f"{np.dtype(dtype).name}: relative error {error:.1e}")


if __name__ == "__main__":
    main()
