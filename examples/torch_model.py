"""Train a Llama-like PyTorch model with PyTorch's norms, rotary embeddings, gated units and loss,
and again with numpipe's.

    python examples/torch_model.py --layers 4 --width 1024 --compile

Prints the losses of each step, tokens per second of a step, and the peak memory.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from typing import Any

import torch
from torch import nn
from torch.nn import functional

import numpipe.torch

EPS, DEVICE = 1e-5, "cuda" if torch.cuda.is_available() else "cpu"
SIZES = {"layers": (8, 1), "width": (2048, 64), "depth": (128, 32), "vocabulary": (128_256, 128)}
SIZES |= {"batch": (4, 1), "tokens": (2048, 32), "steps": (10, 2)}
"""options, with defaults on a GPU and simulated"""


class PyTorch:
    @staticmethod
    def attention(q: Any, k: Any, v: Any) -> Any:
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    @staticmethod
    def norm(x: Any, weight: Any, residual: Any) -> tuple[Any, Any]:
        """Return the norm of x + residual, and this sum."""
        total = x + residual
        return functional.rms_norm(total, weight.shape, weight, EPS), total

    @staticmethod
    def rotary(x: Any, cos: Any, sin: Any) -> Any:
        a, b = x.chunk(2, -1)
        return torch.cat((a * cos - b * sin, a * sin + b * cos), -1)

    @staticmethod
    def swiglu(both: Any) -> Any:
        gate, up = both.chunk(2, -1)
        return functional.silu(gate) * up

    @staticmethod
    def loss(x: Any, weight: Any, labels: Any) -> Any:
        logits = functional.linear(x, weight).float()
        return functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


class Numpipe(PyTorch):
    """The same functions of numpipe, except attention. The loss never holds all logits."""

    @staticmethod
    def norm(x: Any, weight: Any, residual: Any) -> tuple[Any, Any]:
        return numpipe.torch.rms_norm(x, weight, residual, eps=EPS)

    rotary = staticmethod(numpipe.torch.rotary)
    swiglu = staticmethod(numpipe.torch.swiglu)
    loss = staticmethod(numpipe.torch.fused_linear_cross_entropy)


class Block(nn.Module):
    """Attention and a gated unit, of the last layer's output and the residual stream without it."""

    def __init__(self, functions: Any, width: int, hidden: int, depth: int) -> None:
        super().__init__()
        self.functions, self.depth = functions, depth
        self.norms = nn.ParameterList([torch.ones(width), torch.ones(width)])
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.gate_up = nn.Linear(width, 2 * hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Any, stream: Any, cos: Any, sin: Any) -> tuple[Any, Any]:
        y, stream = self.functions.norm(x, self.norms[0], stream)
        q, k, v = self.qkv(y).unflatten(-1, (-1, self.depth)).chunk(3, 2)
        q, k = self.functions.rotary(q, cos, sin), self.functions.rotary(k, cos, sin)
        q, k, v = (each.transpose(1, 2) for each in (q, k, v))  # (batch, heads, tokens, depth)
        y = self.functions.attention(q, k, v)
        y = self.out(y.transpose(1, 2).flatten(2))
        y, stream = self.functions.norm(y, self.norms[1], stream)
        return self.down(self.functions.swiglu(self.gate_up(y))), stream


class Model(nn.Module):
    """A decoder. `functions` is `PyTorch` or `Numpipe`."""

    def __init__(self, functions: Any, options: argparse.Namespace) -> None:
        super().__init__()
        self.functions, width, depth = functions, options.width, options.depth
        self.embedding = nn.Embedding(options.vocabulary, width)
        blocks = [Block(functions, width, 4 * width, depth) for _ in range(options.layers)]
        self.blocks = nn.ModuleList(blocks)
        self.norm = nn.Parameter(torch.ones(width))
        self.head = nn.Linear(width, options.vocabulary, bias=False)
        frequencies = 10_000.0 ** -(torch.arange(0, depth, 2) / depth)
        angles = torch.arange(options.tokens)[:, None, None] * frequencies  # for all heads
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, tokens: Any, labels: Any) -> Any:
        x = self.embedding(tokens)
        stream = torch.zeros_like(x)
        for block in self.blocks:
            x, stream = block(x, stream, self.cos, self.sin)
        x, _ = self.functions.norm(x, self.norm, stream)
        return self.functions.loss(x, self.head.weight, labels)


def train(functions: Any, options: argparse.Namespace) -> tuple[list[float], float, float]:
    """Train a new model on one batch. Return losses, tokens per second and peak memory in GB."""
    gc.collect()  # frees the last model
    if DEVICE == "cuda":
        torch.cuda.reset_peak_memory_stats()
    torch.manual_seed(0)
    with torch.device(DEVICE):
        model = Model(functions, options).to(torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    tokens = torch.randint(options.vocabulary, (options.batch, options.tokens), device=DEVICE)
    labels = tokens.roll(-1, 1)
    step = torch.compile(model) if options.compile else model
    losses, seconds = [], []
    for _ in range(options.steps):
        begun = time.perf_counter()
        loss = step(tokens, labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())  # waits for the step
        seconds.append(time.perf_counter() - begun)
    rate = options.batch * options.tokens / statistics.median(seconds[len(seconds) // 2 :])
    return losses, rate, 1e-9 * torch.cuda.max_memory_allocated()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, defaults in SIZES.items():
        parser.add_argument(f"--{name}", type=int, default=defaults[DEVICE == "cpu"])
    parser.add_argument("--compile", action="store_true", help="with torch.compile")
    options = parser.parse_args()
    theirs, ours = train(PyTorch, options), train(Numpipe, options)
    print("step       PyTorch   numpipe")
    for step, losses in enumerate(zip(theirs[0], ours[0], strict=True)):
        print(f"{step:<8} {losses[0]:7.4f}   {losses[1]:7.4f}")
    print(f"tokens/s {theirs[1]:7.0f}   {ours[1]:7.0f}   ratio {ours[1] / theirs[1]:.3f}")
    print(f"peak GB  {theirs[2]:7.1f}   {ours[2]:7.1f}")
