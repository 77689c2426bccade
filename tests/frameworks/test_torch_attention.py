"""numpipe.torch.scaled_dot_product_attention, which is called like PyTorch's.

The kernel is a fake here; it has its own tests.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest

import numpipe
from numpipe import SpecError, ops

torch = pytest.importorskip("torch")
sdpa: Any = pytest.importorskip("numpipe.torch").scaled_dot_product_attention
theirs: Any = torch.nn.functional.scaled_dot_product_attention


@pytest.fixture(autouse=True)
def fake(monkeypatch: pytest.MonkeyPatch) -> None:
    def call(
        arrays: Any, options: Any, out: Any = None, target: Any = None, stream: Any = None
    ) -> Any:
        q, k, v = arrays[:3]
        given = dict(zip(ops.attention.options, options, strict=True))
        if (
            k.dtype != v.dtype
            or q.dtype == torch.float32
            or not q.device == k.device == v.device
            or k.shape[2] != v.shape[2]
        ):
            raise SpecError("in the op's words")
        options = {"is_causal": given["causal"], "scale": given["scale"], "enable_gqa": True}
        made = theirs(q.double(), k.double(), v.double(), **options).to(q.dtype)
        return (made, torch.zeros(q.shape[:3])) if given["return_lse"] else made

    monkeypatch.setattr(ops.attention, "call", call)
    monkeypatch.setenv("NUMPIPE_TARGET", "sim")
    monkeypatch.setenv("NUMPIPE_COMPILE_CHECK", "0")
    torch._dynamo.reset()


@pytest.fixture
def real(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Call the kernel instead of the fake."""
    monkeypatch.undo()
    monkeypatch.setenv("NUMPIPE_TARGET", target)
    monkeypatch.setenv("NUMPIPE_COMPILE_CHECK", "0")


@numpipe.function
def biased(score: Any, batch: Any, head: Any, query: Any, key: Any, bias: Any) -> Any:
    return score + bias[batch, head, query, key]


def tensors(
    heads: int = 4, keys: int = 4, length: int = 9, grad: bool = False, dtype: Any = torch.float16
) -> list[Any]:
    generator = torch.Generator().manual_seed(heads + keys)
    return [
        torch.randn(shape, generator=generator).to(dtype).requires_grad_(grad)
        for shape in ((2, heads, length, 16), (2, keys, 7, 16), (2, keys, 7, 16))
    ]


def expected(query: Any, key: Any, value: Any, **options: Any) -> Any:
    return theirs(query.double(), key.double(), value.double(), **options).to(query.dtype)


@pytest.mark.parametrize(
    "options", [{}, {"is_causal": True}, {"scale": 0.1, "enable_gqa": True}], ids=str
)
@pytest.mark.parametrize("inference", [True, False], ids=["past-the-dispatcher", "op"])
def test_it_is_the_function_of_pytorch(options: dict[str, Any], inference: bool) -> None:
    q, k, v = tensors(keys=2 if "enable_gqa" in options else 4)
    with torch.inference_mode(inference):
        torch.testing.assert_close(sdpa(q, k, v, **options), expected(q, k, v, **options))


@pytest.mark.usefixtures("real")
def test_the_kernel_is_from_numpipe_ops() -> None:
    q, k, v = tensors(keys=2, grad=True)
    with torch.no_grad():
        torch.testing.assert_close(
            sdpa(q, k, v, is_causal=True, enable_gqa=True),
            expected(q, k, v, is_causal=True, enable_gqa=True),
            rtol=2e-3,
            atol=2e-3,
        )


@pytest.mark.usefixtures("real")
def test_the_result_and_gradients_are_laid_out_as_the_query() -> None:
    q, k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in tensors(keys=2))
    made = sdpa(q.requires_grad_(), k, v, enable_gqa=True)
    torch.testing.assert_close(made, expected(q, k, v, enable_gqa=True), rtol=2e-3, atol=2e-3)
    (grad,) = torch.autograd.grad(made, q, torch.ones_like(made))
    assert made.stride() == q.stride() == grad.stride()


@pytest.mark.usefixtures("real")
def test_gradients_match_pytorch() -> None:
    options, given, wide = {"is_causal": True, "enable_gqa": True}, tensors(keys=2, grad=True), []
    wide = [x.detach().double().requires_grad_() for x in given]
    made, right = sdpa(*given, **options), theirs(*wide, **options)
    weights = torch.randn(right.shape, dtype=torch.float64).half()
    found = torch.autograd.grad(made, given, weights, retain_graph=True)
    for x, y in zip(found, torch.autograd.grad(right, wide, weights.double()), strict=True):
        torch.testing.assert_close(x.double(), y, rtol=2e-3, atol=4e-3)
    with pytest.raises(SpecError, match="attention_backward: .* has no backward pass; fix: call"):
        torch.autograd.grad(made, given, weights, create_graph=True)


@pytest.mark.parametrize("shape", [(2, 1, 1, 72), (72, 72), (3, 72, 1)])
@pytest.mark.parametrize("adds", [False, True], ids=["bool", "float"])
@pytest.mark.usefixtures("real")
def test_masks_match_pytorch(shape: tuple[int, ...], adds: bool, target: str) -> None:
    device = "cuda" if target == "gpu" else "cpu"
    given = [torch.randn(2, 3, 72, 64, device=device).half().requires_grad_() for _ in range(3)]
    visible = torch.rand(shape, device=device) < 0.4
    visible[..., 0] = True  # PyTorch's rows without keys are NaN in some versions
    bias = torch.randn(shape, device=device).half().masked_fill(~visible, -torch.inf)
    mask = bias if adds else visible
    wide = [x.detach().double().requires_grad_() for x in given]
    made = sdpa(*given, attn_mask=mask)
    right = theirs(*wide, attn_mask=mask.double() if adds else mask)
    weights = torch.randn(right.shape, dtype=torch.float64, device=device).half()
    pairs = zip(
        (made, *torch.autograd.grad(made, given, weights)),
        (right, *torch.autograd.grad(right, wide, weights.double())),
        strict=True,
    )
    for x, y in pairs:
        torch.testing.assert_close(x.double(), y, rtol=2e-3, atol=8e-3)


HOW = ["compile", "autocast", "checkpoint", "compile autocast checkpoint"]


@pytest.mark.parametrize("how", HOW)
@pytest.mark.usefixtures("real")
def test_a_layer_trains(how: str, target: str) -> None:
    device = "cuda" if target == "gpu" else "cpu"
    x, weight = (torch.randn(shape, device=device) for shape in ((2, 72, 64), (64, 128)))

    def layer(attend: Any, x: Any, weight: Any) -> Any:
        q, k, v = (x @ weight).unflatten(-1, (4, 32)).transpose(1, 2).split((2, 1, 1), 1)
        return attend(q, k, v, is_causal=True, enable_gqa=True)

    def run(attend: Any, dtype: Any, how: str) -> list[Any]:
        given = [each.to(dtype).requires_grad_() for each in (x, weight)]
        f = functools.partial(layer, attend)
        if "checkpoint" in how:
            f = functools.partial(torch.utils.checkpoint.checkpoint, f, use_reentrant=False)
        if "compile" in how:
            f = torch.compile(f, backend="inductor" if target == "gpu" else "aot_eager")
        with torch.autocast(device, torch.bfloat16, enabled="autocast" in how):
            y = f(*given)
        y.double().square().sum().backward()
        assert all(each.grad.dtype == dtype for each in given)
        return [y.detach(), *(each.grad for each in given)]

    dtype = torch.float32 if "autocast" in how else torch.bfloat16
    wanted = run(theirs, torch.float64, "")
    errors = [
        [
            (a.double() - b).norm() / b.norm()
            for a, b in zip(run(attend, dtype, use), wanted, strict=True)
        ]
        for attend, use in ((sdpa, how), (theirs, how.replace("compile", "")))
    ]
    assert all(ours < 1.05 * other for ours, other in zip(*errors, strict=True)), errors


@pytest.mark.parametrize("how", ["", *HOW[::2]])
@pytest.mark.usefixtures("real")
def test_dropout_follows_the_generator(how: str, target: str) -> None:
    device = "cuda" if target == "gpu" else "cpu"
    q, k = (torch.randn(1, 2, 200, 64, device=device).half().requires_grad_() for _ in range(2))
    v = torch.ones_like(q).requires_grad_()
    attend: Any = functools.partial(sdpa, dropout_p=0.4)
    if "checkpoint" in how:
        attend = functools.partial(torch.utils.checkpoint.checkpoint, attend, use_reentrant=False)
    if "compile" in how:
        attend = torch.compile(
            attend, fullgraph=True, backend="inductor" if target == "gpu" else "aot_eager"
        )

    def run(seed: int) -> list[Any]:
        torch.manual_seed(seed)
        y = attend(q, k, v)
        return [y, attend(q, k, v), *torch.autograd.grad(y.float().square().sum(), (q, k, v))]

    first, again, other = run(1), run(1), run(2)
    assert all(map(torch.equal, first, again)) and not torch.equal(first[0], first[1])
    assert not any(map(torch.equal, first, other))
    # rows of y are weights that are kept, since v is 1; sum(y) = sum(v * dv) if dv keeps the same
    y, dv = first[0].detach().double(), first[4].double()
    assert abs(y.mean() - 1) < 0.01 and y[..., 0].std() > 0.03
    torch.testing.assert_close(dv.sum(), 2 * y.square().sum(), rtol=1e-3, atol=0)


def test_an_array_of_a_function_that_requires_a_gradient_is_refused() -> None:
    q, (bias,) = tensors(4)[0].requires_grad_(), tensors(4, grad=True)[:1]
    for arrays in ((q, q, q), (q.detach(),) * 3):
        with pytest.raises(SpecError, match="attention: 'score_0' requires a gradient, which this"):
            numpipe.torch.attention(*arrays, score=(biased, bias))
        with torch.no_grad():
            numpipe.torch.attention(*arrays, score=(biased, bias))


@pytest.mark.parametrize("shape", [(4, 9, 16), (2, 4, 9, 16), (3, 2, 4, 9, 16)], ids=str)
def test_leading_dimensions_are_batches(shape: tuple[int, ...]) -> None:
    q, k, v = (torch.randn(shape, dtype=torch.float64).half() for _ in range(3))
    torch.testing.assert_close(sdpa(q, k, v), expected(q, k, v))


@pytest.mark.parametrize("dynamic", [False, True])
def test_it_is_in_one_graph(dynamic: bool) -> None:
    graphs: list[Any] = []
    f = torch.compile(
        lambda q, k, v: sdpa(q, k, v, is_causal=True) + 1,
        fullgraph=True,
        dynamic=dynamic,
        backend=lambda graph, _: graphs.append(graph) or graph.forward,
    )
    for length in (9, 5)[: 1 + dynamic]:
        q, k, v = tensors(length=length)
        torch.testing.assert_close(f(q, k, v), expected(q, k, v, is_causal=True) + 1)
    assert len(graphs) == 1


def test_opcheck_finds_nothing() -> None:
    torch.library.opcheck(
        torch.ops.numpipe.attention.default,
        tuple(tensors(keys=2)),
        {"causal": True, "scale": 0.5},
    )


def test_autocast_converts_to_its_type() -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert sdpa(*tensors(dtype=torch.float32)).dtype == torch.bfloat16


@pytest.mark.parametrize("rank", [3, 4])
def test_vmap_is_a_batch(rank: int) -> None:
    q, k, v = (torch.randn((4, 2, 9, 16)[4 - rank :], dtype=torch.float64).half() for _ in range(3))
    qs = torch.stack([q, 2 * q], 1)
    wanted = torch.stack([expected(q, k, v), expected(2 * q, k, v)])
    torch.testing.assert_close(torch.vmap(sdpa, in_dims=(1, None, None))(qs, k, v), wanted)


# ---- what is rejected
Q, K, V = tensors()
REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "shape of the mask": (
        lambda: sdpa(Q, K, V, torch.ones(9, 6).bool()),
        r"attn_mask \(9, 6\) cannot be broadcast to \(2, 4, 9, 7\)",
    ),
    "heads": (
        lambda: sdpa(Q, K[:, :2], V[:, :2]),
        "query has 4 heads, key 2; fix: pass enable_gqa=True",
    ),
    "multiple": (
        lambda: sdpa(Q, K[:, :3], V[:, :3], enable_gqa=True),
        "the 4 heads of 'q' must be a multiple of the 3 heads of 'k'",
    ),
    "ranks": (lambda: sdpa(Q, K[0], V[0]), "all must have the same number of dimensions"),
    "lengths": (
        lambda: sdpa(Q, K, V[:, :, :3]),
        r"value \(2, 4, 3, 16\): .* batches and depths must be equal",
    ),
    "types": (
        lambda: sdpa(Q, K, V.bfloat16()),
        "'v' is bfloat16 and 'q' is float16; fix: give both one type",
    ),
    "float32": (
        lambda: sdpa(Q.float(), K.float(), V.float()),
        r"'q' is float32, .*; fix: convert it with q.to\(torch.bfloat16\), "
        "or run under torch.autocast",
    ),
    "devices": (
        lambda: sdpa(Q, K.to("meta"), V),
        r"'query' is on cpu, 'key' on meta; fix: key.to\(query.device\)",
    ),
    "no tensor": (lambda: sdpa(Q.numpy(), K, V), "'query' must be a torch.Tensor, got a ndarray"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_it_does_not_have_is_refused(name: str) -> None:
    call, match = REFUSED[name]
    with pytest.raises(SpecError, match=match):
        call()


def test_refusals_hold_while_tracing() -> None:
    for name in ("ranks", "lengths", "types", "multiple"):
        with (
            torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True),
            pytest.raises(SpecError, match=REFUSED[name][1]),
        ):
            REFUSED[name][0]()
