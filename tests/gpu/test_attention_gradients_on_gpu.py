"""Gradients of numpipe.ops.attention on the GPU, against float64 and PyTorch."""

from __future__ import annotations

from typing import Any

import pytest

import numpipe
from tests.kernels.attention_gradient_cases import CASES, Case, run, wrong

PROCESSES = 4
REPEATS = 20


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_gradients_match_float64(name: str, deterministic: bool) -> None:
    assert wrong(CASES[name], run(CASES[name], "gpu", deterministic)) == ""


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("depth", [64, 128, 256])
def test_gradients_over_many_tiles(depth: int, causal: bool, deterministic: bool) -> None:
    case = Case(3, 8, 2, 1001, 777, depth, "bfloat16", causal=causal, diagonal=-100 * causal)
    assert wrong(case, run(case, "gpu", deterministic)) == ""


@pytest.mark.parametrize("depth", [1, 7, 40, 96, 100, 160, 192])
def test_gradients_of_any_depth(depth: int) -> None:
    case = Case(2, 4, 2, 201, 333, depth, "bfloat16", layout="bshd" if depth % 16 else "bhsd")
    for deterministic in (False, True):
        assert wrong(case, run(case, "gpu", deterministic)) == ""


@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("depth", [64, 128, 256])
def test_autograd_gives_what_torch_gives_in_float64_and_the_same_bits_each_time(
    depth: int, causal: bool, layout: str
) -> None:
    torch = pytest.importorskip("torch")
    torch.manual_seed(depth)

    def by_head(x: Any) -> Any:
        return x if layout == "bhsd" else x.transpose(1, 2)

    def some(heads: int) -> Any:
        shape = (2, heads, 1001, depth) if layout == "bhsd" else (2, 1001, heads, depth)
        return torch.randn(*shape, device="cuda").to(torch.bfloat16).requires_grad_()

    q, k, v = some(8), some(2), some(2)
    wide = [x.detach().double().requires_grad_() for x in (q, k, v)]
    right = torch.nn.functional.scaled_dot_product_attention(
        by_head(wide[0]),
        *[by_head(x).repeat_interleave(4, 1) for x in wide[1:]],
        is_causal=causal,
    )
    grad = torch.randn_like(q)
    wanted = torch.autograd.grad(right, wide, by_head(grad).double())
    first = None
    for _ in range(REPEATS):
        o = numpipe.torch.attention(q, k, v, causal=causal, layout=layout, deterministic=True)
        found = torch.autograd.grad(o, (q, k, v), grad)
        first = first or found
        assert all(torch.equal(x, y) for x, y in zip(found, first, strict=True))
    o = numpipe.torch.attention(q, k, v, causal=causal, layout=layout)
    added = [torch.autograd.grad(o, (q, k, v), grad, retain_graph=True) for _ in range(REPEATS)]
    assert all(
        torch.equal(x, y) for each in added for x, y in zip(each[1:], added[0][1:], strict=True)
    )
    for found in (first, added[0]):
        assert found is not None
        for x, y in zip(found, wanted, strict=True):
            assert torch.linalg.norm(x.double() - y) / torch.linalg.norm(y) < 5e-3


def test_gradients_of_views_and_of_broadcast_heads() -> None:
    torch = pytest.importorskip("torch")
    packed = torch.randn(2, 300, 3, 4, 64, device="cuda").to(torch.float16).requires_grad_()
    q, k, v = packed.unbind(2)
    k, v = (x[:, :, :1].expand(-1, -1, 4, -1) for x in (k, v))
    torch.manual_seed(0)
    made = numpipe.torch.attention(q, k, v, layout="bshd", causal=True)
    (found,) = torch.autograd.grad(made.float().square().sum(), packed)
    wide = [x.detach().double().transpose(1, 2).requires_grad_() for x in (q, k, v)]
    right = torch.nn.functional.scaled_dot_product_attention(*wide, is_causal=True)
    grads = [x.transpose(1, 2) for x in torch.autograd.grad(right.square().sum(), wide)]
    wanted = torch.zeros_like(packed, dtype=torch.float64)
    wanted[:, :, 0] = grads[0]
    wanted[:, :, 1, :1], wanted[:, :, 2, :1] = (x.sum(2, keepdim=True) for x in grads[1:])
    assert torch.linalg.norm(found.double() - wanted) / torch.linalg.norm(wanted) < 2e-3
