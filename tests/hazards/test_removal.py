"""Every synchronizing operation in numpipe and its examples, left out one at a time: each removal
is reported.

A removal on the simulated machine is either detected in a kernel's run (`removal_kernels`), or a
rule says that the operation is redundant (`numpipe.testing.mutate` has the rules). Two things are
outside of the survey. The kernel's entry (mbarrier.init, its fence, the barrier of the CTA) does
not call operations: the simulator's barriers start as the entry leaves them. And the lanes of a
simulated warp are always in step, where a GPU's lanes meet after each access to a tile
(bar.warp.sync).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from numpipe.errors import PipelineRace, SimulationError
from numpipe.tools.verify.mutation import REDUNDANT, Place
from tests.hazards.removal import places_of, without, written
from tests.hazards.removal_kernels import EXCHANGES, RUNS
from tests.ops.test_many_gpus import calls

SEEDS = (None, 1)
SEEN_IN_THE_RESULT = {
    "mbar_wait < pipeline.ring.await_consumed < pipeline.steps.await_released < "
    "pipeline.steps.await_empty < pipeline.steps.finish_loads",
    "gmem_await < grid.round_totals._await",
}
"""CompilerParams(drain=True) promises when loads begin. Without the wait the kernel is right, but
may break that promise, unless the slots happen to be free by then. Totals are data and flag in one
word, so a missing wait gives wrong sums.
"""


@dataclass
class Found:
    """How a removal was detected: a run, and the hazard's name ("" for a wrong result).

    `run` is "" if nothing detects it.
    """

    run: str = ""
    hazard: str = ""


@dataclass
class Survey:
    """The places that the runs reach, with their runs, their lines, and the result of each run."""

    places: dict[Place, list[str]] = field(default_factory=dict)
    lines: set[str] = field(default_factory=set)
    results: dict[str, Any] = field(default_factory=dict)

    def add(self, name: str) -> None:
        def kept() -> None:
            self.results[name] = RUNS[name](None)

        places, lines = places_of(kept)
        self.lines |= lines
        for place in places:
            if place.calls == ("a kernel",):  # an operation of the test itself
                continue
            self.places.setdefault(place, []).append(name)

    def missed(self, place: Place, name: str, seed: int | None) -> str | None:
        """Return the hazard that a run reports without a place, or "" for a wrong result.

        None if the removal is not detected.
        """
        try:
            with without(place):
                result = RUNS[name](seed)
        except SimulationError as error:
            assert error.report is not None
            return error.report.hazard
        wanted, got = (
            made if isinstance(made, list) else [made] for made in (self.results[name], result)
        )
        return (
            None
            if all(np.array_equal(a, b, equal_nan=True) for a, b in zip(wanted, got, strict=True))
            else ""
        )

    def found(self, place: Place) -> Found:
        """Return how the first run that detects a removal did."""
        for name in self.places[place]:
            hazard = self.missed(place, name, None)
            if hazard is not None:
                return Found(name, hazard)
        return Found()


@pytest.fixture(scope="module")
def survey() -> Survey:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NUMPIPE_COMPILE_CHECK", "0")
        made = Survey()
        for name in reversed(RUNS):  # the small ones come last, and are tried first
            made.add(name)
        return made


@pytest.mark.thorough
def test_a_kernel_comes_to_every_place_that_the_source_has(survey: Survey) -> None:
    """Places that only multi-GPU ops reach are left out in tests/ops/test_many_gpus.py."""
    of_gpus = (places_of(call)[1] for call in calls(2).values())
    missing = sorted(written() - survey.lines.union(*of_gpus))
    assert not missing, "\n".join(missing)


def test_a_place_that_no_kernel_comes_to_is_seen() -> None:
    one = Survey()
    for name in ("a ring, two warpgroups", "tiles by a store role"):
        one.add(name)
    left = {line.rpartition("/")[2].partition(":")[0] for line in written() - one.lines}
    assert {
        "copies.py",
        "phases.py",
        "pipeline_outputs.py",
        "steps.py",
        "ring.py",
    } <= left and "store_ring.py" not in left


@pytest.mark.thorough
def test_every_removal_is_reported(survey: Survey) -> None:
    found = {place: survey.found(place) for place in survey.places}
    silent = {place.name for place, by in found.items() if not by.run}
    rules = {rule for rule in REDUNDANT for name in silent if name.startswith(rule)}
    assert sorted(
        name for name in silent if not name.startswith(tuple(REDUNDANT))
    ) == [] and rules == set(REDUNDANT)
    # numpipe.rows, cumsum, reductions, gradients of norms and attention, and turns of CTAs arrive
    # on lines of their own
    twice = "warp_sync < memory.phases.arrive < pipeline.operand_barriers.barrier_arrive"
    counts = Counter(rule for rule in REDUNDANT for name in silent if name.startswith(rule))
    assert len(REDUNDANT) <= 5 and counts == Counter([*REDUNDANT, *[twice] * 6])
    assert {
        place.name for place, by in found.items() if by.run and not by.hazard
    } == SEEN_IN_THE_RESULT
    for place, by in found.items():
        assert not by.run or survey.missed(place, by.run, 1) is not None, f"{place} in {by.run}"


@pytest.mark.parametrize("name", EXCHANGES)
def test_each_kind_of_exchange_has_the_barriers_that_it_needs(name: str) -> None:
    """Reductions and layout casts through shared memory wait before overwriting the previous
    exchange, and before reading."""
    kernel, barriers = EXCHANGES[name]
    x = np.random.default_rng(0).integers(-3, 4, (64, 64)).astype(np.float32)

    def run(seed: int | None = None) -> None:
        kernel.simulate(x, np.zeros((64, 64), np.float32), seed=seed)

    places = [place for place in places_of(run)[0] if place.calls[0].startswith("tiles.exchange.")]
    assert len(places) == barriers
    for place in places:
        for seed in SEEDS:
            with without(place), pytest.raises(PipelineRace) as caught:
                run(seed)
            assert (
                caught.value.report is not None
                and caught.value.report.hazard == "unordered-accesses"
            )
            assert "a register tile" in str(caught.value) and "removal_kernels.py" in str(
                caught.value
            )


@pytest.mark.soak
def test_every_removal_is_reported_in_every_schedule(survey: Survey) -> None:
    for place in survey.places:
        by = survey.found(place)
        for seed in range(40) if by.run and place.name not in SEEN_IN_THE_RESULT else ():
            assert survey.missed(place, by.run, seed) is not None, (
                f"{place} in {by.run}, seed {seed}"
            )


def test_only_the_requested_place_is_left_out() -> None:
    """The hook itself changes nothing: without a place that a kernel does not reach, its result is
    the same."""
    name, two = "a ring, two warpgroups", Survey()
    for each in (name, "outputs without a memory role"):
        two.add(each)
    elsewhere = next(place for place, names in two.places.items() if name not in names)
    assert two.missed(elsewhere, name, None) is None
