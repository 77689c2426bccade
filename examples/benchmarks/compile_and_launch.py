"""Measure what the first call of a matrix product costs in addition to GPU time: compiling,
simulating, launching.

    python examples/benchmarks/compile_and_launch.py --out result.json

cold compile   the first signature in a fresh process, including the import of Numba, and the next
               signature after it; for the loop form (examples/gemm.py) and the body form
               (examples/gemm_body.py)
first call     host time from ``import numpipe`` to the launch, and of the call alone, for the
               matrix product and for attention on torch tensors, with an existing CUDA context:
               compiled ("cold"), and loaded from the disk cache ("cached"), in new processes
simulation     512 x 512 x 512 float16, tile 128 x 128 x 64, with detection of races and deadlocks,
               on one core

Each figure is the median over `--processes` processes; the raw values are written to the file.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

UNITS = {
    "import numpipe": "s",
    "cold compile": "s",
    "next signature": "s",
    "cold compile, body form": "s",
    "next signature, body form": "s",
    "simulated 512^3": "s",
    **{
        f"{state} {part}, {name}": "s"
        for state in ("cold", "cached")
        for part in ("import to launch", "call to launch")
        for name in ("GEMM", "attention")
    },
}


def compile_times(module: str = "gemm", suffix: str = "") -> dict[str, float]:
    begun = time.perf_counter()
    import numpipe  # noqa: F401

    imported = time.perf_counter()
    import ml_dtypes
    import numpy as np

    matmul = importlib.import_module(module).matmul
    times = [time.perf_counter()]
    for dtype in (ml_dtypes.bfloat16, np.float16):
        a, b = np.zeros((512, 512), dtype), np.zeros((512, 512), dtype)
        matmul.inspect("resources", a, b)
        times.append(time.perf_counter())
    own = {} if suffix else {"import numpipe": imported - begun}
    return own | {
        "cold compile" + suffix: times[1] - times[0],
        "next signature" + suffix: times[2] - times[1],
    }


def body_form_compile_times() -> dict[str, float]:
    return compile_times("gemm_body", ", body form")


def first_calls(name: str, state: str) -> dict[str, float]:
    """Return the host's seconds until the first launch of a new process."""
    import torch

    if name == "GEMM":
        arrays = [torch.randn(512, 512, device="cuda").to(torch.float16) for _ in "ab"]
    else:
        arrays = [torch.randn(1, 2, 512, 128, device="cuda").to(torch.float16) for _ in "qkv"]
    torch.cuda.synchronize()
    begun = time.perf_counter()
    import numpipe  # noqa: F401

    function = (
        importlib.import_module("gemm").product
        if name == "GEMM"
        else importlib.import_module("numpipe.ops").attention
    )
    imported = time.perf_counter()
    function(*arrays)
    launched = time.perf_counter()
    torch.cuda.synchronize()
    if state == "cached" and {"numba", "llvmlite"} & sys.modules.keys():
        raise AssertionError("a cached call imported the compiler")
    return {
        f"{state} import to launch, {name}": launched - begun,
        f"{state} call to launch, {name}": launched - imported,
    }


def simulation_time() -> dict[str, float]:
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    import numpy as np

    from gemm import Config, matmul

    config = Config(tm=128, tn=128, tk=64)
    random = np.random.default_rng(0)
    a, b = (random.standard_normal((512, 512)).astype(np.float16) for _ in "ab")
    times = []
    for _ in range(6):
        begun = time.perf_counter()
        c = matmul(a, b, cfg=config, target="sim")
        times.append(time.perf_counter() - begun)
    exact = a.astype(np.float64) @ b.astype(np.float64).T
    error = np.linalg.norm(c.astype(np.float64) - exact) / np.linalg.norm(exact)
    if not error < 1e-3:
        raise AssertionError(f"the simulated product is off by {error:.1e}")
    return {"simulated 512^3": statistics.median(times[1:])}  # the first run lifts the source


MEASUREMENTS: dict[str, Callable[[], dict[str, float]]] = {
    "compile": compile_times,
    "compile body form": body_form_compile_times,
    "simulation": simulation_time,
    **{
        f"{state} {name}": functools.partial(first_calls, name, state)
        for state in ("cold", "cached")
        for name in ("GEMM", "attention")
    },
}
ON_GPU = [name for name in MEASUREMENTS if name.startswith(("cold", "cached"))]


def gpu_for_calls() -> str:
    """Return why calls cannot be timed here, or ""."""
    from numpipe.bench import require_gpu
    from numpipe.errors import TargetError

    try:
        require_gpu()
        import torch
    except (TargetError, ImportError) as error:
        return str(error)
    return "" if torch.cuda.is_available() else "torch sees no GPU"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=MEASUREMENTS, action="append")
    parser.add_argument("--processes", type=int, default=3)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--worker", choices=MEASUREMENTS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        print(json.dumps(MEASUREMENTS[options.worker]()))
        return 0

    import harness  # not in a worker, where the import of numpipe is timed

    wanted = options.only or list(MEASUREMENTS)
    if set(wanted) & set(ON_GPU) and (reason := gpu_for_calls()):
        print(f"calls are not timed: {reason}")
        wanted = [name for name in wanted if name not in ON_GPU]
    one_core = {f"{library}_NUM_THREADS": "1" for library in ("OPENBLAS", "OMP", "MKL")}
    raw: dict[str, list[float]] = {}

    def run(name: str, folder: str) -> dict[str, float]:
        cache = {"NUMPIPE_CACHE_DIR": folder, "NUMPIPE_CACHE": str(int(name.startswith("cached")))}
        found: dict[str, float] = harness.answer(
            [sys.executable, __file__, "--worker", name], **one_core, **cache
        )
        return found

    with tempfile.TemporaryDirectory() as folder:
        for name in wanted:
            if name.startswith("cached"):  # fill numpipe's cache and Python's bytecode cache
                harness.answer(
                    [sys.executable, __file__, "--worker", name.replace("cached", "cold")],
                    **one_core,
                    NUMPIPE_CACHE_DIR=folder,
                    NUMPIPE_CACHE="1",
                )
        for _ in range(options.processes):  # in turn, because the machine's speed varies over time
            for name in wanted:
                for what, value in run(name, folder).items():
                    raw.setdefault(what, []).append(value)
    for what, values in raw.items():
        print(
            f"{what:35}  {statistics.median(values):8.3f} {UNITS[what]:2}  ({min(values):.3f} … "
            f"{max(values):.3f})"
        )
    harness.write(options.out, record(raw))
    return 0


def record(raw: dict[str, list[float]]) -> dict[str, Any]:
    """Return the file's contents: figures, every raw value, and the machine."""
    from numpipe.bench import environment

    machine = (
        environment.describe() if not gpu_for_calls() else {"versions": environment.versions()}
    )
    return {
        "benchmark": "compile_and_launch",
        **machine,
        "units": {k: UNITS[k] for k in raw},
        "medians": {k: statistics.median(v) for k, v in raw.items()},
        "raw": raw,
    }


if __name__ == "__main__":
    sys.exit(main())
