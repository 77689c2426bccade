"""Duration of a simulation: estimated from the part that has run, shown, and rejected beyond a
bound."""

from __future__ import annotations

import io
import math
import re
import sys
import time
from typing import Any

import numpy as np
import pytest

import numpipe
from numpipe import BlockSpec, SpecError, ds
from numpipe.sim import progress
from numpipe.sim.progress import RunProgress


@numpipe.kernel(grid=lambda x: (x.shape[0] // 64,), grid_names="m")
def by_ctas(x, y):
    m = numpipe.axis_index("m")
    for (k,), (tile,) in numpipe.pipeline(
        grid=(4,), in_specs=(BlockSpec((64, 64), lambda k: (m, 0)),)
    )(x):
        if k == 3:
            y[ds(m * 64, 64), ds(0, 64)] = tile[...]


@numpipe.kernel(grid=numpipe.persistent())
def by_tiles(x, y):
    for (m,) in numpipe.tiles(x.shape[0] // 64):
        for (k,), (tile,) in numpipe.pipeline(
            grid=(4,), in_specs=(BlockSpec((64, 64), lambda k: (m, 0)),)
        )(x):
            if k == 3:
                y[ds(m * 64, 64), ds(0, 64)] = tile[...]


@numpipe.kernel
def with_a_parameter_of_that_name(y, limit):
    y[ds(0, 64), ds(0, 64)] = (numpipe.zeros((64, 64), np.float32) + limit).astype(y.dtype)


def arrays(tiles: int) -> tuple[np.ndarray, np.ndarray]:
    return np.ones((64 * tiles, 64), np.float16), np.zeros((64 * tiles, 64), np.float16)


@pytest.fixture(autouse=True)
def _no_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMPIPE_COMPILE_CHECK", "0")


@pytest.mark.parametrize("kernel", [by_ctas, by_tiles], ids=["CTAs", "tiles"])
def test_an_estimate_is_right_within_a_factor_of_3(
    kernel: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From a sixth of the run on; before that, one-time setup dominates."""
    kernel.simulate(*arrays(8))
    estimates: list[float] = []
    begin = time.monotonic()

    def look(self: RunProgress) -> None:
        if (self.ended + self.part) / self.clusters > 1 / 6:
            estimate = self.estimate()
            assert estimate is not None
            estimates.append(estimate)

    def look_of(self: RunProgress) -> None:
        plain(self)
        look(self)

    plain = RunProgress.check
    monkeypatch.setattr(RunProgress, "check", look_of)
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    monkeypatch.setattr(progress, "_OFTEN", 10)
    kernel.simulate(*arrays(32))
    seconds = time.monotonic() - begin
    assert len(estimates) > 10
    assert all(seconds / 3 < estimate < 3 * seconds for estimate in estimates), (seconds, estimates)


@pytest.mark.parametrize("kernel", [by_ctas, by_tiles], ids=["CTAs", "tiles"])
def test_what_takes_longer_is_refused_with_the_estimate_and_the_fix(
    kernel: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    with pytest.raises(
        SpecError,
        match=rf"kernel {kernel.name}: simulating it would take about \d+ s \(.* clusters took 0 "
        rf"s\), "
        r"and the limit is 0.1 s: use smaller arrays, .* kernel.simulate\(…, "
        r"limit=\d+\)",
    ):
        kernel.simulate(*arrays(256), limit=0.1)
    x, y = arrays(8)
    kernel.simulate(x, y, limit=math.inf)
    np.testing.assert_array_equal(x, y)


def test_a_grid_without_end_is_refused_at_once() -> None:
    huge = numpipe.kernel(by_ctas.function, grid=(2**31 - 1,), grid_names="m")
    begin = time.monotonic()
    with pytest.raises(
        SpecError, match=r"simulating it would take about 214748 s \(a grid of 2147483647 CTAs\)"
    ):
        huge(*arrays(1), target="sim")
    assert time.monotonic() - begin < 2


def test_a_cta_without_a_known_end_ends_at_the_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    monkeypatch.setattr(progress, "_OFTEN", 1)
    with pytest.raises(
        SpecError,
        match=r"\(0 of 1 clusters took 0 s: the rest cannot be "
        r"estimated\)",
    ):
        by_ctas.simulate(*arrays(1), limit=1e-4)


@pytest.mark.parametrize("terminal", [True, False])
def test_the_bar_appears_on_a_terminal_in_long_runs_alone(
    terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tqdm")
    said = io.StringIO()
    monkeypatch.setattr(said, "isatty", lambda: terminal, raising=False)
    monkeypatch.setattr(sys, "stderr", said)
    by_ctas.simulate(*arrays(8))
    assert not said.getvalue()
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    monkeypatch.setattr(progress, "SHOWN", 0.0)
    by_ctas.simulate(*arrays(8))
    assert bool(re.search(r"simulate by_ctas: .*/8 ", said.getvalue())) == terminal


@pytest.mark.parametrize("limit", [0, -1, True, "1", math.nan])
def test_a_limit_is_a_number_of_seconds(limit: Any) -> None:
    with pytest.raises(
        SpecError, match=r"kernel by_ctas: .*limit=.*it must be a number of seconds above 0"
    ):
        by_ctas.simulate(*arrays(1), limit=limit)


def test_a_kernel_may_have_a_parameter_of_that_name() -> None:
    y = np.zeros((64, 64), np.float32)
    with_a_parameter_of_that_name.simulate(y, limit=np.float32(2))
    assert (y == 2).all()
