"""Kernels that the fuzz draws, on the hardware: for two minutes, on all cores, against NumPy."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.gpu
pytest.importorskip("cuda.bindings", reason="the CUDA wheels are not installed")
ALONE = True  # its processes take all cores

ROOT = Path(__file__).parents[2]
LEAST = 10
"""kernels that a core compiles and runs in the time, on a slow machine"""


@pytest.mark.timeout(290)
def test_drawn_kernels_compute_what_numpy_does(tmp_path: Path) -> None:
    counts, failures = tmp_path / "counts.json", tmp_path / "failures"
    command = [sys.executable, "-m", "numpipe", "fuzz", "--minutes", "2", "--target", "gpu", "--counts", str(counts), "--failures",
               str(failures)]
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    done = subprocess.run(command, cwd=tmp_path, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-20_000:] + done.stdout
    assert json.loads(counts.read_text())["total"]["kernels"]["gpu"] >= LEAST * (os.cpu_count() or 1)
