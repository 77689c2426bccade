"""Every broken kernel of the catalogue is reported in every schedule by its hazard's name; its
fixed twin is silent and right."""

from __future__ import annotations

import inspect
import re

import numpy as np
import pytest

from numpipe.errors import SimulationError
from numpipe.hazards import HAZARDS
from numpipe.sim import livelocks
from tests.hazards import (
    accumulators,
    arrays,
    attentions,
    barriers,
    clusters,
    gpus,
    hand_overs,
    loops,
    norms,
    outputs,
    phases,
    proxies,
    shared,
    slots,
    stores,
    teams,
    weights,
    whole,
)
from tests.hazards.catalogue import ENTRIES, Entry
from tests.kernels.covering import examples

TOPICS = (
    accumulators,
    arrays,
    attentions,
    barriers,
    clusters,
    gpus,
    hand_overs,
    loops,
    norms,
    outputs,
    phases,
    proxies,
    shared,
    slots,
    stores,
    teams,
    weights,
    whole,
)
SCHEDULES = (None, *range(examples(40)))  # None: the order of the virtual-time model


@pytest.fixture(autouse=True)
def _simulated_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMPIPE_COMPILE_CHECK", "0")
    # otherwise each livelock takes a second
    for bound, rounds_ in (("MOST", 3000), ("TURNS", 100)):
        monkeypatch.setattr(livelocks, bound, rounds_)


def reported(entry: Entry, seed: int | None) -> SimulationError:
    with pytest.raises(SimulationError) as caught:
        entry.run(False, seed)
    return caught.value


@pytest.mark.variants(24)
@pytest.mark.schedules
@pytest.mark.parametrize("name", ENTRIES)
def test_every_schedule_reports_it_by_name(name: str) -> None:
    entry = ENTRIES[name]
    file = inspect.getsourcefile(entry.function)
    assert file is not None
    for seed in SCHEDULES:
        error = reported(entry, seed)
        text = str(error)
        assert isinstance(error, entry.error) and re.search(entry.says, text, re.DOTALL), (
            f"seed {seed}: {type(error)} {text}"
        )
        assert text.startswith(f"{file}:"), (
            f"the report begins with a line of the kernel's file: {text}"
        )
        report = error.report
        assert report is not None and report.fix, f"what to write instead is said: {text}"
        assert report.hazard == entry.hazard, f"seed {seed}: {report.hazard}: {text}"


@pytest.mark.variants(24, thorough=150)
@pytest.mark.schedules
@pytest.mark.parametrize("name", ENTRIES)
def test_the_fixed_twin_is_silent_and_right(name: str) -> None:
    entry = ENTRIES[name]
    for seed in SCHEDULES[: 1 + examples(20)]:
        np.testing.assert_array_equal(entry.run(True, seed), entry.gives, err_msg=f"seed {seed}")


def test_every_hazard_is_in_the_catalogue() -> None:
    assert {entry.hazard for entry in ENTRIES.values()} == HAZARDS.keys()
    assert len(ENTRIES) >= 40


def test_every_entry_is_in_a_topic() -> None:
    assert {entry.function.__module__ for entry in ENTRIES.values()} == {
        topic.__name__ for topic in TOPICS
    }
