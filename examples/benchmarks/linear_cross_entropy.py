"""Compare fused_linear_cross_entropy, loss and gradients, with PyTorch's three matrix products
alone and with PyTorch's own loss.

    cd examples/benchmarks
    python linear_cross_entropy.py --out result.json
    python linear_cross_entropy.py --shapes 4096,4096,32000 --out result.json

A shape is (tokens, features, vocabulary). The products are the logits and the gradients of x and of
the weight, which any implementation has to compute. Rates are those of the products' operations.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from typing import Any

import harness
from harness.scripts import compare_options

from numpipe import bench, ops

SHAPES = ("8192,4096,128256",)
ERROR = 1.05
"""largest quotient of the gradients' errors and PyTorch's"""


def competitors(x: Any, weight: Any, labels: Any) -> dict[str, Callable[[int], Any]]:
    """Return functions that compute (loss, gradient of x, gradient of weight), or the products."""
    import torch
    from torch.nn import functional

    def fused(_: int) -> Any:
        return ops.fused_linear_cross_entropy(x, weight, labels, with_gradients=True)

    def eager(_: int) -> Any:
        with torch.enable_grad():
            leaves = x.detach().requires_grad_(), weight.detach().requires_grad_()
            loss = functional.cross_entropy(functional.linear(*leaves), labels)
            return loss, *torch.autograd.grad(loss, leaves)

    def products(_: int) -> Any:
        logits = x @ weight.T
        return logits, logits @ weight, logits.T @ x

    return {"numpipe": fused, "PyTorch": eager, "products": products}


def exact(x: Any, weight: Any, labels: Any) -> tuple[Any, Any]:
    """Return the loss and the gradient of x in float64, computed in parts of the rows."""
    import torch
    from torch.nn import functional

    wide, loss, gradients = weight.double(), 0.0, []
    for part, own in zip(x.split(512), labels.split(512), strict=True):
        logits = part.double() @ wide.T
        loss += float(functional.cross_entropy(logits, own, reduction="sum"))
        logits = logits.softmax(1)
        logits[torch.arange(len(own), device=x.device), own] -= 1
        gradients.append(logits @ wide)
    return loss / len(x), torch.cat(gradients) / len(x)


def measure(process: int, case: Mapping[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    """Measure one case in this process; return its entry of the result file."""
    import torch

    torch.manual_seed(process)
    tokens, features, classes = (int(size) for size in case["shape"].split(","))
    x = torch.randn(tokens, features, device="cuda").bfloat16()
    weight = (torch.randn(classes, features, device="cuda") / features**0.5).bfloat16()
    labels = torch.randint(classes, (tokens,), device="cuda")
    calls = competitors(x, weight, labels)
    loss, gradient = exact(x, weight, labels)
    found, dx, _, scale = calls["numpipe"](0)
    ours = harness.relative_error(dx.double() * scale, gradient)
    theirs = harness.relative_error(calls["PyTorch"](0)[1], gradient)
    if not abs(float(found) / loss - 1) < 1e-3 or not ours <= ERROR * theirs:
        raise AssertionError(f"loss {float(found)}, not {loss}; errors {ours} and {theirs}, {case}")
    del gradient, dx
    samples = bench.compare(calls, reference="products", **compare_options(options))
    errors = {"numpipe": ours, "PyTorch": theirs}
    work = 6e-12 * tokens * features * classes
    return bench.run_entry(process, case, work, samples, errors=errors)


def main() -> int:
    parser = harness.script(__doc__)
    parser.add_argument("--shapes", nargs="+", default=SHAPES, metavar="TOKENS,FEATURES,CLASSES")
    options = harness.parse(parser, None)
    cases: list[dict[str, Any]] = [{"shape": shape, "dtype": "bf16"} for shape in options.shapes]
    return harness.main(
        "linear_cross_entropy",
        cases,
        lambda process, case: measure(process, case, options),
        **harness.main_options(options),
    )


if __name__ == "__main__":
    harness.run(main)
