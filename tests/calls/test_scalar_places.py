"""Run-time scalars at any position among the parameters: before, between and after arrays, without
`*` and without a default."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import numpipe
from numpipe import ArrayType, SpecError, ds

X = np.arange(512, dtype=np.float32).reshape(64, 8)
OUT = {"out_type": lambda x: ArrayType(x.shape, x.dtype)}


@pytest.fixture(autouse=True)
def simulated_only(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip compiling what is simulated, except in tests whose name mentions compiling; saves a
    second each."""
    if "compile" not in request.node.name:
        monkeypatch.setenv("NUMPIPE_COMPILE_CHECK", "0")


@numpipe.kernel(**OUT)
def before(alpha, x, y):
    y[ds(0, 64), ds(0, 8)] = x[ds(0, 64), ds(0, 8)] * alpha


@numpipe.kernel(**OUT)
def between(x, alpha, y):
    y[ds(0, 64), ds(0, 8)] = x[ds(0, 64), ds(0, 8)] * alpha


@numpipe.kernel(**OUT, grid=lambda x, count: (count,))
def scaled(x, y, alpha, count, beta=0.0):
    if numpipe.program_id(0) == count - 1:
        y[ds(0, 64), ds(0, 8)] = x[ds(0, 64), ds(0, 8)] * alpha + beta


@numpipe.kernel(**OUT)
def after(x, y, alpha):
    y[ds(0, 64), ds(0, 8)] = x[ds(0, 64), ds(0, 8)] * alpha


@numpipe.kernel
def last(x, alpha, y):
    y[ds(0, 64), ds(0, 8)] = x[ds(0, 64), ds(0, 8)] * alpha


def empty() -> np.ndarray:
    return np.zeros_like(X)


@pytest.mark.variants(4)
@pytest.mark.parametrize(
    "call",
    [
        lambda: before(2.0, X, target="sim"),
        lambda: before(2.0, X, empty(), target="sim") or before(2.0, X, target="sim"),
        lambda: between(X, 2.0, target="sim"),
        lambda: between(X, alpha=2.0, target="sim"),
        lambda: scaled(X, alpha=2.0, count=3, target="sim"),
        lambda: scaled(X, count=2, alpha=np.float32(2), target="sim"),
        lambda: scaled(x=X, count=2, alpha=2.0, target="sim"),
        lambda: scaled(X, alpha=2.0, count=1, out=empty(), target="sim"),
        lambda: scaled(X, alpha=2.0, count=1, beta=3.0, target="sim") - 3,
    ],
)
def test_a_call_leaves_out_the_outputs_wherever_scalars_are(call: Any) -> None:
    np.testing.assert_array_equal(call(), 2 * X)


def test_a_call_that_passes_everything_passes_it_by_position_or_by_name() -> None:
    for args, named in (
        ((2.0, 1), {}),
        ((2.0,), {"count": 1}),
        ((), {"alpha": 2.0, "count": 1}),
        ((2.0, 2, 0.0), {}),
    ):
        y = empty()
        assert scaled(X, y, *args, target="sim", **named) is None
        np.testing.assert_array_equal(y, 2 * X)


def test_a_bound_call_and_a_compile_know_scalars_after_the_outputs() -> None:
    bound = scaled.bind(X, alpha=2.0, count=2, target="sim")
    np.testing.assert_array_equal(bound(), 2 * X)
    bound.update(alpha=3.0)
    np.testing.assert_array_equal(bound(), 3 * X)
    assert scaled.outputs(X, alpha=2.0, count=2) == ["y"]
    source = scaled.inspect("source", X, alpha=2.0, count=2)
    assert source == scaled.inspect("source", X, empty(), 2.0, 2) and "alpha, count, beta" in source


@pytest.mark.parametrize(
    "call, text",
    [
        (
            lambda: scaled(X, 2.0, 1, target="sim"),
            "argument 'y' is an output and must be an array, got 2.0: leave it out, its type is "
            "known from out_type; pass scalars after the outputs by name, e.g. alpha=2.0",
        ),
        (
            lambda: scaled(X, alpha=X, count=1, target="sim"),
            "argument 'y' is missing, but 'alpha' after it is given",
        ),
        (
            lambda: scaled(X, alpha=2.0, target="sim"),
            "argument 'count' is missing: the kernel does not store to it, and a call may "
            "leave out outputs only; fix: pass count=…",
        ),
        (lambda: after(X, empty(), target="sim"), "fix: pass alpha=…"),
        (
            lambda: scaled(X, alpha=2.0, out=empty(), target="sim"),
            "leaves 2 parameters for it (y, count)",
        ),
        (lambda: last(X, empty(), target="sim"), "got 2 (for x, alpha): pass y"),
        (
            lambda: scaled(X, y=2.0, alpha=1.0, count=1, target="sim"),
            "argument 'y' is an output and must be an array, got 2.0",
        ),
    ],
)
def test_what_could_mean_two_things_is_refused(call: Any, text: str) -> None:
    with pytest.raises(SpecError) as caught:
        call()
    assert text in str(caught.value)
