"""numpipe.ops.attention on the GPU: every kind and config against float64, with reproducible
bits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from numpipe import launch
from numpipe.ops import attention
from numpipe.ops.attention import CONFIGS, FITTING, SMALLER
from tests.kernels.attention_cases import CASES, Case

PROCESSES = 4
REPEATS = 20


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("name", CASES)
def test_attention_matches_float64(name: str, exact: bool) -> None:
    assert CASES[name].wrong(*CASES[name].run("gpu", exact=exact), more=1.0 if exact else 1.3) == ""


@pytest.mark.parametrize(
    "kind, name", [(kind, name) for kind, names in FITTING.items() for name in names], ids=str
)
def test_every_config_over_many_tiles(kind: tuple[int, bool], name: str) -> None:
    case = Case(3, 8, 2, 1001, 777, kind[0], "bfloat16", causal=kind[1], diagonal=-100 * kind[1])
    for turns in (True, False):
        found = case.run("gpu", replace(CONFIGS[name], turns=turns))
        assert case.wrong(*found, more=1.3 if CONFIGS[name].lazy else 1.0) == ""


@pytest.mark.parametrize(
    "depth, name",
    [(depth, name) for depth, pairs in SMALLER.items() for pair in pairs for name in pair],
)
def test_every_config_of_fewer_rows(depth: int, name: str) -> None:
    for causal in (False, True):
        case = Case(2, 4, 2, 200, 333, depth, causal=causal, diagonal=133 * causal)
        assert (
            case.wrong(*case.run("gpu", CONFIGS[name]), more=1.3 if CONFIGS[name].lazy else 1.0)
            == ""
        )


@pytest.mark.parametrize("depth", [1, 7, 40, 80, 96, 100, 160, 192])
def test_any_depth(depth: int) -> None:
    case = Case(2, 4, 2, 200, 333, depth, "bfloat16", layout="bshd" if depth % 16 else "bhsd")
    assert case.wrong(*case.run("gpu")) == ""


@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
@pytest.mark.parametrize("kind", FITTING, ids=str)
@pytest.mark.parametrize("exact", [True, False])
def test_tensors_give_what_torch_gives_in_float64_and_the_same_bits_each_time(
    kind: tuple[int, bool], layout: str, exact: bool
) -> None:
    torch = pytest.importorskip("torch")
    depth, causal = kind
    torch.manual_seed(depth)

    def some(heads: int) -> Any:
        shape = (3, heads, 1001, depth) if layout == "bhsd" else (3, 1001, heads, depth)
        return torch.randn(*shape, device="cuda").to(torch.bfloat16)

    q, k, v = some(8), some(2), some(2)
    by_head = [x if layout == "bhsd" else x.transpose(1, 2) for x in (q, k, v)]
    wanted = torch.nn.functional.scaled_dot_product_attention(
        by_head[0].double(),
        *[x.double().repeat_interleave(4, 1) for x in by_head[1:]],
        is_causal=causal,
    )
    wanted = wanted if layout == "bhsd" else wanted.transpose(1, 2)
    first = None
    for _ in range(REPEATS):
        out = torch.full_like(q, float("nan"))
        assert attention(q, k, v, causal=causal, layout=layout, exact=exact, out=out) is out
        first = out.clone() if first is None else first
        assert torch.equal(out, first)
    assert first is not None
    error = torch.linalg.norm(first.double() - wanted) / torch.linalg.norm(wanted)
    assert error < (3e-3 if exact else 4e-3)


def test_views_of_one_array_are_read_in_place() -> None:
    torch = pytest.importorskip("torch")
    # packed as a single product with all weights returns it
    packed = torch.randn(2, 300, 3, 4, 64, device="cuda").to(torch.float16)
    q, k, v = packed.unbind(2)
    o = attention(q, k, v, layout="bshd", causal=True)
    wanted = torch.nn.functional.scaled_dot_product_attention(
        *(x.transpose(1, 2).double() for x in (q, k, v)), is_causal=True
    )
    assert torch.linalg.norm(o.transpose(1, 2).double() - wanted) / torch.linalg.norm(wanted) < 1e-3


@pytest.mark.parametrize("what", ["odd rows", "depth first", "repeated", "stepped", "one off"])
def test_what_tma_cannot_address_is_copied(what: str) -> None:
    torch = pytest.importorskip("torch")
    q, wide = (
        torch.randn(2, 4, 200, depth, device="cuda").to(torch.float16) for depth in (64, 200)
    )
    k = {
        "odd rows": wide.flatten()[: 2 * 4 * 200 * 65].view(2, 4, 200, 65)[..., :64],
        "depth first": wide[..., :64].mT.contiguous().mT,
        "repeated": wide[:1, :, :, :64].expand(2, -1, -1, -1),
        "stepped": wide[..., :128:2],
        "one off": wide[..., 1:65],
    }[what]
    wanted = torch.nn.functional.scaled_dot_product_attention(q.double(), k.double(), k.double())
    o = attention(q, k, k)
    assert torch.linalg.norm(o.double() - wanted) / torch.linalg.norm(wanted) < 1e-3


def test_arrays_on_the_device_and_an_allocated_result_with_its_sums() -> None:
    case = Case(1, 4, 2, 300, 300, 128, "bfloat16", causal=True)
    arrays = [launch.DeviceArray.from_host(x) for x in case.arrays()]
    o, sums = attention(*arrays, causal=True, return_lse=True)
    assert case.wrong(o.copy_to_host(), np.asarray(sums.copy_to_host())) == ""
