"""ops.swiglu, geglu, rotary and quantize on the GPU against float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import numpipe
from numpipe import ops

torch = pytest.importorskip("torch")
functional = torch.nn.functional

TOLERANCES = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


def activated(name: str, x: Any) -> Any:
    return functional.silu(x) if name == "swiglu" else functional.gelu(x, approximate="tanh")


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("name", ["swiglu", "geglu"])
def test_gated_units_and_gradients(name: str, dtype: Any) -> None:
    ours = getattr(numpipe.torch, name)
    for shape in ((3,), (7, 50), (333, 201), (64, 4096), (5, 11008), (2, 3, 1000)):
        both = torch.randn(*shape[:-1], 2 * shape[-1], device="cuda").to(dtype)
        grad = torch.randn(shape, device="cuda").to(dtype)
        wide = both.double().requires_grad_()
        gate, up = wide.chunk(2, -1)
        wanted = activated(name, gate) * up
        wanted.backward(grad.double())
        one = both.clone().requires_grad_()
        two = both.clone().requires_grad_()
        apart = [x.contiguous() for x in two.chunk(2, -1)]
        for y in (ours(one), ours(*two.chunk(2, -1)), ours(*apart)):
            torch.testing.assert_close(
                y.double(), wanted, rtol=TOLERANCES[dtype], atol=TOLERANCES[dtype]
            )
        ours(one).backward(grad)
        ours(*apart).backward(grad)
        for x in (one, two):
            torch.testing.assert_close(
                x.grad.double(), wide.grad, rtol=TOLERANCES[dtype], atol=2 * TOLERANCES[dtype]
            )


@pytest.mark.parametrize("name", ["swiglu", "geglu"])
def test_gated_units_have_small_relative_errors_far_from_zero(name: str) -> None:
    gate = torch.linspace(-9, 9, 5000, device="cuda").bfloat16()
    gate = gate[activated(name, gate.double()).abs() > 1e-9]
    y = getattr(ops, name)(gate, torch.ones_like(gate))
    torch.testing.assert_close(y.double(), activated(name, gate.double()), rtol=5e-3, atol=0)


def turned(x: Any, cos: Any, sin: Any, interleaved: bool) -> Any:
    a, b = (x[..., ::2], x[..., 1::2]) if interleaved else x.chunk(2, -1)
    pair = a * cos - b * sin, a * sin + b * cos
    return torch.stack(pair, -1).flatten(-2) if interleaved else torch.cat(pair, -1)


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("interleaved", [False, True])
def test_rotary_and_its_gradient(interleaved: bool, dtype: Any) -> None:
    for shape, angles in (
        ((2, 8, 130, 128), (130, 64)),
        ((2, 130, 8, 128), (130, 1, 64)),
        ((2, 7, 33, 80), (2, 1, 33, 40)),
        ((2, 3, 130, 134), (130, 67)),
        ((5, 6), (5, 3)),
        ((2, 2, 3, 2, 5, 20), (2, 1, 3, 1, 5, 10)),
    ):
        x = torch.randn(shape, device="cuda").to(dtype).requires_grad_()
        cos, sin = (f(torch.randn(angles, device="cuda")) for f in (torch.cos, torch.sin))
        wide = x.detach().double().requires_grad_()
        grad = torch.randn(shape, device="cuda").to(dtype)
        y = numpipe.torch.rotary(x, cos, sin, interleaved=interleaved)
        wanted = turned(wide, cos.double(), sin.double(), interleaved)
        y.backward(grad)
        wanted.backward(grad.double())
        tolerance = TOLERANCES[dtype]
        for got, right in ((y, wanted), (x.grad, wide.grad)):
            torch.testing.assert_close(got.double(), right, rtol=tolerance, atol=2 * tolerance)
        z = x.detach().clone()
        assert ops.rotary(z, cos, sin, interleaved=interleaved, out=z) is z
        assert torch.equal(z, y)


@pytest.mark.parametrize("block", ["tensor", "row", "1x128"])
@pytest.mark.parametrize("dtype, top", [("float8_e4m3fn", 448), ("int8", 127)])
def test_quantized_numbers_are_the_nearest(dtype: str, top: int, block: str) -> None:
    for shape in ((40, 256), (3, 1000), (5, 4096), (3, 20000), (2, 70000), (4, 5, 130), (7,)):
        x = torch.randn(shape, device="cuda", dtype=torch.bfloat16)
        values, scales = numpipe.torch.quantize(x, dtype, block)
        each = scales
        if block == "row":
            each = scales[..., None]
        elif block == "1x128":
            each = scales.repeat_interleave(128, -1)[..., : shape[-1]]
        divided = x.float() / each
        assert divided.abs().max() <= top * 1.00001 and divided.abs().max() > top * 0.999
        step = torch.full_like(divided, 0.501)
        if dtype != "int8":
            step = torch.clamp(divided.abs() / 16, min=2**-10) * 1.001
        assert ((values.float() - divided).abs() <= step).all()


@pytest.mark.parametrize("block", ["row", "1x128"])
def test_gated_units_are_quantized(block: str) -> None:
    for shape in ((100, 256), (3, 1000), (6, 11008), (2, 28672)):
        gate, up = torch.randn(2, *shape, device="cuda", dtype=torch.bfloat16)
        values, scales = ops.swiglu(gate, up, out_scales=block, out_dtype="int8")
        exact = functional.silu(gate.float()) * up.float()
        right, wanted = ops.quantize(exact, "int8", block)
        torch.testing.assert_close(scales, wanted, rtol=1e-4, atol=0)
        assert ((values.int() - right.int()).abs() <= 1).all()


def test_a_cuda_graph() -> None:
    gate, up = torch.randn(2, 64, 1000, device="cuda")
    numpipe.torch.swiglu(gate, up), ops.quantize(gate, "int8", "row")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph), torch.no_grad():
        y = numpipe.torch.swiglu(gate, up)
    gate.normal_()
    graph.replay()
    torch.testing.assert_close(y, functional.silu(gate) * up, rtol=1e-5, atol=1e-5)


def test_in_jax() -> None:
    jax = pytest.importorskip("jax")
    gate, up = jax.random.normal(jax.random.key(0), (2, 64, 1000), np.float32)
    ours, theirs = (lambda f: jax.grad(lambda x: (f(x) ** 2).sum())), jax.nn.silu
    got = jax.jit(ours(lambda x: numpipe.jax.swiglu(x, up)))(gate)
    wanted = ours(lambda x: theirs(x) * up)(gate)
    np.testing.assert_allclose(got, wanted, rtol=1e-3, atol=1e-4)
