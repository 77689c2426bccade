"""Time the gradients of numpipe.ops.attention against cuDNN's through PyTorch, interleaved in one
process, with the errors of dQ, dK and dV of the first head of k and v against float64.

python examples/benchmarks/attention_backward.py B,H,HK,S,D,CAUSAL … [--rounds N] [--dtype float16]
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Sequence

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from numpipe.ops.attention import attention, attention_backward

Tensors = Sequence[torch.Tensor]


def exact(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, grad: torch.Tensor, causal: bool):  # type: ignore[no-untyped-def]
    """Return dQ, dK and dV of the heads that share the first head of k and v, in float64."""
    group = q.shape[1] // k.shape[1]
    x, g = q[0, :group].double(), grad[0, :group].double()
    y, z, scale = k[0, 0].double(), v[0, 0].double(), q.shape[3] ** -0.5
    s = x @ y.mT * scale
    if causal:
        s = s.masked_fill(torch.ones_like(s[0], dtype=torch.bool).triu(1), -math.inf)
    p = s.softmax(-1)
    slopes = p * (g @ z.mT - (g * (p @ z)).sum(-1, keepdim=True))
    return slopes @ y * scale, (slopes.mT @ x).sum(0) * scale, (p.mT @ g).sum(0)


def errors(found: Tensors, expected: Tensors, group: int) -> str:
    """Return the relative errors of dQ, dK and dV of the first head of k and v."""
    parts = found[0][0, :group], found[1][0, 0], found[2][0, 0]
    pairs = zip(parts, expected, strict=True)
    return " ".join(f"{float((x - y).norm() / y.norm()):.5f}" for x, y in pairs)


def measure(shape: str, rounds: int, dtype: torch.dtype) -> None:
    """Print the times of one shape."""
    batches, heads, shared, positions, depth, causal = map(int, shape.split(","))
    torch.manual_seed(0)

    def some(heads: int) -> torch.Tensor:
        return torch.randn(batches, heads, positions, depth, device="cuda", dtype=dtype)

    q, grad, k, v = some(heads), some(heads), some(shared), some(shared)
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        made = torch.nn.functional.scaled_dot_product_attention(
            *leaves, is_causal=bool(causal), enable_gqa=heads > shared
        )
    o, lse = attention(q, k, v, causal=bool(causal), return_lse=True)
    given = q, k, v, o, lse, grad
    runs = {
        "cuDNN": lambda: torch.autograd.grad(made, leaves, grad, retain_graph=True),
        "numpipe": lambda: attention_backward(*given, causal=bool(causal)),
        "deterministic": lambda: attention_backward(
            *given, causal=bool(causal), deterministic=True
        ),
    }
    expected = exact(q, k, v, grad, bool(causal))
    wrong = {name: errors(f(), expected, heads // shared) for name, f in runs.items()}
    del expected
    times: dict[str, list] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, f in runs.items():
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            f()
            end.record()
            times[name].append((start, end))
    torch.cuda.synchronize()
    operations = 10 * batches * heads * positions**2 * depth / (2 if causal else 1)
    first = 0.0
    for name, pairs in times.items():
        ms = statistics.median(start.elapsed_time(end) for start, end in pairs)
        first = first or ms
        print(
            f"{shape} {name:13} {ms:.3f} ms {operations / ms / 1e9:4.0f} TFLOPS, {first / ms:.3f} "
            f"of cuDNN's speed, errors {wrong[name]}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shapes", nargs="+", metavar="B,H,HK,S,D,CAUSAL")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--dtype", default="bfloat16")
    given = parser.parse_args()
    for shape in given.shapes:
        measure(shape, given.rounds, getattr(torch, given.dtype))


if __name__ == "__main__":
    main()
