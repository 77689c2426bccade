"""Time examples/attention_backward.py against cuDNN's backward pass through PyTorch, interleaved,
with the errors of dQ, dK and dV of the first head of k and v against float64.

python examples/benchmarks/attention_backward.py B,H,HK,S,D,CAUSAL [ROUNDS]
"""

import math
import statistics
import sys
from pathlib import Path

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from attention_backward import backward, run

shape, rounds = sys.argv[1], int((*sys.argv, 20)[2])
B, H, HK, S, D, causal = map(int, shape.split(","))
group = H // HK
scale = D**-0.5
torch.manual_seed(0)
q, do = (torch.randn(B, H, S, D, device="cuda", dtype=torch.bfloat16) for _ in range(2))
k, v = (torch.randn(B, HK, S, D, device="cuda", dtype=torch.bfloat16) for _ in range(2))
hidden = torch.ones(S, S, device="cuda", dtype=torch.bool).triu(1) if causal else None


def scores(q, k):
    s = q @ k.mT * scale
    return s.masked_fill(hidden, -math.inf) if causal else s


def exact():
    x, g = q[0, :group].double(), do[0, :group].double()
    y, z = k[0, 0].double(), v[0, 0].double()
    p = scores(x, y).softmax(-1)
    dp = g @ z.mT
    ds = p * (dp - (g * (p @ z)).sum(-1, keepdim=True))
    return ds @ y * scale, (ds.mT @ x).sum(0) * scale, (p.mT @ g).sum(0)


def errors(made):
    made = made[0][0, :group], made[1][0, 0], made[2][0, 0]
    return " ".join(f"{(x - y).norm() / y.norm():.5f}" for x, y in zip(made, expected, strict=True))


leaves = [x.detach().requires_grad_() for x in (q, k, v)]
with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
    out = torch.nn.functional.scaled_dot_product_attention(
        *leaves, is_causal=bool(causal), enable_gqa=group > 1
    )
o = out.detach().contiguous()
lse = torch.empty(B, H, S, device="cuda")
for b in range(B):
    for h in range(H):
        lse[b, h] = scores(q[b, h].float(), k[b, h // group].float()).logsumexp(-1)
expected = exact()
kernel = backward(D, bool(causal))


def empty(shape, dtype):
    dtype = dtype if isinstance(dtype, torch.dtype) else torch.float32
    return torch.empty(shape, device="cuda", dtype=dtype)


runs = {
    "cuDNN": lambda: torch.autograd.grad(out, leaves, do, retain_graph=True),
    "numpipe": lambda: run(kernel, q, k, v, o, lse, do, empty),
}
error = {name: errors(f()) for name, f in runs.items()}
times = {name: [] for name in runs}
for _ in range(rounds):
    for name, f in runs.items():
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        f()
        end.record()
        times[name].append((start, end))
torch.cuda.synchronize()
flops = 10 * B * H * S * S * D / (2 if causal else 1)
first = None
for name, pairs in times.items():
    ms = statistics.median(start.elapsed_time(end) for start, end in pairs)
    first = first or ms
    print(
        f"{shape} {name:8} {ms:.3f} ms {flops / ms / 1e9:4.0f} TFLOPS, {first / ms:.3f} of cuDNN's "
        f"speed, errors {error[name]}",
        flush=True,
    )
