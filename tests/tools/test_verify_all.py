"""`numpipe.verify(…, schedules="all")`."""

from __future__ import annotations

import io
import json
import sys
from typing import Any

import numpy as np
import pytest

import numpipe
from numpipe import Barrier, ds
from numpipe.errors import SpecError
from numpipe.sim.chosen_schedules import Name
from tests.kernels import dynamic_kernels
from tests.kernels import kernels_for_tests as pipelines

ROWS = np.zeros((128, 64), np.float32)


@pytest.fixture(autouse=True)
def _simulated_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMPIPE_COMPILE_CHECK", "0")


@numpipe.kernel(grid=1, num_compute_wgs=2, warp_specialized=False)
def guess(y):
    met, there = numpipe.scratch((Barrier(num_arrivals=2), Barrier(num_arrivals=1)))
    wg = numpipe.axis_index("wg")
    for _ in range(3):
        numpipe.barrier_arrive(met)
        numpipe.barrier_wait(met)
    if wg == 0:
        numpipe.barrier_arrive(there)
    else:
        numpipe.device_assert(numpipe.barrier_test(there), "warpgroup 0 has not arrived")
        numpipe.barrier_wait(there)
    y[ds(wg * 64, 64), ds(0, 64)] = numpipe.zeros((64, 64), np.float32)


@numpipe.kernel(grid=1, num_compute_wgs=2, warp_specialized=False)
def tells(y):
    """Leave a result that depends on which warpgroup is first."""
    there = numpipe.scratch(Barrier(num_arrivals=1))
    if numpipe.axis_index("wg") == 0:
        numpipe.barrier_arrive(there)
    else:
        if numpipe.barrier_test(there):
            y[ds(0, 64), ds(0, 64)] = numpipe.zeros((64, 64), np.float32) + 1
        else:
            y[ds(0, 64), ds(0, 64)] = numpipe.zeros((64, 64), np.float32) + 2
        numpipe.barrier_wait(there)


def test_a_kernel_that_only_waits_has_one_class() -> None:
    a, b = np.ones((256, 320), np.float16), np.ones((64, 320), np.float16)
    result = numpipe.verify(pipelines.gemm(2, 1, 1), a, b, cfg=pipelines.SMALL, schedules="all")
    assert result.ok and result.schedules == 1 and result.seeds == ()
    assert result.coverage is not None and result.coverage.complete and result.coverage.steps > 100
    assert "all schedules, which are of one class, in" in str(result) and "no hazard" in str(result)
    assert json.loads(json.dumps(result.as_dict()))["coverage"]["classes"] == 1


def test_the_shortest_schedule_that_fails_can_be_run_again_and_drawn() -> None:
    result = numpipe.verify(guess, ROWS, schedules="all")
    (failure,) = result.failures
    assert (
        f"all {result.schedules} classes of schedules" in str(result)
        and failure.schedules < result.schedules
    )
    assert isinstance(failure.seed, str) and len(Name.of(failure.seed).turns) <= 3
    trace = numpipe.Trace()
    with pytest.raises(numpipe.SimulationError) as caught:
        guess.simulate(ROWS, seed=failure.seed, trace=trace)
    assert str(caught.value) == failure.text and "wg1" in trace.timeline()
    with pytest.raises(
        numpipe.SimulationError, match=f"simulate\\(…, seed='{failure.seed}'\\) shows it again"
    ):
        result.raise_if_failed()


def test_results_that_differ_are_reported_with_their_schedules() -> None:
    result = numpipe.verify(tells, ROWS, schedules="all", partial="y")
    (difference,) = result.differences
    left = []
    for seed in (None, difference.seed):
        y = ROWS.copy()
        tells.simulate(y, seed=seed)
        left.append(y[0, 0])
    assert not result.ok and sorted(left) == [1, 2]


def test_a_bound_in_seconds_is_reported() -> None:
    result = numpipe.verify(guess, ROWS, schedules="all", limit=1e-9)
    assert result.coverage is not None and not result.coverage.complete
    assert "1 class of schedules, not all (bound of 1e-09 s reached)" in str(result)


def test_every_deal_of_tiles_from_a_counter_is_explored() -> None:
    kernel = dynamic_kernels.made(dynamic_kernels.gemm, warpgroups=1, ctas=2)
    a, b = np.ones((5 * 64, 64), np.float16), np.ones((64, 64), np.float16)
    result = numpipe.verify(
        kernel,
        a,
        b,
        np.zeros((5 * 64, 64), np.float16),
        cfg=dynamic_kernels.STEP_A_TILE,
        schedules="all",
    )
    assert result.ok and result.schedules == 2**3 * 2, "who draws three more tiles, and two CTAs"


def test_a_deal_is_a_part_of_the_name() -> None:
    drawn: list[list[int]] = []
    for seed in ("0:", "0 / 0.0.0:"):
        trace = numpipe.Trace()
        kernel = dynamic_kernels.made(dynamic_kernels.gemm, warpgroups=1, ctas=2)
        kernel.simulate(
            np.ones((320, 64), np.float16),
            np.ones((64, 64), np.float16),
            np.zeros((320, 64), np.float16),
            cfg=dynamic_kernels.STEP_A_TILE,
            seed=seed,
            trace=trace,
        )
        drawn.append(
            [sum(event.cta == (cta, 0, 0) for event in trace.of("mma")) for cta in range(2)]
        )
    assert drawn == [[3, 2], [4, 1]]


@pytest.mark.parametrize("seed", ["", "all", "0", "0: 1", "0: 1.2.3", "-1:", "0 / :"])
def test_a_text_that_names_no_schedule_is_refused(seed: str) -> None:
    with pytest.raises(SpecError, match="a string must be the name of a schedule"):
        guess.simulate(ROWS, seed=seed)


def test_the_name_of_another_kernels_schedule_is_refused() -> None:
    with pytest.raises(SpecError, match="at step 0 only 2 could run"):
        guess.simulate(ROWS, seed="0: 0.7")


@pytest.mark.parametrize("limit", [0, -1, "1", True, float("nan")])
def test_a_bound_that_is_none_is_refused(limit: Any) -> None:
    with pytest.raises(SpecError, match="limit must be a finite number > 0"):
        numpipe.verify(guess, ROWS, schedules="all", limit=limit)


def test_a_terminal_shows_how_many_classes_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = io.StringIO()
    monkeypatch.setattr(shown, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(sys, "stderr", shown)
    tqdm = pytest.importorskip("tqdm.auto")
    made = tqdm.tqdm.__init__
    monkeypatch.setattr(
        tqdm.tqdm,
        "__init__",
        lambda self, *args, **named: made(self, *args, **{**named, "delay": 0}),
    )
    numpipe.verify(guess, ROWS, schedules="all")
    assert "guess: explore" in shown.getvalue() and "classes" in shown.getvalue()
