"""Products with mma.sync: float64 against cuBLAS (through PyTorch), float16 against wgmma.

    python examples/benchmarks/mma_sync.py --out result.json

float64  the kernel of examples/gemm_mma.py with several tiles at 4096 x 4096 x 4096
float16  the same kernel with mma.sync against examples/gemm.py (wgmma), at 8192 and 4096

The competitors of a size are called in turn, once per round, for `--rounds` rounds after a warm-up
of the same length. A result is the ratio of median times between events. Inputs are normally
distributed, outputs are filled with NaN before the first call, and some of their rows are compared
with a float64 product. Takes less than a minute on an H100 once the kernels are compiled.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import gemm_mma
from gemm_mma import Config

import gemm

F64 = {
    "128x128 rows": (2, Config(128, 128, 32, 3, False)),
    "128x128 columns": (2, Config(128, 128, 32, 3, True)),
    "128x128 columns, steps of 16": (2, Config(128, 128, 16, 6, True)),
    "256x64 rows, steps of 16": (2, Config(256, 64, 16, 5, False)),
}
F16 = {
    "256x128 rows": (2, Config(256, 128, 64, 3, False)),
    "256x128 columns": (2, Config(256, 128, 64, 3, True)),
    "128x256 columns": (2, Config(128, 256, 64, 3, True)),
    "128x192 columns, 3 warpgroups": (3, Config(128, 192, 64, 4, True)),
}
"""Name -> (compute warpgroups, config)."""
ERRORS = {"float64": 1e-14, "float16": 1e-3}
"""The largest allowed relative errors, in the Frobenius norm of some rows."""


def calls(a: Any, b: Any, kind: str) -> dict[str, tuple[Any, Callable[[], object]]]:
    """Return (output, call) by the name of each competitor. The first is the reference."""
    import torch

    def output() -> Any:
        return torch.full((len(a), len(b)), float("nan"), dtype=a.dtype, device="cuda")

    found: dict[str, tuple[Any, Callable[[], object]]] = {}
    out = output()
    if kind == "float64":
        found["cuBLAS"] = out, lambda: torch.mm(a, b.T, out=out)
    else:
        found["wgmma"] = out, lambda: gemm.product(a, b, out=out)
    sums = np.float64 if kind == "float64" else np.float32
    for name, (wgs, cfg) in (F64 if kind == "float64" else F16).items():
        kernel, own = gemm_mma.kernel(wgs), output()
        found[name] = (
            own,
            lambda kernel=kernel, own=own, cfg=cfg: kernel(a, b, own, sums=sums, cfg=cfg),
        )
    return found


def measure(kind: str, size: int, rounds: int) -> dict[str, Any]:
    """Return the times in seconds, TFLOPS, ratios and errors of one size."""
    import torch

    dtype = getattr(torch, kind)
    a, b = (torch.randn(size, size, dtype=torch.float32, device="cuda").to(dtype) for _ in range(2))
    competitors = calls(a, b, kind)
    rows = torch.randperm(size, device="cuda")[:64]
    exact = a[rows].double() @ b.double().T
    errors = {}
    for name, (out, call) in competitors.items():
        call()
        torch.cuda.synchronize()
        difference = out[rows].double() - exact
        errors[name] = float(difference.norm() / exact.norm())
        unwritten = bool(torch.isnan(out).any())
        if unwritten or not errors[name] <= ERRORS[kind]:
            raise AssertionError(
                f"{kind} {size} {name}: error {errors[name]}, unwritten {unwritten}"
            )
    times: dict[str, list[float]] = {name: [] for name in competitors}
    for turn in range(2 * rounds):
        events = {}
        for name, (_, call) in competitors.items():
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            call()
            end.record()
            events[name] = begin, end
        torch.cuda.synchronize()
        if turn >= rounds:
            for name, (begin, end) in events.items():
                times[name].append(begin.elapsed_time(end) / 1e3)
    reference = statistics.median(times[next(iter(times))])
    medians = {name: statistics.median(each) for name, each in times.items()}
    return {
        "type": kind,
        "size": size,
        "tflops": {name: 2e-12 * size**3 / time for name, time in medians.items()},
        "ratios": {name: reference / time for name, time in medians.items()},
        "errors": errors,
        "seconds": times,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="a JSON file")
    parser.add_argument("--rounds", type=int, default=12)
    options = parser.parse_args()
    import torch

    found: dict[str, Any] = {"gpu": torch.cuda.get_device_name(), "rows": []}
    for kind, size in (("float64", 4096), ("float16", 8192), ("float16", 4096)):
        row = measure(kind, size, options.rounds)
        found["rows"].append(row)
        for name, speed in row["tflops"].items():
            ratio = row["ratios"][name]
            print(f"{kind} {size}: {name:32} {speed:7.1f} TFLOPS  {ratio:.3f}", flush=True)
        if options.out:
            options.out.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
