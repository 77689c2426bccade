"""How long a simulation takes: estimated from what has run, shown, and refused beyond a bound."""

from __future__ import annotations

import io
import itertools
import math
import re
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import numpipe
from numpipe import BlockSpec, SpecError, ds, sim
from numpipe.sim import ahead, pace
from numpipe.sim.pace import Pace

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))
from gemm import matmul


@numpipe.kernel(grid=lambda x: (x.shape[0] // 64,), grid_names="m", num_compute_wgs=1)
def by_ctas(x, y):
    m = numpipe.axis_index("m")
    for (k,), (tile,) in numpipe.pipeline(grid=(4,), in_specs=(BlockSpec((64, 64), lambda k: (m, 0)),))(x):
        if k == 3:
            y[ds(m * 64, 64), ds(0, 64)] = tile[...]


@numpipe.kernel(grid=numpipe.persistent(), num_compute_wgs=1)
def by_tiles(x, y):
    for (m,) in numpipe.tiles(x.shape[0] // 64):
        for (k,), (tile,) in numpipe.pipeline(grid=(4,), in_specs=(BlockSpec((64, 64), lambda k: (m, 0)),))(x):
            if k == 3:
                y[ds(m * 64, 64), ds(0, 64)] = tile[...]


@numpipe.kernel(num_compute_wgs=1)
def by_steps(x, y):
    for (k,), (tile,) in numpipe.pipeline(grid=(x.shape[0] // 64,), in_specs=(BlockSpec((64, 64), lambda k: (k, 0)),))(x):
        assert k < 48, "too many"
        y[ds(k * 64, 64), ds(0, 64)] = tile[...]


@numpipe.kernel(num_compute_wgs=1)
def with_a_parameter_of_that_name(y, limit):
    y[ds(0, 64), ds(0, 64)] = (numpipe.zeros((64, 64), np.float32) + limit).astype(y.dtype)


def arrays(tiles: int) -> tuple[np.ndarray, np.ndarray]:
    return np.ones((64 * tiles, 64), np.float16), np.zeros((64 * tiles, 64), np.float16)


@pytest.fixture(autouse=True)
def _no_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMPIPE_COMPILE_CHECK", "0")


@pytest.mark.parametrize("kernel", [by_ctas, by_tiles, by_steps], ids=["CTAs", "tiles", "steps"])
def test_an_estimate_is_right_within_a_factor_of_3(kernel: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """From a sixth of the run on, before which what is set up once counts."""
    kernel.simulate(*arrays(8))
    estimates: list[float] = []
    begin = time.monotonic()

    def look(self: Pace) -> None:
        if (self.ended + self.part) / self.clusters > 1 / 6:
            estimate = self.estimate()
            assert estimate is not None
            estimates.append(estimate)

    def look_of(self: Pace) -> None:
        plain(self)
        look(self)

    plain = Pace.look
    monkeypatch.setattr(Pace, "look", look_of)
    monkeypatch.setattr(pace, "PATIENCE", 0.0)
    monkeypatch.setattr(pace, "_OFTEN", 10)
    kernel.simulate(*arrays(32))
    seconds = time.monotonic() - begin
    assert len(estimates) > 10
    assert all(seconds / 3 < estimate < 3 * seconds for estimate in estimates), (seconds, estimates)


@pytest.mark.parametrize("kernel", [by_ctas, by_tiles], ids=["CTAs", "tiles"])
def test_what_takes_longer_is_refused_with_the_estimate_and_the_mend(kernel: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "PATIENCE", 0.0)
    with pytest.raises(SpecError, match=rf"kernel {kernel.name}: simulated it takes about \d+ s \(.* clusters took 0 s\), and "
                       r"simulations end at 0.01 s: take smaller arrays, .* kernel.simulate\(…, limit=\d+\)"):
        kernel.simulate(*arrays(32), limit=0.01)
    x, y = arrays(8)
    kernel.simulate(x, y, limit=math.inf)
    np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("size", [4096, pytest.param(16384, marks=pytest.mark.thorough)])
def test_a_large_product_is_refused_before_anything_runs(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control flow of its first CTA tells its steps; of a loop over tiles that takes longer, the number of tiles."""
    def runs(peers: Any) -> None:
        raise SpecError("it runs")

    monkeypatch.setattr(sim, "_run", runs)
    a = np.zeros((size, size), np.float16)
    begin = time.monotonic()
    with pytest.raises(SpecError, match=r"kernel matmul: simulated it takes about \d{3,7} s \(2 CTAs, of which the first has "
                       r"\d{4,8} steps\), and simulations end at 30 s: take smaller arrays"):
        matmul.simulate(a, a, limit=30)
    assert time.monotonic() - begin < 30  # on a busy computer
    with pytest.raises(SpecError, match="it runs"):
        matmul.simulate(a, a, limit=math.inf)


def test_looking_ahead_changes_no_result_and_reports_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "LARGE", 0)
    looked: list[Any] = []
    first = Pace._first
    monkeypatch.setattr(Pace, "_first", lambda self: looked.append(first(self)) or looked[-1])
    x, y = np.random.default_rng(0).integers(0, 9, (64 * 8, 64)).astype(np.float16), np.zeros((64 * 8, 64), np.float16)
    by_steps.simulate(x, y, limit=60)
    np.testing.assert_array_equal(x, y)
    assert [told.steps for told in looked] == [8] and looked[0].whole
    with pytest.raises(numpipe.SimulationError, match="too many"):
        by_steps.simulate(*arrays(64), limit=60)


def test_what_takes_long_to_count_is_told_by_its_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []
    first = Pace._first
    monkeypatch.setattr(Pace, "_first", lambda self: told.append(first(self)) or told[-1])
    monkeypatch.setattr(pace, "LARGE", 0)
    by_tiles.simulate(*arrays(64), limit=60)
    ticks = itertools.count()
    monkeypatch.setattr(ahead, "time", SimpleNamespace(monotonic=lambda: next(ticks) * ahead.LONGEST / 60))
    by_tiles.simulate(*arrays(64), limit=60)
    by_steps.simulate(*arrays(48), limit=60)
    whole, part, steps = told
    assert whole.steps == 32 and 24 <= part.steps <= 40 and part.whole
    assert 0 < steps.steps < 48 and not steps.whole  # of a pipeline nobody says how much is left


def test_a_grid_without_end_is_refused_at_once() -> None:
    huge = numpipe.kernel(by_ctas.function, grid=(2**31 - 1,), grid_names="m", num_compute_wgs=1)
    begin = time.monotonic()
    with pytest.raises(SpecError, match=r"simulated it takes about 214748 s \(a grid of 2147483647 CTAs\)"):
        huge(*arrays(1), target="sim")
    assert time.monotonic() - begin < 2


def test_a_cta_that_says_nothing_of_its_end_ends_at_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "PATIENCE", 0.0)
    monkeypatch.setattr(pace, "_OFTEN", 1)
    with pytest.raises(SpecError, match="it has run for so long"):
        by_ctas.simulate(*arrays(1), limit=1e-4)


def test_the_bar_appears_on_stderr_in_long_runs_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tqdm")
    said = io.StringIO()
    monkeypatch.setattr(sys, "stderr", said)
    by_ctas.simulate(*arrays(8))
    assert not said.getvalue()
    monkeypatch.setattr(pace, "PATIENCE", 0.0)
    monkeypatch.setattr(pace, "SHOWN", 0.0)
    by_ctas.simulate(*arrays(8))
    assert re.search(r"simulate by_ctas: .*/8 ", said.getvalue())


@pytest.mark.parametrize("limit", [0, -1, True, "1", math.nan])
def test_a_limit_is_a_number_of_seconds(limit: Any) -> None:
    with pytest.raises(SpecError, match=r"kernel by_ctas: .*limit=.*it is a number of seconds above 0"):
        by_ctas.simulate(*arrays(1), limit=limit)


def test_a_kernel_may_have_a_parameter_of_that_name() -> None:
    y = np.zeros((64, 64), np.float32)
    with_a_parameter_of_that_name.simulate(y, limit=np.float32(2))
    assert (y == 2).all()
