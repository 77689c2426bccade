"""examples/benchmarks/attention.py against Pallas, if PyTorch and JAX are installed: it runs, and
its file is complete."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("jax")
PROGRAM = Path(__file__).resolve().parent.parent.parent / "examples" / "benchmarks" / "attention.py"


def test_ours_cudnn_and_pallas_are_timed_by_jaxs_timer(tmp_path: Path) -> None:
    out = tmp_path / "result.json"
    done = subprocess.run(
        [
            sys.executable,
            str(PROGRAM),
            "--peers",
            "pallas",
            "--shapes",
            "1,2,512,64",
            "--masks",
            "full",
            "--processes",
            "1",
            "--load",
            "0.1",
            "--out",
            str(out),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(out.read_text(encoding="utf8"))
    [run] = result["runs"]
    assert {row["name"] for row in result["rows"]} == {"numpipe", "numpipe lazy", "cuDNN"}
    assert all(
        row["reference"] == "Pallas" and 0.05 < row["ratio"]["median"] < 20
        for row in result["rows"]
    )
    assert "Pallas" in run["errors"] and "CUPTI" in run["timer"]
