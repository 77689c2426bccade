"""Expected results of the multi-GPU ops, by PyTorch in float64, and the shards that tests pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def shards(
    *shapes: tuple[int, ...],
    dtype: Any = torch.float16,
    grad: bool = False,
    gpus: int = 2,
    device: str = "cpu",
    seed: int = 0,
) -> list[list[Any]]:
    """Return for each shape a list with a tensor per GPU, the same in all processes."""
    generator = torch.Generator().manual_seed(sum(map(sum, shapes)) + 9973 * seed)
    return [
        [
            torch.randn(shape, generator=generator).to(device, dtype).requires_grad_(grad)
            for _ in range(gpus)
        ]
        for shape in shapes
    ]


def in_full(tensors: list[Any]) -> list[Any]:
    """Return the tensors in float64, as leaves that require gradients."""
    return [tensor.detach().double().requires_grad_() for tensor in tensors]


def scattered(whole: Any, gpus: int) -> list[Any]:
    return list(whole.reshape(gpus, -1, *whole.shape[1:]))


def exchanged(x: list[Any], counts: list[Any]) -> list[Any]:
    """Return what all_to_all delivers to each GPU."""
    parts = [
        torch.split(each[: sum(count.tolist())], count.tolist())
        for each, count in zip(x, counts, strict=True)
    ]
    return [torch.cat(each) for each in zip(*parts, strict=True)]


EXPECTED: dict[str, Callable[..., list[Any]]] = {
    "all_gather_matmul": lambda a, b: [torch.cat(a) @ each for each in b],
    "matmul_reduce_scatter": lambda a, b: scattered(
        sum(x @ y for x, y in zip(a, b, strict=True)), len(a)
    ),
    "matmul_all_reduce": lambda a, b: [sum(x @ y for x, y in zip(a, b, strict=True))] * len(a),
    "all_reduce": lambda x: [sum(x)] * len(x),
    "all_gather": lambda x: [torch.cat(x)] * len(x),
    "reduce_scatter": lambda x: scattered(sum(x), len(x)),
    "all_to_all": exchanged,
}
"""the expected result of each GPU, from all GPUs' tensors"""


def differs(got: Any, wanted: Any, tolerance: float) -> str:
    """Return how two tensors differ by more than a fraction of the largest value, or ""."""
    if got.shape != wanted.shape:
        return f"{tuple(got.shape)}, not {tuple(wanted.shape)}"
    apart = (
        float((got.detach().double() - wanted.detach().double()).abs().max())
        if got.numel()
        else 0.0
    )
    allowed = tolerance * (1 + float(wanted.detach().abs().max())) if got.numel() else 0.0
    return "" if apart <= allowed else f"{apart:.3g} apart, {allowed:.3g} allowed"
