"""ops.softmax and ops.log_softmax on the GPU against float64, in PyTorch and in JAX."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import numpipe
from numpipe import ops

torch = pytest.importorskip("torch")

NAMES = ["softmax", "log_softmax"]
SHAPES = [
    (64, 1),
    (1000, 8),
    (7, 50),
    (333, 201),
    (128, 1024),
    (33, 3001),
    (16, 4096),
    (5, 8191),
    (3, 16383),
    (2, 3, 16384),
    (3, 50257),
    (2, 131072),
    (2, 140001),
]
TOLERANCES = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_results_and_gradients_match_float64(name: str, dtype: Any) -> None:
    for shape in SHAPES:
        x = (3 * torch.randn(shape, device="cuda")).to(dtype).requires_grad_()
        wide, grad = x.detach().double().requires_grad_(), torch.randn(shape, device="cuda")
        y, wanted = getattr(numpipe.torch, name)(x), getattr(torch, name)(wide, -1)
        torch.testing.assert_close(
            y.double(), wanted, rtol=TOLERANCES[dtype], atol=TOLERANCES[dtype] * 1e-1
        )
        grad = grad.to(dtype)
        y.backward(grad)
        wanted.backward(grad.double())
        scale = wide.grad.abs().max().item() + grad.abs().max().item()
        assert (x.grad.double() - wide.grad).abs().max().item() <= 2 * TOLERANCES[dtype] * scale


def test_rows_of_any_layout_and_outputs() -> None:
    x = torch.randn(40, 50, 60, device="cuda")
    for view in (x, x[:, ::2, 5:], x[..., ::3], x.permute(2, 0, 1), x[0, 0], x[:0]):
        out = torch.full_like(view, float("nan"))
        assert ops.softmax(view, out=out) is out
        torch.testing.assert_close(out, torch.softmax(view, -1))


def test_a_cuda_graph_and_repeated_calls() -> None:
    x = torch.randn(256, 1000, device="cuda", dtype=torch.bfloat16)
    for _ in range(3):
        y = ops.softmax(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph), torch.no_grad():
        y = numpipe.torch.softmax(x)
    x.normal_()
    graph.replay()
    torch.testing.assert_close(y, torch.softmax(x, -1), rtol=1.6e-2, atol=1e-5)


def test_in_jax() -> None:
    jax = pytest.importorskip("jax")
    x = jax.random.normal(jax.random.key(0), (64, 1000), np.float32)
    for name in NAMES:
        ours, theirs = getattr(numpipe.jax, name), getattr(jax.nn, name)
        for function in (lambda f: f, lambda f: jax.grad(lambda v: (f(v) ** 2).sum())):
            got, wanted = jax.jit(function(ours))(x), jax.jit(function(theirs))(x)
            scale = float(abs(wanted).max())
            np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-6 * scale)
