"""Measure the host time of a call: numpipe's, the raw driver call, and the peers', in one process.

    python examples/benchmarks/launch.py --out result.json --table table.md

The kernel is examples/gemm.py on 256 x 256 matrices, so short that the GPU waits for the host. In
each of `--rounds` rounds, each competitor in turn makes 200 calls after a device synchronization;
its figure is the median time per call over the rounds. "raw" is cuLaunchKernelEx of cuda.bindings
with the arguments of the bound launch. Ratios are relative to it, except that those of ops are
relative to torch.mm under the same mode, in the same process. A row shows the median, the minimum
and the maximum over `--processes` processes. Peers that are not installed are skipped with a
message.
"""

from __future__ import annotations

import importlib
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(1, str(Path(__file__).resolve().parent))

import harness

from numpipe import bench

CALLS, SIZE = 200, 256
MUST = {
    "bound(), torch": 1.15,
    "bound(), DeviceArray": 1.15,
    "bound(), CuPy": 1.15,
    "kernel(a, b, out=c), CuPy": 2.0,
    "kernel(a, b, out=c), DeviceArray": 2.0,
    "kernel(a, b, out=c), torch": 2.5,
}
"""largest allowed multiples of raw"""
INFERENCE, GRAD = "torch.mm, inference_mode", "torch.mm, grad"
OPS = {
    "numpipe.ops.matmul, inference_mode": INFERENCE,
    "numpipe.torch.matmul, inference_mode": INFERENCE,
    "torch.ops.numpipe.matmul, inference_mode": INFERENCE,
    "numpipe.torch.matmul, grad": GRAD,
}
"""calls of ops, and the PyTorch call that each is compared with"""
MUST_OPS = {"numpipe.torch.matmul, inference_mode": 1.3}
"""largest allowed multiples of that call"""
Calls = dict[str, Callable[[], Any]]


def ours() -> Calls:
    import torch
    from cuda.bindings import driver

    from gemm import matmul

    a, b, c = (torch.randn(SIZE, SIZE, device="cuda").to(torch.float16) for _ in "abc")
    bound = matmul.bind(a, b, out=c)
    arguments, launch = bound.driver_arguments(), driver.cuLaunchKernelEx
    own = [numpipe_array(x) for x in (a, b, c)]

    calls: Calls = {
        "raw cuLaunchKernelEx": lambda: launch(*arguments),
        "bound(), torch": bound,
        "bound(), DeviceArray": matmul.bind(own[0], own[1], out=own[2]),
        "kernel(a, b, out=c), torch": lambda: matmul(a, b, out=c),
        "kernel(a, b), torch": lambda: matmul(a, b),
        "kernel(a, b, out=c), DeviceArray": lambda: matmul(own[0], own[1], out=own[2]),
    }
    try:
        import cupy
    except ImportError:
        print("CuPy is not installed")
    else:
        x, y, z = (cupy.asarray(t) for t in (a, b, c))
        calls["bound(), CuPy"] = matmul.bind(x, y, out=z)
        calls["kernel(a, b, out=c), CuPy"] = lambda: matmul(x, y, out=z)
        calls["kernel(a, b), CuPy"] = lambda: matmul(x, y)
    return calls


def ops() -> Calls:
    """Return calls of the product as an op, for inference and with gradients, and PyTorch's."""
    import torch

    import numpipe.ops
    import numpipe.torch

    a, b = (torch.randn(SIZE, SIZE, device="cuda").to(torch.float16) for _ in "ab")
    x, y = (tensor.clone().requires_grad_() for tensor in (a, b))
    product, op = numpipe.torch.matmul, torch.ops.numpipe.matmul.default
    return {
        INFERENCE: lambda: torch.mm(a, b),
        "numpipe.ops.matmul, inference_mode": lambda: numpipe.ops.matmul(a, b),
        "numpipe.torch.matmul, inference_mode": lambda: product(a, b),
        "torch.ops.numpipe.matmul, inference_mode": lambda: op(a, b),
        GRAD: lambda: torch.mm(x, y),
        "numpipe.torch.matmul, grad": lambda: product(x, y),
    }


def numpipe_array(tensor: Any) -> Any:
    from numpipe.launch import DeviceArray

    return DeviceArray.from_host(tensor.cpu().numpy())


def peers() -> Calls:
    import torch

    a, b, c = (torch.randn(SIZE, SIZE, device="cuda").to(torch.float16) for _ in "abc")
    calls: Calls = {
        "torch.mm": lambda: torch.mm(a, b),
        "torch.mm(out=)": lambda: torch.mm(a, b, out=c),
    }
    for name, make in (("Triton, 3 tensors", triton_add), ("numba-cuda", numba_add)):
        try:
            calls |= make(name, a, b, c)
        except ImportError as error:
            print(f"{name}: not installed ({error})")
    return calls


def triton_add(name: str, a: Any, b: Any, c: Any) -> Calls:
    from triton_add import add

    return {name: lambda: add[(1,)](a, b, c, BLOCK=256)}


def numba_add(name: str, a: Any, b: Any, c: Any) -> Calls:
    importlib.import_module("numpipe.core.numba")  # gives numba-cuda what NumPy 2.5 removed
    from numba import cuda

    @cuda.jit
    def add(x: Any, y: Any, z: Any) -> None:
        i = cuda.threadIdx.x
        z[0, i] = x[0, i] + y[0, i]

    own = [cuda.to_device(t.float().cpu().numpy()) for t in (a, b, c)]
    wide = [t.float() for t in (a, b, c)]
    return {
        f"{name}, 3 device arrays": lambda: add[1, 256](*own),
        f"{name}, 3 tensors": lambda: add[1, 256](*wide),
    }


def times(rounds: int) -> dict[str, float]:
    """Return the microseconds per call of each competitor, measured in turn."""
    import torch

    calls = ours() | ops() | peers()
    for name, call in calls.items():
        with torch.inference_mode("inference_mode" in name):
            for _ in range(20):
                call()
    found: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            torch.cuda.synchronize()
            with torch.inference_mode("inference_mode" in name):
                begun = time.perf_counter()
                for _ in range(CALLS):
                    call()
                found[name].append(1e6 * (time.perf_counter() - begun) / CALLS)
    return {name: statistics.median(values) for name, values in found.items()}


def table(raw: list[dict[str, float]]) -> list[str]:
    """Return the rows of the page: name, microseconds, ratio to raw."""
    lines = ["| call | µs | × raw | at most |", "|---|---|---|---|"]
    for name in raw[0]:
        ratios = [run[name] / run[OPS.get(name, "raw cuLaunchKernelEx")] for run in raw]
        micro = statistics.median(run[name] for run in raw)
        lines.append(
            f"| `{name}` | {micro:.1f} | {statistics.median(ratios):.2f} ({min(ratios):.2f} … "
            f"{max(ratios):.2f}){f' × `{OPS[name]}`' if name in OPS else ''} | "
            f"{MUST.get(name, MUST_OPS.get(name, ''))} |"
        )
    return lines


def main() -> int:
    parser = harness.script(__doc__)
    parser.add_argument("--processes", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--table", type=Path, help="a Markdown file for the table")
    parser.add_argument("--worker", action="store_true", help="internal")
    options = parser.parse_args()
    bench.require_gpu()
    if options.worker:
        print(json.dumps(times(options.rounds)))
        return 0
    command = [sys.executable, __file__, "--worker", "--rounds", str(options.rounds)]
    raw = [harness.answer(command) for _ in range(options.processes)]
    lines = table(raw)
    print(*lines, sep="\n")
    if options.table is not None:
        options.table.write_text("\n".join(lines) + "\n", encoding="utf8")
    medians = {name: statistics.median(run[name] for run in raw) for name in raw[0]}
    method = {"unit": "us", "calls": CALLS, "rounds": options.rounds}
    record = {"benchmark": "launch", **bench.describe(), **method, "medians": medians, "raw": raw}
    harness.write(options.out, record)
    return 0


if __name__ == "__main__":
    sys.exit(main())
