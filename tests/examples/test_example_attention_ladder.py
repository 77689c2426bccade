"""examples/attention_ladder.py: every rung is correct, free of hazards, and one change away from
the previous one."""

from __future__ import annotations

import dataclasses
import itertools
import re
import sys
from pathlib import Path

import attention_ladder
import numpy as np
import pytest

import flash_attention
import numpipe
from numpipe.ops.attention import CONFIGS
from tests.kernels.compilers import compiles

EXAMPLE = Path(attention_ladder.__file__)

RUNGS = attention_ladder.RUNGS
OWN = {name: cfg for name, cfg in RUNGS.items() if isinstance(cfg, attention_ladder.Config)}


@pytest.mark.parametrize(
    "options",
    [
        ["--rung", "serial", "--rung", "overlapped"],
        ["--rung", "serial", "--rung", "persistent", "--causal"],
    ],
    ids=["full", "causal"],
)
def test_simulated_it_prints_the_error_of_rungs(
    options: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """docs/attention.md#the-ladder-of-attention runs the other rungs."""
    monkeypatch.setenv("NUMPIPE_COMPILE_CHECK", "0")
    monkeypatch.setattr(
        sys, "argv", ["attention_ladder.py", "--target", "sim", "--shape", "1,1,136,64", *options]
    )
    attention_ladder.main()
    rows = re.findall(r"^(\S.*\S) +error (\S+) *$", capsys.readouterr().out, re.MULTILINE)
    assert [name for name, _ in rows] == options[1:4:2] and all(
        1e-3 < float(error) < 4e-3 for _, error in rows
    )


@pytest.mark.parametrize("name", ["serial", "persistent"])
def test_no_schedule_finds_a_race(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMPIPE_COMPILE_CHECK", "0")
    q, k, v = flash_attention.inputs((1, 1, 1, 72, 64), np.dtype(np.float16))
    small = dataclasses.replace(RUNGS[name], keys=32)
    found = numpipe.verify(
        attention_ladder.kernel(small, 64, True), q, k, v, np.zeros_like(q), scale=0.2, schedules=4
    )
    assert found.ok and found.schedules == 4, str(found)


@pytest.mark.variants(0, thorough=2)
@compiles
@pytest.mark.parametrize("name", OWN)
def test_the_build_gate_passes(name: str) -> None:
    x = np.zeros((1, 2, 256, 128), np.float16)
    kernel = attention_ladder.kernel(OWN[name], 128, causal=OWN[name].persistent)
    assert (
        kernel.inspect("gate", x, x, x, x, scale=1.0) == ()
        and kernel.inspect("resources", x, x, x, x, scale=1.0).clean
    )


def test_a_rung_has_the_one_thing_more_that_its_name_says() -> None:
    own = list(map(dataclasses.asdict, OWN.values()))
    assert list(OWN) == list(RUNGS)[:5]
    changed = [
        {key for key in now if now[key] != before[key]} for before, now in itertools.pairwise(own)
    ]
    assert changed == [{"overlapped"}, {"wgs"}, {"turns"}, {"persistent"}]
    last = {name: RUNGS[name] for name in list(RUNGS)[5:]}
    assert [(cfg.wgs, cfg.early is not None, cfg.lazy) for cfg in last.values()] == [
        (2, False, False),
        (2, True, False),
        (2, True, True),
        (3, False, True),
    ]
    assert set(last.values()) - {last["one by one"]} <= set(CONFIGS.values())


@pytest.mark.parametrize(
    "shape, words", [("1,4/2,64,64", "as many key heads"), ("1,4,64,256", "a depth of")]
)
def test_what_not_all_rungs_take_is_refused(
    shape: str, words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["attention_ladder.py", "--shape", shape])
    with pytest.raises(SystemExit):
        attention_ladder.main()
    assert words in capsys.readouterr().err
