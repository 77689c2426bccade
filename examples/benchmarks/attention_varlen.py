"""Measure numpipe.ops.attention_varlen on an H200 or H100: visible pairs of queries and keys per
second, relative to equally long sequences of numpipe.ops.attention.

    python examples/benchmarks/attention_varlen.py
    python examples/benchmarks/attention_varlen.py --heads 32 --depth 64 --total 65536

The lengths are drawn from three distributions; "short" is also compared with sequences of its own
mean. Calls are interleaved, and the table has medians.
"""

from __future__ import annotations

import argparse
import random
import statistics
from collections.abc import Callable
from typing import Any

import torch

from numpipe import ops
from numpipe.ops.attention import attention_backward
from numpipe.ops.attention_varlen import attention_varlen_backward

ROUNDS = 12


def lengths(kind: str, total: int) -> list[int]:
    """Return lengths that add up to `total`."""
    draw, found = random.Random(0), [total // 2] * (kind == "one long")
    while left := total - sum(found):
        n = {
            "uniform": lambda: draw.randint(1, total // 4),
            "one long": lambda: draw.randint(64, 1024),
            "short": lambda: int(draw.lognormvariate(6.5, 0.8)) + 1,
        }[kind]()
        found.append(min(n, left))
    return found


def pairs(sizes: list[int], causal: bool) -> int:
    return sum(n * (n + 1) // 2 if causal else n * n for n in sizes)


def calls(options: argparse.Namespace, causal: bool) -> dict[str, tuple[int, Callable, Callable]]:
    """Return (pairs, forward, backward) by name."""

    def tensors(*shape: int) -> list[Any]:
        made = [torch.randn(shape, device="cuda").bfloat16() for _ in range(4)]
        return [*made, [torch.empty_like(made[0]) for _ in range(3)]]

    def equal(n: int) -> tuple[int, Callable, Callable]:
        count = options.total // n
        q, k, v, grad, outs = tensors(count, n, options.heads, options.depth)
        how: dict[str, Any] = {"causal": causal, "layout": "bshd"}
        o, lse = ops.attention(q, k, v, return_lse=True, **how)
        return (
            pairs([n] * count, causal),
            lambda: ops.attention(q, k, v, out=outs[0], **how),
            lambda: attention_backward(q, k, v, o, lse, grad, out=tuple(outs), **how),
        )

    def varying(sizes: list[int]) -> tuple[int, Callable, Callable]:
        q, k, v, grad, outs = tensors(sum(sizes), options.heads, options.depth)
        at = torch.tensor([0, *sizes]).cumsum(0).int().cuda()
        o, lse = ops.attention_varlen(q, k, v, at, at, causal=causal, return_lse=True)
        given = q, k, v, at, at
        return (
            pairs(sizes, causal),
            lambda: ops.attention_varlen(*given, causal=causal, out=outs[0]),
            lambda: attention_varlen_backward(*given, o, lse, grad, causal=causal, out=tuple(outs)),
        )

    made = {f"equal, {options.equal}": equal(options.equal)}
    for kind in ("uniform", "one long", "short"):
        sizes = lengths(kind, options.total)
        made[f"{kind}, {len(sizes)} sequences"] = varying(sizes)
    mean = options.total // len(sizes) // 8 * 8
    return made | {f"equal, {mean}": equal(mean)}


def measure(options: argparse.Namespace, causal: bool) -> None:
    made = calls(options, causal)
    times: dict[tuple[str, int], list[tuple]] = {}
    for _ in range(ROUNDS):
        for name, (_, *both) in made.items():
            for part, call in enumerate(both):
                begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                begin.record()
                call()
                end.record()
                times.setdefault((name, part), []).append((begin, end))
    torch.cuda.synchronize()
    rates: dict[str, list[float]] = {}
    for name, (count, *_) in made.items():
        for part in range(2):
            kept = times[name, part][ROUNDS // 3 :]
            seconds = 1e-3 * statistics.median(a.elapsed_time(b) for a, b in kept)
            rates.setdefault(name, []).append(count * options.heads / seconds)
    print(f"{'causal' if causal else 'full':28} forward (of equal)   backward (of equal)")
    first = next(iter(rates.values()))
    for name, own in rates.items():
        cells = (f"{x:.3g} ({x / base:.3f})" for x, base in zip(own, first, strict=True))
        print(f"{name:28} " + "     ".join(cells))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, default in (("heads", 16), ("depth", 128), ("total", 32768), ("equal", 4096)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    for causal in (False, True):
        measure(options, causal)
