"""Multi-GPU ops of numpipe.torch on simulated GPUs: results and gradients against float64,
autocast, graphs, errors."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import pytest

import numpipe
from numpipe import Mesh, SpecError

torch = pytest.importorskip("torch")
npt: Any = pytest.importorskip("numpipe.torch")
torch_ops: Any = importlib.import_module("numpipe.frameworks.torch.torch_ops")
in_torch: Any = pytest.importorskip("tests.kernels.many_gpus_in_torch")

F16, BF16 = torch.float16, torch.bfloat16
EXPECTED: dict[str, Callable[..., list[Any]]] = in_torch.EXPECTED
in_full, shards = in_torch.in_full, in_torch.shards
MESH = Mesh.simulated(2)


@pytest.fixture(autouse=True)
def simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMPIPE_TARGET", "sim")
    monkeypatch.setenv("NUMPIPE_COMPILE_CHECK", "0")
    torch._dynamo.reset()


PARTED = "matmul_reduce_scatter", "matmul_all_reduce"
"""ops with the option `parts`"""
SHAPES: dict[str, tuple[tuple[int, ...], ...]] = {
    "all_gather_matmul": ((20, 24), (24, 40)),
    "matmul_reduce_scatter": ((20, 24), (24, 40)),
    "matmul_all_reduce": ((20, 24), (24, 40)),
    "all_reduce": ((6, 8),),
    "all_gather": ((6, 8),),
    "reduce_scatter": ((6, 8),),
}


def check(got: Any, wanted: Any, tolerance: float = 3e-3) -> None:
    assert not in_torch.differs(got, wanted, tolerance)


def compare(name: str, mine: list[list[Any]], tolerance: float = 3e-3, gpus: int = 2) -> None:
    """Compare an op's results and gradients with float64."""
    wide = [in_full(tensors) for tensors in mine]
    got, wanted = getattr(npt, name)(*mine, mesh=Mesh.simulated(gpus)), EXPECTED[name](*wide)
    grads = [
        torch.randn(each.shape, generator=torch.Generator().manual_seed(i)).to(got[0].dtype)
        for i, each in enumerate(wanted)
    ]
    torch.autograd.backward(got, grads)
    torch.autograd.backward(wanted, [grad.double() for grad in grads])
    for one, other in zip(got, wanted, strict=True):
        check(one, other, tolerance)
    for tensors, others in zip(mine, wide, strict=True):
        for tensor, other in zip(tensors, others, strict=True):
            assert tensor.grad is not None if tensor.requires_grad else tensor.grad is None
            if tensor.requires_grad:
                assert tensor.grad.dtype == tensor.dtype
                check(tensor.grad, other.grad, tolerance)


# ---- results and gradients
@pytest.mark.parametrize("name", SHAPES)
def test_results_and_gradients_match_float64(name: str) -> None:
    compare(name, shards(*SHAPES[name], grad=True))


@pytest.mark.variants(1)
@pytest.mark.parametrize(
    "name", ["all_gather_matmul", "matmul_reduce_scatter", "matmul_all_reduce"]
)
@pytest.mark.parametrize("gpus", [1, 3])
def test_gradients_on_any_number_of_gpus(name: str, gpus: int) -> None:
    compare(name, shards((6 * gpus, 16), (16, 24), dtype=BF16, grad=True, gpus=gpus), 3e-2, gpus)


@pytest.mark.parametrize(
    "name", ["all_gather_matmul", "matmul_reduce_scatter", "matmul_all_reduce"]
)
def test_rows_of_any_number_of_bytes_have_gradients(name: str) -> None:
    """A shard of 10 x 7 elements is not a multiple of 16 bytes, nor is its gradient, and the weight
    is a view."""
    a, b = shards((10, 7), (9, 7), grad=True)
    wide = in_full(a), in_full(b)
    got = getattr(npt, name)(a, [each.mT for each in b], mesh=MESH)
    wanted = EXPECTED[name](wide[0], [each.mT for each in wide[1]])
    sum((each.float() ** 2).sum() for each in got).backward()
    sum((each**2).sum() for each in wanted).backward()
    for tensor, other in zip([*a, *b], [*wide[0], *wide[1]], strict=True):
        check(tensor.grad, other.grad, 1e-2)


def test_parts_in_the_operands_type_are_rounded() -> None:
    a, b = shards(*SHAPES["matmul_all_reduce"], dtype=BF16, grad=True)
    got = npt.matmul_all_reduce(a, b, mesh=MESH, parts="input")
    wanted = sum((x @ y).float() for x, y in zip(a, b, strict=True))
    assert torch.equal(got[0], wanted.to(BF16)) and got[0].requires_grad
    plain = npt.matmul_all_reduce(a, b, mesh=MESH)
    assert not torch.equal(got[0], plain[0]), "they are rounded once less"


def test_a_gradient_is_computed_for_tensors_that_require_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ran: list[str] = []
    launch = torch_ops.TorchOp.launch
    monkeypatch.setattr(
        torch_ops.TorchOp, "launch", lambda op, *args: ran.append(op.name) or launch(op, *args)
    )
    a, b = shards((20, 24), (24, 40))
    for tensor in a:
        tensor.requires_grad_()
    sum(each.sum() for each in npt.all_gather_matmul(a, b, mesh=MESH)).backward()
    assert a[0].grad is not None and b[0].grad is None
    assert ran == ["all_gather_matmul", "matmul_reduce_scatter"], (
        "rows are gathered again for the gradient of b alone"
    )


@pytest.mark.parametrize(
    "name", [pytest.param("all_gather_matmul", marks=pytest.mark.thorough), "matmul_reduce_scatter"]
)
def test_gradients_have_gradients(name: str) -> None:
    a, b = shards((8, 16), (16, 8), grad=True)
    wide = in_full(a), in_full(b)
    for x, y, op in (
        (a, b, lambda *each: getattr(npt, name)(*each, mesh=MESH)),
        (*wide, EXPECTED[name]),
    ):
        grads = torch.autograd.grad(
            sum(each.square().sum() for each in op(x, y)), y, create_graph=True
        )
        sum(grad.sum() for grad in grads).backward()
    for tensor, other in zip([*a, *b], [*wide[0], *wide[1]], strict=True):
        check(tensor.grad, other.grad, 2e-2)


def test_calls_under_grad_and_without_have_the_same_bits() -> None:
    a, b = shards((20, 24), (24, 40))
    plain = npt.all_gather_matmul(a, b, mesh=MESH)
    recorded = npt.all_gather_matmul([each.clone().requires_grad_() for each in a], b, mesh=MESH)
    assert all(torch.equal(one, other.detach()) for one, other in zip(plain, recorded, strict=True))


# ---- autocast, graphs
def test_under_autocast_tensors_are_converted() -> None:
    a, b = shards((20, 24), (24, 40), dtype=torch.float32, grad=True)
    with torch.autocast("cpu", BF16):
        got = npt.matmul_reduce_scatter(a, b, mesh=MESH)
    assert got[0].dtype == BF16
    sum(each.sum() for each in got).backward()
    assert a[0].grad.dtype == torch.float32
    check(a[1].grad, b[1].double().sum(1).expand(20, 24), 2e-2)


@pytest.mark.parametrize(
    "backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.thorough)]
)
def test_a_sharded_mlp_is_one_graph_with_the_same_results(backend: str) -> None:
    def mlp(x: Any, up: Any, down: Any) -> Any:
        hidden = [
            torch.nn.functional.silu(each) for each in npt.all_gather_matmul(x, up, mesh=MESH)
        ]
        return npt.matmul_reduce_scatter(hidden, down, mesh=MESH)

    results = []
    for run in (mlp, torch.compile(mlp, fullgraph=True, backend=backend)):
        every = shards((8, 16), (16, 24), (24, 16), dtype=BF16, grad=True)
        result = run(*every)
        sum(each.sum() for each in result).backward()
        results.append([*result, *[tensor.grad for tensors in every for tensor in tensors]])
    for eager, compiled in zip(*results, strict=True):
        assert torch.allclose(eager, compiled, rtol=2e-2, atol=2e-2)


def test_sizes_may_be_symbols() -> None:
    graphs: list[Any] = []
    f = torch.compile(
        lambda a, b: npt.all_gather_matmul(a, b, mesh=MESH),
        fullgraph=True,
        dynamic=True,
        backend=lambda graph, _: graphs.append(graph) or graph.forward,
    )
    for rows in (20, 3):
        a, b = shards((rows, 24), (24, 40))
        for one, other in zip(
            f(a, b), EXPECTED["all_gather_matmul"](in_full(a), in_full(b)), strict=True
        ):
            check(one, other)
    assert len(graphs) == 1


@pytest.mark.variants(1)
@pytest.mark.parametrize("name", SHAPES)
def test_opcheck_finds_nothing(name: str) -> None:
    lists = shards(*SHAPES[name], grad=True)
    torch.library.opcheck(getattr(torch.ops.numpipe, name).default, (*lists, MESH.name))
    with torch.no_grad():
        out = [torch.empty_like(each) for each in getattr(npt, name)(*lists, mesh=MESH)]
    lists = [[tensor.detach() for tensor in tensors] for tensors in lists]
    torch.library.opcheck(
        getattr(torch.ops.numpipe, f"{name}_out").default,
        (*lists, MESH.name, *["float32"] * (name in PARTED), out),
    )


def test_meta_tensors_have_a_shape() -> None:
    a, b = ([each.to("meta") for each in tensors] for tensors in shards((20, 24), (24, 40)))
    assert [each.shape for each in npt.all_gather_matmul(a, b, mesh=MESH)] == [(40, 40)] * 2
    assert [each.shape for each in npt.matmul_reduce_scatter(a, b, mesh=MESH)] == [(10, 40)] * 2


@pytest.mark.parametrize("compiled", [False, True])
def test_a_rank_passes_and_gets_its_own_tensors(compiled: bool) -> None:
    """As rank 0 of 2 under Mesh.torch; only shapes are checked."""
    mesh = Mesh(2, 0, None)

    def f(x: Any, up: Any, down: Any) -> Any:
        return npt.matmul_reduce_scatter(npt.all_gather_matmul(x, up, mesh=mesh), down, mesh=mesh)

    run = torch.compile(f, fullgraph=True, backend="aot_eager") if compiled else f
    x, up, down = (
        each.detach().to("meta").requires_grad_() for each, _ in shards((8, 16), (16, 24), (24, 16))
    )
    y = run(x, up, down)
    assert y.shape == (8, 16) and y.is_meta
    y.sum().backward()
    assert [each.grad.shape for each in (x, up, down)] == [(8, 16), (16, 24), (24, 16)]


def test_gradients_are_gathered_from_aligned_memory() -> None:
    """TMA reads from multiples of 16 bytes; a view may begin anywhere, and its rows may be
    spaced."""
    flat = torch.arange(65, dtype=F16)
    for view in (flat[1:].view(8, 8), flat[:64].view(8, 8).T, flat[:1].expand(8, 8)):
        dense = torch_ops._XP.contiguous(view)
        assert torch.equal(dense, view) and dense.is_contiguous() and dense.data_ptr() % 16 == 0


def test_out_is_written_and_autograd_notices() -> None:
    a, b, out = shards((20, 24), (24, 40), (10, 40))
    assert npt.matmul_reduce_scatter(a, b, mesh=MESH, out=out) is out and out[1]._version == 1
    for one, other in zip(
        out, EXPECTED["matmul_reduce_scatter"](in_full(a), in_full(b)), strict=True
    ):
        check(one, other)


# ---- what is rejected
ONE = torch.ones(8, 8, dtype=F16)
ONES = [ONE, ONE]
WANTED = [ONE.clone().requires_grad_() for _ in range(2)]
REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "out and a gradient": (
        lambda: npt.all_gather_matmul(
            WANTED, ONES, mesh=MESH, out=[torch.ones(16, 8, dtype=F16)] * 2
        ),
        "all_gather_matmul: writes out in place, and an argument requires a gradient .*leave out= "
        "out, .*call it",
    ),
    "no mesh": (
        lambda: npt.all_gather_matmul(ONES, ONES, mesh=2),
        r"all_gather_matmul: mesh must be a numpipe.Mesh: .*, got 2",
    ),
    "a tensor": (
        lambda: npt.all_gather(ONE, mesh=MESH),
        r"all_gather: 'x' under Mesh.simulated\(2\) must be a list of 2 arrays",
    ),
    "too few": (
        lambda: npt.all_gather_matmul(ONES, [ONE], mesh=MESH),
        "'b' under .* must be a list of 2 arrays, .* got 1 of them",
    ),
    "None": (
        lambda: npt.all_gather_matmul(ONES, [ONE, None], mesh=MESH),
        "'b' under .* must be a list of 2 arrays, .* got 1 of them",
    ),
    "NumPy": (
        lambda: npt.reduce_scatter([ONE.numpy()] * 2, mesh=MESH),
        "'x' must be a torch.Tensor, got a ndarray",
    ),
    "devices": (
        lambda: npt.all_gather_matmul(ONES, [ONE.to("meta")] * 2, mesh=MESH),
        "'a' is on cpu, 'b' on meta",
    ),
    "types": (
        lambda: npt.matmul_reduce_scatter(ONES, [ONE.bfloat16()] * 2, mesh=MESH),
        "'b' is bfloat16 and 'a' is float16",
    ),
    "K": (lambda: npt.all_gather_matmul(ONES, [ONE[:5]] * 2, mesh=MESH), "K = 8 in 'a'"),
    "vmap": (
        lambda: torch.vmap(lambda x: npt.all_gather([x, x], mesh=MESH))(ONE[None]),
        "all_gather: vmap has no rule for this op; fix: call it in a loop",
    ),
    "a mesh that is gone": (
        lambda: torch.ops.numpipe.all_gather(ONES, Mesh.simulated(2).name),
        "this process has no numpipe.Mesh",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused(name: str) -> None:
    call, match = REFUSED[name]
    with pytest.raises(SpecError, match=match):
        call()


@pytest.mark.parametrize(
    "name",
    [*SHAPES, "all_to_all"],
)
def test_the_op_that_records_nothing_names_the_one_that_does(name: str) -> None:
    lists = {"all_to_all": (WANTED, [torch.ones(2, dtype=torch.int32)] * 2)}.get(
        name, (WANTED, ONES)[: len(SHAPES.get(name, ()))]
    )
    with pytest.raises(
        SpecError, match=rf"{name}: '[ax]' requires a gradient, .* under torch.no_grad\(\)"
    ) as error:
        getattr(numpipe.ops, name)(*lists, mesh=MESH)
    assert (f"call numpipe.torch.{name}, or pass" in str(error.value)) == hasattr(npt, name)
