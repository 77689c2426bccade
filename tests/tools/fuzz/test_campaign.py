"""``python -m numpipe fuzz``: what is found is made smaller, written as a program and counted; a hang loses no counts."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from numpipe.__main__ import main
from numpipe.diagnostics.errors import SpecError, TargetError
from numpipe.tools.fuzz import campaign, checks, worker
from numpipe.tools.fuzz.campaign import Campaign, fuzz
from numpipe.tools.fuzz.case import Case
from numpipe.tools.fuzz.counts import Counts
from numpipe.tools.fuzz.worker import Worker


class Heard(list[tuple[Any, ...]]):
    """A pipe that keeps what is sent."""

    def send(self, message: tuple[Any, ...]) -> None:
        self.append(message)

    def close(self) -> None:
        self.append(("closed",))


def refuses_scans(case: Case, seed: int) -> int:
    if "statement scan" in case.features:
        raise checks.Found("wrong", "y: 1 of 64 elements are wrong, the first at (0,)")
    return 1


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels with a scan are wrong."""
    monkeypatch.setitem(checks.CHECKS, "simulated", refuses_scans)


def lines(source: str) -> int:
    return source.partition("ARGUMENTS")[0].count("\n")


def test_a_failure_is_made_smaller_and_told_once_with_its_source(broken: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "PATIENCE", 1.0)
    heard = Heard()
    work = Worker(heard, ["simulated"], time.time() + 60, [])  # type: ignore[arg-type]
    work.draw(1)
    found = [message for message in heard if message[0] == "found"]
    assert [message[1] for message in found] == ["wrong"] and "elements are wrong" in found[0][3]
    source = found[0][4]
    assert ".accumulate(" in source or "cumsum" in source
    began = next(message[3] for message in heard if message[0] == "case" and "statement scan" in message[2])
    assert lines(source) < lines(began)
    first = [message[0] for message in heard].index("begin")
    assert [message[0] for message in heard][first:first + 2] == ["begin", "passed"]


def test_what_looks_like_a_failure_told_before_is_counted_only(broken: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "LIFE", 60)
    title = checks.Found("wrong", "y: 1 of 64 elements are wrong, the first at (0,)").title
    heard = Heard()
    Worker(heard, ["simulated"], time.time() + 60, [title]).draw(1)  # type: ignore[arg-type]
    what = [message[0] for message in heard]
    assert "found" not in what and what.count("again") >= 1 and what.count("passed") + what.count("again") == what.count("case")


def test_titles_leave_out_names_and_numbers() -> None:
    one, other = (checks.Found("wrong", f"y{n}: {n} of 64 elements are wrong") for n in (3, 14))
    assert one.title == other.title != checks.Found("wrong", "another thing").title


def test_the_time_ends_a_process_between_two_kernels() -> None:
    heard = Heard()
    with pytest.raises(worker.Over):
        Worker(heard, ["simulated"], time.time() - 1, []).draw(1)  # type: ignore[arg-type]
    assert heard == []


# ---- processes that hang, die, and end
CASE = "case", "0123456789ab", ("loop form",), "print('the kernel')\n"


def hangs(pipe: Any, number: int, *more: Any) -> None:
    pipe.send(CASE)
    pipe.send(("begin", "gpu"))
    pipe.send(("passed", "gpu", 2))
    pipe.send(("begin", "gpu"))
    time.sleep(60)


def dies(pipe: Any, number: int, *more: Any) -> None:
    pipe.send(CASE)
    pipe.send(("begin", "gpu"))
    raise SystemExit(3)


@pytest.mark.variants(1)
@pytest.mark.parametrize(("how", "kind"), [(hangs, "hung"), (dies, "died")])
def test_a_process_that_hangs_or_dies_is_told_with_its_kernel(how: Any, kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
                                                              capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(campaign, "work", how)
    monkeypatch.setitem(campaign.LIMITS, "gpu", 0.5)
    kept = Counts(tmp_path / "counts.json", None)
    run = Campaign(["gpu"], 0.1, kept, tmp_path / "failures", 1)
    run.start()
    run.run()
    assert kept.found == {kind: 1} and len(kept.kernels["gpu"]) == (how is hangs)
    (file,) = (tmp_path / "failures").iterdir()
    assert file.name.startswith(kind) and file.read_text() == CASE[3]
    assert f"python {file} shows it again" in capsys.readouterr().err
    assert json.loads((tmp_path / "counts.json").read_text())["runs"][0]["found"] == {kind: 1}


# ---- counts
def test_counts_add_up_over_runs_and_a_kernel_counts_once(tmp_path: Path) -> None:
    file = tmp_path / "counts.json"
    for seed in (1, 2):
        kept = Counts(file, None)
        assert kept.seed == seed
        for digest in ("a", "b", "a"):
            kept.passed("simulated", digest, 3, ("cluster",))
        kept.write()
    known = json.loads(file.read_text())
    assert known["total"]["kernels"] == {"simulated": 4, "verified": 0, "compiled": 0, "gpu": 0}
    assert known["total"]["runs"]["simulated"] == 18 and known["runs"][0]["features"] == {"cluster": [2, 0, 0, 0]}
    assert "all runs" in str(kept) and "4" in str(kept)


def test_a_seed_is_counted_once(tmp_path: Path) -> None:
    Counts(tmp_path / "counts.json", 5).write()
    with pytest.raises(SpecError, match="seed 5 are counted already; leave --seed out, or take 6"):
        Counts(tmp_path / "counts.json", 5)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"version": 2, "runs": []}', '{"version": 1}', "[" * 100_000])
def test_another_file_is_no_file_of_counts(text: str, tmp_path: Path) -> None:
    (tmp_path / "counts.json").write_text(text)
    with pytest.raises(SpecError, match="no counts of numpipe fuzz"):
        Counts(tmp_path / "counts.json", None)


# ---- the command
def test_without_hypothesis_the_mend_is_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "hypothesis", None)
    assert main(["fuzz", "--minutes", "1"]) == 1
    assert "pip install 'numpipe[test]'" in capsys.readouterr().err


def test_no_time_is_refused() -> None:
    with pytest.raises(SpecError, match="--minutes 0: give a time above 0"):
        fuzz(["sim"], 0)


@pytest.mark.thorough
def test_the_command_counts_what_it_did(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                        capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(campaign.os, "environ", dict(campaign.os.environ))
    file = tmp_path / "counts.json"
    assert main(["fuzz", "--minutes", "0.1", "--target", "sim", "verify", "--processes", "1", "--counts", str(file), "--failures",
                 str(tmp_path / "failures")]) == 0
    (run,) = json.loads(file.read_text())["runs"]
    assert run["kernels"]["simulated"] >= run["kernels"]["verified"] >= 1
    assert run["runs"]["verified"] >= 3 * run["kernels"]["verified"]
    assert "simulated" in capsys.readouterr().out and not (tmp_path / "failures").exists()


def test_a_target_without_its_machine_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(campaign, "toolchain", lambda: "numba-cuda is not installed")
    with pytest.raises(TargetError, match="--target compile: no compiler: numba-cuda is not installed"):
        fuzz(["compile"], 1)
