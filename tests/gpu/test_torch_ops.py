"""numpipe.torch on the GPU: results and gradients, graphs, streams, compile, export, autocast, and
kernels as ops."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")
npt: Any = pytest.importorskip("numpipe.torch")
from tests.kernels import torch_kernels as kernels  # noqa: E402

F16, BF16 = torch.float16, torch.bfloat16
theirs: Any = torch.nn.functional.scaled_dot_product_attention
_numbers = itertools.count()


def tensors(*shapes: tuple[int, ...], dtype: Any = F16, grad: bool = False) -> list[Any]:
    return [
        (torch.randn(shape, device="cuda") / shape[-1] ** 0.25).to(dtype).requires_grad_(grad)
        for shape in shapes
    ]


def check(got: Any, wanted: Any, tolerance: float) -> None:
    """Check that shapes are equal, and the relative error in the Frobenius norm is at most this."""
    assert got.shape == wanted.shape
    assert (got.double() - wanted).norm() <= tolerance * wanted.norm()


def heads(
    query: int = 8, keys: int = 2, length: int = 300, depth: int = 128, dtype: Any = BF16
) -> list[Any]:
    return tensors(
        (2, query, length, depth), (2, keys, length, depth), (2, keys, length, depth), dtype=dtype
    )


# ---- results, gradients
@pytest.mark.parametrize("dtype", [F16, BF16], ids=str)
@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((300, 520), (520, 264)),
        ((4, 129, 256), (256, 512)),
        ((256, 128), (3, 128, 72)),
        ((520,), (520, 264)),
        ((2, 1, 64, 136), (3, 136, 200)),
        ((131, 77), (77, 45)),
    ],
    ids=str,
)
def test_gradients_match_float64(a: tuple[int, ...], b: tuple[int, ...], dtype: Any) -> None:
    mine = tensors(a, b, dtype=dtype, grad=True)
    wide = [tensor.detach().double().requires_grad_() for tensor in mine]
    got, wanted = npt.matmul(*mine, alpha=0.5), 0.5 * (wide[0] @ wide[1])
    tolerance = 1e-3 if dtype == F16 else 6e-3
    check(got, wanted, tolerance)
    grad = torch.randn_like(got)
    got.backward(grad)
    wanted.backward(grad.double())
    for mine_, wide_ in zip(mine, wide, strict=True):
        check(mine_.grad, wide_.grad, tolerance)


@pytest.mark.parametrize("activation", ["relu", "silu", "gelu"])
def test_a_layer_and_its_gradients(activation: str) -> None:
    mine = tensors((4, 100, 256), (512, 256), (512,), (4, 100, 512), dtype=BF16, grad=True)
    wide = [tensor.detach().double().requires_grad_() for tensor in mine]
    functions = {
        "relu": torch.relu,
        "silu": torch.nn.functional.silu,
        "gelu": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    }
    x, weight, bias, c = mine
    got = npt.matmul(x, weight.T, c, bias=bias, activation=activation)
    wanted = functions[activation](wide[0] @ wide[1].T + wide[3] + wide[2])
    check(got, wanted, 1e-2)
    got.float().square().sum().backward()
    wanted.square().sum().backward()
    for mine_, wide_ in zip(mine, wide, strict=True):
        check(mine_.grad, wide_.grad, 2e-2)


def test_calls_in_a_loop_are_right_wherever_the_allocator_puts_them() -> None:
    kept = []
    with torch.inference_mode():
        for i in range(40):
            a, b = tensors((64 * (1 + i % 3), 256), (256, 192))
            c = npt.matmul(a, b, activation=[None, "relu"][i % 2])
            wanted = a.double() @ b.double()
            check(c, wanted.relu() if i % 2 else wanted, 1e-3)
            kept.append(c)
    assert len({c.data_ptr() for c in kept}) == len(kept)


def test_both_ways_have_the_same_bits() -> None:
    a, b = tensors((300, 520), (520, 264))
    with torch.inference_mode():
        assert torch.equal(npt.matmul(a, b), torch.ops.numpipe.matmul(a, b))


# ---- graphs, streams
def test_ops_in_a_cuda_graph_are_right_at_each_replay() -> None:
    (a, b), (q, k, v) = tensors((300, 256), (256, 512)), heads()

    def run() -> Any:
        return npt.matmul(
            npt.matmul(a, b, activation="silu"), b.T
        ), npt.scaled_dot_product_attention(q, k, v, enable_gqa=True)

    with torch.no_grad():
        run()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = run()
        for _ in range(5):
            a.normal_(), q.normal_()
            for each in found:
                each.fill_(float("nan"))
            graph.replay()
            for got, wanted in zip(found, run(), strict=True):
                assert torch.equal(got, wanted)


def test_a_training_step_in_a_cuda_graph() -> None:
    a, b = tensors((256, 256), (256, 256), grad=True)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            npt.matmul(a, b).sum().backward()
    torch.cuda.synchronize()
    a.grad = b.grad = None
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        npt.matmul(a, b).sum().backward()
    with torch.no_grad():
        b.normal_()
    graph.replay()
    torch.cuda.synchronize()
    check(a.grad, b.double().sum(1).expand(256, 256), 2e-3)


def test_ops_run_on_the_current_stream() -> None:
    a, b = tensors((2048, 2048), (2048, 2048))
    stream = torch.cuda.Stream()
    with torch.inference_mode():
        npt.matmul(a, b)
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(50_000_000)
            a.fill_(1.0)
            c = npt.matmul(a, b)
        stream.synchronize()
        check(c, a.double() @ b.double(), 1e-3)


# ---- compile, export, autocast
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
@pytest.mark.parametrize("dynamic", [False, True])
def test_a_model_is_compiled_as_one_graph(mode: str, dynamic: bool) -> None:
    def f(x: Any, weight: Any, bias: Any) -> Any:
        hidden = npt.matmul(x + 1, weight.T, bias=bias, activation="gelu")
        q = hidden.view(2, -1, 4, 64).transpose(1, 2)
        o = npt.scaled_dot_product_attention(q.detach(), q.detach(), q.detach(), is_causal=True)
        return hidden * 2 + o.transpose(1, 2).reshape(hidden.shape)

    compiled = torch.compile(f, fullgraph=True, mode=mode, dynamic=dynamic)
    for rows in (128, 128, 72):
        results = []
        made = tensors((2 * rows, 96), (256, 96), (256,), dtype=BF16)
        for run in (f, compiled):
            x, weight, bias = (tensor.clone().requires_grad_() for tensor in made)
            result = run(x, weight, bias)
            result.float().square().mean().backward()
            results.append(
                [
                    each.detach().clone().double()
                    for each in (result, x.grad, weight.grad, bias.grad)
                ]
            )
        for eager, got in zip(*results, strict=True):
            check(got, eager, 2e-2)


def test_a_model_is_exported() -> None:
    class Model(torch.nn.Module):
        def forward(self, x: Any, weight: Any) -> Any:
            return npt.matmul(x, weight.T, activation="silu") + 1

    x, weight = tensors((300, 256), (512, 256))
    exported = torch.export.export(
        Model(), (x, weight), dynamic_shapes=({0: torch.export.Dim("rows")}, None)
    )
    check(
        exported.module()(x[:7], weight),
        torch.nn.functional.silu(x[:7].double() @ weight.double().T) + 1,
        2e-3,
    )


@pytest.mark.parametrize("dtype", [F16, BF16], ids=str)
def test_autocast_converts_and_gradients_are_float32(dtype: Any) -> None:
    x, weight, bias = tensors((300, 256), (512, 256), (512,), dtype=torch.float32, grad=True)
    with torch.autocast("cuda", dtype=dtype):
        y = npt.matmul(x, weight.T, bias=bias)
    assert y.dtype == dtype
    y.sum().backward()
    check(x.grad, weight.detach().double().sum(0).expand(300, 256), 1e-2)
    assert bias.grad.dtype == torch.float32


def test_opcheck_finds_nothing() -> None:
    a, b, c = tensors((64, 136), (136, 72), (64, 72), grad=True)
    torch.library.opcheck(torch.ops.numpipe.matmul.default, (a, b, c), {"activation": "gelu"})
    torch.library.opcheck(torch.ops.numpipe.attention.default, tuple(heads()), {"causal": True})


def test_vmap_is_a_batch() -> None:
    a, b = tensors((4, 100, 136), (136, 72))
    assert torch.equal(torch.vmap(npt.matmul, in_dims=(0, None))(a, b), npt.matmul(a, b))


# ---- attention
@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"scale": 0.2}], ids=str)
@pytest.mark.parametrize("depth", [64, 128])
def test_attention_is_pytorchs(depth: int, options: dict[str, Any]) -> None:
    q, k, v = heads(depth=depth)
    with torch.inference_mode():
        got = npt.scaled_dot_product_attention(q, k, v, enable_gqa=True, **options)
        check(got, theirs(q.double(), k.double(), v.double(), enable_gqa=True, **options), 1e-2)


# ---- kernels as ops
def test_a_kernel_as_an_op_has_its_gradient_compiled_and_not() -> None:
    op = npt.register(
        kernels.squared,
        f"numpipe_gpu_tests::squared_{next(_numbers)}",
        backward=kernels.squared_backward,
    )
    f: Any = lambda x: op(x, alpha=2.0)[0].sum()
    for run in (
        f,
        torch.compile(f, fullgraph=True),
        torch.compile(f, fullgraph=True, dynamic=True),
    ):
        x = torch.randn(200, 136, device="cuda", requires_grad=True)
        run(x).backward()
        torch.testing.assert_close(x.grad, 4 * x.detach())
    torch.library.opcheck(
        op, (torch.randn(64, 64, device="cuda", requires_grad=True),), {"alpha": 2.0}
    )


def test_a_kernel_that_writes_in_place_is_in_a_graph() -> None:
    op = npt.register(kernels.tripled, f"numpipe_gpu_tests::tripled_{next(_numbers)}")

    def f(x: Any) -> Any:
        out = torch.empty_like(x)
        op(x, out)
        return out + 1

    x = torch.randn(200, 136, device="cuda")
    torch.testing.assert_close(torch.compile(f, fullgraph=True)(x), 3 * x + 1)
