"""ops.layer_norm and ops.rms_norm on the GPU, with their gradients and dropout, in PyTorch."""

from __future__ import annotations

import numpy as np
import pytest

import numpipe
import numpipe.ops

torch = pytest.importorskip("torch")

PROCESSES = 4

TOLERANCES = {"float32": 1e-5, "bfloat16": 1.6e-2}


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("name", ["layer_norm", "rms_norm"])
def test_norms_and_their_gradients_match_float64(name: str, dtype: str) -> None:
    function = getattr(torch.nn.functional, name)
    for rows, columns in ((200, 64), (77, 1001), (600, 4096), (301, 4097), (9, 20000), (75, 50257)):
        kind = getattr(torch, dtype)
        x, residual, grad = (torch.randn(rows, columns, device="cuda").to(kind) for _ in range(3))
        vectors = [
            torch.randn(columns, device="cuda").to(kind) for _ in range(1 + (name[0] == "l"))
        ]
        given = [x, *vectors, residual]
        wide = [each.double().requires_grad_() for each in given]
        for each in given:
            each.requires_grad_()
        y, total = getattr(numpipe.torch, name)(*given, eps=1e-5)
        summed = wide[0] + wide[-1]
        exact = function(summed, (columns,), *wide[1:-1], eps=1e-5)
        (y * grad).sum().backward()
        (exact * grad.double()).sum().backward()
        pairs = [(y, exact), (total, summed)]
        pairs += [(a.grad, b.grad) for a, b in zip(given, wide, strict=True)]
        for found, wanted in pairs:
            error = (found.double() - wanted).norm() / wanted.norm()
            assert error <= TOLERANCES[dtype], (rows, columns, float(error))


@pytest.mark.parametrize("name", ["layer_norm", "rms_norm"])
def test_dropout_of_norms_has_the_bits_of_the_simulation(name: str) -> None:
    for rows, columns in ((70, 33), (3, 700), (2, 4200)):
        x, residual = torch.randn(2, rows, columns, device="cuda").unbind()
        x, residual = x.clone().requires_grad_(), residual.clone().requires_grad_()
        y, total = getattr(numpipe.torch, name)(
            x, residual=residual, dropout=0.25, seed=-7, eps=1e-5
        )
        arrays = [each.detach().cpu().numpy() for each in (x, residual)]
        wanted = getattr(numpipe.ops, name)(
            arrays[0], residual=arrays[1], dropout=0.25, seed=-7, eps=1e-5, target="sim"
        )
        for found, array in zip((y, total), wanted, strict=True):
            np.testing.assert_allclose(found.detach().cpu().numpy(), array, rtol=1e-5, atol=1e-5)
        # where the gradient of x is 0, and only there, x was dropped
        y.square().mul(torch.randn_like(y)).sum().backward()
        dropped = (total == residual).cpu()
        assert ((x.grad == 0).cpu() == dropped).all()
        kept = ~dropped.to(x.device)
        assert torch.allclose(x.grad[kept], (residual.grad / 0.75)[kept], rtol=1e-5)
