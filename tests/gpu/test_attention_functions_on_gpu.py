"""Score and mask functions of numpipe.ops.attention on the GPU, and their gradients, against float64
and PyTorch's automatic differentiation."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import numpipe
import numpipe.torch
from numpipe.ops import attention
from tests.kernels.attention_function_cases import CASES

PROCESSES = 4


@pytest.mark.parametrize("name", CASES)
def test_attention_with_functions_matches_float64(name: str) -> None:
    case = CASES[name]
    q, k, v = map(case.laid, case.arrays())
    options = {"scale": case.scale, "layout": case.layout, **case.functions()}
    o, sums = attention(q, k, v, **options, return_lse=True, target="gpu")
    assert case.wrong(case.laid(o), sums) == ""


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("depth", [64, 128, 256])
def test_gradients_with_functions_match_those_of_float64(name: str, depth: int) -> None:
    case = CASES[name]
    case = type(case)(**{**vars(case), "depth": depth})
    arrays = [torch.tensor(x.astype(np.float32), device="cuda") for x in map(case.laid, case.arrays())]
    kind = getattr(torch, case.dtype)
    q, k, v = (x.to(kind).requires_grad_() for x in arrays)
    options = {"scale": case.scale, "layout": case.layout}
    options |= case.functions(lambda x: torch.tensor(x, device="cuda"))
    o = numpipe.torch.attention(q, k, v, **options)
    weights = torch.randn(o.shape, device="cuda").to(kind)
    found = torch.autograd.grad((o * weights).sum(), (q, k, v))
    wide = [x.detach().double().requires_grad_() for x in (q, k, v)]
    expected = torch.autograd.grad((_exact(case, *wide) * weights).sum(), wide)
    for mine, exact in zip(found, expected, strict=True):
        assert (mine - exact).norm() < (8e-3 if kind == torch.bfloat16 else 1e-3) * exact.norm()


def _exact(case, q, k, v):
    q, k, v = (x if case.layout == "bhsd" else x.transpose(1, 2) for x in (q, k, v))
    k, v = (x.repeat_interleave(case.heads // case.shared, 1) for x in (k, v))
    s = q @ k.mT * (case.scale or case.depth**-0.5)
    places = np.ogrid[tuple(map(slice, s.shape))]
    if case.score is not None:
        arrays = [torch.tensor(x, device="cuda") for x in case.arrays_of(case.score)]
        on_gpu = [torch.tensor(x, device="cuda") for x in places]
        s = SCORES[case.score.__name__](s, *on_gpu, *arrays)
    if case.mask is not None:
        seen = case.mask(*places, *case.arrays_of(case.mask))
        s = s.masked_fill(~torch.tensor(seen, device="cuda"), -torch.inf)
    p = torch.softmax(s, -1).nan_to_num(0.0)
    o = p @ v
    return o if case.layout == "bhsd" else o.transpose(1, 2)


SCORES = {
    "soft_cap": lambda s, b, h, q, k: 2.0 * torch.tanh(s * 0.5),
    "alibi": lambda s, b, h, q, k, slopes: s + slopes[h] * (k - q),
    "relative": lambda s, b, h, q, k, bias, table: (s + bias[h, q, k]) * (1 + table[k - q + 300]),
}
