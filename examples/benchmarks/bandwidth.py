"""Compare numpipe.ops.copy with the GPU runtime's own copy (through torch), in TB/s moved.

    cd examples/benchmarks
    python bandwidth.py --shapes 32768,16384 --dtype bf16,f32 --out result.json
    # also views that are not contiguous
    python bandwidth.py --layouts all --out result.json
    # the kernels of examples/by_rows.py, against a copy
    python bandwidth.py --kernels all --out result.json

Each copied byte is read and written, so it counts twice. Buffers rotate over twice the size of the
L2 cache. A copy that is not bit-identical to its source fails. With --kernels, the copy moves as
many bytes as the kernel does; a histogram only reads.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from numpipe import bench

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(1, str(Path(__file__).resolve().parent))

import harness
from harness.scripts import compare_options

LAYOUTS: dict[str, Callable[[Any], Any]] = {
    "contiguous": lambda x: x,
    "rows": lambda x: x[:, 64:-64],
    "odd rows": lambda x: x[:, :-1],
    "from odd rows": lambda x: x.flatten()[: x.shape[0] * (x.shape[1] - 1)].view(x.shape[0], -1)[
        :, :-64
    ],
    "one off": lambda x: x[:, 1:-7],
    "transposed": lambda x: x.T,
    "odd and transposed": lambda x: x[:-1, :-1].T,
    "every second": lambda x: x[:, ::2],
    "repeated": lambda x: x[:1].expand(x.shape[0], -1),
}
"""views of a matrix to copy"""
KERNELS = {
    "softmax": (131072, 1024, "bfloat16"),
    "softmax_ring": (131072, 1024, "bfloat16"),
    "stencil": (16384, 16384, "float32"),
    "histogram": (192 * 21845, 256, "uint8"),
}
"""kernels of examples/by_rows.py, with the shape and type of their input: 256 MiB to 1 GiB"""
DTYPES = {"bf16": "bfloat16", "f16": "float16", "f32": "float32"}


def measure(process: int, case: dict[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    """Measure one case in this process; return its entry of the result file."""
    import torch

    from numpipe.ops import copy

    rows, columns = (int(v) for v in case["shape"].split(","))
    dtype = getattr(torch, DTYPES[case["dtype"]])
    torch.manual_seed(process)
    view = LAYOUTS[case["layout"]]
    cached = torch.cuda.get_device_properties(0).L2_cache_size
    sets = range(bench.rotation_sets(2 * rows * columns * dtype.itemsize, cached))
    sources = [view(torch.randn(rows, columns, device="cuda").to(dtype)) for _ in sets]
    moved = 2 * sources[0].numel() * dtype.itemsize
    functions: dict[str, Callable[[int, Any], object]] = {
        "numpipe": lambda i, out: copy(sources[i], out=out),
        "torch": lambda i, out: out.copy_(sources[i]),
    }
    calls = {
        name: harness.InPlace(
            [torch.empty(x.shape, dtype=dtype, device="cuda") for x in sources], each
        )
        for name, each in functions.items()
    }
    harness.run_all(calls, len(sets))
    for name, each in calls.items():
        harness.check_written(each.outs, sources, f"by {name} in the first call, {case}")
    samples = harness.compare_checked(calls, "torch", options, str(case))
    return bench.run_entry(process, case, 1e-12 * moved, samples, rotation_sets=len(sets))


def measure_kernel(
    process: int, case: dict[str, Any], options: argparse.Namespace
) -> dict[str, Any]:
    """Measure a kernel of examples/by_rows.py in this process, against a copy that moves as many
    bytes; return its entry of the result file."""
    import by_rows
    import torch

    rows, columns, name = KERNELS[case["kernel"]]
    kernel, dtype, counts = (
        getattr(by_rows, case["kernel"]),
        getattr(torch, name),
        case["kernel"] == "histogram",
    )
    torch.manual_seed(process)
    x = (
        torch.randint(0, 256, (rows, columns), device="cuda", dtype=dtype)
        if counts
        else torch.randn(rows, columns, device="cuda").to(dtype)
    )
    y = torch.zeros(256, dtype=torch.int32, device="cuda") if counts else torch.empty_like(x)
    source = x[: rows // 2] if counts else x
    target = torch.empty_like(source)
    moved = 2 * source.numel() * x.element_size()

    def ours(_: int) -> None:
        if counts:
            y.zero_()
            kernel(x, y)
        else:
            kernel(x, out=y)

    def expected() -> Any:
        if counts:
            return sum(
                torch.bincount(part.flatten().int(), minlength=256) for part in x.split(1 << 18)
            ).int()
        if case["kernel"].startswith("softmax"):
            return torch.softmax(x.float(), dim=1)
        near = torch.nn.functional.pad(x, (1, 1, 1, 1))
        return 0.5 * x + 0.125 * (
            near[:-2, 1:-1] + near[2:, 1:-1] + near[1:-1, :-2] + near[1:-1, 2:]
        )

    def check(when: str) -> None:
        if counts:
            right = torch.equal(y, expected())
        else:
            right = torch.allclose(
                y.float(), expected(), rtol=0.02 if dtype == torch.bfloat16 else 1e-5, atol=1e-6
            )
        if not right:
            raise AssertionError(f"{case['kernel']}: wrong {when}")

    calls: dict[str, Callable[[int], None]] = {
        "numpipe": ours,
        "copy": lambda _: target.copy_(source),
    }
    ours(0)
    check("in the first call")
    samples = bench.compare(
        calls,
        reference="copy",
        **compare_options(options),
        poison=y.zero_,
        check=lambda protocol: check(f"under {protocol}"),
    )
    return bench.run_entry(process, case, 1e-12 * moved, samples, rotation_sets=1)


def main() -> int:
    parser = harness.script(__doc__)
    parser.add_argument("--shapes", nargs="+", default=("32768,16384",), metavar="ROWS,COLUMNS")
    for option, default, known in (
        ("--dtype", "bf16,f32", DTYPES),
        ("--layouts", "contiguous", LAYOUTS),
        ("--kernels", "", KERNELS),
    ):
        what = "in place of copies; " if option == "--kernels" else ""
        what += "comma-separated, or all, of: " + ", ".join(known)
        expand = lambda text, known=known: [*known] if text == "all" else harness.listed(text)
        parser.add_argument(option, default=expand(default), type=expand, help=what)
    options = harness.parse(parser, None, dtype=DTYPES, layouts=LAYOUTS, kernels=KERNELS)
    how: Callable[..., dict[str, Any]] = measure_kernel if options.kernels else measure
    cases: list[dict[str, Any]] = [{"kernel": name} for name in options.kernels] or [
        {"shape": shape, "dtype": dtype, "layout": layout}
        for shape in options.shapes
        for dtype in options.dtype
        for layout in options.layouts
    ]
    return harness.main(
        "by_rows" if options.kernels else "bandwidth",
        cases,
        lambda process, case: how(process, dict(case), options),
        unit="TB/s",
        **harness.main_options(options),
    )


if __name__ == "__main__":
    harness.run(main)
