"""The random pipelines of tests/language/pipeline/test_random_pipelines.py, on the hardware, against the same float64 reference."""

from __future__ import annotations

import os

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, note, settings
from hypothesis import strategies as st

from tests.language.pipeline.test_random_pipelines import BIAS, CHOSEN, Plan, expected, inputs, load, plans, source

pytestmark = pytest.mark.gpu
pytest.importorskip("cuda.bindings", reason="the CUDA wheels are not installed")

SOAK = int(os.environ.get("NUMPIPE_RANDOM_PIPELINES", "0"))
REPEATS = 3


def check(plan: Plan, seed: int) -> None:
    kernel = load(plan).kernel
    exact = expected(plan, inputs(plan, seed))
    for _ in range(REPEATS):
        arrays = inputs(plan, seed)
        kernel(*arrays, BIAS, target="gpu")
        np.testing.assert_array_equal(arrays[-1], exact)


@pytest.mark.parametrize("name", CHOSEN)
def test_chosen_plans_compute_what_numpy_does(name):
    check(CHOSEN[name], 0)


@given(plan=plans(), seed=st.integers(0, 2**16))
@settings(max_examples=SOAK or 40, derandomize=not SOAK, deadline=None, database=None, phases=[Phase.generate],
          suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large])
def test_any_pipeline_computes_what_numpy_does(plan, seed):
    note(source(plan))
    check(plan, seed)
