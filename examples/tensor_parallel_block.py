"""A transformer block, attention and MLP, on several GPUs, forward and backward, with either of two
layouts of the tokens.

    # one process per GPU
    torchrun --nproc-per-node 2 examples/tensor_parallel_block.py
    # all GPUs in one process
    python examples/tensor_parallel_block.py --local
    # simulated; no GPU is needed
    python examples/tensor_parallel_block.py --gpus 4

Each GPU has some of the heads and some of the MLP's columns, so each half of the block is a product
by columns of a weight, work on one GPU, and a product by rows of another weight, whose results are
summed over the GPUs::

                          tokens split                  all tokens on all GPUs
    x                     each GPU's own tokens         all tokens
    norm(x) @ w           all_gather_matmul             matmul
    attention, or silu    all tokens, own heads or columns
    y @ w                 matmul_reduce_scatter         matmul_all_reduce
    x + …                 each GPU's own tokens         all tokens

Split tokens need less memory, and each GPU computes the norms of its own tokens only. The other
layout sends as many bytes, and takes any number of tokens, also a single one.

Prints errors against float64.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from typing import Any

import torch
from tensor_parallel_mlp import error, shards

import numpipe
import numpipe.torch

WEIGHTS = "qkv", "proj", "up", "down"
DEPTH = 32
"""columns of a head"""


def each(function: Callable[..., Any], *arrays: Any) -> Any:
    """Call a function with the tensors of this rank, or with those of each simulated GPU."""
    if not isinstance(arrays[0], list):
        return function(*arrays)
    return [function(*of_gpu) for of_gpu in zip(*arrays, strict=True)]


def attention(qkv: Any) -> Any:
    """Return causal attention of the heads in the columns of queries, keys and values."""
    tokens = qkv.shape[0]
    q, k, v = qkv.reshape(tokens, 3, -1, DEPTH).permute(1, 2, 0, 3)[:, None]
    if qkv.dtype == torch.float64:  # the reference
        mask = torch.ones(tokens, tokens, dtype=torch.bool, device=qkv.device).tril()
        scores = (q @ k.mT / DEPTH**0.5).masked_fill(~mask, -torch.inf)
        found = torch.softmax(scores, -1) @ v
    else:
        found = numpipe.torch.scaled_dot_product_attention(q, k, v, is_causal=True)
    return found[0].transpose(0, 1).reshape(tokens, -1)


def norm(x: Any) -> Any:
    return torch.nn.functional.rms_norm(x, x.shape[-1:])


def block(x: Any, weights: dict[str, Any], mesh: numpipe.Mesh, split: bool) -> Any:
    """Return the block's tokens: this GPU's share if they are `split`, otherwise all."""

    def enter(x: Any, weight: Any) -> Any:
        rows = each(norm, x)
        if split:
            return numpipe.torch.all_gather_matmul(rows, weight, mesh=mesh)
        return each(numpipe.torch.matmul, rows, weight)

    def leave(x: Any, weight: Any) -> Any:
        op = numpipe.torch.matmul_reduce_scatter if split else numpipe.torch.matmul_all_reduce
        return op(x, weight, mesh=mesh)

    heads = each(attention, enter(x, weights["qkv"]))
    x = each(torch.add, x, leave(heads, weights["proj"]))
    hidden = each(torch.nn.functional.silu, enter(x, weights["up"]))
    return each(torch.add, x, leave(hidden, weights["down"]))


def whole_block(x: Any, weights: dict[str, Any]) -> Any:
    """Return the block's tokens, computed on one device."""
    x = x + attention(norm(x) @ weights["qkv"]) @ weights["proj"]
    return x + torch.nn.functional.silu(norm(x) @ weights["up"]) @ weights["down"]


def inputs(tokens: int, heads: int, hidden: int) -> tuple[Any, dict[str, Any], Any]:
    """Return x, the weights, and the gradient of the result in float32, the same in each
    process."""
    generator, width = torch.Generator().manual_seed(0), heads * DEPTH
    shapes = (width, 3 * width), (width, width), (width, hidden), (hidden, width)
    weights = {
        name: torch.randn(shape, generator=generator) * shape[0] ** -0.5
        for name, shape in zip(WEIGHTS, shapes, strict=True)
    }
    x, grad = (torch.randn(tokens, width, generator=generator) for _ in range(2))
    return x, weights, grad


def of_gpu(name: str, weight: Any, gpus: int) -> list[Any]:
    """Return each GPU's part of a weight, or of its gradient."""
    if name == "qkv":  # some heads of the queries, the keys and the values
        parts = shards(weight.reshape(len(weight), 3, -1), gpus, 2)
        return [part.reshape(len(weight), -1) for part in parts]
    return shards(weight, gpus, 1 if name == "up" else 0)


def errors(mesh: numpipe.Mesh, split: bool, sizes: Sequence[int]) -> dict[str, float]:
    """Return the largest errors of the result and of the gradients, over the GPUs of this
    process."""
    gpus = mesh.size
    x, weights, grad = inputs(*sizes)
    mine = range(gpus) if mesh.rank is None else [mesh.rank]
    devices = ["cpu" if mesh.gpus is None else f"cuda:{gpu}" for gpu in range(gpus)]

    def leaves(parts: list[Any]) -> Any:
        made = [
            parts[gpu].to(devices[gpu], torch.bfloat16).clone().requires_grad_() for gpu in mine
        ]
        return made if mesh.rank is None else made[0]

    def listed(tensors: Any) -> list[Any]:
        return tensors if isinstance(tensors, list) else [tensors]

    tokens = leaves(shards(x, gpus, 0) if split else [x] * gpus)
    parts = {name: leaves(of_gpu(name, weight, gpus)) for name, weight in weights.items()}
    y = block(tokens, parts, mesh, split)
    # each GPU has the whole result, so each has a share of its gradient
    grads = shards(grad, gpus, 0) if split else [grad / gpus] * gpus
    torch.autograd.backward(
        listed(y), [grads[gpu].to(devices[gpu], torch.bfloat16) for gpu in mine]
    )
    grad_x = each(lambda x: x.grad, tokens)
    if not split:
        grad_x = numpipe.ops.all_reduce(grad_x, mesh=mesh)
    mesh.check()

    device = devices[mine[0]]
    wide = {
        name: tensor.to(device, torch.bfloat16).double().requires_grad_()
        for name, tensor in {"x": x, **weights}.items()
    }
    wanted = whole_block(wide["x"], {name: wide[name] for name in WEIGHTS})
    wanted.backward(grad.to(device, torch.bfloat16).double())
    found = {"y": (y, wanted), "gradient of x": (grad_x, wide["x"].grad)}
    pairs = {
        name: (got, shards(want.detach(), gpus, 0) if split else [want.detach()] * gpus)
        for name, (got, want) in found.items()
    }
    for name in WEIGHTS:
        grads = of_gpu(name, wide[name].grad, gpus)
        pairs[f"gradient of {name}"] = each(lambda x: x.grad, parts[name]), grads
    return {
        name: max(
            error(got.detach().double(), wants[gpu].to(got.device))
            for gpu, got in zip(mine, listed(gots), strict=True)
        )
        for name, (gots, wants) in pairs.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gpus", type=int, default=2, help="number of simulated GPUs")
    parser.add_argument("--local", action="store_true", help="use all GPUs, in this process")
    options = parser.parse_args()
    if "LOCAL_RANK" in os.environ:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        torch.distributed.init_process_group(
            "nccl", device_id=torch.device("cuda", torch.cuda.current_device())
        )
        mesh, sizes = numpipe.Mesh.torch(), (2048, 32, 4096)
    elif options.local:
        mesh, sizes = numpipe.Mesh.local(), (2048, 32, 4096)
    else:
        mesh, sizes = numpipe.Mesh.simulated(options.gpus), (8 * options.gpus, options.gpus, 128)
    for split in (True, False):
        found = errors(mesh, split, sizes)
        print(
            f"{mesh!r}, {'tokens split' if split else 'all tokens on all GPUs'}: "
            + ", ".join(f"{name} {one:.4f}" for name, one in found.items())
        )
        assert max(found.values()) < 0.02, "larger than bfloat16's rounding errors"
    if mesh.rank is not None:
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
