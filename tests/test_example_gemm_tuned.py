"""examples/gemm_tuned.py: every config, simulated."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from kernels_for_tests import operands, product

import gemm_tuned
import numpipe

CONFIGS = gemm_tuned.CONFIGS


@pytest.fixture(autouse=True)
def simulated_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMPIPE_COMPILE_CHECK", "0")


def test_it_is_shorter_than_a_page_of_options() -> None:
    assert len(Path(gemm_tuned.__file__).read_text(encoding="utf8").splitlines()) <= 350


def test_it_prints_the_error_of_every_config(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["gemm_tuned.py", "--target", "sim", "--shape", "200,264,136"])
    gemm_tuned.main()
    rows = re.findall(r"^ *200,264,136  (\S+ \S+) +(\S+)$", capsys.readouterr().out, re.MULTILINE)
    assert [name for name, _ in rows] == list(CONFIGS) and all(1e-3 < float(error) < 3e-3 for _, error in rows)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_config_has_as_many_slots_as_fit(name: str) -> None:
    cfg = CONFIGS[name]
    assert replace(cfg, slots=None, panels=cfg.panels or 4).depth == cfg.depth == cfg.slots
    assert replace(cfg, slots=None, panels=None).depth >= cfg.depth


def test_a_config_that_cannot_be_is_refused_with_the_numbers() -> None:
    a, b = operands(64, 64, 64)
    with pytest.raises(numpipe.SpecError, match="shared memory: .* B, but a CTA has 232448 B"):
        gemm_tuned.matmul(a, b, cfg=replace(CONFIGS["ping-pong 128x192"], slots=6), target="sim")
    with pytest.raises(numpipe.NumpipeError, match="a slot is 393216 B"):
        gemm_tuned.matmul(a, b, cfg=gemm_tuned.Config(64, 128, 1024, slots=None), target="sim")


def test_both_schedules_of_one_config_compute_the_same() -> None:
    a, b = operands(256, 200, 328)
    cfg = gemm_tuned.Config(128, 64, slots=None, panels=2)
    for schedule in ("cooperative", "pingpong"):
        c = gemm_tuned.matmul(a, b, cfg=replace(cfg, schedule=schedule), target="sim")
        np.testing.assert_array_equal(c.astype(np.float64), product(a, b).astype(np.float64))
