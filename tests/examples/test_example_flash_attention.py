"""examples/flash_attention.py, simulated: every kind of attention against float64, in any schedule; its machine code."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flash_attention
import numpipe
from numpipe.compile.build import toolchain
from tests.kernels.attention_cases import CASES, Case

CONFIGS, FITTING = flash_attention.CONFIGS, flash_attention.FITTING
SMALL = flash_attention.Config(64)


@pytest.fixture(autouse=True)
def simulated_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMPIPE_COMPILE_CHECK", "0")


def test_it_is_shorter_than_a_page_of_options() -> None:
    assert len(Path(flash_attention.__file__).read_text(encoding="utf8").splitlines()) <= 350


def test_it_prints_the_error_of_every_config_that_fits(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["flash_attention.py", "--target", "sim", "--shape", "1,2/1,72,64", "--causal"])
    monkeypatch.setitem(FITTING, (64, True), FITTING[64, True][1:])
    flash_attention.main()
    rows = re.findall(r"^ *1,2/1,72,64  (.*\S) +(\S+)$", capsys.readouterr().out, re.MULTILINE)
    assert [name for name, _ in rows] == list(FITTING[64, True]) and all(1e-3 < float(error) < 4e-3 for _, error in rows)


@pytest.mark.variants(6)
@pytest.mark.parametrize("name", CASES)
def test_attention_is_that_of_float64(name: str) -> None:
    case = CASES[name]
    assert case.wrong(*case.run("sim", SMALL)) == ""


@pytest.mark.variants(1)
@pytest.mark.parametrize("change, names", [
    ({"lazy": True}, ["peaked", "rows that see nothing"]),
    ({"wgs": 3, "keys": 80, "turns": False, "dynamic": False}, ["causal"])], ids=str)
def test_the_options_of_a_config_give_the_same(change: dict[str, Any], names: list[str]) -> None:
    for case in map(CASES.__getitem__, names):
        assert case.wrong(*case.run("sim", replace(SMALL, **change)), more=1.3) == ""


def test_sums_are_rescaled_rarely_where_that_is_asked_for() -> None:
    exact, lazy = (CASES["ragged"].run("sim", replace(SMALL, lazy=not exact))[0] for exact in (True, False))
    assert (exact != lazy).any()  # P is rounded at another power of two


def test_the_mask_is_what_makes_it_causal() -> None:
    case = CASES["causal"]
    assert replace(case, causal=False).wrong(*case.run("sim", SMALL)).startswith("relative error")
    assert replace(case, diagonal=1).wrong(*case.run("sim", SMALL)).startswith("relative error")


@pytest.mark.parametrize("cfg, case, schedules", [
    (SMALL, Case(1, 2, 1, 72, 72, causal=True), 10), (replace(SMALL, wgs=1, slots=1, lazy=True, turns=False), Case(keys=136), 6)])
def test_no_schedule_finds_a_race(cfg: flash_attention.Config, case: Case, schedules: int) -> None:
    found = verified(cfg, case, schedules)
    assert found.ok and found.schedules == schedules, str(found)


@pytest.mark.soak
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("cfg", [
    SMALL, replace(SMALL, lazy=True), replace(SMALL, wgs=3, slots=1, keys=80, dynamic=False, turns=False)], ids=str)
def test_forty_schedules_find_no_race(cfg: flash_attention.Config, name: str) -> None:
    found = verified(cfg, CASES[name], 40)
    assert found.ok and found.schedules == 40, str(found)


def verified(cfg: flash_attention.Config, case: Case, schedules: int) -> numpipe.Verification:
    form = flash_attention.Form(case.depth, case.causal, case.layout)
    arrays = [case.laid(x) for x in case.arrays()]
    return numpipe.verify(flash_attention.kernel(cfg, form), *arrays, np.zeros_like(arrays[0]), scale=0.2, diagonal=case.diagonal,
                          group=1, schedules=schedules)


@pytest.mark.parametrize("change, words", [
    ({"q": (1, 2, 64, 96)}, "depth of a head must be one of .* has 96"),
    ({"q": (1, 2, 64)}, r"'q' must have 4 dimensions, b, h, s, d, got shape \(1, 2, 64\)"),
    ({"v": (1, 2, 72, 64)}, "must have one shape, with the batches and the depth of 'q'"),
    ({"k": (1, 2, 64, 128), "v": (1, 2, 64, 128)}, "one shape, with the batches and the depth of 'q'"),
    ({"q": (1, 3, 64, 64)}, "the 3 heads of 'q' must be a multiple of the 2 heads of 'k'"),
    ({"layout": "sbhd"}, "layout must be 'bhsd' or 'bshd', got 'sbhd'"),
    ({"scale": -1.0}, "scale must be a positive number, got -1.0")])
def test_what_does_not_fit_is_refused(change: dict[str, Any], words: str) -> None:
    shapes = {name: change.get(name, (1, 2, 64, 64)) for name in "qkv"}
    named = {name: value for name, value in change.items() if name not in shapes}
    with pytest.raises(numpipe.SpecError, match=words):
        flash_attention.attention(*(np.zeros(shape, np.float16) for shape in shapes.values()), target="sim", **named)


def test_heads_take_turns_in_groups_that_stay_in_l2_and_leave_no_rest() -> None:
    assert flash_attention._turns(64, 1, 4 * 4096 * 128) == 16  # 2 MB each
    assert flash_attention._turns(96, 4, 4 * 4001 * 128) == 48  # of 64 that would fit
    assert flash_attention._turns(7, 1, 1 << 40) == 1


def test_a_config_is_chosen_by_depth_mask_and_accuracy() -> None:
    for (depth, causal), names in FITTING.items():
        exact, lazy = (flash_attention.choose(depth, causal, exact) for exact in (True, False))
        assert (exact.lazy, lazy.lazy) == (False, True) and {exact, lazy} <= {CONFIGS[name] for name in names}
    assert {name for names in FITTING.values() for name in names} == set(CONFIGS)


# ---- the machine code
def check_code(cfg: flash_attention.Config, form: flash_attention.Form, dtype: str) -> None:
    """Clean, and the scores' wait leaves the product with V in flight."""
    case = Case(1, 2, 2, 256, 256, form.depth, dtype)
    arrays = [*case.arrays(), case.arrays()[0], *[np.zeros((1, 2, 256), np.float32)] * form.sums]
    kernel, numbers = flash_attention.kernel(cfg, form), {"scale": 1.0, "diagonal": 0, "group": 1}
    assert kernel.inspect("gate", *arrays, **numbers) == ()
    sass = kernel.inspect("sass", *arrays, **numbers)
    assert len(re.findall(r"HGMMA\.64x", sass)) == (2 * form.depth + 3 * cfg.keys) // 16  # scores in two branches, P V in three
    assert "WARPGROUP.DEPBAR.LE gsb0, 0x1" in sass  # and no wait beyond those of the source: so says the gate


@pytest.mark.skipif(toolchain() is not None, reason=f"no compiler: {toolchain()}")
@pytest.mark.soak
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
@pytest.mark.parametrize("sums", [False, True])
@pytest.mark.parametrize("kind, name", [(kind, name) for kind, names in FITTING.items() for name in names], ids=str)
def test_every_config_passes_the_build_gate(kind: tuple[int, bool], name: str, sums: bool, layout: str, dtype: str) -> None:
    check_code(CONFIGS[name], flash_attention.Form(*kind, layout, sums), dtype)
