"""Random programs of tiles by rows, parts, limits, shared atomics, vectors, data that steers: 15 always, 5,000 with ``-m soak``."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, note, settings
from hypothesis import strategies as st

from numpipe.compile.build import toolchain
from tests.kernels import tile_programs
from tests.kernels.covering import examples
from tests.kernels.source_modules import module_of
from tests.kernels.tile_programs import Program, arguments, expected, program, wrong


@pytest.fixture(autouse=True)
def _simulated_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMPIPE_COMPILE_CHECK", "0")


def drawn(rng: random.Random, schedule: int | None) -> None:
    made = program(rng)
    note(made.source())
    assert wrong(made, "sim", seed=schedule or 0, schedule=schedule) == []


common: dict[str, Any] = {"deadline": None, "database": None, "phases": [Phase.generate], "suppress_health_check": [
    HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large]}
any_rng, any_schedule = st.randoms(use_true_random=True), st.none() | st.integers(1, 2**16)


@given(rng=any_rng, schedule=any_schedule)
@settings(max_examples=examples(50), derandomize=True, **common)
def test_any_program_computes_what_numpy_does(rng: random.Random, schedule: int | None) -> None:
    drawn(rng, schedule)


@pytest.mark.soak
@pytest.mark.timeout(7200)
@given(rng=any_rng, schedule=any_schedule)
@settings(max_examples=5000, print_blob=True, **common)
def test_any_of_many_programs_computes_what_numpy_does(rng: random.Random, schedule: int | None) -> None:
    drawn(rng, schedule)


def test_programs_of_other_numbers_are_found_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nearly every store shows: what NumPy makes of other inputs is not what a program stores."""
    def of_others(made: Program, given: dict[str, Any]) -> dict[str, Any]:
        return expected(made, arguments(made, 1))

    monkeypatch.setattr(tile_programs, "expected", of_others)
    stores = found = 0
    for seed in range(6):
        made = program(random.Random(seed))
        stores += len(made.outputs)
        found += len(set(wrong(made, "sim")) & set(made.outputs))
    assert found >= 0.7 * stores


@pytest.mark.thorough
@pytest.mark.skipif(toolchain() is not None, reason="no compiler")
@pytest.mark.parametrize("seed", range(6))
def test_programs_compile(seed: int) -> None:
    made = program(random.Random(seed))
    assert ".visible .entry" in module_of(made.source(), "tile_program").program.inspect("ptx", *arguments(made).values())
