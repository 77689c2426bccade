"""Train a small language model with numpipe's attention, and again with PyTorch's, on text that is
generated.

    python examples/train_transformer.py                     # losses over seeds
    python examples/train_transformer.py --layers 8 --width 2048 --tokens 4096 --batch 2 \\
        --steps 12 --seeds 1 --compile                       # tokens per second

The text is a list of variables and their values, such as ``k=31 b=77 k=31``. A variable keeps its
value in a document, but has another one in the next, so a model that only counts frequencies cannot
predict a value: it has to look up where the variable was before. Without that, the loss stays at
some 1.7; if all values are predicted, what is left is a random letter in five characters, some 0.8.

Prints the mean loss and its standard deviation over seeds, tokens per second, the ratio of the
steps' times, and the share of a step that attention takes.
"""

from __future__ import annotations

import argparse
import statistics
import string
import time
from typing import Any

import torch
from torch_model import DEVICE, Model, Numpipe

import numpipe.torch

SIZES = {"layers": (4, 2), "width": (512, 64), "depth": (128, 32), "batch": (8, 4)}
SIZES |= {"tokens": (1024, 40), "steps": (200, 4), "seeds": (3, 1)}
"""options, with defaults on a GPU and simulated"""
LETTERS, DIGITS = (torch.tensor(list(map(ord, x))) for x in (string.ascii_letters, string.digits))


class SDPA(Numpipe):
    """numpipe's norms, rotary embeddings, gated units and loss, with PyTorch's attention."""


class Ours(Numpipe):
    """The same with numpipe's attention."""

    @staticmethod
    def attention(q: Any, k: Any, v: Any) -> Any:
        return numpipe.torch.scaled_dot_product_attention(q, k, v, is_causal=True)


def documents(count: int, length: int, generator: Any) -> Any:
    """Return `count` texts of `length` characters as a tensor of bytes."""
    values = torch.randint(10, (count, len(LETTERS), 2), generator=generator)
    which = torch.randint(len(LETTERS), (count, length // 5 + 1), generator=generator)
    digits = DIGITS[values[torch.arange(count)[:, None], which]]
    equal, space = (torch.full((*which.shape, 1), ord(x)) for x in "= ")
    return torch.cat((LETTERS[which][..., None], equal, digits, space), 2).flatten(1)[:, :length]


def train(functions: Any, options: argparse.Namespace, seed: int) -> tuple[list[float], float]:
    """Train a new model. Return the losses of all steps, and the median seconds of a step."""
    torch.manual_seed(seed)
    with torch.device(DEVICE):
        model = Model(functions, options).to(torch.bfloat16)
    step = torch.compile(model) if options.compile else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.rate, fused=DEVICE == "cuda")
    generator = torch.Generator().manual_seed(seed)
    losses, times = [], []
    for _ in range(options.steps):
        text = documents(options.batch, options.tokens + 1, generator).to(DEVICE)
        begun = clock()
        loss = step(text[:, :-1], text[:, 1:].contiguous())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        times.append(clock() - begun)
        losses.append(loss.item())
    return losses, median(times)


def clock() -> float:
    """Return the time in seconds, after all that was launched has finished."""
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def median(times: list[float]) -> float:
    """Return the median of the second half: before it, kernels are compiled."""
    return statistics.median(times[len(times) // 2 :])


def attention_seconds(functions: Any, options: argparse.Namespace) -> float:
    """Return the seconds that the attention of all layers takes in a step."""
    shape = options.batch, options.tokens, options.width // options.depth, options.depth
    arrays = [torch.randn(shape, device=DEVICE).bfloat16().transpose(1, 2) for _ in range(4)]
    q, k, v = (x.requires_grad_() for x in arrays[:3])
    times = []
    for _ in range(min(20, options.steps)):
        begun = clock()
        for _ in range(options.layers):
            functions.attention(q, k, v).backward(arrays[3])
        times.append(clock() - begun)
    return median(times)


def compare(options: argparse.Namespace) -> dict[str, list[list[float]]]:
    """Train with both, and print losses and speeds. Return the losses for each seed."""
    curves, seconds = {}, {}
    for functions in (SDPA, Ours):
        runs = [train(functions, options, seed) for seed in range(options.seeds)]
        curves[functions.__name__] = [losses for losses, _ in runs]
        seconds[functions.__name__] = statistics.median(each for _, each in runs)
    print("step      " + "".join(f"{name:>20}" for name in curves))
    for step in sorted({*range(0, options.steps, max(1, options.steps // 10)), options.steps - 1}):
        at = [torch.tensor([run[step] for run in runs]) for runs in curves.values()]
        cells = (f"{x.mean():13.4f} ± {x.std(correction=0):.3f} " for x in at)
        print(f"{step:<10}" + "".join(cells))
    for functions in (SDPA, Ours):
        whole, own = seconds[functions.__name__], attention_seconds(functions, options)
        print(
            f"{functions.__name__:6} {options.batch * options.tokens / whole:10.0f} tokens/s, "
            f"step {1e3 * whole:.2f} ms, of it attention {own / whole:.1%}"
        )
    print(f"steps of numpipe's attention: {seconds['SDPA'] / seconds['Ours']:.3f} x the speed")
    return curves


def parsed(*given: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, defaults in SIZES.items():
        parser.add_argument(f"--{name}", type=int, default=defaults[DEVICE == "cpu"])
    parser.add_argument("--rate", type=float, default=1e-3, help="of learning")
    parser.add_argument("--compile", action="store_true", help="with torch.compile")
    return parser.parse_args(given or None, argparse.Namespace(vocabulary=128))


if __name__ == "__main__":
    compare(parsed())
