"""numpipe.torch.matmul: results and gradients against float64, under autocast, compile, export and
vmap; and errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import numpipe
from numpipe import SpecError

torch = pytest.importorskip("torch")
npt: Any = pytest.importorskip("numpipe.torch")
dispatch: Any = pytest.importorskip("numpipe.frameworks.torch.dispatch")
module: Any = pytest.importorskip("numpipe.frameworks.torch.torch_ops")

F16, BF16 = torch.float16, torch.bfloat16
GELU: Any = lambda x: torch.nn.functional.gelu(x, approximate="tanh")
ACTIVATIONS: dict[Any, Any] = {
    None: lambda x: x,
    "relu": torch.relu,
    "silu": torch.nn.functional.silu,
    "gelu": GELU,
}


@pytest.fixture(autouse=True)
def simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMPIPE_TARGET", "sim")
    monkeypatch.setenv("NUMPIPE_COMPILE_CHECK", "0")
    torch._dynamo.reset()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bool]]:
    """Yield the results of `direct`, which say in each call whether the dispatcher is bypassed."""
    answers: list[bool] = []
    real = dispatch.direct
    monkeypatch.setattr(
        module, "direct", lambda *tensors: answers.append(real(*tensors)) or answers[-1]
    )
    yield answers


@numpipe.function
def halved(x):
    return np.maximum(x * 0.5, 0.0)


def tensors(*shapes: tuple[int, ...], dtype: Any = F16, grad: bool = False) -> list[Any]:
    generator = torch.Generator().manual_seed(sum(map(sum, shapes)))
    return [
        torch.randn(shape, generator=generator).to(dtype).requires_grad_(grad) for shape in shapes
    ]


def expected(
    a: Any,
    b: Any,
    c: Any = None,
    bias: Any = None,
    alpha: float = 1.0,
    beta: float = 1.0,
    activation: Any = None,
) -> Any:
    """Return the product in float64."""
    x = alpha * (a.double() @ b.double())
    x = x if c is None else x + beta * c.double()
    return ACTIVATIONS[activation](x if bias is None else x + bias.double())


def check(got: Any, wanted: Any, tolerance: float = 2e-3) -> None:
    """Check that shapes are equal, and values up to a fraction of the largest."""
    assert got.shape == wanted.shape
    assert (got.double() - wanted).abs().max() <= tolerance * (1 + wanted.abs().max())


# ---- gradients
SHAPES = [
    ((2, 20, 24), (24, 40)),
    ((20, 24), (2, 24, 40)),
    ((24,), (24, 40)),
    ((2, 20, 24), (24,)),
    ((24,), (24,)),
    ((20, 24), (24, 40)),
    ((2, 1, 20, 24), (3, 24, 40)),
]


@pytest.mark.variants(5)
@pytest.mark.parametrize(("a", "b"), SHAPES, ids=str)
def test_gradients_of_any_shapes_match_float64(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    mine = tensors(a, b, grad=True)
    wide = [tensor.detach().double().requires_grad_() for tensor in mine]
    got, wanted = npt.matmul(*mine, alpha=0.5), expected(*wide, alpha=0.5)
    check(got, wanted)
    grad = torch.randn(wanted.shape, dtype=torch.float64).half()
    got.backward(grad)
    wanted.backward(grad.double())
    for mine_, wide_ in zip(mine, wide, strict=True):
        assert mine_.grad.dtype == F16
        check(mine_.grad, wide_.grad)


@pytest.mark.variants(2)
@pytest.mark.parametrize(
    ("activation", "bias"),
    [("silu", (40,)), ("gelu", (20, 1)), ("relu", (40,)), (None, (20, 1)), (None, (40,))],
    ids=str,
)
def test_gradients_of_all_that_is_added_and_of_an_activation(
    activation: str | None, bias: tuple[int, ...]
) -> None:
    mine = tensors((2, 20, 24), (24, 40), (20, 40), bias, dtype=BF16, grad=True)
    wide = [tensor.detach().double().requires_grad_() for tensor in mine]
    got = npt.matmul(*mine[:3], bias=mine[3], alpha=0.5, beta=-2.0, activation=activation)
    wanted = expected(*wide, 0.5, -2.0, activation)
    check(got, wanted, 2e-2)
    got.float().square().sum().backward()
    wanted.square().sum().backward()
    for mine_, wide_ in zip(mine, wide, strict=True):
        check(mine_.grad, wide_.grad, 4e-2)


def test_a_gradient_is_computed_for_tensors_that_require_one() -> None:
    a, b = tensors((20, 24), (24, 40))
    b.requires_grad_()
    npt.matmul(a, b).sum().backward()
    assert a.grad is None and b.grad is not None


def test_gradients_have_gradients() -> None:
    mine = tensors((20, 24), (24, 40), grad=True)
    wide = [tensor.detach().double().requires_grad_() for tensor in mine]
    for a, b, product in ((*mine, npt.matmul), (*wide, torch.matmul)):
        (grad,) = torch.autograd.grad(product(a, b).square().sum(), a, create_graph=True)
        grad.sum().backward()
    check(mine[1].grad, wide[1].grad, 1e-2)


def test_a_product_under_grad_and_one_without_have_the_same_bits() -> None:
    a, b = tensors((20, 24), (24, 40))
    assert torch.equal(npt.matmul(a, b), npt.matmul(a.clone().requires_grad_(), b).detach())


# ---- with and without the dispatcher
CONTEXTS: dict[str, tuple[Callable[[], Any], bool]] = {
    "inference_mode": (torch.inference_mode, True),
    "no_grad": (torch.no_grad, True),
    "grad": (torch.enable_grad, True),
    "autocast": (lambda: torch.autocast("cpu", dtype=F16), False),
    "profiler": (torch.autograd.profiler.profile, False),
    "fake": (torch._subclasses.FakeTensorMode, False),
    "forward_ad": (torch.autograd.forward_ad.dual_level, False),
    "function mode": (lambda: torch.device("cpu"), False),
}


@pytest.mark.parametrize("name", CONTEXTS)
def test_a_call_passes_the_dispatcher_by_where_nothing_listens(
    name: str, asked: list[bool]
) -> None:
    context, passes = CONTEXTS[name]
    a, b = tensors((8, 24), (24, 16))
    with torch.no_grad(), context():
        if name == "fake":
            a, b = torch.ones(8, 24, dtype=F16), torch.ones(24, 16, dtype=F16)
        assert npt.matmul(a, b).shape == (8, 16)
    assert asked == [passes]


def test_transforms_and_tracing_keep_the_dispatcher(asked: list[bool]) -> None:
    a, b = tensors((2, 8, 24), (24, 16))
    with torch.no_grad():
        torch.vmap(npt.matmul, in_dims=(0, None))(a, b)
        torch.jit.trace(npt.matmul, (a, b), check_trace=False)
    assert asked and not any(asked)


def test_a_parameter_is_a_plain_tensor_and_a_subclass_is_not(asked: list[bool]) -> None:
    class Mine(torch.Tensor):
        pass

    a, b = tensors((8, 24), (24, 16))
    with torch.inference_mode():
        npt.matmul(a, torch.nn.Parameter(b))
        npt.matmul(a, b.as_subclass(Mine))
    assert asked == [True, False]


def test_both_ways_compute_the_same(asked: list[bool]) -> None:
    a, b, c, bias = tensors((20, 24), (24, 40), (20, 40), (40,))
    options: dict[str, Any] = {
        "alpha": 2.0,
        "beta": 0.5,
        "bias": bias,
        "activation": "silu",
        "batch_invariant": True,
    }
    past = npt.matmul(a, b, c, **options)
    with torch.autograd.profiler.profile():
        assert torch.equal(past, npt.matmul(a, b, c, **options))
    assert asked == [True, False]


def test_gradients_are_the_same_both_ways(asked: list[bool]) -> None:
    found = []
    for context in (torch.enable_grad, torch.autograd.profiler.profile):
        a, b = tensors((20, 24), (24, 40), grad=True)
        with context():
            npt.matmul(a, b, activation="silu").sum().backward()
        found.append((a.grad, b.grad))
    assert all(map(torch.equal, *found))
    assert asked == sorted(asked, reverse=True) and set(asked) == {True, False}


# ---- autocast
@pytest.mark.parametrize("dtype", [F16, BF16], ids=str)
def test_autocast_converts_to_its_type_and_gradients_back(dtype: Any) -> None:
    a, b, bias = tensors((20, 24), (24, 40), (40,), dtype=torch.float32, grad=True)
    with torch.autocast("cpu", dtype=dtype):
        got = npt.matmul(a, b, bias=bias)
    assert got.dtype == dtype
    check(got, expected(a.to(dtype), b.to(dtype), bias=bias), 4e-3)
    got.sum().backward()
    assert {a.grad.dtype, b.grad.dtype, bias.grad.dtype} == {torch.float32}
    check(a.grad, b.detach().double().sum(1).expand(20, 24), 2e-2)


# ---- compile, export
@pytest.mark.parametrize(
    "backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.thorough)]
)
@pytest.mark.parametrize("grad", [pytest.param(False, marks=pytest.mark.thorough), True])
def test_compiled_it_is_one_graph_with_the_same_results(backend: str, grad: bool) -> None:
    def f(a: Any, b: Any, bias: Any) -> Any:
        out = torch.empty(20, 40, dtype=F16)
        npt.matmul(a.detach(), b.detach(), out=out)
        return npt.matmul(a, b, bias=bias, activation="gelu") + out

    results = []
    for run in (f, torch.compile(f, fullgraph=True, backend=backend)):
        a, b, bias = tensors((20, 24), (24, 40), (40,), grad=grad)
        result = run(a, b, bias)
        if grad:
            result.sum().backward()
        results.append((result, a.grad, bias.grad))
    for eager, compiled in zip(*results, strict=True):
        assert eager is compiled is None or torch.allclose(eager, compiled, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("with_c", [False, True])
def test_sizes_may_be_symbols(with_c: bool) -> None:
    graphs: list[Any] = []
    f = torch.compile(
        npt.matmul,
        fullgraph=True,
        dynamic=True,
        backend=lambda graph, _: graphs.append(graph) or graph.forward,
    )
    for size in (20, 3, 65):
        a, b, c = tensors((size, 7, 24), (24, 40), (size, 7, 40))
        options = {"c": c} if with_c else {}
        check(f(a, b, **options), expected(a, b, **options))
    assert len(graphs) == 1


def test_a_users_function_is_in_a_graph_under_its_name() -> None:
    class Model(torch.nn.Module):
        def forward(self, a: Any, b: Any) -> Any:
            return npt.matmul(a, b, activation=halved)

    a, b = tensors((20, 24), (24, 40))
    exported = torch.export.export(
        Model(), (a, b), dynamic_shapes=({0: torch.export.Dim("rows")}, None)
    )
    assert f"{__name__}:halved" in str(exported.graph)
    check(exported.module()(a[:5], b), (expected(a[:5], b) / 2).relu())


@pytest.mark.parametrize(
    "options", [{}, {"bias": (40,), "c": (20, 40), "activation": "silu"}], ids=["product", "all"]
)
def test_opcheck_finds_nothing(options: dict[str, Any]) -> None:
    a, b = tensors((20, 24), (24, 40), grad=True)
    added = {
        name: tensors(shape, grad=True)[0] if name != "activation" else shape
        for name, shape in options.items()
    }
    torch.library.opcheck(torch.ops.numpipe.matmul.default, (a, b), added)


@pytest.mark.thorough
def test_opcheck_finds_nothing_in_a_result_written_in_place() -> None:
    a, b, out = tensors((20, 24), (24, 40), (20, 40))
    torch.library.opcheck(
        torch.ops.numpipe.matmul_out.default, (a, b, None, None, 1.0, 1.0, None, False, [out])
    )


# ---- vmap
@pytest.mark.parametrize(
    ("a", "b", "dims"),
    [
        ((2, 20, 24), (24, 40), (0, None)),
        ((2, 24), (24, 40), (0, None)),
        ((2, 20, 24), (2, 24), (0, 0)),
        ((2, 24), (2, 24), (0, 0)),
        pytest.param((20, 24), (24, 40, 2), (None, 2), marks=pytest.mark.thorough),
        pytest.param((20, 2, 24), (3, 2, 24, 40), (1, 1), marks=pytest.mark.thorough),
    ],
)
def test_vmap_is_a_batch(a: tuple[int, ...], b: tuple[int, ...], dims: tuple[Any, Any]) -> None:
    x, y = tensors(a, b)
    check(
        torch.vmap(npt.matmul, in_dims=dims)(x, y),
        torch.vmap(torch.matmul, in_dims=dims)(x.double(), y.double()),
    )


def test_vmap_along_c_and_bias() -> None:
    def f(a: Any, b: Any, c: Any, bias: Any, product: Any) -> Any:
        return product(a, b, c, bias=bias, beta=0.5, activation="relu")

    a, b, c, bias = tensors((2, 20, 24), (24, 40), (2, 20, 40), (40, 2))
    got = torch.vmap(lambda *each: f(*each, npt.matmul), in_dims=(0, None, 0, 1))(a, b, c, bias)
    wanted = torch.relu(a.double() @ b.double() + 0.5 * c.double() + bias.double().T[:, None])
    check(got, wanted, 4e-3)


@pytest.mark.thorough
def test_gradients_by_sample() -> None:
    """torch.func: vmap of grad."""
    a, b = tensors((2, 20, 24), (24, 40))
    got = torch.vmap(torch.func.grad(lambda b, a: npt.matmul(a, b).sum()), in_dims=(None, 0))(b, a)
    check(got, a.double().sum(1)[:, :, None].expand(2, 24, 40))


def test_meta_tensors_have_a_shape() -> None:
    a, b = (tensor.to("meta") for tensor in tensors((20, 24), (24, 40)))
    assert npt.matmul(a, b).shape == (20, 40) and npt.matmul(a, b).is_meta


# ---- what is rejected
def test_out_is_written_and_autograd_notices() -> None:
    a, b, out = tensors((20, 24), (24, 40), (20, 40))
    assert npt.matmul(a, b, out=out) is out and out._version == 1
    check(out, expected(a, b))


ONES = torch.ones(8, 8, dtype=F16)
REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "out and a gradient": (
        lambda: npt.matmul(ONES.clone().requires_grad_(), ONES, out=ONES.clone()),
        "writes out in place, and an argument requires a gradient .*leave out= out, .* under",
    ),
    "devices": (
        lambda: npt.matmul(ONES, ONES.to("meta")),
        r"'a' is on cpu, 'b' on meta; fix: b.to\(a.device\)",
    ),
    "NumPy": (
        lambda: npt.matmul(ONES, ONES.numpy()),
        r"'b' must be a torch.Tensor, got a ndarray; fix: torch.as_tensor\(b\)",
    ),
    "sparse": (
        lambda: npt.matmul(ONES.to_sparse(), ONES),
        r"'a' is sparse \(torch.sparse_coo\); fix: a.to_dense\(\)",
    ),
    "types": (lambda: npt.matmul(ONES, ONES.bfloat16()), "'b' .*bfloat16"),
    "integers": (lambda: npt.matmul(ONES.int(), ONES.int()), "'a' .*int32"),
    "complex": (lambda: npt.matmul(ONES.cfloat(), ONES.cfloat()), "'a' .*complex64"),
    "wide": (lambda: npt.matmul(ONES, ONES, ONES.double()), "'c' .*float64"),
    "K": (lambda: npt.matmul(ONES, ONES[:5]), "K = 8 in 'a'"),
    "activation": (
        lambda: npt.matmul(ONES, ONES, activation="tanh"),
        "activation must be None, 'relu', 'silu', 'gelu' or a numpipe.function",
    ),
    "no derivative": (
        lambda: npt.matmul(ONES.clone().requires_grad_(), ONES, activation=halved),
        "halved has no derivative here, .* fix: use 'relu', 'silu', 'gelu', omit activation=",
    ),
    "jvp": (
        lambda: torch.func.jvp(lambda a: npt.matmul(a, ONES), (ONES,), (ONES,)),
        r"derivatives along the inputs \(torch.func.jvp, jacfwd\) are not defined; fix: use "
        r"torch.func.vjp",
    ),
    "vmap of out": (
        lambda: torch.vmap(lambda a, out: npt.matmul(a, ONES, out=out))(
            ONES[None], ONES[None].clone()
        ),
        "writes out in place, and an argument .* is a batch of torch.vmap, .*; fix: leave out= out",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused(name: str) -> None:
    call, match = REFUSED[name]
    with pytest.raises(SpecError, match=match):
        call()


@pytest.mark.parametrize(
    ("shapes", "match"),
    [
        (((8, 8), (5, 8)), "K = 8 in 'a' (8, 8), 5 in 'b' (5, 8)"),
        (((2, 8, 8), (3, 8, 8)), "the batches of 'a' (2, 8, 8) and 'b' (3, 8, 8)"),
        (((8, 8), (8, 8), (3, 8)), "'c'"),
        (((8, 8), (8, 8), None, (3,)), "'bias' must be (8,) or (8, 1), got (3,)"),
        (((), (8, 8)), "'a' is a number"),
    ],
    ids=str,
)
def test_shapes_are_refused_in_the_same_words_while_tracing(shapes: Any, match: str) -> None:
    a, b, c, bias = [
        None if shape is None else torch.ones(shape, dtype=F16) for shape in (*shapes, None, None)
    ][:4]
    for mode in (torch.no_grad(), torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True)):
        with mode, pytest.raises(SpecError) as error:
            npt.matmul(a, b, c, bias=bias)
        assert match in str(error.value)


def test_a_graph_asks_for_the_module_of_its_function() -> None:
    with pytest.raises(
        SpecError,
        match="'nowhere:f' is not a function of an imported module; fix: import nowhere before",
    ):
        torch.ops.numpipe.matmul(ONES, ONES, activation="nowhere:f")


def test_a_function_inside_a_function_has_no_name_in_a_graph() -> None:
    @numpipe.function
    def inner(x):
        return x

    with torch.inference_mode():  # fine where no graph is recorded
        assert torch.equal(npt.matmul(ONES, ONES, activation=inner), npt.matmul(ONES, ONES))
    for function, match in (
        (inner, "is defined inside a function, where a graph cannot find it again; fix: "),
        (torch.tanh, "activation must be a numpipe.function of a float32 tile, got <built-in"),
    ):
        with (
            torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True),
            pytest.raises(SpecError, match=match),
        ):
            npt.matmul(ONES, ONES, activation=function)
