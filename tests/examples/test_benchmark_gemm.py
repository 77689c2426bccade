"""examples/benchmarks/gemm.py without a GPU: its products and competitors, and its verdict on the
goals."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from numpipe import bench

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "benchmarks"


@pytest.fixture(scope="module")
def program() -> Any:
    """Return the benchmark as a module, with its folder on the path as when it runs."""
    before = list(sys.path)
    spec = importlib.util.spec_from_file_location("benchmark_gemm", FOLDER / "gemm.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    sys.path[:] = before


@pytest.fixture(scope="module")
def suite(program: ModuleType) -> Any:
    return program.gemm_suite


def row(
    shape: str,
    protocol: str,
    ratio: bench.Figure,
    name: str = "numpipe",
    reference: str = "cuBLAS",
    rate: float = 700.0,
) -> bench.Row:
    return bench.Row(
        {"shape": shape, "dtype": "bf16"},
        protocol,
        name,
        reference,
        rate,
        rate / ratio.median,
        ratio,
        bench.figure([1.0, 1.01]),
        {},
    )


def told(suite: Any, *rows: bench.Row) -> list[list[str]]:
    """Return the lines of the verdict, from the goals on."""
    return [
        line.partition("]")[2].split() or line.split() for line in suite.verdict(rows).splitlines()
    ]


def test_every_product_of_the_suites_has_goals_whose_aim_is_not_below_the_requirement(
    suite: Any,
) -> None:
    assert len(suite.ALL) == 15 and len({product.shape for product in suite.ALL}) == 15
    for product in suite.ALL:
        batches, m, n, k = suite.dimensions(product.shape)
        assert suite.flops(product.shape) == 2 * max(batches, 1) * m * n * k
        for goal in (product.burst, product.alone):
            assert 0.9 < goal.must < 1.2 and (goal.aim is None or goal.aim >= goal.must)


def test_shapes_are_read_and_other_texts_refused(suite: Any) -> None:
    assert suite.dimensions("64x1024,512,256") == (64, 1024, 512, 256)
    assert suite.dimensions("4095,4097,4104") == (0, 4095, 4097, 4104)
    assert suite.nbytes("2x3,4,5") == 2 * 2 * (15 + 20 + 12)
    for text in ("4096,4096", "0x1,1,1", "1,2,0", "a,b,c", ""):
        with pytest.raises(ValueError):
            suite.dimensions(text)


def test_suites_are_chosen_by_name_next_to_given_products(
    program: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    options = program.parse(
        [
            "--suite",
            "short,batched",
            "--shapes",
            "8,8,8",
            "--dtype",
            "bf16",
            "--config",
            "8,8,8=64,64,64,2",
        ]
    )
    named = ["1024,4096,4096", "512,4096,4096", "64x1024,1024,1024"]
    assert program.cases(options) == [
        *({"shape": shape, "dtype": "bf16"} for shape in named),
        {"shape": "8,8,8", "dtype": "bf16", "config": "64,64,64,2"},
    ]
    assert len(program.parse(["--suite", "all"]).shapes) == 15
    assert program.parse([]).shapes == program.gemm_suite.shapes_of(["square", "shallow"])
    assert program.parse(["--shapes", "8,8,8"]).shapes == ["8,8,8"]
    for arguments, said in (
        (["--suite", "spiral"], "unknown suites ['spiral']"),
        (["--peers", "cutlass"], "['cutlass']: choose from"),
        (["--dtype", "f8"], "choose from ['bf16', 'f16']"),
        (["--shapes", "8,8"], "not M,N,K or BxM,N,K"),
        (["--forms", "--suite", "batched"], "take plain products"),
    ):
        with pytest.raises(SystemExit):
            program.parse(arguments)
        assert said in capsys.readouterr().err


def test_a_goal_is_met_by_the_upper_end_and_a_miss_says_by_how_much(suite: Any) -> None:
    _, burst, alone, mean, mean_alone = told(
        suite,
        row("8192,8192,8192", "burst", bench.Figure(1.01, 1.00, 1.03, 3)),
        row("8192,8192,8192", "interleaved", bench.Figure(1.5, 1.4, 1.6, 3)),
        row("8192,8192,8192", "alone", bench.Figure(0.96, 0.95, 0.97, 3)),
    )
    assert burst == ["1.02", "met", "1.04", "not", "reached"]
    assert alone == ["1.00", "missed", "by", "0.030", "1.04", "not", "reached"]
    assert mean[:6] == ["geometric", "mean", "of", "1", "of", "15"] and mean[-3:] == [
        "1.010",
        "1.02",
        "1.05",
    ]
    assert mean_alone[-3:] == ["0.960", "1.00", "1.05"]


def test_the_mean_of_the_whole_suite_is_judged(suite: Any) -> None:
    for ratio, said in (
        (1.03, "1.030 1.02 met 1.05 not reached"),
        (1.06, "1.060 1.02 met 1.05 reached"),
        (1.01, "1.010 1.02 missed by 0.010 1.05 not reached"),
    ):
        rows = [
            row(product.shape, "burst", bench.Figure(ratio, ratio, ratio, 3))
            for product in suite.ALL
        ]
        last = told(suite, *rows)[-1]
        assert last[:2] == ["geometric", "mean"] and " ".join(last[4:]) == said


def test_other_competitors_are_reported_as_ratios_of_the_same_case_and_protocol(suite: Any) -> None:
    figure = bench.Figure(1.0, 1.0, 1.0, 3)
    lines = suite.verdict(
        [
            row("4096,4096,4096", "burst", figure),
            row("4096,4096,4096", "burst", bench.Figure(0.8, 0.8, 0.8, 3), "Triton"),
            row("4096,4096,4096", "alone", bench.Figure(0.5, 0.5, 0.5, 3), "Triton"),
            row("16,8192,8192", "burst", figure, rate=50.0),
        ]
    ).splitlines()
    assert lines[1].endswith("Triton 1.250")
    batch = 50e12 / (2 * 16 * 8192 * 8192) * (16 + 8192) * 8192 * 2
    assert lines[2].endswith(f"reads {batch / suite.READ:.2f} of 4.23 TB/s (aim 0.80)")
    assert len(lines) == 4  # and the mean
    assert suite.verdict(
        [row("8,8,8", "burst", figure), row("4096,4096,4096", "burst", figure, reference="torch")]
    ) == ("no product of the suite was measured")


def test_a_peer_that_is_not_installed_is_left_out_with_a_word(
    program: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    competitors = sys.modules[program.competitors.__module__]
    for module in ("triton", "jax", "triton_matmul", "pallas_matmul"):
        monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setattr(competitors, "InPlace", lambda inputs, function: function)
    monkeypatch.setattr(competitors, "ours", lambda inputs, config: f"ours, {config}")
    monkeypatch.setattr(competitors, "cublas", lambda inputs: "cublas")
    inputs = type("Inputs", (), {"batches": 0})()
    assert competitors.competitors("gemm", inputs, "1,2", ["triton", "pallas"]) == {
        "numpipe": "ours, 1,2",
        "cuBLAS": "cublas",
    }
    shown = capsys.readouterr().out
    assert (
        "without triton: " in shown
        and "pip install triton" in shown
        and "without pallas: " in shown
    )
    inputs.batches = 3
    competitors.competitors("gemm", inputs, None, ["pallas"])
    assert "without pallas: its kernel takes no batches" in capsys.readouterr().out


@pytest.mark.parametrize("shape", ["4096,4096,4096", "64x1024,1024,1024"])
def test_the_chosen_config_is_next_to_the_named_ones(
    program: Any, shape: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import gemm_tuned

    competitors = sys.modules[program.competitors.__module__]
    assert program.parse(["--all", "--shapes", shape]).against == "gemm_configs"
    asked: list[Any] = []
    monkeypatch.setattr(gemm_tuned, "matmul", lambda a, b, out, cfg=None: asked.append(cfg))
    monkeypatch.setattr(competitors, "InPlace", lambda inputs, function: function)
    monkeypatch.setattr(competitors, "cublas", lambda inputs: "cublas")
    batches, m, n, k = program.gemm_suite.dimensions(shape)
    found = competitors.competitors(
        "gemm_configs", SimpleNamespace(batches=batches, m=m, n=n, k=k), None, []
    )
    first, *others, last = found
    assert (first, last) == ("numpipe", "cuBLAS")
    assert others == list(gemm_tuned.CONFIGS)
    for name in (first, *others):
        found[name](1, 2, 3)
    assert asked == [None, *(gemm_tuned.CONFIGS[name] for name in others)]


def test_the_ladders_table_begins_with_the_first_rung_and_leaves_what_was_not_measured_empty(
    program: Any, tmp_path: Path
) -> None:
    rows = [
        row("8,8,8", "burst", bench.figure([1.02]), "top", rate=812.4),
        row("8,8,8", "burst", bench.figure([0.31]), "first"),
        row("8,8,8", "alone", bench.figure([1.0]), "top"),
        row("8,8,8", "burst", bench.figure([1.0]), "cuBLAS"),
    ]
    text = program.ladders.told(rows, lambda case: case["shape"], tmp_path / "table.md")
    assert text.splitlines() == [
        "| rung | 8,8,8: TFLOPS, burst | 8,8,8: ratio, burst | 8,8,8: ratio, alone |",
        "| --- | --- | --- | --- |",
        "| first | 700 | 0.31 |  |",
        "| top | 812 | 1.02 | 1.00 |",
    ]
    assert (tmp_path / "table.md").read_text(encoding="utf8") == text + "\n"
