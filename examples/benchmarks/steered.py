"""Measure the cost of control by arrays: examples/gemm.py with its tile order, blocks and steps
read from integer arrays.

    cd examples/benchmarks
    # on a GPU: interleaved, at 4096,4096,4096
    python steered.py
    python steered.py --shape 8192,8192,1024 --dtype f16 --rounds 60
    # check the results
    python steered.py --target sim --shape 256,512,128

The arrays hold the same values that examples/gemm.py computes, so all kernels compute the same.
Ratios are speeds relative to examples/gemm.py, which is measured twice.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np

import numpipe
from numpipe import ArrayType, BlockSpec, bench, cdiv, ds, launch, orders

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from gemm import DTYPES, Config, inputs, matmul, relative_error, shape_of

OPTIONS: dict[str, Any] = {
    "grid": numpipe.persistent(),
    "num_compute_wgs": 2,
    "wg_axis": "wg",
    "memory_registers": 40,
}


def _out(a: Any, b: Any) -> ArrayType:
    return ArrayType((a.shape[0], b.shape[0]), a.dtype)


@numpipe.kernel(out_type=_out, **OPTIONS)
def ordered(a, b, table, c, *, cfg: numpipe.Static = Config()):
    """Compute the tiles in the order of a table, whose row t has the indices of tile t."""
    wg = numpipe.axis_index("wg")
    rows = cfg.tm // numpipe.axis_size("wg")
    for (t,) in numpipe.tiles(table.shape[0]):
        m = table[t, 0]
        n = table[t, 1]
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


@numpipe.kernel(out_type=_out, **OPTIONS)
def looked_up(a, b, blocks, c, *, cfg: numpipe.Static = Config()):
    """Take the blocks of a and b for each step from a list."""
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
                BlockSpec((cfg.tm, cfg.tk), lambda k: (m, blocks[k])),
                BlockSpec((cfg.tn, cfg.tk), lambda k: (n, blocks[k])),
            ),
        )
        for (k,), (a_tile, b_tile) in pipe(a, b):
            acc = numpipe.wgmma(acc, a_tile.at[ds(wg * rows, rows), :], b_tile.T)
        c[ds(m * cfg.tm + wg * rows, rows), ds(n * cfg.tn, cfg.tn)] = acc.astype(c.dtype)


@numpipe.kernel(out_type=_out, **OPTIONS)
def counted(a, b, counts, c, *, cfg: numpipe.Static = Config()):
    """Take the number of steps of each tile from an array."""
    wg = numpipe.axis_index("wg")
    rows = cfg.tm // numpipe.axis_size("wg")
    for m, n in numpipe.tiles(
        cdiv(a.shape[0], cfg.tm), cdiv(b.shape[0], cfg.tn), order="grouped", group=cfg.group
    ):
        acc = numpipe.zeros((rows, cfg.tn), np.float32)
        pipe = numpipe.pipeline(
            grid=(counts[m, n],),
            max_concurrent_steps=cfg.slots,
            in_specs=(
                BlockSpec((cfg.tm, cfg.tk), lambda k: (m, k)),
                BlockSpec((cfg.tn, cfg.tk), lambda k: (n, k)),
            ),
        )
        for (k,), (a_tile, b_tile) in pipe(a, b):
            acc = numpipe.wgmma(acc, a_tile.at[ds(wg * rows, rows), :], b_tile.T)
        c[ds(m * cfg.tm + wg * rows, rows), ds(n * cfg.tn, cfg.tn)] = acc.astype(c.dtype)


KERNELS = {
    "order from a table": ordered,
    "blocks from a list": looked_up,
    "steps from counts": counted,
}


def steering(
    shape: tuple[int, int, int], cfg: Config, dtype: Any = np.int32
) -> dict[str, np.ndarray]:
    """Return the array for each kernel with which it computes the same as examples/gemm.py."""
    tiles, steps = (cdiv(shape[0], cfg.tm), cdiv(shape[1], cfg.tn)), cdiv(shape[2], cfg.tk)
    arrays = orders.Grouped(cfg.group).table(tiles), np.arange(steps), np.full(tiles, steps)
    return {name: np.array(array, dtype) for name, array in zip(KERNELS, arrays, strict=True)}


def compared(
    shape: tuple[int, int, int], dtype: np.dtype, rounds: int, cfg: Config
) -> bench.Sample:
    """Return the seconds per call of each kernel, interleaved, on arrays that stay on the GPU."""
    x, y = (launch.DeviceArray.from_host(array) for array in inputs(shape, dtype))
    outputs = {name: launch.DeviceArray(shape[:2], dtype) for name in ("arithmetic", *KERNELS)}
    given = {
        name: launch.DeviceArray.from_host(array) for name, array in steering(shape, cfg).items()
    }
    calls: dict[str, Any] = {
        "arithmetic": lambda _: matmul(x, y, out=outputs["arithmetic"], cfg=cfg)
    }
    calls |= {
        name: lambda _, name=name: KERNELS[name](x, y, given[name], out=outputs[name], cfg=cfg)
        for name in KERNELS
    }
    [sample] = bench.compare(
        calls, reference="arithmetic", protocols=("interleaved",), plan=bench.Plan(rounds=rounds)
    )
    same = outputs["arithmetic"].copy_to_host()
    for name, output in outputs.items():
        if not np.array_equal(output.copy_to_host(), same):
            raise AssertionError(f"{name}: bits differ from those of the kernel without arrays")
    return sample


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", choices=("sim", "gpu"), help="default: the GPU if there is one")
    parser.add_argument("--shape", type=shape_of, default=(4096, 4096, 4096), metavar="M,N,K")
    parser.add_argument(
        "--dtype", choices=DTYPES, default="bf16", help="of a, b and c (default: %(default)s)"
    )
    parser.add_argument("--slots", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=30)
    options = parser.parse_args()

    dtype, cfg = DTYPES[options.dtype], Config(slots=options.slots)
    if launch.choose_target(options.target).target == "sim":
        a, b = inputs(options.shape, dtype)
        for name, array in steering(options.shape, cfg).items():
            print(
                f"{name:<20} error "
                f"{relative_error(a, b, KERNELS[name](a, b, array, cfg=cfg, target='sim')):.1e}"
            )
        return
    sample = compared(options.shape, dtype, options.rounds, cfg)
    print(
        f"{'arithmetic':<20} {2e-12 * np.prod(options.shape) / sample.reference_seconds:>6.0f} "
        f"TFLOPS  noise {sample.noise:.3f}"
    )
    for name in KERNELS:
        print(
            f"{name:<20} {2e-12 * np.prod(options.shape) / sample.seconds(name):>6.0f} TFLOPS  "
            f"ratio {sample.ratio(name):.3f}"
        )


if __name__ == "__main__":
    main()
