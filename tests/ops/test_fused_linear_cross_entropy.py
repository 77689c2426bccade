"""ops.fused_linear_cross_entropy against float64, its memory, in PyTorch and in JAX."""

from __future__ import annotations

import importlib
import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import numpipe
from numpipe import SpecError, ops
from tests.ops.test_cross_entropy import expected, labels_of, near, numbers, simulated  # noqa: F401

fused: Any = importlib.import_module("numpipe.ops.fused_linear_cross_entropy")


def operands(rows: tuple[int, ...], depth: int, classes: int, dtype: Any) -> tuple[Any, Any, Any]:
    x = (numbers(*rows, depth) / 3).astype(dtype)
    weight = (numbers(classes, depth) / math.sqrt(depth)).astype(dtype)
    return x, weight, labels_of(np.zeros((*rows, classes)))


def exact(x: Any, weight: Any, labels: Any, smoothing: float, reduction: str) -> Any:
    """Return the loss and the gradients of x and weight, in float64."""
    flat, wide = x.reshape(-1, x.shape[-1]).astype(np.float64), weight.astype(np.float64)
    loss, grad = expected(flat @ wide.T, labels.reshape(-1), smoothing, reduction)
    return loss, (grad @ wide).reshape(x.shape), grad.T @ flat


@pytest.mark.parametrize(
    ("rows", "depth", "classes", "dtype", "smoothing", "reduction"),
    [
        ((3, 3), 40, 50, np.float16, 0.1, "mean"),
        ((3,), 64, 77, ml_dtypes.bfloat16, 0.0, "sum"),
        ((7,), 24, 50, ml_dtypes.bfloat16, 0.0, "mean"),
    ],
    ids=str,
)
def test_loss_and_gradients_match_float64(
    rows: tuple[int, ...], depth: int, classes: int, dtype: Any, smoothing: float, reduction: str
) -> None:
    x, weight, labels = operands(rows, depth, classes, dtype)
    options = {"label_smoothing": smoothing, "reduction": reduction}
    bound = 8e-3 if dtype == ml_dtypes.bfloat16 else 1e-3
    right = exact(x, weight, labels, **{"smoothing": smoothing, "reduction": reduction})
    made = ops.fused_linear_cross_entropy(x, weight, labels, with_gradients=True, **options)
    scale = float(made[3])
    assert near(made[0], right[0], bound)
    for found, wanted in zip(made[1:3], right[1:], strict=True):
        assert near(found.astype(np.float64) * scale, wanted, bound)
    assert ops.fused_linear_cross_entropy(x, weight, labels, **options) == made[0]


def test_operands_and_gradients_of_any_layout() -> None:
    x, weight, labels = operands((4, 5), 24, 50, np.float16)
    right = exact(x, weight, labels, 0.0, "mean")
    x, weight = np.asfortranarray(x), np.asfortranarray(weight)
    outs = (
        np.zeros((), np.float32),
        np.zeros((24, 5, 4), np.float16).T,
        np.zeros((24, 50), np.float16).T,
        np.zeros((), np.float32),
    )
    ops.fused_linear_cross_entropy(x, weight, labels, with_gradients=True, out=outs)
    for found, wanted in zip(outs, right, strict=False):
        scale = 1 if found is outs[0] else float(outs[3])
        assert near(found.astype(np.float64) * scale, wanted, 1e-3)


def test_gradients_of_no_rows_are_0() -> None:
    x, weight, labels = operands((0,), 24, 50, np.float16)
    loss, dx, dweight, _ = ops.fused_linear_cross_entropy(x, weight, labels, with_gradients=True)
    assert np.isnan(loss) and dx.shape == (0, 24) and not dweight.any()


@pytest.mark.parametrize("rows", [4, 7, 100, 5000, 8192])
def test_at_most_a_quarter_of_the_logits_is_in_memory(rows: int) -> None:
    """Chunks are recorded, not computed."""
    from numpipe.kernels.noted_calls import imagined, noting

    dtype, classes = np.dtype(np.float16), 640
    shapes = {"x": (rows, 64), "weight": (classes, 64), "dx": (rows, 64), "dweight": (classes, 64)}
    arrays = {name: imagined(shape, dtype) for name, shape in shapes.items()}
    arrays |= {name: imagined((), np.float32) for name in ("loss", "scale")}
    labels = imagined((rows,), np.int32)
    with noting() as notes:
        fused._launch(
            **arrays,
            labels=labels,
            label_smoothing=0.0,
            ignore_index=-100,
            debug=False,
            reduction="mean",
            place={"target": "sim", "stream": None},
        )
    given = {array.ptr for array in arrays.values()} | {labels.ptr}
    every = [a for call in notes.calls for a in (*call.args, *call.named.values())]
    logits = [a for a in every if hasattr(a, "ptr") and classes in a.shape and a.ptr not in given]
    assert logits and len({a.ptr for a in logits}) == 1
    assert max(math.prod(a.shape) for a in logits) <= rows * classes // 4


def test_what_does_not_fit_is_refused() -> None:
    x, weight, labels = operands((4,), 24, 50, np.float16)
    for given, words in (
        ((x.astype(np.float32), weight, labels), "'x' is float32, expected float16 or bfloat16"),
        ((x, weight[:, :8], labels), r"d = 24 in 'x' \(4, 24\), 8 in 'weight' \(50, 8\)"),
        ((x, weight[:0], labels), r"weight must have a row for each class, got shape \(0, 24\)"),
    ):
        with pytest.raises(SpecError, match=words):
            ops.fused_linear_cross_entropy(*given)
    with pytest.raises(SpecError, match="reduction must be 'mean' or 'sum', got 'none'"):
        ops.fused_linear_cross_entropy(x, weight, labels, reduction="none")


# ---- PyTorch
def test_in_pytorch_it_has_gradients() -> None:
    torch = pytest.importorskip("torch")
    x, weight, labels = (torch.tensor(each) for each in operands((2, 5), 24, 50, np.float16))
    narrow = [x.requires_grad_(), weight.requires_grad_()]
    wide = [each.detach().double().requires_grad_() for each in narrow]
    loss = numpipe.torch.fused_linear_cross_entropy(*narrow, labels)
    logits = torch.nn.functional.linear(*wide).flatten(0, 1)
    right = torch.nn.functional.cross_entropy(logits, labels.flatten())
    (3 * loss).backward()
    (3 * right).backward()
    assert abs(loss.item() - right.item()) < 1e-3
    for found, wanted in zip(narrow, wide, strict=True):
        assert near(found.grad.double().numpy(), wanted.grad.numpy(), 2e-3)


# ---- JAX
def test_in_jax_it_is_differentiated_and_mapped() -> None:
    jax = pytest.importorskip("jax")
    with jax.default_device(jax.devices("cpu")[0]):
        x, weight, labels = operands((2, 5), 24, 50, np.float16)
        arrays = (
            jax.numpy.asarray(x),
            jax.numpy.asarray(weight),
            jax.numpy.asarray(labels, np.int32),
        )
        function = numpipe.jax.fused_linear_cross_entropy
        loss, grads = jax.jit(jax.value_and_grad(function, (0, 1)))(*arrays)
        right = exact(x, weight, labels, 0.0, "mean")
        assert near(loss, right[0], 1e-3)
        for found, wanted in zip(grads, right[1:], strict=True):
            assert near(found, wanted, 2e-3)
        mapped = jax.vmap(function, (0, None, 0))(*arrays)
        assert near(mapped[0], exact(x[0], weight, labels[0], 0.0, "mean")[0], 1e-3)
