"""Compare the forward and backward passes of numpipe.torch.matmul with PyTorch's product, by the
protocols of numpipe.bench.

    cd examples/benchmarks
    python torch_gradients.py --out result.json
    python torch_gradients.py --shapes 4096,14336,4096 --of layer --dtype bf16 --out result.json

A row is three products: y = x @ w.T, for x (M, K) and w (N, K), and the gradients of both for a
given gradient of y. "layer" is ``gelu(x @ w.T + bias)``, for which both sides use PyTorch's gelu,
because gradients are wanted. Both sides run eagerly, and autograd allocates their results. Errors
are those of y and of both gradients of "product", relative, in the Frobenius norm, of 64 rows
against float64; an error that exceeds PyTorch's by a factor of 1.05 is a failure.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from typing import Any

import harness
from harness.scripts import compare_options

from numpipe import bench

OURS, REFERENCE = "numpipe", "PyTorch"
DTYPES = {"bf16": "bfloat16", "f16": "float16"}
OF = ("product", "layer")
SHAPES = ("4096,4096,4096", "8192,8192,8192")
SAMPLED_ROWS, ERROR = 64, 1.05
Step = Callable[[Any, Any, Any], Any]


def steps(of: str) -> dict[str, Step]:
    """Return the forward pass of each competitor."""
    import torch
    from torch.nn import functional

    import numpipe.torch

    if of == "product":
        return {
            OURS: lambda x, w, bias: numpipe.torch.matmul(x, w.T),
            REFERENCE: lambda x, w, bias: torch.mm(x, w.T),
        }
    return {
        OURS: lambda x, w, bias: numpipe.torch.matmul(x, w.T, bias=bias, activation="gelu"),
        REFERENCE: lambda x, w, bias: functional.gelu(
            functional.linear(x, w, bias), approximate="tanh"
        ),
    }


def both(step: Step, x: Any, w: Any, bias: Any, grad: Any) -> tuple[Any, ...]:
    """Return y, the gradient of x and the gradient of w."""
    import torch

    y = step(x, w, bias)
    return (y, *torch.autograd.grad(y, (x, w), grad))


def errors(found: tuple[Any, ...], x: Any, w: Any, grad: Any) -> list[float]:
    """Return the relative errors of y, of x's gradient and of w's gradient, for sampled rows."""
    import torch

    x, w, grad = x.detach(), w.detach(), grad.detach()
    relative = []
    for got, left, right in zip(
        (each.detach() for each in found), (x, grad, grad.T), (w.T, w, x), strict=True
    ):
        rows = torch.randperm(got.shape[0], device=got.device)[:SAMPLED_ROWS]
        exact = left[rows].double() @ right.double()
        relative.append(harness.relative_error(got[rows], exact))
    return relative


def measure(
    process: int, case: Mapping[str, Any], options: argparse.Namespace, device: str = "cuda"
) -> dict[str, Any]:
    """Measure one case in this process; return its entry of the result file."""
    import torch

    torch.manual_seed(process)
    m, n, k = (int(size) for size in case["shape"].split(","))
    dtype = getattr(torch, DTYPES[case["dtype"]])
    count = bench.rotation_sets(
        2 * (m * k + n * k + m * n), torch.cuda.get_device_properties(0).L2_cache_size
    )
    sets = [
        [torch.randn(shape, device=device).to(dtype) for shape in ((m, k), (n, k), (n,), (m, n))]
        for _ in range(count)
    ]
    for x, w, *_ in sets:
        x.requires_grad_(), w.requires_grad_()
    known, found = steps(case["of"]), {}
    if case["of"] == "product":
        x, w, _, grad = sets[0]
        found = {name: errors(both(step, *sets[0]), x, w, grad) for name, step in known.items()}
        print(
            f"{case['shape']} {case['dtype']}: relative errors of y and gradients",
            found,
            flush=True,
        )
        if any(
            ours > ERROR * theirs
            for ours, theirs in zip(found[OURS], found[REFERENCE], strict=True)
        ):
            raise AssertionError(
                f"{OURS}: errors {found[OURS]}, {REFERENCE}'s are {found[REFERENCE]}, {case}"
            )
    calls = {
        name: lambda i, step=step: both(step, *sets[i % count]) for name, step in known.items()
    }
    samples = bench.compare(calls, reference=REFERENCE, **compare_options(options))
    return bench.run_entry(
        process, case, 6e-12 * m * n * k, samples, errors=found, rotation_sets=count
    )


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = harness.script(__doc__)
    parser.add_argument("--shapes", nargs="+", default=SHAPES, metavar="M,N,K")
    parser.add_argument(
        "--dtype",
        type=harness.listed,
        default=list(DTYPES),
        help="comma-separated, of: " + ", ".join(DTYPES),
    )
    parser.add_argument(
        "--of", type=harness.listed, default=list(OF), help="comma-separated, of: " + ", ".join(OF)
    )
    return harness.parse(parser, arguments, dtype=DTYPES, of=OF)


def main() -> int:
    options = parse()
    cases = [
        {"shape": shape, "of": of, "dtype": dtype}
        for shape in options.shapes
        for of in options.of
        for dtype in options.dtype
    ]
    return harness.main(
        "torch_gradients",
        cases,
        lambda process, case: measure(process, case, options),
        **harness.main_options(options),
    )


if __name__ == "__main__":
    harness.run(main)
