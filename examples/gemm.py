"""A matrix product in numpipe: one kernel, on a Hopper GPU or on the simulated SM.

    python examples/gemm.py                          on the GPU if there is one, else simulated
    python examples/gemm.py --target sim --shape 300,200,136 --dtype bf16

On a GPU it prints the speed on arrays that stay there (and cuBLAS' speed, if PyTorch, CuPy or
nvmath is installed), the time of a whole call on NumPy arrays, and the error against float64.
Simulated, it prints the error and a timeline.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import ml_dtypes
import numpy as np

import numpipe
from numpipe import ArrayType, BlockSpec, bench, cdiv, ds, launch


@dataclass(frozen=True)
class Config:
    """Tile of the output (tm x tn) and depth of a step (tk), all in elements, and the number of
    steps in shared memory at once (slots).

    The rest of shared memory holds tiles being stored. `group` rows of tiles share blocks of b in
    L2.
    """

    tm: int = 128
    tn: int = 256
    tk: int = 64
    slots: int = 3
    group: int = 16


@numpipe.kernel(
    out_type=lambda a, b, cfg: ArrayType((a.shape[0], b.shape[0]), a.dtype),
    signature="(m,k),(n,k)->(m,n)",
    grid=numpipe.persistent(),
    num_compute_wgs=2,
    wg_axis="wg",
    memory_registers=40,
)
def matmul(a, b, c, *, cfg: numpipe.Static = Config()):
    """c = a @ b.T, for a (M, K) and b (N, K) of float16 or bfloat16, summed in float32.

    One CTA per SM loops over tiles of c. Its memory warpgroup loads blocks of a and b into a ring
    of shared-memory slots, running ahead into the next tile; its two compute warpgroups each
    multiply half of the tile's rows.
    """
    wg = numpipe.axis_index("wg")
    rows = cfg.tm // numpipe.axis_size("wg")
    for m, n in numpipe.tiles(
        cdiv(a.shape[0], cfg.tm), cdiv(b.shape[0], cfg.tn), order="grouped", group=cfg.group
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


CONFIGS = (Config(), Config(tn=128, slots=6), Config(tn=64, tk=128, slots=4))
"""The widest tile reads the least data; narrow tiles keep all SMs busy if the product is small."""
SMS = 132
"""of an H200"""


def choose(m: int, n: int, k: int) -> Config:
    """Return the config with the fastest waves: all SMs compute a tile at the same time, and a tile
    takes as long as its columns and about 32 more, whatever its depth. `numpipe.explain` predicts
    the time of any kernel more exactly, but takes about a second."""

    def columns(cfg):
        waves = cdiv(cdiv(m, cfg.tm) * cdiv(n, cfg.tn), SMS)
        return waves * (cfg.tn + 32)

    return min(CONFIGS, key=columns)


def product(a, b, **options):
    """Return ``a @ b.T``, with the config that suits its size. `options` are those of any kernel
    call: out=, stream=, target=."""
    return matmul(a, b, cfg=choose(a.shape[0], b.shape[0], a.shape[1]), **options)


# ---- running it
DTYPES = {"f16": np.dtype(np.float16), "bf16": np.dtype(ml_dtypes.bfloat16)}
GPU_SHAPES = (
    (512, 512, 512),
    (1024, 1024, 1024),
    (2048, 2048, 2048),
    (4096, 4096, 4096),
    (4096, 4096, 512),
)
SIM_SHAPES = ((256, 256, 256), (200, 136, 72), (128, 384, 512))
SAMPLED_ROWS = 64

Shape = tuple[int, int, int]


def inputs(shape: Shape, dtype: np.dtype) -> tuple[np.ndarray, np.ndarray]:
    """Return normally distributed a (M, K) and b (N, K)."""
    m, n, k = shape
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((rows, k), np.float32).astype(dtype) for rows in (m, n))
    return a, b


def relative_error(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> float:
    """Return ``|c - a b^T| / |a b^T|`` against float64 (Frobenius norm), for a sample of rows if
    there are many."""
    if len(a) > 1024:
        rows = np.random.default_rng(1).choice(len(a), SAMPLED_ROWS, replace=False)
        a, c = a[rows], c[rows]
    exact = a.astype(np.float64) @ b.astype(np.float64).T
    return float(np.linalg.norm(c.astype(np.float64) - exact) / np.linalg.norm(exact))


def on_gpu(shapes: list[Shape], dtype: np.dtype) -> None:
    """Print speed, time and error, one line per shape."""
    print(
        "numpipe, cuBLAS: on arrays that stay on the GPU; from NumPy: a whole call on NumPy "
        "arrays, including the copies"
    )
    from cublas import load_cublas  # examples/cublas.py

    cublas = load_cublas()
    if cublas is None:
        print("cuBLAS: not installed (it comes with PyTorch, CuPy and nvmath)")
    print(
        f"\n{'M,N,K':>16}  {'numpipe':>12}  {'cuBLAS':>12}  {'ratio':>5}  {'from NumPy':>10}  "
        f"{'error':>7}  tile"
    )
    for shape in shapes:
        a, b = inputs(shape, dtype)
        product(a, b, target="gpu")  # the first call compiles
        start = time.perf_counter()
        c = product(a, b, target="gpu")
        whole = time.perf_counter() - start

        sample = measure(a, b, {"numpipe": lambda x, y, out: product(x, y, out=out)}, cublas)
        speeds = {
            name: f"{2e-12 * np.prod(shape) / sample.seconds(name):.0f} TFLOPS"
            for name in sample.times
        }
        ratio, cfg = f"{sample.ratio('numpipe'):.2f}" if cublas else "-", choose(*shape)
        print(
            f"{spell(shape):>16}  {speeds['numpipe']:>12}  {speeds.get('cuBLAS', '-'):>12}  "
            f"{ratio:>5}  {whole * 1e3:>7.2f} ms  {relative_error(a, b, c):>7.1e}  "
            f"{cfg.tm}x{cfg.tn}",
            flush=True,
        )


Product = Callable[[object, object, object], object]
"""called with a, b and the output"""


def measure(
    a: np.ndarray, b: np.ndarray, products: dict[str, Product], cublas: Product | None
) -> bench.Sample:
    """Return the seconds per call of each product and of cuBLAS, on arrays that stay on the GPU,
    measured in turn under load."""
    x, y = launch.DeviceArray.from_host(a), launch.DeviceArray.from_host(b)
    every = {**products, "cuBLAS": cublas} if cublas else products
    outputs = {name: launch.DeviceArray((len(a), len(b)), a.dtype) for name in every}
    competitors: dict[str, Callable[[int], object]] = {
        name: lambda _, product=product, out=outputs[name]: product(x, y, out)  # type: ignore[misc]
        for name, product in every.items()
    }
    [sample] = bench.compare(
        competitors,
        reference="cuBLAS" if cublas else next(iter(products)),
        protocols=("interleaved",),
        plan=bench.Plan(load=0.3, rounds=20),
    )
    return sample


def simulated(shapes: list[Shape], dtype: np.dtype, target: str | None) -> None:
    """Print the error of each shape, a timeline, and what to try next."""
    print(f"\n{'M,N,K':>16}  {'error':>7}")
    for shape in shapes:
        a, b = inputs(shape, dtype)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it has already been said that this is simulated
            c = product(a, b, target=target)
        print(f"{spell(shape):>16}  {relative_error(a, b, c):>7.1e}", flush=True)

    trace = numpipe.Trace()
    matmul.simulate(*inputs(SIM_SHAPES[0], dtype), cfg=Config(tn=128), trace=trace)
    print(f"\nTimeline of {spell(SIM_SHAPES[0])}, two tiles a CTA:\n")
    print(trace.timeline())
    print(
        "\nThe kernel's own source ran in CPython on a simulated SM that detects races and "
        "deadlocks. The timeline shows\nthat the memory warpgroup loads (L) the next tile's "
        "blocks while the compute warpgroups multiply (#) and store (S).\nTo see it find a race, "
        "take ` + wg * rows` out of the kernel's last line and run this again;\n"
        "docs/quickstart.md goes on from there."
    )


def spell(shape: Shape) -> str:
    return ",".join(map(str, shape))


def shape_of(text: str) -> Shape:
    """Parse "512,256,1024" into (512, 256, 1024)."""
    parts = text.split(",")
    if len(parts) != 3 or not all(part.strip().isdecimal() and int(part) > 0 for part in parts):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not M,N,K, three positive integers like 512,256,1024"
        )
    m, n, k = map(int, parts)
    return m, n, k


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", choices=("sim", "gpu"), help="default: the GPU if there is one")
    parser.add_argument(
        "--shape", type=shape_of, action="append", metavar="M,N,K", help="may be repeated"
    )
    parser.add_argument(
        "--dtype", choices=DTYPES, default="f16", help="of a, b and c (default: %(default)s)"
    )
    options = parser.parse_args()

    choice = launch.choose_target(options.target)
    print(
        f"target: {choice.target} ({choice.why}); choose with --target sim|gpu, --shape M,N,K and "
        f"--dtype {'|'.join(DTYPES)}"
    )
    if choice.target == "gpu":
        on_gpu(options.shape or list(GPU_SHAPES), DTYPES[options.dtype])
    else:
        simulated(options.shape or list(SIM_SHAPES), DTYPES[options.dtype], options.target)


if __name__ == "__main__":
    try:
        main()
    except numpipe.NumpipeError as error:
        sys.exit(f"error: {error}")
