"""Speed and error of attention, `numpipe.ops.attention`, with each of its configs. The kernel is in
numpipe/ops/attention.py.

    # every config, on the GPU if there is one, else simulated
    python examples/flash_attention.py
    # batches, heads, positions, depth of a head
    python examples/flash_attention.py --shape 4,16,4096,128 --causal
    # 32 query heads, 8 heads of keys and values
    python examples/flash_attention.py --shape 3,32/8,4001,128 --dtype f16

On a GPU it prints the speed of each config, measured in turn under load, and the error against
float64; simulated, only the error.
"""

from __future__ import annotations

import argparse
import re
import sys
from typing import Any

import numpy as np

import numpipe
from gemm import DTYPES
from numpipe import bench, launch
from numpipe.ops import attention
from numpipe.ops.attention import CONFIGS, FITTING

GPU_SHAPES = ("4,16,4096,128", "4,16,4096,64", "4,16,4096,256")
SIM_SHAPES = ("1,4/2,200,64", "1,2,136,128")
Shape = tuple[int, int, int, int, int]  # batches, heads, heads of keys, positions, depth


def inputs(shape: Shape, dtype: np.dtype) -> list[np.ndarray]:
    """Return normally distributed q, k and v (B, H, S, D)."""
    (batches, heads, shared, positions, depth), rng = shape, np.random.default_rng(0)
    return [
        rng.standard_normal((batches, h, positions, depth), np.float32).astype(dtype)
        for h in (heads, shared, shared)
    ]


def exactly(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    *,
    causal: bool = False,
    diagonal: int = 0,
    scale: float | None = None,
    rows: Any = slice(None),
) -> tuple[np.ndarray, np.ndarray]:
    """Return (result, logarithms of the sums) in float64, for some rows of (B, H, S, D)."""
    sharing, positions = q.shape[1] // k.shape[1], np.arange(q.shape[2])[rows]
    wide, k, v = (
        q[:, :, rows].astype(np.float64),
        *(np.repeat(x.astype(np.float64), sharing, 1) for x in (k, v)),
    )
    s = wide @ k.swapaxes(2, 3) * (q.shape[3] ** -0.5 if scale is None else scale)
    if causal:
        s = np.where(np.arange(k.shape[2]) <= positions[:, None] + diagonal, s, -np.inf)
    top = s.max(axis=3, keepdims=True, initial=-1e300)
    total = (p := np.exp(s - top)).sum(axis=3, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(total > 0, p @ v / total, 0.0), (top + np.log(total))[..., 0]


def relative_error(arrays: list[np.ndarray], o: np.ndarray, causal: bool) -> float:
    """Return the error against float64 (Frobenius norm), for a sample of rows if there are many."""
    rows = np.arange(0, o.shape[2], -(-o.shape[2] // 256))
    exact = exactly(*(x[:1] for x in arrays), causal=causal, rows=rows)[0]
    return float(np.linalg.norm(o[:1, :, rows].astype(np.float64) - exact) / np.linalg.norm(exact))


def flops(shape: Shape, causal: bool) -> float:
    """Return the operations of both products; those that a mask leaves out do not count."""
    batches, heads, _, positions, depth = shape
    return (
        4.0
        * batches
        * heads
        * depth
        * positions
        * (positions if not causal else (positions + 1) / 2)
    )


def sweep(text: str, shape: Shape, dtype: np.dtype, causal: bool, target: str) -> None:
    """Print the error of each config that fits, one line each, and on a GPU its speed."""
    arrays = inputs(shape, dtype)
    configs = {name: CONFIGS[name] for name in FITTING[shape[4], causal]}
    speeds = {}
    if target == "gpu":
        on_gpu = [launch.DeviceArray.from_host(x) for x in arrays]
        outs = {name: launch.DeviceArray(arrays[0].shape, dtype) for name in configs}
        [sample] = bench.compare(
            {
                name: lambda _, config=config, out=outs[name]: attention(
                    *on_gpu, causal=causal, config=config, out=out
                )  # type: ignore[misc]
                for name, config in configs.items()
            },
            reference=next(iter(configs)),
            protocols=("interleaved",),
            plan=bench.Plan(load=0.3, rounds=20),
        )
        speeds = {
            name: f"  {1e-12 * flops(shape, causal) / sample.seconds(name):>5.0f} TFLOPS"
            for name in configs
        }
    for name, config in configs.items():
        error = relative_error(
            arrays, attention(*arrays, causal=causal, config=config, target=target), causal
        )
        print(f"{text:>18}  {name:<28} {error:>7.1e}{speeds.get(name, '')}", flush=True)


def shape_of(text: str) -> Shape:
    """Parse "3,32/8,4001,128" into (3, 32, 8, 4001, 128)."""
    found = re.fullmatch(r"(\d+),(\d+)(?:/(\d+))?,(\d+),(\d+)", text)
    if not found or not all(int(n) for n in found.groups(default="1")):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not B,H,S,D or B,H/HK,S,D, positive integers like 4,16,4096,128"
        )
    b, h, hk, s, d = (int(n) if n else int(found[2]) for n in found.groups())
    return b, h, hk, s, d


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", choices=("sim", "gpu"), help="default: the GPU if there is one")
    parser.add_argument(
        "--shape",
        action="append",
        metavar="B,H,S,D",
        type=lambda text: (text, shape_of(text)),
        help="B,H/HK,S,D with HK heads of keys; may be repeated",
    )
    parser.add_argument(
        "--dtype", choices=DTYPES, default="bf16", help="of all arrays (default: %(default)s)"
    )
    parser.add_argument("--causal", action="store_true", help="query i sees keys 0…i")
    options = parser.parse_args()
    choice = launch.choose_target(options.target)
    print(f"target: {choice.target} ({choice.why})")
    for text, shape in options.shape or [
        (s, shape_of(s)) for s in (GPU_SHAPES if choice.target == "gpu" else SIM_SHAPES)
    ]:
        sweep(text, shape, DTYPES[options.dtype], options.causal, choice.target)


if __name__ == "__main__":
    try:
        main()
    except numpipe.NumpipeError as error:
        sys.exit(f"error: {error}")
