"""ops.transpose and ops.matvec on the GPU against PyTorch."""

from __future__ import annotations

from typing import Any

import pytest

import numpipe

torch = pytest.importorskip("torch")

TOLERANCES = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize(
    "shape", [(512, 1024), (3, 65, 130), (2, 8, 7), (1000, 16), (4, 9001), (1, 5184), (30001, 33)]
)
def test_transposes_match(shape: tuple[int, ...], dtype: Any) -> None:
    x = torch.randn(shape, device="cuda").to(dtype).requires_grad_()
    y = numpipe.torch.transpose(x)
    assert y.is_contiguous() and torch.equal(y, x.mT)
    grad = torch.randn_like(y)
    y.backward(grad)
    assert torch.equal(x.grad, grad.mT)
    assert torch.equal(numpipe.torch.transpose(x.detach()[..., 1:]), x.detach()[..., 1:].mT)


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize(
    "shape", [(16384, 1024), (8192, 515), (2, 100, 9000), (3, 40001), (7, 1), (2, 3, 64, 64)]
)
def test_products_match_float64(shape: tuple[int, ...], dtype: Any) -> None:
    a = torch.randn(shape, device="cuda").to(dtype)
    x = torch.randn((*shape[:-2], shape[-1]), device="cuda").to(dtype)
    exact = (a.double() @ x.double()[..., None])[..., 0]
    scale = TOLERANCES[dtype] * shape[-1] ** 0.5
    for matrix in (a, a.mT.contiguous().mT):
        y = numpipe.torch.matvec(matrix, x)
        torch.testing.assert_close(y.double(), exact, rtol=TOLERANCES[dtype], atol=scale)
    a.requires_grad_(), x.requires_grad_()
    grad = torch.randn_like(y)
    numpipe.torch.matvec(a, x).backward(grad)
    wanted = (a.detach().double().mT @ grad.double()[..., None])[..., 0]
    torch.testing.assert_close(
        x.grad.double(), wanted, rtol=TOLERANCES[dtype], atol=TOLERANCES[dtype] * shape[-2] ** 0.5
    )
    outer = grad.double()[..., None] * x.detach().double()[..., None, :]
    torch.testing.assert_close(
        a.grad.double(), outer, rtol=TOLERANCES[dtype], atol=TOLERANCES[dtype]
    )
