"""examples/puzzles: each stub fails with a hint that fits, and each solution, kept here, passes."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import make_notebook
import pages
import pytest

from numpipe.__main__ import main

FOLDER = pages.ROOT / "examples" / "puzzles"
sys.path.append(str(FOLDER))
import checker  # noqa: E402

STUBS = {
    "p01_two_slots": "too slow",
    "p02_delay_release": "read-after-release",
    "p03_find_the_race": "refilled-while-read",
    "p04_break_the_deadlock": "deadlock",
    "p05_product_in_flight": "too slow",
    "p06_an_epilogue": "not filled in",
    "p07_ping_pong": "too slow",
    "p08_a_cluster": "refilled-while-read",
    "p09_a_page_table": "not filled in",
    "p10_a_peer": "gpu-conflict",
}
SOLUTIONS = {
    "p01_two_slots": {"max_concurrent_steps=1": "max_concurrent_steps=2"},
    "p02_delay_release": {"max_concurrent_steps=3": "max_concurrent_steps=3, delay_release=1"},
    "p03_find_the_race": {
        "y.at[rows])\n": "y.at[rows])\n        numpipe.wait_smem_to_gmem(1, wait_read_only=True)\n"
    },
    "p04_break_the_deadlock": {
        "            numpipe.barrier_wait(free": "            if k >= SLOTS:\n"
        "                numpipe.barrier_wait(free"
    },
    "p05_product_in_flight": {
        "max_concurrent_steps=6": "max_concurrent_steps=6, delay_release=1",
        "        acc = numpipe.wgmma_wait(acc)\n": "",
    },
    "p06_an_epilogue": {"= ...": "= np.maximum(acc + bias[ds(n * 64, 64)], 0.0).astype(c.dtype)"},
    "p07_ping_pong": {"persistent()": 'persistent(), num_compute_wgs=2, schedule="pingpong"'},
    "p08_a_cluster": {"Barrier())": 'numpipe.ClusterBarrier("pair"))'},
    "p09_a_page_table": {"(...,)": "(lengths[s],)", "k: ...": "k: (pages[s, k], 0, 0)"},
    "p10_a_peer": {
        "        y[block] = ": "        numpipe.signal(ready.at[i], other)\n"
        "        numpipe.wait(ready.at[i], 1)\n        y[block] = "
    },
}


@pytest.fixture(autouse=True)
def _simulated_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMPIPE_COMPILE_CHECK", "0")


def changed(name: str, changes: dict[str, str], folder: Path) -> Path:
    """Write a puzzle's file with other lines to a folder, and return its path."""
    text = (FOLDER / f"{name}.py").read_text(encoding="utf8")
    for old, new in changes.items():
        assert text.count(old) == 1
        text = text.replace(old, new)
    (file := folder / f"{name}.py").write_text(text, encoding="utf8")
    return file


@pytest.mark.parametrize("name", STUBS)
def test_a_stub_fails_with_a_hint_and_its_solution_passes(name: str, tmp_path: Path) -> None:
    stub = checker.check_file(FOLDER / f"{name}.py")
    assert (stub.hazard or stub.state) == STUBS[name]
    assert stub.hint or stub.state == "not filled in"
    assert stub.timeline or stub.state == "not filled in"
    solved = checker.check_file(changed(name, SOLUTIONS[name], tmp_path))
    assert solved.state == "solved", solved
    assert solved.timeline and solved.hint


@pytest.mark.thorough
@pytest.mark.parametrize("name", SOLUTIONS)
def test_a_solution_compiles(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NUMPIPE_COMPILE_CHECK")
    solved = checker.check_file(changed(name, SOLUTIONS[name], tmp_path))
    assert solved.state == "solved", solved


@pytest.mark.parametrize(
    ("name", "change", "state", "text"),
    [
        ("p01_two_slots", ("acc + tile[...]", "acc - tile[...]"), "wrong result", "instead of"),
        ("p01_two_slots", ("acc + tile[...]", "acc + tyle"), "error", "'tyle' is not defined"),
        ("p01_two_slots", ("64), lambda k: (k", "64), lambda k: (1 / 0"), "error", "division"),
        ("p01_two_slots", ("# ----", "1 / 0\n#"), "error", "ZeroDivisionError at p01_two_slots"),
        ("p01_two_slots", ("# ----", "for\n#"), "error", "SyntaxError"),
        (
            "p01_two_slots",
            ("        acc = ", "        while True:\n            acc = acc + 1\n        acc = "),
            "too long",
            "stopped after 1 s at p01_two_slots.py:2",
        ),
        (
            "p01_two_slots",
            ("        acc = ", "        while True:\n            tile[...]\n        acc = "),
            "too long",
            "",
        ),
        ("p01_two_slots", ("# ----", "while True:\n    pass\n#"), "too long", "stopped after"),
        (
            "p04_break_the_deadlock",
            ("            numpipe.barrier_wait(free.at[slot])\n", ""),
            "hazard",
            "only the first SLOTS loads",
        ),
        (
            "p02_delay_release",
            ("steps=3", "steps=3, delay_release=2"),
            "too slow",
            "One step longer",
        ),
        ("p02_delay_release", ("steps=3", "steps=8"), "hazard", "'fix:' names the argument"),
        (
            "p03_find_the_race",
            ("y.at[rows])\n", "y.at[rows])\n        numpipe.wait_smem_to_gmem(0)\n"),
            "too slow",
            "the one before it",
        ),
        ("p05_product_in_flight", ("        acc = numpipe.wgmma_wait(acc)\n", ""), "too slow", ""),
        ("p06_an_epilogue", ("= ...", "= acc.astype(c.dtype)"), "wrong result", "instead of"),
        ("p06_an_epilogue", ("= ...", "= acc + bias"), "error", "bias[ds(…, 64)]"),
        ("p07_ping_pong", ("persistent()", "persistent(), num_compute_wgs=2"), "hazard", ""),
        ("p08_a_cluster", ("Barrier())", 'ClusterBarrier("pair"))'), "error", "is not defined"),
        (
            "p10_a_peer",
            ("        y[b", "        numpipe.wait(ready.at[i], 1)\n        y[b"),
            "deadlock",
            "",
        ),
    ],
)
def test_hints_fit_what_is_wrong(
    name: str, change: tuple[str, str], state: str, text: str, tmp_path: Path
) -> None:
    result = checker.check_file(
        changed(name, dict([change]), tmp_path), 1 if state == "too long" else 20
    )
    assert result.state == state, result
    assert text in str(result)
    assert str(tmp_path) not in str(result)


def test_the_command_shows_progress_and_the_first_puzzle_that_is_not_solved(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in list(SOLUTIONS)[:2]:
        changed(name, SOLUTIONS[name], tmp_path)
    assert main(["puzzles", "--folder", str(tmp_path)]) == 1
    printed = capsys.readouterr().out
    assert " 2  delay_release             solved\n" in printed
    assert "2 of 10 solved\n\n3  Find the race\n\nThis kernel copies" in printed
    assert main(["puzzles", "1", "--folder", str(tmp_path)]) == 0
    assert "solved: " in capsys.readouterr().out
    assert main(["puzzles", "11"]) == 1
    assert "there are puzzles 1 to 10" in capsys.readouterr().err


def test_a_damaged_puzzle_and_a_folder_without_its_option_are_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "p01_two_slots.py").write_text("")
    (tmp_path / "p02_delay_release.py").write_text("raise SystemExit(3)")
    for number, text in (("1", "has no attribute 'PUZZLE'"), ("2", "SystemExit at p02_delay")):
        assert main(["puzzles", number, "--folder", str(tmp_path)]) == 1
        assert text in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["puzzles", str(tmp_path)])
    assert f"fix: for a folder, --folder {tmp_path}" in capsys.readouterr().err


def test_an_installed_numpipe_says_where_the_puzzles_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(main.__globals__, "__file__", str(tmp_path / "numpipe" / "__main__.py"))
    assert main(["puzzles"]) == 1
    assert "fix: clone its repository" in capsys.readouterr().err


def test_the_notebook_has_the_puzzles_of_today() -> None:
    notebook = json.loads(make_notebook.PUZZLES.read_text(encoding="utf8"))
    held = [(cell["cell_type"], "".join(cell["source"])) for cell in notebook["cells"]]
    assert held == make_notebook.puzzle_cells(), "python docs/make_notebook.py"
