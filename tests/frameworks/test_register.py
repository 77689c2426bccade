"""Kernels registered as PyTorch ops: schemas, compile, export and autograd, and errors."""

from __future__ import annotations

import doctest
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import numpipe
from numpipe import ArrayType, SpecError
from tests.kernels import torch_kernels as kernels

torch = pytest.importorskip("torch")
register: Any = pytest.importorskip("numpipe.torch").register


@pytest.fixture(autouse=True)
def simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMPIPE_TARGET", "sim")
    monkeypatch.setenv("NUMPIPE_COMPILE_CHECK", "0")
    torch._dynamo.reset()


_numbers = itertools.count()


def fresh(kernel: Any, **options: Any) -> Any:
    """Return an op of a kernel, with a name that no other test uses."""
    return register(kernel, f"numpipe_tests::{kernel.name}_{next(_numbers)}", **options)


def inputs(*shape: int, grad: bool = False) -> Any:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).requires_grad_(grad)


# ---- schema and results
@pytest.mark.parametrize(
    ("kernel", "options", "schema"),
    [
        (kernels.squared, {}, "(Tensor x, float alpha, int n=1) -> (Tensor, Tensor)"),
        (kernels.tripled, {}, "(Tensor x, Tensor(a!) y) -> ()"),
        (kernels.times, {"statics": {"factor": 2.0}}, "(Tensor x) -> Tensor"),
        (kernels.counted, {}, "(Tensor x, Tensor(a!) count, int times) -> Tensor"),
    ],
    ids=["returns", "in-place", "statics", "both"],
)
def test_a_schema_has_the_parameters_of_the_kernel(
    kernel: Any, options: dict[str, Any], schema: str
) -> None:
    options = options | ({"mutates": ("count",)} if kernel is kernels.counted else {})
    assert str(fresh(kernel, **options)._schema).partition("(")[2] == schema[1:]


def test_an_op_computes_what_its_kernel_does() -> None:
    x = inputs(70, 40)
    y, z = fresh(kernels.squared)(x, alpha=2.0, n=3)
    torch.testing.assert_close(y, 2 * x * x + 2)
    torch.testing.assert_close(z, 4 * x)
    torch.testing.assert_close(fresh(kernels.times, statics={"factor": 2.0})(x), 2 * x)


def test_a_scalar_has_the_type_of_its_default() -> None:
    """The kernel is compiled for int64: an op's schema has a single integer type."""
    op = fresh(kernels.shifted)
    torch.testing.assert_close(op(torch.ones(64, 64), by=2), torch.full((64, 64), 3.0))
    with pytest.raises(SpecError, match="does not fit int32"):
        kernels.shifted(torch.ones(64, 64), by=1 << 40)
    op(torch.ones(64, 64), by=1 << 40)


def test_an_op_in_place_writes_its_tensor_and_autograd_notices() -> None:
    op, x, y = fresh(kernels.tripled), inputs(64, 64), torch.zeros(64, 64)
    assert op(x, y) is None
    torch.testing.assert_close(y, 3 * x)
    assert y._version == 1
    with torch.inference_mode():
        op(x, torch.zeros(64, 64))


def test_a_kernel_may_return_and_write_in_place() -> None:
    op, count = fresh(kernels.counted, mutates=("count",)), torch.zeros(64, 64)
    torch.testing.assert_close(op(torch.ones(64, 64), count, 3), torch.full((64, 64), 3.0))
    assert bool((count == 1).all())


# ---- compile, export
BACKENDS = ["eager", "aot_eager", pytest.param("inductor", marks=pytest.mark.thorough)]


@pytest.mark.parametrize("backend", BACKENDS)
def test_ops_are_in_one_graph(backend: str) -> None:
    squared, tripled = fresh(kernels.squared), fresh(kernels.tripled)

    def f(x: Any) -> Any:
        y, z = squared(x, alpha=0.5)
        out = torch.empty_like(x)
        tripled(y + 1, out)
        return out * z

    x = inputs(70, 40)
    torch.testing.assert_close(torch.compile(f, fullgraph=True, backend=backend)(x), f(x))


def test_sizes_may_be_symbols() -> None:
    op, graphs = fresh(kernels.squared), []

    def backend(graph: Any, examples: Any) -> Callable[..., Any]:
        graphs.append(graph)
        return graph.forward

    f = torch.compile(lambda x: op(x, alpha=1.0)[0], fullgraph=True, backend=backend, dynamic=True)
    for rows in (70, 3, 128):
        x = inputs(rows, 40)
        torch.testing.assert_close(f(x), x * x)
    assert len(graphs) == 1


def test_an_op_is_exported_with_a_size_that_stays_open() -> None:
    op = fresh(kernels.squared)

    class Model(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return op(x, alpha=1.0)[0] + 1

    exported = torch.export.export(
        Model(), (inputs(70, 40),), dynamic_shapes=({0: torch.export.Dim("rows")},)
    )
    assert str(op) in str(exported.graph)
    x = inputs(5, 40)
    torch.testing.assert_close(exported.module()(x), x * x + 1)


@pytest.mark.parametrize("grad", [False, pytest.param(True, marks=pytest.mark.thorough)])
def test_opcheck_finds_nothing(grad: bool) -> None:
    x = inputs(64, 64, grad=grad)
    torch.library.opcheck(
        fresh(kernels.squared, backward=kernels.squared_backward), (x,), {"alpha": 2.0}
    )
    torch.library.opcheck(fresh(kernels.tripled), (x.detach(), torch.zeros(64, 64)))


def test_a_fake_of_other_shapes_is_found_by_opcheck() -> None:
    """Shows that the check above uses out_type."""
    op = fresh(kernels.times, statics={"factor": 2.0})
    real = op(torch.ones(64, 64))
    with torch._subclasses.FakeTensorMode():
        fake = op(torch.ones(64, 64))
    assert (fake.shape, fake.dtype, fake.stride()) == (real.shape, real.dtype, real.stride())


# ---- gradients
def by_function(z: Any, grad_y: Any, alpha: Any) -> Any:
    assert alpha == 2.0
    return z * grad_y


@pytest.mark.parametrize(
    "backward", [kernels.squared_backward, by_function], ids=["kernel", "function"]
)
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_a_gradient_is_computed_by_a_kernel_or_a_function(backward: Any, compiled: bool) -> None:
    op, x = fresh(kernels.squared, backward=backward), inputs(70, 40, grad=True)
    f: Any = lambda x: op(x, alpha=2.0)[0].sum()
    (torch.compile(f, fullgraph=True, backend="aot_eager") if compiled else f)(x).backward()
    torch.testing.assert_close(x.grad, 4 * x.detach())


def test_a_backward_may_register_no_gradient_of_its_own() -> None:
    op, x = fresh(kernels.squared, backward=kernels.squared_backward), inputs(64, 64, grad=True)
    (grad,) = torch.autograd.grad(op(x, alpha=2.0)[0].sum(), x, create_graph=True)
    with pytest.raises(
        SpecError, match="_backward: a gradient is needed, but kernel squared_backward was"
    ):
        grad.sum().backward()


def test_a_missing_gradient_is_named_when_it_is_requested() -> None:
    y, _ = fresh(kernels.squared)(inputs(64, 64, grad=True), alpha=2.0)
    with pytest.raises(
        SpecError,
        match=r"squared was registered without one; fix: numpipe.torch.register\(squared, "
        r"backward=…\)",
    ):
        y.sum().backward()


def test_writing_in_place_is_refused_where_gradients_are_recorded() -> None:
    op, x, y = fresh(kernels.tripled), inputs(64, 64, grad=True), torch.zeros(64, 64)
    with pytest.raises(
        SpecError,
        match=r"writes y in place, and an argument requires a gradient.*torch.no_grad\(\)",
    ):
        op(x, y)
    with torch.no_grad():
        op(x, y)
    torch.testing.assert_close(y, 3 * x.detach())


# ---- examples
@pytest.mark.parametrize("name", ["scaled_dot_product_attention", "register"])
def test_the_example_of_a_docstring_runs(name: str) -> None:
    function = getattr(numpipe.torch, name)
    runner = doctest.DocTestRunner()
    runner.run(
        doctest.DocTestFinder().find(
            function, name, globs={"numpipe": numpipe, "torch": torch, name: function}
        )[0]
    )
    assert runner.summarize() == (0, runner.tries) and runner.tries


# ---- what is rejected
@pytest.mark.parametrize(
    ("kernel", "options", "match"),
    [
        (np.sum, {}, "expected a @numpipe.kernel, got <function sum"),
        (
            kernels.squared,
            {"name": "a-b"},
            'name must be "name" or "namespace::name", of letters, digits and _, got \'a-b\'',
        ),
        (
            kernels.times,
            {},
            r"its Statics are factor, statics= has none: .* as in statics=\{'factor': …\}",
        ),
        (
            kernels.times,
            {"statics": {"factor": 1, "of": 2}},
            "its Statics are factor, statics= has factor, of",
        ),
        (
            kernels.untyped,
            {},
            "'alpha' has neither a default nor a type, .* annotate it, e.g. alpha: float",
        ),
        (kernels.squared, {"mutates": ("x",)}, "mutates names x, but the kernel stores to y, z"),
        (kernels.tripled, {"backward": by_function}, "backward= is for kernels with an out_type"),
        (
            kernels.squared,
            {"backward": lambda w: w},
            "gradient of x has the parameters w; possible ones are x, "
            "alpha, n, y, z, grad_y, grad_z, xp",
        ),
        (
            kernels.squared,
            {"backward": kernels.squared},
            "must return outputs called grad_x, .* it returns y, z",
        ),
        (kernels.squared, {"backward": kernels.tripled}, "it returns nothing"),
    ],
)
def test_a_value_that_is_not_an_op_is_refused(
    kernel: Any, options: dict[str, Any], match: str
) -> None:
    with pytest.raises(SpecError, match=match):
        register(kernel, **{"name": f"numpipe_tests::refused_{next(_numbers)}"} | options)


def test_a_name_is_taken_once_and_a_kernel_defined_anew_replaces_itself() -> None:
    def make(factor: float) -> Any:
        @numpipe.kernel(
            in_specs=kernels.BLOCK,
            out_specs=kernels.BLOCK,
            **kernels.SAME,
            out_type=lambda x: ArrayType(x.shape, x.dtype),
        )
        def scaled(x, y):
            y[...] = x[...] * factor

        return scaled

    x = torch.ones(64, 64)
    assert register(make(2.0))(x)[0, 0] == 2
    assert register(make(3.0))(x)[0, 0] == 3 == torch.ops.numpipe_kernels.scaled(x)[0, 0]
    with pytest.raises(
        SpecError,
        match="tests.* has defined another op numpipe_kernels::scaled; fix: pass another name=",
    ):
        register(kernels.squared, "scaled")


def test_a_wrong_count_of_gradients_is_named() -> None:
    y, _ = fresh(kernels.squared, backward=lambda grad_y: (grad_y, grad_y))(
        inputs(64, 64, grad=True), alpha=2.0
    )
    with pytest.raises(
        SpecError,
        match="the gradients of x must return one gradient or None for each of them, got 2",
    ):
        y.sum().backward()


def test_a_type_that_no_kernel_takes_is_named_while_tracing_too() -> None:
    op = fresh(kernels.times, statics={"factor": 2.0})
    with pytest.raises(
        SpecError, match="'x' of kernel 'times': element type torch.complex64 is not supported"
    ):
        op(torch.ones(64, 64, dtype=torch.complex64))
    with (
        torch._subclasses.FakeTensorMode(),
        pytest.raises(SpecError, match="times: 'x': element type torch.complex64"),
    ):
        op(torch.ones(64, 64, dtype=torch.complex64))


def test_vmap_names_the_op() -> None:
    op = fresh(kernels.times, statics={"factor": 2.0})
    with pytest.raises(
        SpecError,
        match="times: vmap has no rule for this op; fix: call it in a loop",
    ):
        torch.vmap(op)(torch.ones(2, 64, 64))


@pytest.mark.thorough
def test_a_loaded_kernel_is_an_op_too(tmp_path: Path) -> None:
    kernels.shifted.export(tmp_path / "k.numpipe", (np.zeros((64, 64), np.float32),))
    op = fresh(numpipe.load(tmp_path / "k.numpipe"))
    assert str(op._schema).endswith("(Tensor x, int by=1) -> Tensor")
    with torch._subclasses.FakeTensorMode():
        assert op(torch.ones(7, 64)).shape == (7, 64)
