"""Every op of one GPU in PyTorch and in JAX: results, gradients, vmap, compiled graphs and opcheck,
against PyTorch in float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

import numpipe
from numpipe import ops
from tests.kernels.attention_function_cases import causal

torch = pytest.importorskip("torch")
functional: Any = torch.nn.functional
CLASSES = 50


@dataclass(frozen=True)
class Case:
    """A call of an op.

    right     the result in PyTorch, as a function of the operands
    shapes    shapes of the operands; an int shape is one of labels; an array is the operand itself
    options   of the op
    graded    number of operands, the first ones, that have gradients
    dtype     of operands that are not labels
    """

    right: Callable[..., Any]
    shapes: tuple[Any, ...] = ((5, 40),)
    options: dict[str, Any] = field(default_factory=dict)
    graded: int = 1
    dtype: Any = np.float32

    @property
    def tolerance(self) -> float:
        return 2e-5 if self.dtype == np.float32 else 4e-3


def turned(x: Any, cos: Any, sin: Any) -> Any:
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), -1)


def linear_loss(x: Any, weight: Any, labels: Any) -> Any:
    return functional.cross_entropy(x @ weight.mT, labels)


def scaled(x: Any) -> Any:
    scales = x.abs().amax(-1) / 127
    return (x / scales[..., None]).round(), scales


def per_sequence(q: Any, k: Any, v: Any, at: Any, at_k: Any) -> Any:
    split = [x.swapaxes(0, 1).tensor_split(i[1:-1], 1) for x, i in ((q, at), (k, at_k), (v, at_k))]
    parts = map(functional.scaled_dot_product_attention, *split)
    return torch.cat([*parts], 1).swapaxes(0, 1)


STARTS = np.array([0, 30, 64], np.int32)
GATED, VECTOR = ((5, 40), (5, 40)), (40,)
NORM = {"eps": 1e-5}
CASES = {
    "argmax": Case(lambda x: x.argmax(-1), graded=0),
    "attention": Case(
        functional.scaled_dot_product_attention,
        ((1, 2, 64, 64),) * 3,
        graded=3,
        dtype=np.float16,
    ),
    "attention_blocks": Case(
        lambda q, k: q.new_tensor([[[[1, 0, 0, 0]]]]),
        ((1, 2, 64, 64),) * 2,
        {"mask": causal},
        graded=0,
        dtype=np.float16,
    ),
    "attention_varlen": Case(
        per_sequence, ((64, 2, 64),) * 3 + (STARTS, STARTS), graded=3, dtype=np.float16
    ),
    "copy": Case(lambda x: x),
    "cross_entropy": Case(functional.cross_entropy, ((6, CLASSES), 6)),
    "cumsum": Case(lambda x: x.cumsum(-1)),
    "fused_linear_cross_entropy": Case(
        linear_loss, ((8, 32), (CLASSES, 32), 8), graded=2, dtype=np.float16
    ),
    "geglu": Case(lambda x, up: functional.gelu(x, approximate="tanh") * up, GATED, graded=2),
    "layer_norm": Case(
        lambda x, w, b, r: (functional.layer_norm(x + r, w.shape, w, b, 1e-5), x + r),
        ((5, 40), VECTOR, VECTOR, (5, 40)),
        NORM,
        graded=4,
    ),
    "log_softmax": Case(lambda x: x.log_softmax(-1)),
    "matmul": Case(torch.matmul, ((64, 32), (32, 64)), graded=2, dtype=np.float16),
    "matvec": Case(lambda a, x: (a @ x[..., None])[..., 0], ((6, 40), VECTOR), graded=2),
    "max": Case(lambda x: x.amax(-1)),
    "mean": Case(lambda x: x.mean(0), options={"axis": 0}),
    "quantize": Case(scaled, options={"dtype": "int8", "block": "row"}, graded=0),
    "rms_norm": Case(
        lambda x, w, r: (functional.rms_norm(x + r, w.shape, w, 1e-5), x + r),
        ((5, 40), VECTOR, (5, 40)),
        NORM,
        graded=3,
    ),
    "rotary": Case(turned, ((2, 5, 16), (5, 8), (5, 8))),
    "softmax": Case(lambda x: x.softmax(-1)),
    "sum": Case(lambda x: x.sum(0), options={"axis": 0}),
    "swiglu": Case(lambda x, up: functional.silu(x) * up, GATED, graded=2),
    "topk": Case(lambda x: tuple(x.topk(4)), options={"k": 4}),
    "transpose": Case(lambda x: x.mT),
}
NAMES = [name for name in ops.__all__ if not getattr(ops, name).sharded]
"""what is declared: an op without a case fails"""


@pytest.fixture(autouse=True)
def place(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMPIPE_TARGET", target)


def arrays_of(case: Case, *batch: int) -> list[Any]:
    rng = np.random.default_rng(0)
    return [
        np.broadcast_to(shape, (*batch, *shape.shape)).copy()
        if isinstance(shape, np.ndarray)
        else rng.integers(0, CLASSES, (*batch, shape)).astype(np.int32)
        if isinstance(shape, int)
        else rng.standard_normal((*batch, *shape)).astype(case.dtype)
        for shape in case.shapes
    ]


def several(made: Any) -> tuple[Any, ...]:
    return tuple(made) if isinstance(made, tuple | list) else (made,)


def weighted(made: Any) -> Any:
    """Return a scalar that depends on all floating results, differently on each element."""
    total = 0
    for k, y in enumerate(each for each in several(made) if "float" in str(each.dtype)):
        flat = y.reshape(-1)
        weights = np.cos(np.arange(flat.shape[0]) + k).astype(np.float32)
        own = torch.tensor(weights, device=y.device) if isinstance(y, torch.Tensor) else weights
        total = total + (flat * own).sum()
    return total


def exact(case: Case, arrays: list[Any]) -> tuple[list[Any], list[Any]]:
    """Return results and gradients in float64."""
    wide = [
        torch.tensor(x).double().requires_grad_(k < case.graded)
        if x.dtype.kind == "f"
        else torch.tensor(x).long()
        for k, x in enumerate(arrays)
    ]
    made = several(case.right(*wide))
    if case.graded:
        weighted(made).backward()
    return [y.detach().numpy() for y in made], [x.grad.numpy() for x in wide[: case.graded]]


def check(found: Any, wanted: list[Any], tolerance: float) -> None:
    assert len(several(found)) == len(wanted)
    for got, right in zip(several(found), wanted, strict=True):
        if isinstance(got, torch.Tensor):
            got = got.detach().double().cpu().numpy()
        got = np.asarray(got, np.float64)
        assert got.shape == right.shape
        np.testing.assert_allclose(got, right, rtol=0, atol=tolerance * abs(right).max())


def exact_of_each(case: Case, arrays: list[Any]) -> tuple[list[Any], list[Any]]:
    """Return `exact` of each element of a batch, stacked."""
    each = [exact(case, [x[k] for x in arrays]) for k in range(len(arrays[0]))]
    return tuple([np.stack(x) for x in zip(*of, strict=True)] for of in zip(*each, strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_in_pytorch(name: str, target: str) -> None:
    torch._dynamo.reset()
    case, device = CASES[name], "cuda" if target == "gpu" else "cpu"
    ours: Any = lambda *given: getattr(numpipe.torch, name)(*given, **case.options)

    def tensors(*batch: int) -> list[Any]:
        made = [torch.tensor(x, device=device) for x in arrays_of(case, *batch)]
        return [x.requires_grad_(k < case.graded) for k, x in enumerate(made)]

    results, gradients = exact(case, arrays_of(case))
    for function in (ours, torch.compile(ours, fullgraph=True, backend="aot_eager")):
        given = tensors()
        made = function(*given)
        check(made, results, case.tolerance)
        if case.graded:
            weighted(made).backward()
            check([x.grad for x in given[: case.graded]], gradients, case.tolerance)
    options = {
        key: f"{x.__module__}:{x.__name__}" if callable(x) else x for key, x in case.options.items()
    }
    torch.library.opcheck(getattr(torch.ops.numpipe, name).default, tuple(tensors()), options)
    results, gradients = exact_of_each(case, arrays_of(case, 2))
    with torch.no_grad():
        check(torch.vmap(ours)(*tensors(2)), results, case.tolerance)
    if case.graded:
        gradient = torch.func.grad(lambda *x: weighted(ours(*x)), tuple(range(case.graded)))
        given = [x.detach() for x in tensors(2)]
        check(torch.vmap(gradient)(*given), gradients, case.tolerance)


@pytest.mark.parametrize("name", NAMES)
def test_in_jax(name: str, target: str) -> None:
    jax = pytest.importorskip("jax")
    case = CASES[name]
    ours: Any = lambda *given: getattr(numpipe.jax, name)(*given, **case.options)
    gradient = jax.grad(lambda *x: weighted(ours(*x)), tuple(range(case.graded)))
    with jax.default_device(jax.devices("gpu" if target == "gpu" else "cpu")[0]):
        for given, (results, gradients), mapped in (
            (arrays_of(case), exact(case, arrays_of(case)), lambda f: f),
            (arrays_of(case, 2), exact_of_each(case, arrays_of(case, 2)), jax.vmap),
        ):
            given = [jax.numpy.asarray(x) for x in given]
            check(jax.jit(mapped(ours))(*given), results, case.tolerance)
            if case.graded:
                check(jax.jit(mapped(gradient))(*given), gradients, case.tolerance)


def test_a_second_gradient_that_no_op_has_is_refused() -> None:
    first = torch.func.grad(lambda x: numpipe.torch.swiglu(x, x).sum())
    with pytest.raises(numpipe.SpecError, match="gated_backward: .* has no backward pass"):
        torch.func.grad(lambda x: first(x).sum())(torch.ones(4, 8))
