"""ops.softmax and ops.log_softmax for arrays of any layout, in PyTorch and in JAX, with second
gradients.

tests/calls/test_rows.py tests the kernels of shorter rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import numpipe
from numpipe import SpecError, ops
from numpipe.kernels import row_kernels
from numpipe.kernels.row_schedules import Needs, choose
from numpipe.ops.softmax import backward, forward, softmax_backward
from tests.kernels.rows_of_kernels import in_steps, schedule_for

NAMES = ["softmax", "log_softmax"]


@pytest.fixture(autouse=True)
def simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMPIPE_TARGET", "sim")
    monkeypatch.setenv("NUMPIPE_COMPILE_CHECK", "0")


def numbers(*shape: int, dtype: Any = np.float32) -> Any:
    return (3 * np.random.default_rng(sum(shape)).standard_normal(shape)).astype(dtype)


def expected(name: str, x: Any) -> Any:
    x = np.asarray(x, np.float64)
    logarithm = x - x.max(-1, keepdims=True)
    logarithm = logarithm - np.log(np.exp(logarithm).sum(-1, keepdims=True))
    return logarithm if name == "log_softmax" else np.exp(logarithm)


LAYOUTS: dict[str, Callable[[Any], Any]] = {
    "contiguous": lambda x: x,
    "one row": lambda x: x[0, 0],
    "rows apart": lambda x: x[:, ::2, 3:],
    "columns apart": lambda x: x[..., ::2],
    "transposed": lambda x: x.T,
    "repeated": lambda x: np.broadcast_to(x[:1], x.shape),
    "nothing": lambda x: x[:0],
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", NAMES)
def test_rows_of_any_layout(name: str, layout: str) -> None:
    x = LAYOUTS[layout](numbers(3, 4, 70))
    np.testing.assert_allclose(getattr(ops, name)(x), expected(name, x), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("columns", [17001, 40004])
@pytest.mark.parametrize("name", NAMES)
def test_rows_of_any_length(name: str, columns: int) -> None:
    x, grad = numbers(2, columns), numbers(2, 1, columns)[:, 0]
    y, right = getattr(ops, name)(x), expected(name, x)
    assert np.linalg.norm(y - right) < 1e-6 * np.linalg.norm(right)
    wide, g = y.astype(np.float64), grad.astype(np.float64)
    if name == "softmax":
        right = wide * (g - (g * wide).sum(1, keepdims=True))
    else:
        right = g - np.exp(wide) * g.sum(1, keepdims=True)
    made = softmax_backward(y, grad, log=name == "log_softmax")
    assert np.linalg.norm(made - right) < 1e-6 * np.linalg.norm(right)


def test_steps_of_a_gradient_show_no_hazard() -> None:
    x = numbers(3, 3004)
    kernel = backward(log=False).scheduled(in_steps(3004, 2, operands=2))
    found = numpipe.verify(kernel, x, x, x.copy(), schedules=5)
    assert found.ok, str(found)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16], ids=["f16", "bf16"])
def test_types_of_16_bits_are_summed_in_float32(dtype: Any) -> None:
    x = numbers(5, 1030, dtype=dtype)
    made = ops.softmax(x)
    assert made.dtype == dtype
    np.testing.assert_allclose(
        made.astype(np.float64), expected("softmax", x), rtol=1e-2, atol=1e-6
    )


def test_a_result_may_go_to_an_array_of_any_strides() -> None:
    x, out = numbers(6, 40), np.full((40, 6), np.nan, np.float32)
    assert ops.softmax(x, out=out.T).base is out
    np.testing.assert_allclose(out.T, expected("softmax", x), rtol=1e-5)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: ops.softmax(np.zeros((2, 8), np.int32)), "'x' is int32, expected float16 or"),
        (lambda: ops.softmax(np.zeros((), np.float32)), "softmax: 'x' must have the dimensions"),
        (
            lambda: ops.softmax(np.zeros((2, 8), np.float32), out=np.zeros((2, 7), np.float32)),
            r"'out' must be float32 \(2, 8\), got float32 \(2, 7\)",
        ),
    ],
)
def test_what_does_not_fit_is_refused(call: Callable[[], Any], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        call()


# ---- PyTorch
@pytest.mark.parametrize("name", NAMES)
def test_in_pytorch_it_has_gradients_of_gradients(name: str) -> None:
    torch = pytest.importorskip("torch")
    x = torch.tensor(numbers(5, 37), requires_grad=True)
    wide = x.detach().double().requires_grad_()
    ours: Any = getattr(numpipe.torch, name)
    weight = torch.tensor(numbers(5, 37))
    for function, of in ((ours, x), (lambda v: getattr(torch, name)(v, -1), wide)):
        y = function(of)
        (grad,) = torch.autograd.grad(y, of, weight.to(of.dtype), create_graph=True)
        grad.square().sum().backward()
        of.found = (y, grad, of.grad)
    for got, wanted in zip(x.found, wide.found, strict=True):
        assert torch.allclose(got.double(), wanted, rtol=1e-4, atol=1e-5)


def test_pytorch_finds_nothing_wrong_with_the_op_of_the_gradient() -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("numpipe.torch")
    arrays = (torch.tensor(numbers(4, 24), requires_grad=True),) * 2
    torch.library.opcheck(torch.ops.numpipe.softmax_backward.default, arrays)


def test_in_pytorch_it_is_mapped_and_exported() -> None:
    torch = pytest.importorskip("torch")
    x = torch.tensor(numbers(3, 4, 24))
    assert torch.equal(torch.vmap(numpipe.torch.softmax, 1, 1)(x), numpipe.torch.softmax(x))

    class Model(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return numpipe.torch.softmax(x)

    rows = torch.export.Dim("rows")
    exported = torch.export.export(Model(), (x,), dynamic_shapes=({0: rows},))
    assert torch.equal(exported.module()(x[:2]), numpipe.torch.softmax(x[:2]))


# ---- JAX
@pytest.mark.parametrize("name", NAMES)
def test_in_jax_it_is_differentiated_and_mapped(name: str) -> None:
    jax = pytest.importorskip("jax")
    ours, theirs = getattr(numpipe.jax, name), getattr(jax.nn, name)
    with jax.default_device(jax.devices("cpu")[0]):
        x = jax.numpy.asarray(numbers(3, 4, 37))

        def second(function: Any) -> Any:
            first = jax.grad(lambda v: (function(v) ** 3).sum())
            return jax.jit(jax.vmap(jax.grad(lambda v: (first(v) ** 2).sum())))(x)

        np.testing.assert_allclose(jax.jit(ours)(x), theirs(x, -1), rtol=1e-5, atol=1e-6)
        wanted = second(theirs)
        scale = float(abs(wanted).max())
        np.testing.assert_allclose(second(ours), wanted, rtol=1e-3, atol=1e-5 * scale)


@pytest.mark.parametrize("columns", [17, 38, 401])
def test_many_short_rows_are_loaded_as_a_flat_array(
    columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_kernels, "MANY", 0)
    # rows of arrays on the host are padded, and not loaded so
    monkeypatch.setattr(row_kernels, "loadable", lambda *given: (False, True))
    # each of two CTAs has several blocks, and the last block ends after the matrix
    x = numbers(3 + 18000 // columns, columns, dtype=np.float16)
    x[1] = -np.inf
    x[1, 2] = 3.0
    row = schedule_for(columns, Needs(2), x.dtype, False, True)
    assert row.flat and row.height < len(x)
    assert backward(log=False).kernel(x, x, x) is backward(log=False).scheduled(row)
    np.testing.assert_allclose(ops.softmax(x), expected("softmax", x), rtol=1e-3, atol=1e-6)
    np.testing.assert_array_equal(ops.argmax(x, 1), x.argmax(1))
    x[1] = 1.0
    y, total = ops.rms_norm(x, x[0], x)
    right = 2.0 * x.astype(np.float64)
    scale = np.sqrt((right**2).mean(1, keepdims=True) + 1e-6)
    np.testing.assert_allclose(total, right, rtol=1e-3)
    np.testing.assert_allclose(y, right / scale * x[0], rtol=2e-3, atol=1e-4)
    values, scales = ops.quantize(x, "int8", "row")
    np.testing.assert_allclose(values * scales[:, None], x, atol=float(scales.max()) * 0.51)


@pytest.mark.parametrize(("columns", "operands"), [(2501, 2), (9001, 1)])
def test_odd_rows_of_a_warpgroup_are_loaded_by_copies(
    columns: int, operands: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # for many rows, of which the first are computed
    monkeypatch.setattr(
        row_kernels,
        "choose",
        lambda request: choose(replace(request, count=1000, vectors=0)),
    )
    monkeypatch.setattr(row_kernels, "loadable", lambda *given: (False, True))
    x = numbers(3, columns, dtype=np.float16)
    row = schedule_for(columns, Needs(operands), x.dtype, False, True, count=1000)
    assert row.flat and row.wgs == 1 and not row.steps
    if operands == 2:
        assert backward(log=False).kernel(x, x, x) is backward(log=False).scheduled(row)
    np.testing.assert_allclose(ops.softmax(x), expected("softmax", x), rtol=1e-3, atol=1e-6)
    y = ops.layer_norm(x, x[0], x[1])
    wide = x.astype(np.float64) - x.mean(1, np.float64, keepdims=True)
    wanted = wide / np.sqrt((wide**2).mean(1, keepdims=True) + 1e-5) * x[0] + x[1]
    np.testing.assert_allclose(y, wanted, rtol=2e-3, atol=2e-3)


def test_no_schedule_of_warps_shows_a_hazard_in_blocks_that_are_loaded_ahead() -> None:
    x = numbers(70, 300, dtype=np.float16)
    for kernel, arrays in ((forward(log=False), {"x": x}), (backward(log=False), {"g": x, "y": x})):
        row = schedule_for(300, Needs(len(arrays), held=1), x.dtype, False, True)
        results = {"y" if "x" in arrays else "dx": np.zeros_like(x)}
        found = numpipe.verify(kernel.scheduled(row), **arrays, **results, schedules=3)
        assert found.ok, str(found)
