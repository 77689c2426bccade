"""numpipe.verify on outputs that the kernel leaves partly unwritten, on more than two CTAs, and on
loops that never end."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import numpipe
from numpipe import ArrayType, PipelineDeadlock, SpecError, ds
from numpipe.sim import livelocks

F32 = np.float32
PERSISTENT: dict[str, Any] = {"grid": numpipe.persistent()}


@numpipe.kernel(out_type=lambda x: ArrayType((128, 64), F32))
def half(x, y):
    y[ds(0, 64), ds(0, 64)] = x[ds(0, 64), ds(0, 64)]


@numpipe.kernel
def in_place(x):
    x[ds(0, 64), ds(0, 64)] = x[ds(0, 64), ds(0, 64)] + 1.0


@numpipe.kernel
def added(y):
    numpipe.atomic_add(y.at[ds(0, 64), ds(0, 64)], numpipe.zeros((64, 64), F32) + 1.0)


@numpipe.kernel(**PERSISTENT)
def by_five(y):
    y[ds(numpipe.program_id(0) % 5 * 64, 64), ds(0, 64)] = numpipe.zeros((64, 64), F32)


X, Y = np.ones((64, 64), F32), np.zeros((128, 64), F32)


# ---- outputs
def test_of_an_output_that_is_passed_the_rest_is_a_warning() -> None:
    result = numpipe.verify(half, X, out=Y, schedules=3)
    assert result.ok and not result.failures
    (warning,) = result.warnings
    assert (warning.hazard, warning.schedules) == ("unwritten-output", 3)
    assert (
        "y[64:128, 0:64], 4096 of 8192 elements, is never written: these elements keep their values"
        in warning.text
    )
    assert warning.report is not None and warning.report.fix.endswith("verify(…, partial='y')")
    assert "unwritten-output (a warning)" in str(result)
    assert json.loads(json.dumps(result.as_dict()))["warnings"][0]["hazard"] == "unwritten-output"
    result.raise_if_failed()


def test_of_an_output_that_the_call_allocates_it_is_a_failure() -> None:
    result = numpipe.verify(half, X, schedules=2)
    assert not result.ok and not result.warnings
    with pytest.raises(numpipe.SimulationError, match="'y' is allocated by the call"):
        result.raise_if_failed()


@pytest.mark.parametrize("out", [None, Y])
def test_an_intended_partial_output_is_not_reported(out: Any) -> None:
    result = numpipe.verify(half, X, out=out, schedules=2, partial="y")
    assert result.ok and not result.warnings and not result.failures
    with pytest.raises(
        SpecError, match="partial='z': it has no parameter 'z'; its parameters are x, y"
    ):
        numpipe.verify(half, X, partial="z")


def test_a_simulated_call_says_nothing() -> None:
    out = half.simulate(X)
    assert (out[:64] == X).all() and np.isnan(out[64:]).all()


@pytest.mark.parametrize("kernel", [in_place, added])
def test_an_array_changed_in_place_is_not_an_output_to_fill(kernel: Any) -> None:
    result = numpipe.verify(kernel, Y, schedules=2)
    # the output may exist only to be added to
    assert result.ok and len(result.warnings) == (kernel is added)


# ---- CTAs
def test_a_conflict_that_132_ctas_have_is_found_by_default() -> None:
    result = numpipe.verify(by_five, np.zeros((320, 64), F32), schedules=2, partial="y")
    (failure,) = result.failures
    assert (result.ctas, failure.ctas, failure.hazard, failure.schedules) == (
        132,
        132,
        "cta-conflict",
        1,
    )
    assert "; one more on 132 CTAs) in" in str(result) and "by_five.simulate(…, ctas=132):" in str(
        result
    )
    with pytest.raises(numpipe.PipelineRace) as again:
        by_five.simulate(np.zeros((320, 64), F32), ctas=132)
    assert str(again.value) == failure.text


def test_all_schedules_may_have_so_many() -> None:
    assert numpipe.verify(by_five, np.zeros((320, 64), F32), schedules=2, ctas=5).ok
    assert (
        numpipe.verify(by_five, np.zeros((320, 64), F32), schedules=2, ctas=6).failures[0].schedules
        == 2
    )


@pytest.mark.parametrize(
    ("kernel", "ctas", "says"),
    [
        (
            in_place,
            4,
            r"ctas=4 requires grid=numpipe.persistent\(\), but this kernel's grid sets the "
            r"number of CTAs",
        ),
        (by_five, 0, "ctas must be an int >= 1, got 0"),
        (
            numpipe.kernel(cluster=2, **PERSISTENT)(by_five.function),
            5,
            r"ctas=5 is not a multiple of the 2 CTAs of a cluster .*up to 6",
        ),
    ],
)
def test_a_number_of_ctas_that_does_not_fit_is_refused(kernel: Any, ctas: int, says: str) -> None:
    with pytest.raises(SpecError, match=says):
        kernel.simulate(np.zeros((320, 64), F32), ctas=ctas)


def test_a_parameter_of_that_name_is_the_kernels() -> None:
    @numpipe.kernel
    def fills(y, *, ctas: numpipe.Static):
        y[ds(0, 64), ds(0, 64)] = numpipe.zeros((64, 64), F32) + ctas

    fills.simulate(y := np.zeros((64, 64), F32), ctas=3)
    assert (y == 3).all()
    with pytest.raises(SpecError, match="its parameter 'ctas' has the name of an option"):
        numpipe.verify(fills, y, ctas=3)


# ---- loops
@numpipe.kernel(warp_specialized=False)
def long_loop(y, n):
    at = 0
    while at < n:
        at += 1
    y[ds(0, 64), ds(0, 64)] = numpipe.zeros((64, 64), F32) + at


def test_a_long_loop_is_not_reported_as_endless(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(livelocks, "MOST", 5000)
    y = np.zeros((64, 64), F32)
    long_loop.simulate(y, 5000)
    assert (y == 5000).all()
    with pytest.raises(
        PipelineDeadlock,
        match="has run 5000 iterations of this loop without an operation in it",
    ):
        long_loop.simulate(y, 5001)


def test_a_body_for_lanes_that_never_ends_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(livelocks, "MOST", 1000)

    @numpipe.kernel(
        warp_specialized=False,
        compiler_params=numpipe.CompilerParams(lowering_semantics=numpipe.LoweringSemantics.Lane),
    )
    def spins(y):
        at = 1
        while at != 0:
            at = 3 - at
        y[0, 0] = 1.0

    with pytest.raises(PipelineDeadlock, match="has run 1000 iterations of this loop"):
        spins.simulate(np.zeros((64, 64), F32))


def test_a_loop_that_a_constant_has_emptied_runs() -> None:
    @numpipe.kernel
    def emptied(y, *, extra: numpipe.Static):
        for _ in range(2):
            if extra:
                y[ds(0, 64), ds(0, 64)] = numpipe.zeros((64, 64), F32)
        if y.shape[0] > 64:  # noqa: SIM102
            if extra:
                y[ds(0, 64), ds(0, 64)] = numpipe.zeros((64, 64), F32)
        y[ds(0, 64), ds(0, 64)] = numpipe.zeros((64, 64), F32) + 1.0

    y = np.zeros((128, 64), F32)
    emptied.simulate(y, extra=False)
    assert (y[:64] == 1).all()


def test_a_loop_may_round() -> None:
    """The rewritten source names its operations and its loop counter, which must not clash."""

    @numpipe.kernel
    def rounds_off(x, y):
        at = 0
        while at < 2:
            y[ds(at * 64, 64), ds(0, 64)] = np.round(x[ds(0, 64), ds(0, 64)])
            at += 1

    y = np.zeros((128, 64), F32)
    rounds_off.simulate(X * 1.4, y)
    assert (y == 1).all()
