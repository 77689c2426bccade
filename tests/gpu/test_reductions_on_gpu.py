"""ops.sum, mean, max and argmax on the GPU against float64 and PyTorch."""

from __future__ import annotations

from typing import Any

import pytest

import numpipe
from numpipe import ops

torch = pytest.importorskip("torch")

TOLERANCES = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
SHAPES = [
    (3,),
    (7, 50),
    (333, 201),
    (4, 5001),
    (2, 200000),
    (30000, 12),
    (5, 600, 70),
    (20001, 91),
    (4096, 512),
    (2051, 1001),
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
def test_any_axis_matches_float64(dtype: Any, shape: tuple[int, ...]) -> None:
    x = torch.randn(shape, device="cuda").to(dtype)
    for axis in (*range(len(shape)), None):
        tolerance = TOLERANCES[dtype]
        for name in ("sum", "mean"):
            made = getattr(ops, name)(x, axis)
            wanted = getattr(torch, name)(x.double(), axis)
            # of the terms' size: sums may cancel
            scale = getattr(torch, name)(x.double().abs(), axis).max().item()
            error = (made.double() - wanted).abs() - tolerance * wanted.abs()
            assert error.max().item() <= 1e-6 * scale, (name, axis)
            assert torch.equal(made, getattr(ops, name)(x, axis))
        where = () if axis is None else (axis,)
        assert torch.equal(ops.max(x, axis), torch.amax(x, where))
        found = ops.argmax(x, axis).long()
        flat = x.flatten() if axis is None else x
        at = found if axis is None else found.unsqueeze(axis)
        largest = flat[at] if axis is None else flat.gather(axis, at).squeeze(axis)
        assert torch.equal(largest, ops.max(x, axis)), axis


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
def test_the_first_nan_or_maximum_wins(dtype: Any) -> None:
    for columns in (300, 30000, 300000):
        x = torch.randn(3, columns, device="cuda").to(dtype)
        x[0, 70] = x[0, columns - 1] = torch.nan
        x[1, 55] = x[1, columns - 9] = 99
        x[2] = -torch.inf
        for view, axis in ((x, 1), (x.T.contiguous(), 0)):
            assert ops.argmax(view, axis).tolist() == [70, 55, 0]
            top = ops.max(view, axis)
            assert top[0].isnan() and top[1] == 99 and top[2] == -torch.inf


def test_views_and_gradients() -> None:
    x = torch.randn(40, 50, 60, device="cuda")
    for view in (x, x[:, ::2, 5:], x[..., ::3], x.permute(2, 0, 1)):
        for axis in (0, 1, -1):
            torch.testing.assert_close(ops.sum(view, axis), view.sum(axis), rtol=1e-5, atol=1e-4)
    for name, theirs in (("sum", torch.sum), ("mean", torch.mean), ("max", torch.amax)):
        a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
        getattr(numpipe.torch, name)(a, 1).square().sum().backward()
        theirs(b, 1).square().sum().backward()
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-4)
