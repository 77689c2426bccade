# ruff: noqa: E402, E501, E741
"""Time examples/attention_backward.py against the backward pass of cuDNN through PyTorch, interleaved,
with the errors of dQ, dK and dV against float64.

python examples/benchmarks/attention_backward.py 'B,H,HK,S,D,causal' SECONDS mod:kwargs ..."""

import importlib
import math
import sys
import time

sys.path[:0] = [".tmp", "examples"]
import numpy as np
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

shape, seconds, *variants = sys.argv[1:]
B, H, HK, S, D, causal = map(int, shape.split(","))
torch.manual_seed(0)
q, do = (torch.randn(B, H, S, D, device="cuda", dtype=torch.bfloat16) for _ in range(2))
k, v = (torch.randn(B, HK, S, D, device="cuda", dtype=torch.bfloat16) for _ in range(2))
from numpipe.ops import attention

o, lse = attention(q, k, v, causal=bool(causal), return_lse=True)
leaves = [x.detach().requires_grad_() for x in (q, k, v)]
with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
    out = torch.nn.functional.scaled_dot_product_attention(
        *leaves, is_causal=bool(causal), enable_gqa=H != HK
    )


def cudnn():
    return torch.autograd.grad(out, leaves, do, retain_graph=True)


runs, kernels = {"cudnn": cudnn}, {}
padded = -(-S // 128) * 128
stats, delta = (torch.empty(B, H, padded, device="cuda") for _ in range(2))
acc = torch.empty(B, H, padded, D, device="cuda")
dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
scale = D**-0.5
for text in variants:
    name, kw = text.split(":", 1)
    mod = importlib.import_module(name)
    try:
        kernel = mod.backward(D, bool(causal), **eval(f"dict({kw})"))

        def main(kernel=kernel):
            kernel(
                q,
                k,
                v,
                do,
                stats,
                delta,
                acc,
                dk,
                dv,
                scale=scale,
                scale_log2=scale * math.log2(math.e),
                diagonal=0,
                group=min(8, B * HK),
            )

        def full(kernel=kernel, mod=mod, main=main):
            mod.prepare(D)(o, do, lse, stats, delta, acc)
            main()
            mod.convert(D)(acc, dq, scale=scale)
            return dq, dk, dv

        t0 = time.time()
        full()
        torch.cuda.synchronize()
        runs[text] = full
        print(f"# {text} compiled {time.time() - t0:.1f} s", flush=True)
    except Exception as e:
        print("#", text, type(e).__name__, str(e)[:300])
first = next(iter(v for n, v in runs.items() if n != "cudnn"), None)


# errors of one kv head
def exact():
    g = H // HK
    Q, DO = q[0, :g].double(), do[0, :g].double()
    K, V = k[0, 0].double(), v[0, 0].double()
    s = Q @ K.T * scale
    if causal:
        s = s.masked_fill(torch.ones(S, S, device="cuda", dtype=torch.bool).triu(1), -math.inf)
    p = s.softmax(-1)
    O = p @ V
    dp = DO @ V.T
    dS = p * (dp - (DO * O).sum(-1, keepdim=True))
    return dS @ K * scale, (dS.transpose(1, 2) @ Q).sum(0) * scale, (p.transpose(1, 2) @ DO).sum(0)


want = exact() if S <= 4096 else None


def errors(got):
    got = got[0][0, : H // HK], got[1][0, 0], got[2][0, 0]
    return (
        " ".join(
            f"{((a.double() - w).norm() / w.norm()).item():.5f}"
            for a, w in zip(got, want, strict=False)
        )
        if want
        else ""
    )


error = {n: errors(f()) for n, f in runs.items()}
times = {n: [] for n in runs}
mains = {}
names = list(runs)
end = time.time() + float(seconds)
while time.time() < end:
    for name in names:
        a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        a.record()
        runs[name]()
        b.record()
        times[name].append((a, b))
    torch.cuda.synchronize()
med = {
    n: float(np.median([a.elapsed_time(b) for a, b in t[len(t) // 2 :]])) for n, t in times.items()
}
flop = 10 * B * H * S * S * D / (2 if causal else 1)
print(f"== {shape}  rounds {len(times['cudnn'])}")
for n in names:
    print(
        f"{n:60s} {med[n]:.3f} ms {flop / med[n] / 1e9:5.0f} TF  x{med['cudnn'] / med[n]:.3f}  err {error[n]}"
    )
for n, f in runs.items():
    if n == names[-1]:

        def t(f, c=5):
            a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            f()
            a.record()
            [f() for _ in range(c)]
            b.record()
            torch.cuda.synchronize()
            return a.elapsed_time(b) / c

        print(
            "prepare",
            t(lambda: mod.prepare(D)(o, do, lse, stats, delta, acc)),
            "main",
            t(main),
            "convert",
            t(lambda: mod.convert(D)(acc, dq, scale=scale)),
        )
