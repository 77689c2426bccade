"""Whole pipelines drawn by Hypothesis from all choices of the API, against NumPy: 36 always, 2000 others with ``-m soak``."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, note, settings
from hypothesis import strategies as st

from tests.kernels.covering import examples
from tests.kernels.pipeline_plans import allowed, any_grid, any_plan
from tests.kernels.pipeline_sources import check, told


@pytest.fixture(autouse=True)
def _simulated_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMPIPE_COMPILE_CHECK", "0")


def drawn(data: Any, schedule: int) -> None:
    plan = data.draw(any_plan(), label="plan")
    grid = data.draw(any_grid(plan), label="grid")
    assert allowed(plan)
    note(told(plan))
    check(plan, grid)
    check(plan, grid, schedule)


common: dict[str, Any] = {"deadline": None, "database": None, "phases": [Phase.generate], "suppress_health_check": [
    HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large]}


@given(data=st.data(), schedule=st.integers(0, 2**16))
@settings(max_examples=examples(90), derandomize=True, **common)
def test_any_pipeline_computes_what_numpy_does(data: Any, schedule: int) -> None:
    drawn(data, schedule)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@given(data=st.data(), schedule=st.integers(0, 2**16))
@settings(max_examples=2000, print_blob=True, **common)
def test_any_of_many_pipelines_computes_what_numpy_does(data: Any, schedule: int) -> None:
    drawn(data, schedule)
