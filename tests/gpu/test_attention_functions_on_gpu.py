"""Score and mask functions of numpipe.ops.attention on the GPU, and their gradients, against
float64."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest

import numpipe
from numpipe.ops import attention
from tests.kernels.attention_function_cases import CASES

torch = pytest.importorskip("torch")

PROCESSES = 4


@pytest.mark.parametrize("name", CASES)
def test_attention_with_functions_matches_float64(name: str) -> None:
    case = CASES[name]
    q, k, v = map(case.laid, case.arrays())
    options = {"scale": case.scale, "layout": case.layout, **case.functions()}
    o, sums = attention(q, k, v, **options, return_lse=True, target="gpu")
    assert case.wrong(case.laid(o), sums) == ""


@pytest.mark.parametrize("name, depth", zip(CASES, itertools.cycle((64, 128, 256))))
def test_gradients_match_float64(name: str, depth: int) -> None:
    case = replace(CASES[name], depth=depth)
    assert case.wrong_gradients("gpu", False, True) == ""


def test_pytorch_records_and_compiles_calls_with_functions() -> None:
    case = CASES["both, with arrays"]
    arrays = [torch.tensor(x, device="cuda").requires_grad_() for x in case.arrays()]
    options = case.functions(lambda x: torch.tensor(x, device="cuda"))

    def loss(*arrays: Any) -> Any:
        return numpipe.torch.attention(*arrays, **options).square().sum()

    ids, ones = options["mask"][1], torch.ones_like(options["mask"][1])
    with torch.no_grad():  # recorded launches read the arrays again
        calls = [float(loss(*arrays)) for _ in range(4)]
        known = ids.clone()
        ids.copy_(ones)
        other = float(loss(*arrays))
        ids.copy_(known)
        assert len({*calls, float(loss(*arrays))}) == 1 and other != calls[0]
    grads = torch.autograd.grad(loss(*arrays), arrays)
    compiled = torch.autograd.grad(torch.compile(loss, fullgraph=True)(*arrays), arrays)
    assert all(map(torch.equal, grads, compiled)) and all(x.any() for x in grads)
