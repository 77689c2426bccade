"""examples/benchmarks/attention.py without a GPU: its rows, and its verdict on the goals."""

from __future__ import annotations

import importlib.util
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from numpipe import bench

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "benchmarks"


@pytest.fixture(scope="module")
def program() -> Any:
    """Return the benchmark as a module, with its folder on the path as when it runs."""
    before = list(sys.path)
    spec = importlib.util.spec_from_file_location("benchmark_attention", FOLDER / "attention.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    sys.path[:] = before


def test_by_default_the_rows_of_the_list_are_measured_each_with_its_goals(program: Any) -> None:
    cases = program.cases(program.parse([]))
    assert [(case["shape"], case["mask"]) for case in cases] == list(program.ROWS) and len(
        cases
    ) == 9
    assert all(set(goals) == set(bench.PROTOCOLS) for goals in program.ROWS.values())
    assert all(
        goal.aim is None or goal.aim >= goal.must
        for goals in program.ROWS.values()
        for goal in goals.values()
    )


def test_shapes_masks_and_types_are_asked_for_and_others_refused(
    program: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    cases = program.cases(
        program.parse(["--shapes", "1,8/2,100,64", "--masks", "causal", "--dtype", "bf16,f16"])
    )
    assert cases == [
        {"shape": "1,8/2,100,64", "mask": "causal", "dtype": dtype} for dtype in ("bf16", "f16")
    ]
    for arguments, words in (
        (["--shapes", "1,8,100,96"], "a depth of 96"),
        (["--shapes", "1,8,100"], "not B,H,S,D"),
        (["--masks", "window"], "--masks"),
        (["--dtype", "f8"], "--dtype"),
    ):
        with pytest.raises(SystemExit):
            program.parse(arguments)
        assert words in capsys.readouterr().err


def test_the_ladder_has_every_rung_the_last_one_first_before_cudnn(
    program: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = program.parse(["--ladder", "--masks", "full"])
    assert program.cases(options) == [{"shape": "4,16,4096,128", "mask": "full", "dtype": "bf16"}]
    monkeypatch.setattr(program, "Ours", lambda inputs, cfg: cfg)
    monkeypatch.setattr(program, "Cudnn", lambda *_: "cudnn")
    inputs = type("Inputs", (), {"causal": False, "sets": [], "sharing": 1})()
    calls = program.competitors(inputs, program.cases(options)[0], options.which)
    assert calls.pop("cuDNN") == "cudnn" and list(reversed(calls.items())) == list(
        program.attention_ladder.RUNGS.items()
    )
    assert list(
        program.competitors(inputs, program.cases(options)[0], program.parse([]).which)
    ) == ["numpipe", "numpipe lazy", "cuDNN"]
    for arguments, words in (
        (["--ladder", "--shapes", "1,8/2,128,64"], "as many key heads"),
        (["--ladder", "--all"], "not allowed with"),
    ):
        with pytest.raises(SystemExit):
            program.parse(arguments)
        assert words in capsys.readouterr().err


def test_the_ladders_table_says_which_shape_mask_and_type(
    program: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    told = {}
    monkeypatch.setattr(
        sys, "argv", ["attention.py", "--ladder", "--table", str(tmp_path / "table.md")]
    )
    monkeypatch.setattr(
        program.harness,
        "main",
        lambda name, cases, measure, *, tell, **_: (
            told.update(
                {
                    name: tell(
                        [
                            row("top", "burst", 1.1, 1.1),
                            row("first", "burst", 0.7, 0.7),
                            row("cuDNN", "burst", 1.0, 1.0),
                        ]
                    )
                }
            )
            or 0
        ),
    )
    assert program.main() == 0
    lines = told["attention_ladder"].splitlines()
    assert lines[0].startswith("| rung | 4,16,4096,128, full, bf16: TFLOPS, burst |")
    assert [line.split(" | ")[0] for line in lines[2:]] == ["| first", "| top"]
    assert (tmp_path / "table.md").read_text(encoding="utf8").splitlines() == lines


def row(name: str, protocol: str, *ratio: float, shape: str = "4,16,4096,128") -> bench.Row:
    figure = bench.figure(list(ratio))
    return bench.Row(
        {"shape": shape, "mask": "full", "dtype": "bf16"},
        protocol,
        name,
        "cuDNN",
        600.0,
        600.0 / figure.median,
        figure,
        bench.figure([1.0, 1.01]),
        {},
    )


def test_exact_results_must_meet_the_requirement_and_better_ones_the_aim(
    program: Any,
) -> None:
    lines = program.verdict(
        [
            row("numpipe", "interleaved", 1.07, 1.07),
            row("numpipe lazy", "interleaved", 1.20, 1.20),
            row("numpipe", "burst", 1.02, 1.02),
            row("numpipe lazy", "burst", 1.10, 1.10),
        ]
    ).splitlines()
    assert [line.split()[2:4] for line in lines[1:]] == [["bf16", "interleaved"], ["bf16", "burst"]]
    assert " met " in lines[1] and lines[1].endswith("1.19  reached")
    assert " missed " in lines[2] and lines[2].endswith("not reached")
    assert (
        program.verdict([row("numpipe", "burst", 1.0, shape="1,1,64,64")])
        == "no row of the list was measured"
    )


# ---- against Pallas
def test_pallas_gets_the_shapes_that_it_takes_in_float16(
    program: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(program.importlib.util, "find_spec", lambda name: name)
    options = program.parse(["--peers", "pallas"])
    cases = program.cases(options)
    assert options.plan.work > bench.Plan.work  # several calls each time, of attention too
    assert len(cases) == 8 and not any("4001" in case["shape"] for case in cases)
    assert cases[0] == {
        "shape": "4,16,4096,128",
        "mask": "full",
        "dtype": "f16",
        "against": "Pallas",
    }
    with pytest.raises(SystemExit):
        program.parse(["--peers", "pallas", "--shapes", "1,1,100,64"])
    assert "a multiple of 128" in capsys.readouterr().err
    monkeypatch.setattr(program.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SystemExit):
        program.parse(["--peers", "pallas"])
    assert "JAX is not installed: pip install" in capsys.readouterr().err


def test_the_verdict_names_the_competitor_of_a_row(program: Any) -> None:
    def row(name: str, ratio: float) -> bench.Row:
        case = {"shape": "4,16,4096,128", "mask": "full", "dtype": "f16", "against": "Pallas"}
        return bench.Row(
            case,
            "interleaved",
            name,
            "Pallas",
            600.0,
            600.0 / ratio,
            bench.figure([ratio, ratio]),
            bench.figure([1.0, 1.01]),
            {},
        )

    for ratio, said in ((1.06, "met"), (1.03, "missed")):
        lines = program.verdict(
            [row("numpipe", ratio), row("numpipe lazy", 1.2), row("cuDNN", 0.99)]
        ).splitlines()
        assert len(lines) == 2 and lines[1].split()[2:5] == ["f16", "interleaved", "Pallas"]
        assert f" 1.05  {said} " in lines[1] and " 1.200" in lines[1]


def test_errors_are_held_against_cudnns(program: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    errors = {"numpipe": 1.04, "numpipe lazy": 1.29, "Pallas": 1.9, "cuDNN": 1.0}
    calls = {
        name: program.Ours.__new__(program.Ours) if "numpipe" in name else types.SimpleNamespace()
        for name in errors
    }
    for name, each in calls.items():
        each.outs, each.lazy = [name], "lazy" in name
    case = {"shape": "1,1,128,64", "mask": "full", "dtype": "f16"}
    monkeypatch.setattr(program, "relative_error", lambda inputs, o: errors[o])
    assert program.accurate(None, calls, case) == errors
    for name in ("numpipe", "numpipe lazy", "Pallas"):
        errors[name] += 0.2
        with pytest.raises(AssertionError, match=f"^{name}: the relative error is"):
            program.accurate(None, calls, case)
        errors[name] -= 0.2
