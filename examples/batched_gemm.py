"""A matrix product for each batch, in one launch: three-dimensional arrays and two-dimensional
tiles.

    python examples/batched_gemm.py                          on the GPU if there is one, else
                                                             simulated
    python examples/batched_gemm.py --target sim --shape 3,200,136,72

On a GPU it prints the speed on device arrays, next to that of one launch of `gemm.py`'s product per
batch, and the error against float64; simulated, only the error.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from dataclasses import dataclass

import numpy as np

import gemm
import numpipe
from numpipe import BlockSpec, bench, cdiv, ds, launch


@dataclass(frozen=True)
class Config:
    """Tile of the output (tm x tn) and depth of a step (tk), all in elements, and the number of
    steps in shared memory at once (slots)."""

    tm: int = 128
    tn: int = 128
    tk: int = 64
    slots: int = 4


@numpipe.kernel(
    out_type=lambda a, b, cfg: numpipe.ArrayType((a.shape[0], a.shape[1], b.shape[1]), a.dtype),
    signature="(b,m,k),(b,n,k)->(b,m,n)",
    grid=numpipe.persistent(),
    num_compute_wgs=2,
    wg_axis="wg",
)
def batched_matmul(a, b, c, *, cfg: numpipe.Static = Config()):
    """c[i] = a[i] @ b[i].T, for a (B, M, K) and b (B, N, K) of float16 or bfloat16, summed in
    float32.

    The persistent loop runs over the tiles of all batches, so that the loads of the next batch
    overlap the end of the previous one.
    """
    wg = numpipe.axis_index("wg")
    rows = cfg.tm // numpipe.axis_size("wg")
    for i, m, n in numpipe.tiles(a.shape[0], cdiv(a.shape[1], cfg.tm), cdiv(b.shape[1], cfg.tn)):
        acc = numpipe.zeros((rows, cfg.tn), np.float32)
        pipe = numpipe.pipeline(
            grid=(cdiv(a.shape[2], cfg.tk),),
            max_concurrent_steps=cfg.slots,
            in_specs=(
                BlockSpec((None, cfg.tm, cfg.tk), lambda k: (i, m, k)),
                BlockSpec((None, cfg.tn, cfg.tk), lambda k: (i, n, k)),
            ),
        )
        for _, (a_tile, b_tile) in pipe(a, b):
            acc = numpipe.wgmma(acc, a_tile.at[ds(wg * rows, rows), :], b_tile.T)
        c[i, ds(m * cfg.tm + wg * rows, rows), ds(n * cfg.tn, cfg.tn)] = acc.astype(c.dtype)


# ---- running it
GPU_SHAPES = ((64, 256, 256, 256), (32, 512, 512, 512), (16, 1000, 904, 520), (8, 2048, 2048, 2048))
SIM_SHAPES = ((4, 128, 128, 128), (3, 200, 136, 72))

Shape = tuple[int, int, int, int]


def inputs(shape: Shape) -> tuple[np.ndarray, np.ndarray]:
    """Return normally distributed a (B, M, K) and b (B, N, K)."""
    batch, m, n, k = shape
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((batch, rows, k), np.float32).astype(np.float16) for rows in (m, n))
    return a, b


def relative_error(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> float:
    """Return ``|c - a b^T| / |a b^T|`` against float64 (Frobenius norm) of the worst batch."""
    return max(gemm.relative_error(*batch) for batch in zip(a, b, c, strict=True))


def measure(a: np.ndarray, b: np.ndarray) -> bench.Sample:
    """Return the seconds per call on arrays that stay on the GPU: all batches at once and one after
    another, measured in turn under load."""
    x, y = launch.DeviceArray.from_host(a), launch.DeviceArray.from_host(b)
    z = launch.DeviceArray((len(a), a.shape[1], b.shape[1]), a.dtype)
    each = [
        (
            launch.DeviceArray.from_host(p),
            launch.DeviceArray.from_host(q),
            launch.DeviceArray(z.shape[1:], a.dtype),
        )
        for p, q in zip(a, b, strict=True)
    ]

    def one_by_one(_: int) -> None:
        for p, q, r in each:
            gemm.matmul(p, q, out=r, cfg=gemm.Config(tn=128, slots=4))

    [sample] = bench.compare(
        {"batched": lambda _: batched_matmul(x, y, out=z), "one by one": one_by_one},
        reference="one by one",
        protocols=("interleaved",),
        plan=bench.Plan(load=0.3, rounds=20),
    )
    return sample


def shape_of(text: str) -> Shape:
    """Parse "4,512,256,1024" into (4, 512, 256, 1024)."""
    parts = text.split(",")
    if len(parts) != 4 or not all(part.strip().isdecimal() and int(part) > 0 for part in parts):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not B,M,N,K, four positive integers like 4,512,256,1024"
        )
    batch, m, n, k = map(int, parts)
    return batch, m, n, k


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", choices=("sim", "gpu"), help="default: the GPU if there is one")
    parser.add_argument(
        "--shape", type=shape_of, action="append", metavar="B,M,N,K", help="may be repeated"
    )
    options = parser.parse_args()
    target = launch.choose_target(options.target).target
    print(
        f"target: {target}\n\n{'B,M,N,K':>20}  {'error':>7}"
        + "  batched, ratio to one by one" * (target == "gpu")
    )
    for shape in options.shape or (GPU_SHAPES if target == "gpu" else SIM_SHAPES):
        a, b = inputs(shape)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it has already been said that this is simulated
            error = relative_error(a, b, batched_matmul(a, b, target=target))
        line = f"{','.join(map(str, shape)):>20}  {error:>7.1e}"
        if target == "gpu":
            sample = measure(a, b)
            line += (
                f"  {2e-12 * np.prod(shape) / sample.seconds('batched'):.0f} TFLOPS, "
                f"{sample.ratio('batched'):.2f}"
            )
        print(line, flush=True)


if __name__ == "__main__":
    try:
        main()
    except numpipe.NumpipeError as error:
        sys.exit(f"error: {error}")
