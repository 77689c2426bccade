"""Compare the gradients of numpipe.ops.attention with cuDNN's, through torch's
scaled_dot_product_attention.

    cd examples/benchmarks
    python attention_backward.py --out result.json
    python attention_backward.py --shapes 4,16,16,4096,128 --masks causal --dtype f16

A shape is (batches, heads of q, heads of k and v, positions, depth). Rates are those of the five
matrix products' operations. The file has the relative errors of all gradients (Frobenius norm
against float64, of the heads that share the first head of k and v). A row fails if an error
exceeds cuDNN's by a factor of 1.05.
"""

from __future__ import annotations

import argparse
import itertools
import math
from collections.abc import Mapping
from typing import Any

import harness
from gemm_competitors import DTYPES
from harness.scripts import compare_options

from numpipe import bench
from numpipe.ops.attention import attention, attention_backward

SHAPES = (
    "4,16,16,4096,64",
    "4,16,16,4096,128",
    "1,16,16,16384,128",
    "2,64,8,4096,128",
    "4,16,16,4096,256",
)
MASKS = "full", "causal"
ERROR = 1.05
"""largest quotient of an error and cuDNN's"""


def exact(q: Any, k: Any, v: Any, grad: Any, causal: bool) -> tuple[Any, Any, Any]:
    """Return dQ, dK and dV of the heads that share the first head of k and v, in float64."""
    import torch

    group = q.shape[1] // k.shape[1]
    x, g = q[0, :group].double(), grad[0, :group].double()
    y, z, scale = k[0, 0].double(), v[0, 0].double(), q.shape[3] ** -0.5
    s = x @ y.mT * scale
    if causal:
        s = s.masked_fill(torch.ones_like(s[0], dtype=torch.bool).triu(1), -math.inf)
    p = s.softmax(-1)
    slopes = p * (g @ z.mT - (g * (p @ z)).sum(-1, keepdim=True))
    return slopes @ y * scale, (slopes.mT @ x).sum(0) * scale, (p.mT @ g).sum(0)


def measure(process: int, case: Mapping[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    """Measure one case in this process; return its entry of the result file."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    torch.manual_seed(process)
    batches, heads, shared, positions, depth = map(int, case["shape"].split(","))
    causal, group = case["mask"] == "causal", heads // shared

    def some(heads: int) -> Any:
        shape = batches, heads, positions, depth
        return torch.randn(*shape, device="cuda", dtype=getattr(torch, DTYPES[case["dtype"]]))

    q, grad, k, v = some(heads), some(heads), some(shared), some(shared)
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        made = torch.nn.functional.scaled_dot_product_attention(
            *leaves, is_causal=causal, enable_gqa=group > 1
        )
    o, lse = attention(q, k, v, causal=causal, return_lse=True)

    def ours(deterministic: bool) -> Any:
        given = q, k, v, o, lse, grad
        return attention_backward(*given, causal=causal, deterministic=deterministic)

    calls = {
        "numpipe": lambda _: ours(False),
        "deterministic": lambda _: ours(True),
        "cuDNN": lambda _: torch.autograd.grad(made, leaves, grad, retain_graph=True),
    }
    wanted, errors = exact(q, k, v, grad, causal), {}
    for name, call in calls.items():
        dq, dk, dv = call(0)
        found = dict(zip(("dq", "dk", "dv"), (dq[0, :group], dk[0, 0], dv[0, 0]), strict=True))
        errors |= {
            f"{name} {which}": harness.relative_error(x, right)
            for (which, x), right in zip(found.items(), wanted, strict=True)
        }
    for name, error in errors.items():
        if not error <= ERROR * errors[f"cuDNN {name.split()[1]}"]:
            raise AssertionError(f"errors {errors}, {case}")
    del wanted
    samples = bench.compare(calls, reference="cuDNN", **compare_options(options))
    work = 10e-12 * batches * heads * positions**2 * depth / (1 + causal)
    return bench.run_entry(process, case, work, samples, errors=errors)


def main() -> int:
    parser = harness.script(__doc__)
    parser.add_argument("--shapes", nargs="+", default=SHAPES, metavar="B,H,HK,S,D")
    parser.add_argument("--masks", nargs="+", default=MASKS, choices=MASKS)
    parser.add_argument("--dtype", default="bf16", choices=DTYPES)
    options = harness.parse(parser, None)
    cases: list[dict[str, Any]] = [
        {"shape": shape, "mask": mask, "dtype": options.dtype}
        for shape, mask in itertools.product(options.shapes, options.masks)
    ]
    return harness.main(
        "attention_backward",
        cases,
        lambda process, case: measure(process, case, options),
        **harness.main_options(options),
    )


if __name__ == "__main__":
    harness.run(main)
