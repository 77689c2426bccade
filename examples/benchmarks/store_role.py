"""The speedup from letting separate warps issue the TMA stores: the same kernels with and without
``CompilerParams(store_role=True)``.

    python examples/benchmarks/store_role.py                        on a GPU, at most a minute
    python examples/benchmarks/store_role.py --json store_role.json --rounds 60
    python examples/benchmarks/store_role.py --target sim           only check small shapes

Each row is a kernel at a shape: a product with a float32 output, reductions by TMA as in the dQ of
attention backward, and a copy by a pipeline with outputs. The two variants run interleaved in one
process. Inputs are normally distributed, and outputs are filled with NaN before they are checked.
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import numpipe
from numpipe import BlockSpec, CompilerParams, bench, cdiv, ds, launch

VARIANTS = {"without": False, "with": True}
OPTIONS: dict[str, Any] = {
    "grid": numpipe.persistent(),
    "num_compute_wgs": 2,
    "wg_axis": "wg",
    "memory_registers": 40,
}


# ---- the kernels ---------------------------------------------------------------------------------
@functools.cache
def product(stores: bool, store_slots: int = 4, schedule: str = "cooperative") -> Any:
    """Return the kernel ``a @ b.T`` for float16 with a float32 output, in tiles of 128 x 256
    (ping-pong: 64 x 256)."""
    rows = 64

    @numpipe.kernel(
        **OPTIONS,
        schedule=schedule,
        compiler_params=CompilerParams(store_role=stores, store_slots=store_slots),
    )
    def matmul(a, b, c):
        wg = numpipe.axis_index("wg")
        tm = rows * numpipe.axis_size("wg")
        for m, n in numpipe.tiles(
            cdiv(a.shape[0], tm), cdiv(b.shape[0], 256), order="grouped", group=16
        ):
            acc = numpipe.zeros((rows, 256), np.float32)
            pipe = numpipe.pipeline(
                grid=(cdiv(a.shape[1], 64),),
                max_concurrent_steps=3,
                in_specs=(
                    BlockSpec((tm, 64), lambda k: (m, k)),
                    BlockSpec((256, 64), lambda k: (n, k)),
                ),
            )
            for (k,), (a_tile, b_tile) in pipe(a, b):
                acc = numpipe.wgmma(acc, a_tile.at[ds(wg * rows, rows), :], b_tile.T)
            c[ds(m * tm + wg * rows, rows), ds(n * 256, 256)] = acc

    return matmul


@functools.cache
def reductions(stores: bool, store_slots: int = 4) -> Any:
    """Return a kernel with the reductions of dQ in attention backward: each CTA has a block of
    keys, and adds its part to all blocks of queries, starting at a different one."""

    @numpipe.kernel(
        grid=lambda scores, keys, dq: scores.shape[1] // 128,
        grid_names="block",
        num_compute_wgs=2,
        wg_axis="wg",
        memory_registers=40,
        compiler_params=CompilerParams(store_role=stores, store_slots=store_slots),
    )
    def added(scores, keys, dq):
        """Add to dq (queries, depth), float32, given `scores` (queries, keys) and `keys` (depth,
        keys)."""
        wg, block = numpipe.axis_index("wg"), numpipe.axis_index("block")
        steps = scores.shape[0] // 128
        pipe = numpipe.pipeline(
            grid=(steps,),
            max_concurrent_steps=2,
            in_specs=(
                BlockSpec((128, 128), lambda k: ((k + block) % steps, block)),
                BlockSpec((128, 128), lambda k: (0, block)),
            ),
        )
        for (k,), (score, key) in pipe(scores, keys):
            part = numpipe.wgmma(
                numpipe.zeros((64, 128), np.float32), score.at[ds(wg * 64, 64), :], key.T
            )
            part = numpipe.wgmma_wait(part, 0)
            query = (k + block) % steps
            numpipe.atomic_add(dq.at[ds(query * 128 + wg * 64, 64), ds(0, 128)], part)

    return added


@functools.cache
def copy(stores: bool) -> Any:
    """Return a kernel that copies through the slots of a pipeline's outputs."""

    @numpipe.kernel(**OPTIONS, compiler_params=CompilerParams(store_role=stores))
    def copied(x, y):
        wg = numpipe.axis_index("wg")
        for (m,) in numpipe.tiles(cdiv(x.shape[0], 128)):
            pipe = numpipe.pipeline(
                grid=(cdiv(x.shape[1], 64),),
                max_concurrent_steps=4,
                in_specs=(BlockSpec((128, 64), lambda k: (m, k)),),
                out_specs=(BlockSpec((128, 64), lambda k: (m, k), buffer_count=2),),
            )
            for (_,), (x_tile, y_tile) in pipe(x, y):
                y_tile[ds(wg * 64, 64), :] = x_tile[ds(wg * 64, 64), :]

    return copied


# ---- the rows ------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Case:
    """A row of the table.

    kernel  returns the kernel, with or without the store role
    inputs  (shape, dtype) of each input
    output  (shape, dtype) of the output
    rows    returns the expected values of some rows
    work    the work of a call, in `unit`
    """

    name: str
    kernel: Callable[[bool], Any]
    inputs: tuple[tuple[tuple[int, ...], Any], ...]
    output: tuple[tuple[int, ...], Any]
    rows: Callable[..., np.ndarray]
    work: float
    unit: str
    sums: bool = False
    """Whether results are added to the output, in any order."""


def some(n: int) -> np.ndarray:
    """Return the indices of the rows of an output that are checked."""
    return np.unique(np.linspace(0, n - 1, 48).astype(int))


def cases(small: bool) -> list[Case]:
    found = []
    m = n = 512 if small else 8192
    for k in (128,) if small else (512, 4096):
        for schedule in ("cooperative", "pingpong"):
            found.append(
                Case(
                    f"product, float32 output, {schedule}, {m}x{n}x{k}",
                    functools.partial(product, schedule=schedule),
                    (((m, k), np.float16), ((n, k), np.float16)),
                    ((m, n), np.float32),
                    lambda at, a, b: a[at].astype(np.float64) @ b.astype(np.float64).T,
                    2e-12 * m * n * k,
                    "TFLOPS",
                )
            )
    queries, keys = (256, 256) if small else (8192, 128 * 132)
    found.append(
        Case(
            f"reductions of dQ, {queries} queries, {keys} keys, depth 128",
            reductions,
            (((queries, keys), np.float16), ((128, keys), np.float16)),
            ((queries, 128), np.float32),
            lambda at, scores, kt: scores[at].astype(np.float64) @ kt.astype(np.float64).T,
            4e-12 * queries * 128 * (keys // 128),
            "TB/s of reductions",
            True,
        )
    )
    shape = (256, 320) if small else (16384, 8192)
    for dtype in (np.float16, np.float32):
        name = np.dtype(dtype).name
        found.append(
            Case(
                f"copy by a pipeline, {name}, {shape[0]}x{shape[1]}",
                copy,
                ((shape, dtype),),
                (shape, dtype),
                lambda at, x: x[at],
                2e-12 * np.dtype(dtype).itemsize * shape[0] * shape[1],
                "TB/s",
            )
        )
    return found


def normal(shape: tuple[int, ...], dtype: Any, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, np.float32).astype(dtype)


def check(case: Case, inputs: list[np.ndarray], output: np.ndarray) -> None:
    """Raise AssertionError if rows of an output are wrong or were not written."""
    at = some(output.shape[0])
    wanted = case.rows(at, *inputs)
    assert not np.isnan(output).any(), f"{case.name}: elements that nobody wrote"
    error = np.abs(output[at] - wanted).max() / np.abs(wanted).max()
    assert error < 1e-3, f"{case.name}: relative error {error:.1e}"


def first_of(case: Case) -> np.ndarray:
    """Return the contents of an output before a kernel runs."""
    return np.full(*case.output[:1], 0.0 if case.sums else np.nan, case.output[1])


def measured(case: Case, rounds: int) -> dict[str, Any]:
    """Return a row of the table: median times of both variants, interleaved."""
    host = [normal(*of, seed) for seed, of in enumerate(case.inputs)]
    given = [launch.DeviceArray.from_host(array) for array in host]
    outputs = {}
    for name, stores in VARIANTS.items():
        outputs[name] = launch.DeviceArray.from_host(first_of(case))
        case.kernel(stores)(*given, outputs[name])
        check(case, host, outputs[name].copy_to_host())
    calls = {
        name: lambda _, name=name, stores=stores: case.kernel(stores)(*given, outputs[name])
        for name, stores in VARIANTS.items()
    }
    [sample] = bench.compare(
        calls, reference="without", protocols=("interleaved",), plan=bench.Plan(rounds=rounds)
    )
    if not case.sums:
        for name in VARIANTS:
            check(case, host, outputs[name].copy_to_host())
    return {
        "case": case.name,
        "unit": case.unit,
        "without": case.work / sample.reference_seconds,
        "with": case.work / sample.seconds("with"),
        "ratio": sample.ratio("with"),
        "noise": sample.noise,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", choices=("sim", "gpu"), help="default: the GPU if there is one")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--json", type=Path, help="write the rows, and the machine, to this file")
    options = parser.parse_args()
    if launch.choose_target(options.target).target == "sim":
        for case in cases(True):
            host = [normal(*of, seed) for seed, of in enumerate(case.inputs)]
            for stores in VARIANTS.values():
                output = first_of(case)
                case.kernel(stores)(*host, output, target="sim")
                check(case, host, output)
            print(f"{case.name:<66} right")
        return
    rows = []
    for case in cases(False):
        row = measured(case, options.rounds)
        rows.append(row)
        print(
            f"{row['case']:<66} {row['without']:8.2f} {row['with']:8.2f} {row['unit']:<18} "
            f"ratio {row['ratio']:.3f}  noise {row['noise']:.3f}",
            flush=True,
        )
    if options.json:
        text = json.dumps({"machine": bench.describe(), "rows": rows}, indent=1, default=str)
        options.json.write_text(text + "\n", encoding="utf8")


if __name__ == "__main__":
    sys.exit(main())
