"""Measure a matrix product of NumPy arrays from call to result, and compare it with the least time
that the machine's copies take.

    python examples/benchmarks/host_arrays.py --out result.json

PCIe     GB/s of one copy from page-locked memory to the GPU, and back
memcpy   GB/s from one array to another, by one np.copyto and by as many threads as numpipe uses for
         copies (NUMPIPE_COPY_THREADS)
kernel   the product on arrays that are on the GPU
calls    matmul(a, b), with an output in page-locked memory; matmul(a, b, out=c), whose c is copied
         to the GPU too, because a kernel may store to only a part of it; the same with a, b and c
         from numpipe.pinned_empty

The bound of a call is the larger of two times: the kernel's, and that of the copies. The time of
the copies is the sum, for both directions, of the larger of PCIe's and memcpy's time for the bytes
of that direction; memcpy counts only for arrays that are not page-locked. There are two bounds, and
a ratio to each: one for the memcpy of a single np.copyto, and one for all threads ("threads"),
which have the host's memory to themselves while it is measured. Figures are medians over the calls
of a process, and over `--processes` processes; all values are written to the file.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(1, str(Path(__file__).resolve().parent))

import harness

from numpipe import bench

CALLS = ("matmul(a, b)", "matmul(a, b, out=c)", "matmul(a, b, out=c), all pinned")
BOUNDS = {"bound": "memcpy", "bound, threads": "memcpy, threads"}
"""name of a bound -> the rate used for the host's copies"""
# as much as a product of 8192 copies to the GPU; less would fit in the host's caches
MEASURED_BYTES = 256 << 20


def seconds_each(call: Callable[[], object], repeats: int, warm_up: int = 3) -> list[float]:
    for _ in range(warm_up):
        call()
    times = []
    for _ in range(repeats):
        begun = time.perf_counter()
        call()
        times.append(time.perf_counter() - begun)
    return times


def rates() -> dict[str, float]:
    """Return the GB/s of PCIe in both directions, and of the host's memory."""
    import numpipe
    from numpipe.launch import DeviceArray, copy_threads, driver, transfers

    pinned = numpipe.pinned_empty(MEASURED_BYTES, np.uint8, target="gpu")
    pinned[...] = 1
    there = DeviceArray((MEASURED_BYTES,), np.uint8)
    pointer = there.__cuda_array_interface__["data"][0]
    cuda = driver.get()

    def copy(inwards: bool) -> None:
        ends = (
            (pointer, MEASURED_BYTES, pinned.ctypes.data)
            if inwards
            else (pinned.ctypes.data, MEASURED_BYTES, pointer)
        )
        (cuda.copy_in if inwards else cuda.copy_out)(*ends, MEASURED_BYTES, MEASURED_BYTES, 1, 0, 0)
        cuda.synchronize(0, 0)

    source, target = (np.full(MEASURED_BYTES, value, np.uint8) for value in (1, 2))
    parts = [slice(i, i + transfers.CHUNK) for i in range(0, MEASURED_BYTES, transfers.CHUNK)]

    def work(queue: copy_threads.Parts[slice]) -> None:
        for part in queue:
            np.copyto(target[part], source[part])

    times = {
        "PCIe in": seconds_each(lambda: copy(True), 20),
        "PCIe out": seconds_each(lambda: copy(False), 20),
        "memcpy": seconds_each(lambda: np.copyto(target, source), 20),
        "memcpy, threads": seconds_each(
            lambda: copy_threads.share(parts, work, copy_threads.count()), 20
        ),
    }
    return {name: 1e-9 * MEASURED_BYTES / statistics.median(each) for name, each in times.items()}


def measure(sizes: list[int], repeats: int) -> dict[str, Any]:
    """Return all figures of this process, with times in seconds and rates in GB/s."""
    import numpipe
    from gemm import DTYPES, inputs, matmul, relative_error
    from numpipe.launch import DeviceArray, copy_threads

    found: dict[str, Any] = {"rates": rates(), "threads": copy_threads.count(), "calls": []}
    timer = bench.EventTimer()
    for size in sizes:
        a, b = inputs((size, size, size), DTYPES["f16"])
        c = np.zeros((size, size), np.float16)
        x, y, z = (numpipe.to_device(array, target="gpu") for array in (a, b, c))
        pinned = [
            numpipe.pinned_empty(array.shape, array.dtype, target="gpu") for array in (a, b, c)
        ]
        for to, array in zip(pinned, (a, b, c), strict=True):
            to[...] = array

        def kernel(_: int, x: DeviceArray = x, y: DeviceArray = y, z: DeviceArray = z) -> None:
            matmul(x, y, out=z)

        timer.seconds(timer.measure(kernel, 10, 0))
        kernel_seconds = statistics.median(
            timer.seconds(timer.measure(kernel, 10, 0)) for _ in range(5)
        )
        result: list[Any] = [None]

        def fresh(a: np.ndarray = a, b: np.ndarray = b, result: list[Any] = result) -> None:
            result[0] = matmul(a, b, target="gpu")

        def given(a: np.ndarray = a, b: np.ndarray = b, c: np.ndarray = c) -> None:
            matmul(a, b, out=c, target="gpu")

        def in_place(arrays: list[np.ndarray] = pinned) -> None:
            matmul(*arrays[:2], out=arrays[2], target="gpu")

        for name, call, output in zip(
            CALLS, (fresh, given, in_place), (result, [c], pinned[2:]), strict=True
        ):
            times = seconds_each(call, repeats)
            error = relative_error(a, b, output[0])
            if not error < 1e-3:
                raise AssertionError(f"{name} at {size}: the product is off by {error:.1e}")
            found["calls"].append(
                {
                    "size": size,
                    "call": name,
                    "seconds": times,
                    "kernel": kernel_seconds,
                    **{
                        key: bound(name, size, kernel_seconds, found["rates"], memcpy)
                        for key, memcpy in BOUNDS.items()
                    },
                }
            )
    return found


def bound(name: str, size: int, kernel: float, rate: dict[str, float], memcpy: str) -> float:
    """Return the least seconds that a call can take, given the measured rates, with the host's
    copies at the rate named `memcpy`."""
    each = 1e-9 * 2 * size * size
    inwards, staged_in, staged_out = {
        "matmul(a, b)": (2, 2, 0),
        "matmul(a, b, out=c)": (3, 3, 1),
    }.get(name, (3, 0, 0))
    copies = max(inwards * each / rate["PCIe in"], staged_in * each / rate[memcpy]) + max(
        each / rate["PCIe out"], staged_out * each / rate[memcpy]
    )
    return max(kernel, copies)


def summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the medians over the processes."""
    rows = []
    for same in zip(*(run["calls"] for run in runs), strict=True):
        each = [statistics.median(call["seconds"]) for call in same]
        rows.append(
            {
                "size": same[0]["size"],
                "call": same[0]["call"],
                "seconds": statistics.median(each),
                "kernel": statistics.median(call["kernel"] for call in same),
                **{key: statistics.median(call[key] for call in same) for key in BOUNDS},
                **{
                    key.replace("bound", "ratio"): statistics.median(
                        e / call[key] for e, call in zip(each, same, strict=True)
                    )
                    for key in BOUNDS
                },
            }
        )
    rate = {
        name: statistics.median(run["rates"][name] for run in runs) for name in runs[0]["rates"]
    }
    return {"rates": rate, "threads": runs[0]["threads"], "calls": rows}


def table(found: dict[str, Any]) -> str:
    lines = [
        f"{found['threads']} threads; GB/s: "
        + ", ".join(f"{name} {rate:.1f}" for name, rate in found["rates"].items()),
        "",
        f"{'N':>5}  {'call':32}  {'ms':>8}  {'kernel':>8}  {'bound':>8}  ratio  {'threads':>8}  "
        "ratio",
    ]
    lines += [
        f"{row['size']:>5}  {row['call']:32}  {1e3 * row['seconds']:8.3f}  "
        f"{1e3 * row['kernel']:8.3f}"
        + "".join(
            f"  {1e3 * row[key]:8.3f}  {row[key.replace('bound', 'ratio')]:5.2f}" for key in BOUNDS
        )
        for row in found["calls"]
    ]
    return "\n".join(lines)


def main() -> int:
    parser = harness.script(__doc__)
    parser.add_argument(
        "--sizes",
        default="512,1024,2048,4096,8192",
        help="N of the products of N x N float16 matrices",
    )
    parser.add_argument("--processes", type=int, default=3)
    parser.add_argument(
        "--repeats", type=int, default=15, help="timed calls of each kind in a process"
    )
    parser.add_argument(
        "--plain",
        type=int,
        help="bytes below which arrays are left to the driver, to find the threshold",
    )
    parser.add_argument(
        "--chunk",
        type=int,
        help="bytes that a thread copies at a time (default: at most 2 MiB)",
    )
    parser.add_argument("--out", type=Path)
    parser.add_argument("--worker", action="store_true", help="internal")
    options = parser.parse_args()
    from numpipe.launch import transfers

    transfers.PLAIN = transfers.PLAIN if options.plain is None else options.plain
    transfers.CHUNK = transfers.CHUNK if options.chunk is None else options.chunk
    if options.worker:
        print(
            json.dumps(measure([int(size) for size in options.sizes.split(",")], options.repeats))
        )
        return 0
    bench.require_gpu()
    runs = []
    for number in range(options.processes):
        runs.append(harness.answer([sys.executable, *sys.argv, "--worker"]))
        print(f"process {number + 1}\n{table(summary(runs[-1:]))}\n", flush=True)
    found = summary(runs)
    print(f"medians of {len(runs)} processes\n{table(found)}")
    method = {"plain": transfers.PLAIN, "chunk": transfers.CHUNK}
    units = {**dict.fromkeys(["seconds", "kernel", *BOUNDS], "s"), "rates": "GB/s"}
    record = {"benchmark": "host_arrays", **bench.describe(), "method": method, "units": units}
    harness.write(options.out, record | found | {"raw": runs})
    return 0


if __name__ == "__main__":
    harness.run(main)
