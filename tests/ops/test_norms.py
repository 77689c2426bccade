"""ops.layer_norm and ops.rms_norm, with residuals and gradients, in every schedule of rows."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import numpipe
from numpipe import SpecError, ops
from numpipe.ops.layer_norm import layer_norm_backward
from numpipe.ops.rms_norm import rms_norm_backward

NAMES = ["layer_norm", "rms_norm"]
BACKWARD = {"layer_norm": layer_norm_backward, "rms_norm": rms_norm_backward}
EPS = 1e-5


@pytest.fixture(autouse=True)
def simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMPIPE_TARGET", "sim")
    monkeypatch.setenv("NUMPIPE_COMPILE_CHECK", "0")


def numbers(*shape: int, dtype: Any = np.float32) -> Any:
    return (1 + np.random.default_rng(sum(shape)).standard_normal(shape)).astype(dtype)


def normed(name: str, x: Any) -> tuple[Any, Any]:
    """Return (the rows of x normed, 1 / their scale), in float64."""
    x = np.asarray(x, np.float64)
    x = x - x.mean(-1, keepdims=True) if name == "layer_norm" else x
    inverse = 1 / np.sqrt((x * x).mean(-1, keepdims=True) + EPS)
    return x * inverse, inverse


def gradient(name: str, x: Any, grad: Any, weight: Any) -> tuple[Any, Any, Any]:
    """Return the gradients of x, weight and bias in float64."""
    y, inverse = normed(name, x)
    grad = np.asarray(grad, np.float64)
    own = grad * weight
    dx = own - y * (own * y).mean(-1, keepdims=True)
    dx = dx - own.mean(-1, keepdims=True) * (name == "layer_norm")
    outer = tuple(range(x.ndim - 1))
    return dx * inverse, (grad * y).sum(outer), grad.sum(outer)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("given", list(itertools.product([False, True], repeat=3)), ids=str)
def test_weight_bias_and_residual_are_optional(name: str, given: tuple[bool, ...]) -> None:
    x, other = numbers(2, 5, 40), numbers(2, 5, 40)[::-1]
    named = dict(
        zip(("weight", "bias", "residual"), (numbers(40), numbers(41)[:40], other), strict=True)
    )
    named = {key: array for (key, array), use in zip(named.items(), given, strict=True) if use}
    if name == "rms_norm":
        named.pop("bias", None)
    made = getattr(ops, name)(x, **named, eps=EPS)
    y, total = made if "residual" in named else (made, x)
    np.testing.assert_allclose(total, x + named.get("residual", 0), rtol=1e-6)
    wanted = normed(name, total)[0] * named.get("weight", 1.0) + named.get("bias", 0.0)
    np.testing.assert_allclose(y, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("columns", [1, 33, 700, 3001, 9000])
@pytest.mark.parametrize("name", NAMES)
def test_the_gradient_kernel_agrees_with_numpy(name: str, columns: int) -> None:
    x, grad, weight = numbers(11, columns), numbers(11, columns)[::-1], numbers(columns)
    more = {"bias": True} if name == "layer_norm" else {}
    found = BACKWARD[name](x, grad, weight, eps=EPS, **more)
    for got, wanted in zip(found, gradient(name, x, grad, weight), strict=False):
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=2e-5)


def test_a_gradient_of_the_total_is_added_and_16_bit_arrays_keep_their_type() -> None:
    x, grad = numbers(9, 64, dtype=ml_dtypes.bfloat16), numbers(9, 64, dtype=ml_dtypes.bfloat16)
    dx = layer_norm_backward(x, grad, None, grad, eps=EPS)
    assert dx.dtype == x.dtype
    wanted = gradient("layer_norm", x, grad, 1.0)[0] + grad.astype(np.float64)
    assert np.linalg.norm(dx.astype(np.float64) - wanted) < 4e-3 * np.linalg.norm(wanted)


def test_the_gradients_of_vectors_have_the_same_bits_each_time() -> None:
    x, grad, weight = numbers(300, 40), numbers(300, 40), numbers(40)
    runs = [layer_norm_backward(x, grad, weight, bias=True) for _ in range(2)]
    for a, b in zip(*runs, strict=True):
        assert (a == b).all()


def test_rows_of_any_strides() -> None:
    x, weight = numbers(40, 6), numbers(40)
    y = ops.layer_norm(x.T, weight, eps=EPS)
    np.testing.assert_allclose(y, normed("layer_norm", x.T)[0] * weight, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda x: ops.layer_norm(x, np.zeros(7, np.float32)), "7 in 'weight'"),
        (lambda x: ops.rms_norm(x, eps=-1.0), "eps must be"),
        (lambda x: ops.layer_norm(x.astype(np.int32)), "'x' is int32, expected float16 or"),
        (lambda x: ops.rms_norm(x, None, x[:1]), "residual"),
        (lambda x: ops.layer_norm(np.zeros((1, 262145), np.float32)), "at most 262144 elements"),
    ],
)
def test_what_does_not_fit_is_refused(call: Callable[[Any], Any], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        call(numbers(3, 8))


# ---- PyTorch and JAX
@pytest.mark.parametrize("name", NAMES)
def test_in_pytorch_it_has_gradients(name: str) -> None:
    torch = pytest.importorskip("torch")
    shapes = [(5, 37), (37,)] + [(37,)] * (name == "layer_norm") + [(5, 37)]
    arrays = [torch.tensor(numbers(*shape), requires_grad=True) for shape in shapes]
    wide = [array.detach().double().requires_grad_() for array in arrays]
    x, *vectors, residual = arrays
    y, total = getattr(numpipe.torch, name)(x, *vectors, residual, eps=EPS)
    own = torch.tensor(numbers(5, 37))
    ((y * own).sum() + total.square().sum()).backward()
    x, *vectors, residual = wide
    function = getattr(torch.nn.functional, name)
    y = function(x + residual, (37,), *vectors, eps=EPS)
    ((y * own).sum() + (x + residual).square().sum()).backward()
    for a, b in zip(arrays, wide, strict=True):
        assert torch.allclose(a.grad.double(), b.grad, rtol=1e-4, atol=1e-4)
    torch.library.opcheck(getattr(torch.ops.numpipe, name).default, (arrays[0], arrays[1]))


@pytest.mark.parametrize("name", NAMES)
def test_in_jax_it_is_differentiated_and_mapped(name: str) -> None:
    jax = pytest.importorskip("jax")
    with jax.default_device(jax.devices("cpu")[0]):
        x, weight = jax.numpy.asarray(numbers(3, 4, 37)), jax.numpy.asarray(numbers(3, 37))
        ours = getattr(numpipe.jax, name)

        def theirs(x: Any, weight: Any) -> Any:
            x = x - x.mean(-1, keepdims=True) if name == "layer_norm" else x
            return x / jax.numpy.sqrt((x * x).mean(-1, keepdims=True) + EPS) * weight

        for function in (
            lambda f: jax.vmap(lambda x, w: f(x, w))(x, weight),
            lambda f: jax.jit(jax.vmap(lambda x: f(x, weight[0])))(x),
            lambda f: jax.grad(lambda w: (f(x, w) ** 3).sum())(weight[0]),
        ):
            mine = function(lambda x, w: ours(x, w, eps=EPS))
            np.testing.assert_allclose(mine, function(theirs), rtol=1e-3, atol=1e-3)
