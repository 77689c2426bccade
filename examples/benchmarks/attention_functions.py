"""Compare score and mask functions of numpipe.ops.attention with PyTorch's FlexAttention, compiled.

    cd examples/benchmarks
    python attention_functions.py --out result.json
    python attention_functions.py --functions window documents --shapes 1,16,16384,128 --out r.json

A shape is (batches, heads, positions, depth). For "numpipe", the blocks of a mask are computed once
(`attention_blocks`), as is FlexAttention's BlockMask; "with blocks" computes them in each call. A
case fails if the relative error against float64 exceeds FlexAttention's by a factor of 1.05.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from typing import Any

import harness
import numpy as np
from harness.scripts import compare_options

import numpipe
from numpipe import bench
from numpipe.ops import attention, attention_blocks

SHAPES = ("1,16,16384,128",)
WINDOW, CAP, DOCUMENTS, ERROR, ROWS = 1024, 20.0, 16, 1.05, 128


@numpipe.function
def causal(batch, head, query, key):  # type: ignore[no-untyped-def]
    return query >= key


@numpipe.function
def window(batch, head, query, key):  # type: ignore[no-untyped-def]
    return (query >= key) & (query - key < WINDOW)


@numpipe.function
def documents(batch, head, query, key, ids):  # type: ignore[no-untyped-def]
    return ids[query] == ids[key]


@numpipe.function
def soft_cap(score, batch, head, query, key):  # type: ignore[no-untyped-def]
    """CAP * tanh(score / CAP), more exact than the approximate np.tanh of the kernel."""
    return CAP - 2.0 * CAP / (1.0 + np.exp(score * (2.0 / CAP)))


@numpipe.function
def alibi(score, batch, head, query, key, slopes):  # type: ignore[no-untyped-def]
    return score + slopes[head] * (key - query).astype(np.float32)


FUNCTIONS = {"causal": "", "window": "", "documents": "ids", "soft_cap": "", "alibi": "slopes"}
"""function -> the array that it takes"""


def peer(name: str, array: Any) -> Callable[..., Any]:
    """Return a function in PyTorch."""
    import torch

    found: dict[str, Callable[..., Any]] = {
        "causal": lambda b, h, q, k: q >= k,
        "window": lambda b, h, q, k: (q >= k) & (q - k < WINDOW),
        "documents": lambda b, h, q, k: array[q] == array[k],
        "soft_cap": lambda s, b, h, q, k: CAP * torch.tanh(s / CAP),
        "alibi": lambda s, b, h, q, k: s + array[h] * (k - q),
    }
    return found[name]


def exact(q: Any, k: Any, v: Any, of: Callable[..., Any], mask: bool, rows: Any) -> Any:
    """Return some rows of the first head in float64."""
    import torch

    x, y, z = (each[0, 0].double() for each in (q, k, v))
    s = x[rows] @ y.T * q.shape[3] ** -0.5
    i, j = rows[:, None], torch.arange(len(y), device=q.device)[None]
    s = s.masked_fill(~of(0, 0, i, j), -torch.inf) if mask else of(s, 0, 0, i, j)
    return s.softmax(-1) @ z


def measure(process: int, case: Mapping[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    """Measure one case in this process; return its entry of the result file."""
    import torch
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    torch.manual_seed(process)
    batches, heads, positions, depth = (int(size) for size in case["shape"].split(","))
    q, k, v = (
        torch.randn(batches, heads, positions, depth, device="cuda").bfloat16() for _ in range(3)
    )
    starts = torch.randperm(positions, device="cuda")[: DOCUMENTS - 1]
    ids = torch.zeros(positions, device="cuda").index_fill(0, starts, 1).cumsum(0).int()
    slopes = torch.exp2(-torch.arange(1.0, heads + 1, device="cuda") * 8 / heads)
    name = case["function"]
    of, array = globals()[name], {"ids": ids, "slopes": slopes}.get(FUNCTIONS[name])
    given = (of,) if array is None else (of, array)
    mask, theirs = name in ("causal", "window", "documents"), peer(name, array)
    flex, out = torch.compile(flex_attention, dynamic=False), torch.empty_like(q)
    calls: dict[str, Callable[[int], Any]]
    if mask:
        blocks = attention_blocks(q, k, mask=given)
        theirs_blocks = create_block_mask(theirs, None, None, positions, positions, device="cuda")
        calls = {
            "numpipe": lambda _: attention(q, k, v, mask=given, blocks=blocks, out=out),
            "with blocks": lambda _: attention(q, k, v, mask=given, out=out),
            "FlexAttention": lambda _: flex(q, k, v, block_mask=theirs_blocks),
        }
    else:
        calls = {
            "numpipe": lambda _: attention(q, k, v, score=given, out=out),
            "FlexAttention": lambda _: flex(q, k, v, score_mod=theirs),
        }
    if name == "causal":
        calls["causal=True"] = lambda _: attention(q, k, v, causal=True, out=out)
    rows = torch.randint(0, positions, (ROWS,), device="cuda")
    right = exact(q, k, v, theirs, mask, rows)
    errors = {
        who: harness.relative_error(call(0)[0, 0, rows], right) for who, call in calls.items()
    }
    if not errors["numpipe"] <= ERROR * errors["FlexAttention"]:
        raise AssertionError(f"relative errors {errors}, {case}")
    samples = bench.compare(calls, reference="FlexAttention", **compare_options(options))
    work = 4e-12 * batches * heads * positions**2 * depth
    return bench.run_entry(process, case, work, samples, errors=errors)


def main() -> int:
    parser = harness.script(__doc__)
    parser.add_argument("--shapes", nargs="+", default=SHAPES, metavar="B,H,S,D")
    parser.add_argument("--functions", nargs="+", default=list(FUNCTIONS), choices=list(FUNCTIONS))
    options = harness.parse(parser, None)
    cases: list[dict[str, Any]] = [
        {"shape": shape, "function": name, "dtype": "bf16"}
        for shape in options.shapes
        for name in options.functions
    ]
    return harness.main(
        "attention_functions",
        cases,
        lambda process, case: measure(process, case, options),
        **harness.main_options(options),
    )


if __name__ == "__main__":
    harness.run(main)
