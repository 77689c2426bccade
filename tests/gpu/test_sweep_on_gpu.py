"""Sweeps on the GPU: graphs of numpipe kernels and torch functions, and the benchmarks of random
shapes on a few rows."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from benchmarks.harness.sweeps import Captured, TorchCapture  # type: ignore[import-not-found]

from numpipe import bench, ops

try:
    import torch
except ImportError:
    torch = None

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "benchmarks"
ALONE = True  # it measures speed
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(torch is None, reason="PyTorch is not installed")]


@pytest.mark.parametrize(
    "shape", [(64, 256, 512), (8, 4096, 4096), (200, 136, 2048), (37, 129, 77)], ids=str
)
def test_graphs_of_products_write_every_set_and_are_as_fast_as_calls_in_a_row(
    shape: tuple[int, int, int],
) -> None:
    m, n, k = shape
    a, b = (torch.randn(8, *sides, device="cuda").half() for sides in ((m, k), (n, k)))
    calls: dict[str, Any] = {"numpipe": ops.matmul, "cuBLAS": torch.mm}
    outputs = {name: torch.full((8, m, n), torch.nan, device="cuda").half() for name in calls}
    timer, capture = bench.EventTimer(), TorchCapture()

    def competitor(name: str) -> Any:
        return lambda i: calls[name](a[i % 8], b[i % 8].T, out=outputs[name][i % 8])

    for name in calls:
        competitor(name)(0)
        graph = Captured(competitor(name), 16, capture)
        outputs[name].fill_(torch.nan)
        graph.many(0, 16)
        torch.cuda.synchronize()
        exact = a.double() @ b.double().transpose(1, 2)
        assert float((outputs[name].double() - exact).norm() / exact.norm()) < 2e-3
        captured, loop = (
            min(timer.seconds(timer.measure(each, 64, 0)) for _ in range(9))
            for each in (graph, competitor(name))
        )
        assert captured < 1.3 * loop, (name, captured, loop)


def swept(program: str, *arguments: str) -> tuple[str, bench.Result]:
    out = Path(arguments[arguments.index("--out") + 1])
    done = subprocess.run(
        [sys.executable, str(FOLDER / program), *arguments],
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout, bench.read(out)


def test_random_products_are_measured_verified_and_reported(tmp_path: Path) -> None:
    text, result = swept(
        "random_products.py",
        "--rows",
        "random,squares",
        "--count",
        "6",
        "--seed",
        "7",
        "--processes",
        "2",
        "--out",
        str(tmp_path / "r.json"),
        "--picture",
        str(tmp_path / "r.png"),
    )
    assert result.method["seed"] == 7 and {row.protocol for row in result.rows} == {"sweep"}
    assert all(
        row.ratio.count == 2 and row.error is not None and row.error < 4e-3 for row in result.rows
    )
    assert all(run["place"] for run in result.runs)
    runs = json.loads((tmp_path / "r.json").read_text(encoding="utf8"))["runs"]
    assert not [run for run in runs if "failed" in run or "not_captured" in run] and any(
        "graph" in run for run in runs
    )
    assert (
        "random bf16" in text
        and "geometric mean" in text
        and (tmp_path / "r.png").stat().st_size > 10_000
    )


def test_random_attention_is_measured_verified_and_reported(tmp_path: Path) -> None:
    _, result = swept(
        "random_attention.py",
        "--count",
        "4",
        "--seed",
        "7",
        "--processes",
        "1",
        "--out",
        str(tmp_path / "r.json"),
    )
    assert len(result.rows) == 4 and all(
        row.error is not None and row.error < 1e-2 for row in result.rows
    )


def test_random_layouts_are_right(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            sys.executable,
            str(FOLDER / "random_layouts.py"),
            "--count",
            "40",
            "--seed",
            "7",
            "--most",
            "200",
            "--out",
            str(tmp_path / "r.json"),
        ],
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0 and "40 layouts: 0 wrong, 0 refused" in done.stdout, (
        done.stdout + done.stderr
    )
