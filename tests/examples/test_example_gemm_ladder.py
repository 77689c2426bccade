"""examples/gemm_ladder.py: every rung is correct, free of hazards, and one change away from the
previous one."""

from __future__ import annotations

import dataclasses
import itertools
import re
import sys
from pathlib import Path

import gemm_ladder
import numpy as np
import pytest

EXAMPLE = Path(gemm_ladder.__file__)

RUNGS = gemm_ladder.RUNGS


def test_simulated_it_prints_the_error_of_every_rung(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUMPIPE_COMPILE_CHECK", "0")
    monkeypatch.setattr(
        sys, "argv", ["gemm_ladder.py", "--target", "sim", "--shape", "200,264,136"]
    )
    gemm_ladder.main()
    rows = re.findall(r"^(\S.*\S) +error (\S+) *$", capsys.readouterr().out, re.MULTILINE)
    assert [name for name, _ in rows] == list(RUNGS) and all(
        1e-3 < float(error) < 3e-3 for _, error in rows
    )


@pytest.mark.variants(0, thorough=2)
@pytest.mark.parametrize("name", RUNGS)
def test_the_build_gate_passes(name: str) -> None:
    a = np.zeros((8, 8), np.float16)
    kernel = gemm_ladder.kernel(RUNGS[name])
    assert kernel.inspect("gate", a, a) == () and kernel.inspect("resources", a, a).clean


def test_a_rung_has_the_one_thing_more_that_its_name_says() -> None:
    rungs = list(map(dataclasses.asdict, RUNGS.values()))
    changed = [
        {key for key in now if now[key] != before[key]} for before, now in itertools.pairwise(rungs)
    ]
    assert changed == [
        {"slots"},
        {"specialized"},
        {"tn"},
        {"persistent"},
        {"slots", "panels"},
        {"order"},
        {"policy"},
        {"tn", "slots", "panels", "schedule"},
    ]
