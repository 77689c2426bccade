"""ops.cross_entropy and ops.fused_linear_cross_entropy on the GPU against float64, in PyTorch and
in JAX."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

import numpipe
from numpipe import ops

# read when JAX is imported: the other processes need memory too
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
torch = pytest.importorskip("torch")

PROCESSES = 4

SHAPES = [(64, 1), (1000, 8), (333, 201), (2, 64, 1024), (33, 3001), (16, 16384), (40, 50257)]
SHAPES += [(30, 128256), (3, 140001)]
TOLERANCES = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


def labels_of(shape: Any, dtype: Any = torch.int64) -> Any:
    labels = torch.randint(shape[-1], shape[:-1], device="cuda", dtype=dtype)
    labels.view(-1)[1] = -100
    return labels


def theirs(x: Any, labels: Any, **options: Any) -> Any:
    found = torch.nn.functional.cross_entropy(x.flatten(0, -2), labels.flatten().long(), **options)
    return found.view(labels.shape) if found.ndim else found


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
def test_losses_and_gradients_match_float64(dtype: Any, smoothing: float) -> None:
    for number, shape in enumerate(SHAPES):
        reduction = ("mean", "sum", "none")[number % 3]
        options: dict[str, Any] = {"label_smoothing": smoothing, "reduction": reduction}
        x = (3 * torch.randn(shape, device="cuda")).to(dtype).requires_grad_()
        labels = labels_of(shape, (torch.int32, torch.int64)[number % 2])
        wide = x.detach().double().requires_grad_()
        y, right = (
            numpipe.torch.cross_entropy(x, labels, **options),
            theirs(wide, labels, **options),
        )
        assert y.dtype == torch.float32
        torch.testing.assert_close(y.double(), right, rtol=2e-6, atol=2e-5)
        grad = torch.rand_like(y)
        y.backward(grad)
        right.backward(grad.double())
        bound = TOLERANCES[dtype] * wide.grad.norm().item() + 1e-12
        assert (x.grad.double() - wide.grad).norm().item() <= bound, shape
        place = x.detach().clone()
        loss, made = ops.cross_entropy(
            place, labels, with_gradient=True, out=(torch.empty_like(y), place), **options
        )
        assert made is place and torch.allclose(loss, y.detach(), rtol=1e-5, atol=1e-5)
        wide.grad = None
        theirs(wide, labels, **options).sum().backward()
        bound = TOLERANCES[dtype] * wide.grad.norm().item() + 1e-12
        assert (place.double() - wide.grad).norm().item() <= bound, shape


def test_ignored_rows_have_zero_gradients_and_infinities_are_as_in_torch() -> None:
    for columns in (40, 3000, 17000):
        x = torch.randn(5, columns, device="cuda")
        x[0, 5:], x[1, 7], x[2], x[3, 3], x[4] = (
            -torch.inf,
            torch.inf,
            -torch.inf,
            torch.nan,
            torch.nan,
        )
        labels = torch.tensor([1, 7, 0, 0, -100], device="cuda")
        loss, grad = ops.cross_entropy(x, labels, with_gradient=True, reduction="none")
        torch.testing.assert_close(loss, theirs(x, labels, reduction="none"), equal_nan=True)
        assert (grad[4] == 0).all() and (grad[0, 5:] == 0).all()
        assert ops.cross_entropy(x[4:], labels[4:]).isnan()


@pytest.mark.parametrize("columns", [40, 3000, 17000])
def test_a_label_outside_the_vocabulary_is_reported_with_debug(columns: int) -> None:
    x = torch.randn(3, columns, device="cuda")
    for wrong in (-1, columns):
        labels = torch.tensor([0, wrong, 2], device="cuda")
        with pytest.raises(numpipe.SimulationError, match=f"index {wrong} .*outside") as raised:
            ops.cross_entropy(x, labels, debug=True)
            torch.cuda.synchronize()
            numpipe.last_failure()
        assert raised.value.report is not None and raised.value.report.hazard == "out-of-bounds"
    labels[1] = columns - 1
    found = ops.cross_entropy(x, labels, debug=True)
    torch.testing.assert_close(found, theirs(x, labels))
    numpipe.last_failure()


def test_a_cuda_graph() -> None:
    x = torch.randn(256, 20000, device="cuda", dtype=torch.bfloat16)
    labels = labels_of(x.shape)
    for _ in range(3):
        y = ops.cross_entropy(x, labels)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph), torch.no_grad():
        y = numpipe.torch.cross_entropy(x, labels)
    x.normal_()
    graph.replay()
    torch.testing.assert_close(y, theirs(x.float(), labels))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_fused_linear_cross_entropy(dtype: Any) -> None:
    for rows, depth, classes in ((5, 64, 100), (1100, 256, 1003), (4096, 512, 32000)):
        x = torch.randn(rows, depth, device="cuda").to(dtype).requires_grad_()
        weight = (
            (torch.randn(classes, depth, device="cuda") / depth**0.5).to(dtype).requires_grad_()
        )
        labels = labels_of((rows, classes))
        wide = [each.detach().double().requires_grad_() for each in (x, weight)]
        right = theirs(torch.nn.functional.linear(*wide), labels)
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        loss = numpipe.torch.fused_linear_cross_entropy(x, weight, labels)
        held = torch.cuda.max_memory_allocated() - before
        if rows == 4096:
            gradients = (x.numel() + weight.numel()) * 2
            assert held <= rows * classes * 2 / 4 + gradients + (1 << 22)
        (2 * loss).backward()
        (2 * right).backward()
        torch.testing.assert_close(loss.double(), right, rtol=1e-3, atol=1e-3)
        for found, wanted in zip((x, weight), wide, strict=True):
            bound = 2 * TOLERANCES[dtype] * wanted.grad.norm().item()
            assert (found.grad.double() - wanted.grad).norm().item() <= bound
        torch.testing.assert_close(
            ops.fused_linear_cross_entropy(x.detach(), weight.detach(), labels), loss.detach()
        )


def test_labels_may_be_a_window_of_tokens() -> None:
    x, weight = (torch.randn(size, device="cuda").half() for size in ((3, 25, 64), (100, 64)))
    labels = labels_of((3, 26, 100))[:, 1:]
    for function, operands in (
        (ops.cross_entropy, (x @ weight.T,)),
        (ops.fused_linear_cross_entropy, (x, weight)),
    ):
        found, wanted = (function(*operands, each) for each in (labels, labels.contiguous()))
        assert torch.equal(found, wanted)


def test_in_jax() -> None:
    jax = pytest.importorskip("jax")
    x = jax.random.normal(jax.random.key(0), (64, 20000), np.float32)
    labels = jax.random.randint(jax.random.key(1), (64,), 0, 20000)

    def right(x: Any, labels: Any) -> Any:
        return -jax.numpy.take_along_axis(jax.nn.log_softmax(x), labels[:, None], 1).mean()

    for of in (lambda f: f, jax.grad):
        got, wanted = (jax.jit(of(f))(x, labels) for f in (numpipe.jax.cross_entropy, right))
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-7)
