"""Compare the gradients of numpipe.ops.attention with cuDNN's, through torch's
scaled_dot_product_attention.

    cd examples/benchmarks
    python attention_backward.py --out result.json
    python attention_backward.py --shapes 2,64/8,4096,128 --masks causal --dtype f16
    # 40 shapes as random_attention.py draws them, of 512 to 16384 positions
    python attention_backward.py --random 40 --seed 7 --out result.json

A shape is B,H/HK,S,D: batches, heads of queries and of keys, positions, depth of a head; S is
QUERIES:KEYS if they differ. Rates are those of the five matrix products' operations. The file has
the relative errors of all gradients (Frobenius norm against float64, of the heads that share the
first head of k and v). A row fails if an error exceeds cuDNN's by a factor of 1.05.
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
from random_attention import flops, random_cases, shape_of

from numpipe import bench
from numpipe.ops.attention import attention, attention_backward

SHAPES = (
    "4,16,4096,64",
    "4,16,4096,128",
    "1,16,16384,128",
    "2,64/8,4096,128",
    "4,16,4096,256",
)
MASKS = "full", "causal"
LENGTHS = 512, 16384
"""least and most positions of random shapes"""
ERROR = 1.05
"""largest quotient of an error and cuDNN's"""


def exact(q: Any, k: Any, v: Any, grad: Any, causal: bool) -> tuple[Any, Any, Any]:
    """Return dQ, dK and dV of the heads that share the first head of k and v, in float64."""
    import torch

    y, z, scale = k[0, 0].double(), v[0, 0].double(), q.shape[3] ** -0.5
    of_q, of_k, of_v = [], torch.zeros_like(y), torch.zeros_like(z)
    for head in range(q.shape[1] // k.shape[1]):  # one at a time: 2 GB for 16384 positions
        x, g = q[0, head].double(), grad[0, head].double()
        s = x @ y.mT * scale
        if causal:
            s = s.masked_fill(torch.ones_like(s, dtype=torch.bool).triu(1), -math.inf)
        p = s.softmax(-1)
        slopes = p * (g @ z.mT - (g * (p @ z)).sum(-1, keepdim=True))
        of_q.append(slopes @ y * scale)
        of_k += slopes.mT @ x * scale
        of_v += p.mT @ g
    return torch.stack(of_q), of_k, of_v


def measure(process: int, case: Mapping[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    """Measure one case in this process; return its entry of the result file."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    torch.manual_seed(process)
    shape = shape_of(case["shape"])
    batches, heads, shared, queries, keys, depth = shape
    causal, group = case["mask"] == "causal", heads // shared

    def some(heads: int, positions: int) -> Any:
        shape = batches, heads, positions, depth
        return torch.randn(*shape, device="cuda", dtype=getattr(torch, DTYPES[case["dtype"]]))

    q, grad = some(heads, queries), some(heads, queries)
    k, v = some(shared, keys), some(shared, keys)
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
    work = 2.5e-12 * flops(shape, causal)
    return bench.run_entry(process, case, work, samples, errors=errors)


def main() -> int:
    parser = harness.script(__doc__)
    parser.add_argument("--shapes", nargs="+", default=SHAPES, metavar="B,H/HK,S,D")
    parser.add_argument("--masks", nargs="+", default=MASKS, choices=MASKS)
    parser.add_argument("--dtype", default="bf16", choices=DTYPES)
    parser.add_argument("--random", type=int, metavar="N", help="N random shapes instead")
    parser.add_argument("--seed", type=int, default=0, help="of --random (default: %(default)s)")
    options = harness.parse(parser, None)
    cases: list[dict[str, Any]] = [
        {"shape": shape, "mask": mask, "dtype": options.dtype}
        for shape, mask in itertools.product(options.shapes, options.masks)
    ]
    if options.random is not None:
        cases = random_cases(options.random, options.seed, [options.dtype], LENGTHS)
    return harness.main(
        "attention_backward",
        cases,
        lambda process, case: measure(process, case, options),
        **harness.main_options(options),
    )


if __name__ == "__main__":
    harness.run(main)
