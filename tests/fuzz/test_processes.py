"""``python -m tests.fuzz``: failures are shrunk and kept as programs, and a hang does not end a
run."""

from __future__ import annotations

import random
import re
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.fuzz import __main__ as fuzz
from tests.fuzz import worker
from tests.fuzz.case import Case, of_file
from tests.fuzz.checks import CHECKS, Found
from tests.fuzz.products import product
from tests.fuzz.worker import work

ROOT = Path(__file__).parents[2]


def refuse_scans(case: Case, seed: int) -> None:
    if "statement scan" in case.features:
        raise Found("wrong", f"y: {len(case.text)} of 64 elements are wrong, the first at (0,)")


def test_a_failure_is_made_smaller_and_kept_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(CHECKS, "sim", refuse_scans)
    monkeypatch.setattr(worker, "KERNELS", 60)
    monkeypatch.setattr(worker, "SHRINKING", 0)
    failures = tmp_path / "failures"
    work(tmp_path, 1, ["sim"], time.time() + 5, failures)
    (file,) = failures.iterdir()
    case, seed = of_file(file)
    assert f"python -m tests.fuzz {file}\n" in capsys.readouterr().err
    assert len(case.text.splitlines()) < 40 and "statement scan" in case.features
    assert case.source(seed) in file.read_text()

    work(tmp_path, 2, ["sim"], time.time() + 60, failures)
    log = Counter(line.split()[0] for line in (tmp_path / "2.log").read_text().splitlines())
    assert log["wrong:"] >= 1 and log.total() >= 60 and len(list(failures.iterdir())) == 1


def hangs(folder: Path, number: int, *more: Any) -> None:
    (folder / f"{number}.log").write_text("sim 0123\nsim 0123\n")
    (folder / f"{number}.now").write_text("sim 4567\nthe program")
    time.sleep(60)


def dies(folder: Path, number: int, *more: Any) -> None:
    (folder / f"{number}.now").write_text("sim 4567\nthe program")
    raise SystemExit(3)


@pytest.mark.variants(1)
@pytest.mark.parametrize(("how", "found"), [(hangs, {"hung:": 1, "sim": 1}), (dies, {"died:": 1})])
def test_a_process_that_hangs_or_dies_leaves_its_kernel_and_its_counts(
    how: Any, found: dict[str, int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(fuzz, "work", how)
    monkeypatch.setitem(fuzz.LIMITS, "sim", 0.5 if how is hangs else 60)
    assert fuzz.fuzz(["sim"], 0.001, 1, tmp_path, 1) == found
    (file,) = tmp_path.iterdir()
    assert f"{file.name[:4]}:" in found and file.read_text().endswith("\nthe program")


@pytest.mark.thorough
def test_a_kept_program_is_checked_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, case = tmp_path / "case.py", product(random.Random(3))
    file.write_text(f"# a title\n{case.source(5)}")
    again, seed = of_file(file)
    assert seed == 5 and again == replace(case, text=f"# a title\n{case.text}")
    assert fuzz.main([str(file), "--target", "sim", "verify"]) == 0
    assert capsys.readouterr().out == "sim: passed\nverify: passed\n"


@pytest.mark.thorough
def test_the_command_says_how_many_kernels_passed(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.fuzz", "--minutes", "0.1", "--processes", "1"]
    command += ["--target", "sim", "verify", "--seed", "7", "--failures", str(tmp_path / "kept")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert re.fullmatch(r"seed 7: \d+ sim, \d+ verify\n", done.stdout)
    assert not (tmp_path / "kept").exists()
