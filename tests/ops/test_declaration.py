"""Ops declared by users, from a kernel and from a function: on NumPy, in PyTorch and in JAX; and
declarations that contradict themselves or their kernels."""

from __future__ import annotations

import ast
import doctest
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import numpipe
from numpipe import ArrayType, SpecError, cdiv, ops
from numpipe.diagnostics.argument_checks import whole
from numpipe.launch.array_info import ArrayInfo
from numpipe.launch.windows import strided
from numpipe.ops.declaration import Operand

BLOCK = numpipe.BlockSpec((64, 64), lambda i, j: (i, j))
GRID: Callable[..., Any] = lambda x: (cdiv(x.shape[0], 64), cdiv(x.shape[1], 64))


@pytest.fixture(autouse=True)
def simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMPIPE_TARGET", "sim")
    monkeypatch.setenv("NUMPIPE_COMPILE_CHECK", "0")


# ---- an op of one kernel
@numpipe.kernel(grid=GRID, in_specs=BLOCK, out_specs=BLOCK)
def squared_kernel(x, y, *, scale=1.0, times: numpipe.Static = 1):
    y[...] = float(times) * scale * x[...] * x[...]


@numpipe.kernel(grid=GRID, in_specs=(BLOCK, BLOCK), out_specs=BLOCK)
def product_kernel(x, grad, dx):
    dx[...] = x[...] * grad[...]


@numpipe.op(
    operands={"x": "rows n", "grad": "rows n"},
    results={"dx": "rows n"},
    types=["float32"],
    launch=product_kernel,
    gradients={
        "x": lambda grad, grad_dx: grad * grad_dx,
        "grad": lambda xp, x, grad_dx: xp(product, x, grad_dx),
    },
)
def product(x: Any, grad: Any, *, target: str | None = None) -> Any:
    """Return x * grad."""


def of_all_rows(xp: Any, x: Any, scale: float) -> Any:
    return xp(squared, x.reshape(-1, x.shape[-1]), scale=scale).reshape(x.shape)


@numpipe.op(
    operands={"x": "rows n"},
    results={"y": "rows n"},
    types=["float32"],
    launch=squared_kernel,
    checks={"times": whole(1)},
    gradients={"x": lambda xp, x, grad_y, scale: 2 * scale * xp(product, x, grad_y)},
    batching=of_all_rows,
)
def squared(
    x: Any,
    *,
    scale: float = 1.0,
    times: int = 1,
    out: Any = None,
    target: str | None = None,
    stream: Any = None,
) -> Any:
    """Return times * scale * x * x."""


# ---- an op of a function that calls a kernel
@numpipe.kernel(
    grid=GRID, in_specs=(BLOCK, numpipe.BlockSpec((64,), lambda i, j: (j,))), out_specs=BLOCK
)
def biased_kernel(x, bias, y):
    y[...] = x[...] + bias[...].astype(np.float32)


def launch_biased(
    x: ArrayInfo, bias: ArrayInfo, y: ArrayInfo, target: str | None, stream: Any
) -> None:
    columns, size = x.shape[-1], x.dtype.itemsize
    shape, strides = (int(np.prod(x.shape[:-1])), columns), (columns * size, size)
    biased_kernel(
        strided(x, shape, strides), bias, strided(y, shape, strides), target=target, stream=stream
    )


@numpipe.op(
    operands={"x": "... n", "bias": Operand("n", types=("float16", "float32"))},
    results={"y": "... n"},
    types=["float32"],
    launch=launch_biased,
    gradients={"x bias": lambda grad_y: (grad_y, grad_y)},
    batching=lambda xp, x, bias: xp(biased, x, bias),
)
def biased(
    x: Any, bias: Any, *, out: Any = None, target: str | None = None, stream: Any = None
) -> Any:
    """Return x + bias, for a contiguous x."""


def numbers(*shape: int, dtype: Any = np.float32) -> Any:
    return np.random.default_rng(sum(shape)).integers(-3, 4, shape).astype(dtype)


X, WIDE, BIAS = numbers(70, 40), numbers(3, 2, 40), numbers(40, dtype=np.float16)


def test_the_example_of_the_docstring_runs() -> None:
    finder, runner = doctest.DocTestFinder(), doctest.DocTestRunner()
    runner.run(finder.find(numpipe.op, "op", globs={"numpipe": numpipe, "np": np})[0])
    assert runner.summarize() == (0, runner.tries) and runner.tries


# ---- on NumPy arrays
def test_an_op_of_one_kernel_is_a_function_of_arrays() -> None:
    np.testing.assert_array_equal(squared(X, scale=2.0, times=3), 6 * X * X)
    out = np.zeros_like(X)
    assert squared(X, out=out) is out
    np.testing.assert_array_equal(out, X * X)
    assert squared.__doc__ == "Return times * scale * x * x."


def test_an_op_of_a_function_is_one_of_any_leading_dimensions() -> None:
    for x in (WIDE, WIDE[0], WIDE[:0]):
        np.testing.assert_array_equal(biased(x, BIAS), x + BIAS)


# ---- in PyTorch
def test_it_is_an_op_of_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    torch._dynamo.reset()
    square, add = numpipe.torch.register(squared), numpipe.torch.register(biased)
    assert square is numpipe.torch.register(squared) and square.__name__ == "squared"
    schema = "numpipe_kernels::squared(Tensor x, float scale=1., int times=1) -> Tensor"
    assert str(torch.ops.numpipe_kernels.squared.default._schema) == schema
    x, wide, bias = (torch.tensor(each) for each in (X, WIDE, BIAS))

    def f(x: Any, wide: Any, bias: Any) -> Any:
        return square(x, scale=2.0)[:2] + add(wide, bias)

    results = []
    for run in (f, torch.compile(f, fullgraph=True, backend="aot_eager")):
        leaves = [each.clone().requires_grad_() for each in (x, wide, bias)]
        made = run(*leaves)
        made.sum().backward()
        results.append([made.detach(), *(each.grad for each in leaves)])
    wanted = 2 * x * x
    wanted = [wanted[:2] + wide + bias, torch.cat([4 * x[:2], 0 * x[2:]]) * 3]
    wanted += [torch.ones_like(wide), torch.full_like(bias, 6)]
    for eager, compiled, expected in zip(*results, wanted, strict=True):
        assert eager.dtype == compiled.dtype == expected.dtype
        assert torch.equal(eager, expected) and torch.equal(compiled, expected)


def test_in_pytorch_its_gradient_has_a_gradient_and_vmap_a_rule() -> None:
    torch = pytest.importorskip("torch")
    square, add = numpipe.torch.register(squared), numpipe.torch.register(biased)
    x, wide, bias = (torch.tensor(each) for each in (X, WIDE, BIAS))
    x.requires_grad_()
    (grad,) = torch.autograd.grad((square(x) ** 2).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(grad.sum(), x)
    torch.testing.assert_close(second, 12 * x.detach() ** 2)
    torch.testing.assert_close(torch.vmap(square)(wide), wide * wide)
    torch.testing.assert_close(torch.vmap(add, in_dims=(0, None))(wide, bias), wide + bias)
    torch.library.opcheck(torch.ops.numpipe_kernels.squared.default, (x,), {"scale": 2.0})


# ---- in JAX
def test_it_is_a_function_of_jax() -> None:
    jax = pytest.importorskip("jax")
    square, add = numpipe.jax.call(squared), numpipe.jax.call(biased)
    jnp = jax.numpy

    def f(x: Any, wide: Any, bias: Any) -> Any:
        return (square(x, scale=2.0)[:2] + add(wide, bias)).sum()

    with jax.default_device(jax.devices("cpu")[0]):
        x, wide, bias = jnp.asarray(X), jnp.asarray(WIDE), jnp.asarray(BIAS)
        grads = jax.jit(jax.grad(f, (0, 1, 2)))(x, wide, bias)
        wanted = (jnp.where(jnp.arange(70)[:, None] < 2, 12 * x, 0), jnp.ones_like(wide))
        for got, expected in zip(grads, (*wanted, jnp.full_like(bias, 6)), strict=True):
            assert got.dtype == expected.dtype and (got == expected).all()
        assert (jax.vmap(square)(wide) == wide * wide).all()
        assert (jax.vmap(add, (0, None))(wide, bias) == wide + bias).all()
        second = jax.grad(lambda x: jax.grad(lambda x: square(x).sum())(x).sum())(x)
        assert (second == 2).all()


# ---- what is rejected
PLAIN: dict[str, Any] = {
    "operands": {"x": "rows n"},
    "results": {"y": "rows n"},
    "types": ["float32"],
    "launch": squared_kernel,
}


def declare(stub: Any = None, **changed: Any) -> Any:
    def squares(
        x: Any, *, scale: float = 1.0, out: Any = None, target: Any = None, stream: Any = None
    ) -> Any:
        """Return scale * x * x."""

    if stub is not None:
        stub.__name__ = "squares"
    return numpipe.op(**PLAIN | changed)(stub or squares)


@numpipe.kernel(grid=GRID, in_specs=BLOCK, out_specs=BLOCK)
def powers_kernel(x, y, *, power):
    y[...] = x[...] * power


DECLARATIONS: dict[str, tuple[dict[str, Any], str]] = {
    "a dimension": (
        {"results": {"y": "rows m"}},
        "result 'y' has the dimensions 'rows m', and no operand has m: they have x 'rows n'",
    ),
    "an operand": (
        {"operands": {"a": "rows n"}},
        "operand 'a' is not a parameter of the function, which has x, scale, out, target, stream",
    ),
    "a gradient": (
        {"gradients": {"z": lambda grad_y: grad_y}},
        "there is a gradient for 'z', which is not an operand: it has x",
    ),
    "a name": (
        {"gradients": {"x": lambda w, grad_y: grad_y}},
        "the gradient of x has the parameters w; possible ones are x, scale, y, grad_y, xp",
    ),
    "the kernel's parameters": (
        {"results": {"z": "rows n"}},
        "kernel squared_kernel has the arrays x, y, the op the operands and results x, z; "
        "fix: give",
    ),
    "a result": (
        {"operands": {"y": "rows n"}, "results": {"x": "rows n"}, "stub": lambda y: None},
        "kernel squared_kernel does not write the result 'x': it stores to y",
    ),
    "an option": (
        {"stub": lambda x, factor=2.0: None},
        "kernel squared_kernel has the scalars and Statics scale, times, the op the options "
        "factor: the kernel does not take factor",
    ),
    "a scalar": (
        {"stub": lambda x: None, "launch": powers_kernel},
        "kernel powers_kernel has the scalars and Statics power, the op the options none: power "
        "has no default",
    ),
}


@pytest.mark.parametrize("name", DECLARATIONS)
def test_a_declaration_that_contradicts_itself_or_its_kernel_is_refused(name: str) -> None:
    changed, words = DECLARATIONS[name]
    declare()
    with pytest.raises(SpecError) as error:
        declare(**changed)
    assert words in str(error.value)


def test_what_depends_on_arrays_is_refused_in_a_call() -> None:
    for call, words in (
        (lambda: numpipe.op(**PLAIN)(lambda x: None), "numpipe.op decorates a def, got <function"),
        (
            lambda: squared(WIDE),
            "squared: 'x' must have the dimensions rows n, got shape (3, 2, 40)",
        ),
        (lambda: squared(X.astype(np.float16)), "squared: 'x' is float16, expected float32"),
        (lambda: squared(X, times=-1), "squared: times must be"),
        (
            lambda: squared(X, out=X[:3].copy()),
            "squared: 'out' must be float32 (70, 40), got float32 (3, 40)",
        ),
        (lambda: biased(WIDE, BIAS[:7]), "biased: n = 40 in 'x' (3, 2, 40), 7 in 'bias' (7,)"),
        (lambda: biased(WIDE, BIAS.astype(np.int8)), "biased: 'bias' is int8, expected float16 or"),
    ):
        with pytest.raises(SpecError) as error:
            call()
        assert words in str(error.value)


def test_a_result_that_no_kernel_of_a_function_writes_is_refused_at_the_first_call() -> None:
    def launch(x: Any, y: Any, target: Any) -> None:
        squared_kernel(x, y, target=target)

    op = declare(
        launch=launch,
        results={"y": "rows n", "z": lambda x: ArrayType(x.shape, x.dtype)},
        stub=lambda x, target=None: None,
    )
    with pytest.raises(SpecError, match="no kernel stores to the result 'z'; .* squared_kernel"):
        op(X)


GRADIENTS: list[tuple[str, Any, str]] = [
    ("x", lambda grad_y: grad_y[:, 1:], r"the gradient of 'x' has shape \(70, 39\), .* \(70, 40\)"),
    ("x", lambda grad_y: (grad_y, grad_y), "the gradients of x must return one .*, got 2"),
]


@pytest.mark.parametrize(("names", "gradient", "words"), GRADIENTS)
def test_a_gradient_that_does_not_fit_is_refused_when_it_is_computed(
    names: str, gradient: Any, words: str
) -> None:
    op = declare(gradients={names: gradient})
    torch, jax = pytest.importorskip("torch"), pytest.importorskip("jax")
    x = torch.tensor(X, requires_grad=True)
    with pytest.raises(SpecError, match=words):
        numpipe.torch.register(op)(x).sum().backward()
    with pytest.raises(SpecError, match=words), jax.default_device(jax.devices("cpu")[0]):
        jax.grad(lambda x: numpipe.jax.call(op)(x).sum())(X)


def test_a_name_of_another_op_and_options_of_kernels_are_refused() -> None:
    torch = pytest.importorskip("torch")
    first = numpipe.torch.register(declare(), "declared::squares")
    again = numpipe.torch.register(declare(launch=product_and_scale), "declared::squares")
    x = torch.tensor(X)
    assert torch.equal(first(x), x * x) and torch.equal(again(x), 2 * x * x)
    assert torch.equal(torch.ops.declared.squares(x), 2 * x * x), "defined anew, it is replaced"
    with pytest.raises(
        SpecError, match="has defined another op declared::squares; fix: pass another"
    ):
        numpipe.torch.register(squared, "declared::squares")
    with pytest.raises(SpecError, match="squared is a declared op.*leave out backward="):
        numpipe.torch.register(squared, backward=lambda grad_y: grad_y)
    jax = pytest.importorskip("jax")
    del jax
    with pytest.raises(SpecError, match="squared is a declared op.*leave out out_type="):
        numpipe.jax.call(squared, target="sim")


def product_and_scale(x: Any, y: Any, scale: float, target: Any, stream: Any) -> None:
    squared_kernel(x, y, scale=scale, times=2, target=target, stream=stream)


def test_frameworks_name_no_op() -> None:
    """Bindings are made from declarations; only examples in docstrings name ops."""
    folder = Path(numpipe.__file__).parent / "frameworks"
    # array libraries have functions of these names
    own = set(ops.__all__) - {"sum", "mean", "max", "argmax", "transpose"}
    found = set()
    for path in folder.rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf8"))
        docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            name = getattr(node, "id", getattr(node, "attr", getattr(node, "value", None)))
            if isinstance(name, str) and id(node) not in docs:
                found |= {op for op in own if op in name}
    assert not found
