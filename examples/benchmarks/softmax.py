"""Measure softmax and log_softmax of rows, forward and backward, in TB/s moved, against PyTorch and
a copy of as many bytes.

    cd examples/benchmarks
    python softmax.py --out result.json
    python softmax.py --shapes 131072,1024 8192,5001 --dtype bf16,f32 --out result.json

A forward pass reads x and writes y, like a copy of x. A backward pass reads y and its gradient and
writes the gradient of x, so its copy has 1.5 times the elements. Outputs are allocated beforehand.
Buffers rotate over twice the size of the L2 cache. The first results are compared with float64 in
sampled rows; all later ones must have the same bits.
"""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from numpipe import bench, ops
from numpipe.ops.log_softmax import log_softmax_backward
from numpipe.ops.softmax import softmax_backward

sys.path.insert(0, str(Path(__file__).resolve().parent))

import harness

SHAPES = ("65536,4096", "131072,1024", "16384,16384")
DTYPES = {"bf16": "bfloat16", "f16": "float16", "f32": "float32"}
ERRORS = {"bf16": 4e-3, "f16": 5e-4, "f32": 2e-6}
"""largest relative errors (Frobenius norm) of sampled rows, by element type"""
OF = ("softmax", "log_softmax")
PASSES = ("forward", "backward")
SAMPLED_ROWS = 64


def ours(arrays: list[Any], out: Any, log: bool) -> Callable[[], object]:
    """Return the call of numpipe's op on inputs and an output."""
    if len(arrays) == 1:
        return functools.partial(ops.log_softmax if log else ops.softmax, *arrays, out=out)
    grad, y = arrays
    backward = log_softmax_backward if log else softmax_backward
    return functools.partial(backward, y, grad, out=out)


def theirs(arrays: list[Any], out: Any, log: bool) -> Callable[[], object]:
    """Return PyTorch's operation on inputs and an output."""
    import torch

    aten = torch.ops.aten
    if len(arrays) == 2:
        if log:
            return lambda: aten._log_softmax_backward_data.out(*arrays, 1, out.dtype, out=out)
        return lambda: aten._softmax_backward_data.out(*arrays, 1, out.dtype, grad_input=out)
    operation = (aten._log_softmax if log else aten._softmax).out
    return lambda: operation(*arrays, 1, False, out=out)


def exact(arrays: list[Any], log: bool) -> Any:
    """Return the exact result of some rows, in float64."""
    import torch

    if len(arrays) == 1:
        return (torch.log_softmax if log else torch.softmax)(arrays[0].double(), 1)
    g, y = (array.double() for array in arrays)
    if log:
        return g - y.exp() * g.sum(1, keepdim=True)
    return y * (g - (g * y).sum(1, keepdim=True))


def measure(process: int, case: dict[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    """Measure one case in this process; return its entry of the result file."""
    import torch

    torch.manual_seed(process)
    rows, columns = (int(size) for size in case["shape"].split(","))
    dtype, log = getattr(torch, DTYPES[case["dtype"]]), case["of"] == "log_softmax"
    count = 2 if case["pass"] == "backward" else 1
    nbytes = rows * columns * dtype.itemsize
    cached = torch.cuda.get_device_properties(0).L2_cache_size
    sets = range(bench.rotation_sets((count + 1) * nbytes, cached))

    def inputs() -> list[Any]:
        x = torch.randn(rows, columns, device="cuda").to(dtype)
        if count == 1:
            return [x]
        y = (torch.log_softmax if log else torch.softmax)(torch.randn_like(x), 1)
        return [x, y]

    arrays = [inputs() for _ in sets]
    sources = [
        torch.randn(rows * columns * (count + 1) // 2, device="cuda").to(dtype) for _ in sets
    ]
    calls = {}
    for name, make in (("numpipe", ours), ("PyTorch", theirs)):
        outs = [torch.empty_like(each[0]) for each in arrays]
        runs = [make(each, out, log) for each, out in zip(arrays, outs, strict=True)]
        calls[name] = harness.InPlace(outs, lambda i, _, runs=runs: runs[i]())
    calls["copy"] = harness.InPlace(
        [torch.empty_like(each) for each in sources], lambda i, out: out.copy_(sources[i])
    )
    harness.run_all(calls, len(sets))
    some = torch.randperm(rows, device="cuda")[:SAMPLED_ROWS]
    errors = {
        name: max(
            harness.relative_error(out[some], exact([array[some] for array in each], log))
            for each, out in zip(arrays, calls[name].outs, strict=True)
        )
        for name in ("numpipe", "PyTorch")
    }
    unwritten = any(bool(torch.isnan(out).any()) for out in calls["numpipe"].outs)
    if unwritten or not errors["numpipe"] <= ERRORS[case["dtype"]]:
        raise AssertionError(f"numpipe: errors {errors}, elements unwritten: {unwritten}, {case}")
    samples = harness.compare_checked(calls, "copy", options, str(case))
    return bench.run_entry(
        process,
        case,
        1e-12 * (count + 1) * nbytes,
        samples,
        errors=errors,
        rotation_sets=len(sets),
    )


def main() -> int:
    parser = harness.script(__doc__)
    parser.add_argument("--shapes", nargs="+", default=SHAPES, metavar="ROWS,COLUMNS")
    for option, default, known in (
        ("--dtype", ["bf16"], DTYPES),
        ("--of", ["softmax"], OF),
        ("--passes", list(PASSES), PASSES),
    ):
        what = "comma-separated, of: " + ", ".join(known)
        parser.add_argument(option, default=default, type=harness.listed, help=what)
    options = harness.parse(parser, None, dtype=DTYPES, of=OF, passes=PASSES)
    cases: list[dict[str, Any]] = [
        {"shape": shape, "of": of, "pass": which, "dtype": dtype}
        for shape in options.shapes
        for dtype in options.dtype
        for of in options.of
        for which in options.passes
    ]
    return harness.main(
        "softmax",
        cases,
        lambda process, case: measure(process, dict(case), options),
        unit="TB/s",
        **harness.main_options(options),
    )


if __name__ == "__main__":
    harness.run(main)
