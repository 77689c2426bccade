"""ops.cumsum on the GPU against float64."""

from __future__ import annotations

from typing import Any

import pytest

import numpipe

torch = pytest.importorskip("torch")

TOLERANCES = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
SHAPES = [
    (64, 1),
    (1000, 50),
    (333, 201),
    (5, 2048),
    (2000, 2049),
    (3, 7, 16384),
    (2, 100001),
    (1 << 23,),
]


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("shape", SHAPES)
def test_results_and_gradients_match_float64(shape: tuple[int, ...], dtype: Any) -> None:
    x = torch.randn(shape, device="cuda").to(dtype).requires_grad_()
    grad = torch.randn(shape, device="cuda").to(dtype)
    y = numpipe.torch.cumsum(x)
    y.backward(grad)
    wide = grad.double().flip(-1).cumsum(-1).flip(-1)
    scale = TOLERANCES[dtype] * shape[-1] ** 0.5
    for found, wanted in ((y, x.detach().double().cumsum(-1)), (x.grad, wide)):
        torch.testing.assert_close(found.double(), wanted, rtol=TOLERANCES[dtype], atol=scale)


def test_integers_are_exact_in_every_part() -> None:
    x = torch.randint(-1, 2, (1 << 24,), device="cuda", dtype=torch.float32)
    assert torch.equal(numpipe.torch.cumsum(x).double(), x.double().cumsum(0))
