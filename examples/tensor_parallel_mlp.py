"""A tensor-parallel MLP, forward and backward: two products on several GPUs, which transfer rows
while tiles are multiplied.

    # one process per GPU; compares with the whole MLP in float64
    torchrun --nproc-per-node 2 examples/tensor_parallel_mlp.py
    # forward only, NumPy arrays on two simulated GPUs; no GPU is needed
    python examples/tensor_parallel_mlp.py

The MLP is ``silu(x @ up) @ down`` of tokens x. Its weights are split between the GPUs, and so are
the tokens outside of it::

                      GPU 0                 GPU 1
    x                 tokens 0 … T/2        tokens T/2 … T
                        └──── all_gather_matmul ────┘               all tokens go to all GPUs
    silu(x @ up)      all tokens,           all tokens,
                      columns 0 … H/2       columns H/2 … H         each GPU has its own columns
                        └── matmul_reduce_scatter ──┘               each GPU gets its tokens' sums
    y                 tokens 0 … T/2        tokens T/2 … T

The backward pass is the same in reverse: the gradient of each of the two products is the other one,
so it too transfers rows while tiles are multiplied. Only the gradients of the weights gather rows
first and then multiply.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

import ml_dtypes
import numpy as np

import numpipe


def mlp(ops: Any, silu: Any, x: Any, up: Any, down: Any, mesh: numpipe.Mesh) -> Any:
    """Return the tokens of this GPU, or a list with those of each GPU. `ops` is `numpipe.ops`, or
    `numpipe.torch` for gradients."""
    hidden = silu(ops.all_gather_matmul(x, up, mesh=mesh))
    return ops.matmul_reduce_scatter(hidden, down, mesh=mesh)


def shards(whole: Any, gpus: int, dimension: int) -> list[Any]:
    """Return an array's parts along a dimension, one for each GPU."""
    size = whole.shape[dimension] // gpus
    return [
        whole[(slice(None),) * dimension + (slice(gpu * size, (gpu + 1) * size),)]
        for gpu in range(gpus)
    ]


def inputs(tokens: int, width: int, hidden: int) -> list[np.ndarray]:
    """Return x, up and down in float32, the same in each process."""
    rng = np.random.default_rng(0)
    return [
        (rng.standard_normal(shape, np.float32) * scale)
        for shape, scale in (
            ((tokens, width), 1.0),
            ((width, hidden), width**-0.5),
            ((hidden, width), hidden**-0.5),
        )
    ]


def error(found: Any, wanted: Any) -> float:
    """Return the relative error of an array in the Frobenius norm, in float64."""
    return float((((found - wanted) ** 2).sum() / (wanted**2).sum()) ** 0.5)


# ---- simulated
def simulated(gpus: int = 2, tokens: int = 64, width: int = 48, hidden: int = 96) -> float:
    """Return the largest error over the GPUs. The number of GPUs must divide tokens and hidden."""
    x, up, down = (array.astype(ml_dtypes.bfloat16) for array in inputs(tokens, width, hidden))

    def silu(parts: list[Any]) -> list[Any]:
        wide = [part.astype(np.float32) for part in parts]
        return [(part / (1 + np.exp(-part))).astype(ml_dtypes.bfloat16) for part in wide]

    y = mlp(
        numpipe.ops,
        silu,
        shards(x, gpus, 0),
        shards(up, gpus, 1),
        shards(down, gpus, 0),
        numpipe.Mesh.simulated(gpus),
    )
    sums = x.astype(np.float64) @ up.astype(np.float64)
    wanted = shards(sums / (1 + np.exp(-sums)) @ down.astype(np.float64), gpus, 0)
    return max(
        error(found.astype(np.float64), other) for found, other in zip(y, wanted, strict=True)
    )


# ---- a process for each GPU
def on_gpus(tokens: int = 2048, width: int = 1024, hidden: int = 4096) -> dict[str, float]:
    """Return this rank's errors of the result and of the gradients, by name."""
    import torch
    import torch.distributed as distributed
    from torch.nn.functional import silu

    import numpipe.torch

    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    distributed.init_process_group(
        "nccl", device_id=torch.device("cuda", torch.cuda.current_device())
    )
    mesh = numpipe.Mesh.torch()
    rank, gpus = distributed.get_rank(), mesh.size

    whole = [torch.from_numpy(array).cuda().bfloat16() for array in inputs(tokens, width, hidden)]
    cut = 0, 1, 0  # the dimension along which x, up and down are split
    x, up, down = (
        shards(array, gpus, along)[rank].clone().requires_grad_()
        for array, along in zip(whole, cut, strict=True)
    )
    grad = torch.randn(
        tokens, width, device="cuda", generator=torch.Generator("cuda").manual_seed(1)
    ).bfloat16()
    y = mlp(numpipe.torch, silu, x, up, down, mesh)
    y.backward(shards(grad, gpus, 0)[rank])
    mesh.check()  # waits for this GPU, and raises if a launch has lost its peers

    wide = [array.double().requires_grad_() for array in whole]
    wanted = silu(wide[0] @ wide[1]) @ wide[2]
    wanted.backward(grad.double())
    errors = {"y": error(y.detach().double(), shards(wanted.detach(), gpus, 0)[rank])}
    for name, mine, full, along in zip(("x", "up", "down"), (x, up, down), wide, cut, strict=True):
        errors[f"gradient of {name}"] = error(
            mine.grad.double(), shards(full.grad, gpus, along)[rank]
        )
    distributed.barrier()
    distributed.destroy_process_group()
    return errors


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--gpus",
        type=int,
        default=2,
        help="number of simulated GPUs; under torchrun, its processes determine the number",
    )
    options = parser.parse_args()
    started = "LOCAL_RANK" in os.environ
    errors = on_gpus() if started else {"y": simulated(options.gpus)}
    where = f"rank {os.environ['RANK']}" if started else f"{options.gpus} simulated GPUs"
    print(
        f"{where}: errors against float64: "
        + ", ".join(f"{name} {one:.4f}" for name, one in errors.items())
    )
    assert max(errors.values()) < 0.01, "larger than bfloat16's rounding error of about 0.004"


if __name__ == "__main__":
    main()
