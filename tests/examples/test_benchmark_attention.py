"""examples/benchmarks/attention.py without a GPU: which rows, and what is said of the goals."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

from numpipe import bench

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "benchmarks"


@pytest.fixture(scope="module")
def program() -> Any:
    """The benchmark as a module; its folder is on the path as it is when it runs."""
    before = list(sys.path)
    spec = importlib.util.spec_from_file_location("benchmark_attention", FOLDER / "attention.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    sys.path[:] = before


def test_by_default_the_rows_of_the_list_are_measured_each_with_its_goals(program: Any) -> None:
    cases = program.cases(program.parse([]))
    assert [(case["shape"], case["mask"]) for case in cases] == list(program.ROWS) and len(cases) == 9
    assert all(set(goals) == set(bench.PROTOCOLS) for goals in program.ROWS.values())
    assert all(goal.aim is None or goal.aim >= goal.must for goals in program.ROWS.values() for goal in goals.values())


def test_shapes_masks_and_types_are_asked_for_and_others_refused(program: Any, capsys: pytest.CaptureFixture[str]) -> None:
    cases = program.cases(program.parse(["--shapes", "1,8/2,100,64", "--masks", "causal", "--dtype", "bf16,f16"]))
    assert cases == [{"shape": "1,8/2,100,64", "mask": "causal", "dtype": dtype} for dtype in ("bf16", "f16")]
    for arguments, words in ((["--shapes", "1,8,100,96"], "a depth of 96"), (["--shapes", "1,8,100"], "not B,H,S,D"),
                             (["--masks", "window"], "--masks"), (["--dtype", "f8"], "--dtype")):
        with pytest.raises(SystemExit):
            program.parse(arguments)
        assert words in capsys.readouterr().err


def test_the_ladder_has_every_rung_the_last_one_first_before_cudnn(program: Any, monkeypatch: pytest.MonkeyPatch,
                                                                  capsys: pytest.CaptureFixture[str]) -> None:
    options = program.parse(["--ladder", "--masks", "full"])
    assert program.cases(options) == [{"shape": "4,16,4096,128", "mask": "full", "dtype": "bf16"}]
    monkeypatch.setattr(program, "Ours", lambda inputs, cfg: cfg)
    monkeypatch.setattr(program, "Cudnn", lambda *_: "cudnn")
    inputs = type("Inputs", (), {"causal": False, "sets": [], "sharing": 1})()
    calls = program.competitors(inputs, program.cases(options)[0], options.which)
    assert calls.pop("cuDNN") == "cudnn" and list(reversed(calls.items())) == list(program.attention_ladder.RUNGS.items())
    assert list(program.competitors(inputs, program.cases(options)[0], program.parse([]).which)) == [
        "numpipe", "numpipe lazy", "cuDNN"]
    for arguments, words in ((["--ladder", "--shapes", "1,8/2,128,64"], "as many heads"),
                             (["--ladder", "--all"], "not allowed with")):
        with pytest.raises(SystemExit):
            program.parse(arguments)
        assert words in capsys.readouterr().err


def test_the_ladders_table_says_which_shape_mask_and_type(program: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    told = {}
    monkeypatch.setattr(sys, "argv", ["attention.py", "--ladder", "--table", str(tmp_path / "table.md")])
    monkeypatch.setattr(program.harness, "main", lambda name, cases, measure, *, tell, **_: told.update({name: tell([
        row("top", "burst", 1.1, 1.1), row("first", "burst", 0.7, 0.7), row("cuDNN", "burst", 1.0, 1.0)])}) or 0)
    assert program.main() == 0
    lines = told["attention_ladder"].splitlines()
    assert lines[0].startswith("| rung | 4,16,4096,128, full, bf16: TFLOPS, burst |")
    assert [line.split(" | ")[0] for line in lines[2:]] == ["| first", "| top"]
    assert (tmp_path / "table.md").read_text(encoding="utf8").splitlines() == lines


def row(name: str, protocol: str, *ratio: float, shape: str = "4,16,4096,128") -> bench.Row:
    figure = bench.figure(list(ratio))
    return bench.Row({"shape": shape, "mask": "full", "dtype": "bf16"}, protocol, name, "cuDNN", 600.0, 600.0 / figure.median,
                     figure, bench.figure([1.0, 1.01]), {})


def test_what_must_be_is_asked_of_exact_results_and_the_aim_of_the_better_ones(program: Any) -> None:
    lines = program.verdict([row("numpipe", "interleaved", 1.07, 1.07), row("numpipe lazy", "interleaved", 1.20, 1.20),
                             row("numpipe", "burst", 1.02, 1.02), row("numpipe lazy", "burst", 1.10, 1.10)]).splitlines()
    assert [line.split()[2:4] for line in lines[1:]] == [["bf16", "interleaved"], ["bf16", "burst"]]
    assert " met " in lines[1] and lines[1].endswith("1.19  reached")
    assert " missed " in lines[2] and lines[2].endswith("not reached")
    assert program.verdict([row("numpipe", "burst", 1.0, shape="1,1,64,64")]) == "no row of the list was measured"
