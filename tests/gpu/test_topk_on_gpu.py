"""ops.topk on the GPU against PyTorch, which agrees on all values and, without equal ones, on all
indices."""

from __future__ import annotations

from typing import Any

import pytest

import numpipe
from numpipe import ops

torch = pytest.importorskip("torch")

CASES = [
    ((1000, 60), 4),
    ((32769, 8), 2),
    ((300, 1000), 33),
    ((2, 3, 5000), 1000),
    ((3, 20001), 8),
    ((5, 50000), 64),
    ((2, 131072), 1024),
    ((1, 1 << 23), 100),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape, k", CASES)
def test_values_indices_and_gradients_are_those_of_pytorch(
    shape: tuple[int, ...], k: int, dtype: Any
) -> None:
    x = torch.randn(shape, device="cuda").to(dtype).requires_grad_()
    values, indices = numpipe.torch.topk(x, k)
    wanted = x.topk(k)[0]
    assert torch.equal(values, wanted)
    assert torch.equal(x.gather(-1, indices.long()), values)
    assert (indices.sort().values.diff() > 0).all()
    grad = torch.randn_like(values)
    (found,) = torch.autograd.grad(values, x, grad)
    assert torch.equal(found, torch.zeros_like(x).scatter(-1, indices.long(), grad))


@pytest.mark.parametrize("columns", [100, 3000, 20000])
def test_nan_infinity_and_equal_elements(columns: int) -> None:
    x = torch.randn(40, columns, device="cuda").round()
    x[:, 5], x[:, 7], x[:, 9] = torch.nan, -torch.inf, torch.inf
    x[3], x[4], x[5] = -torch.inf, torch.nan, -1
    for k in (8, 60):
        for each in (x, x.T.contiguous().T):
            values, indices = ops.topk(each, k)
            torch.testing.assert_close(values, x.topk(k)[0], rtol=0, atol=0, equal_nan=True)
            assert (indices.sort().values.diff() > 0).all()
