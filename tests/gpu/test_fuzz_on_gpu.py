"""Generated kernels on the GPU, compared with NumPy for two minutes on all cores."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.gpu
pytest.importorskip("cuda.bindings", reason="the CUDA wheels are not installed")
ALONE = True  # its processes use all cores

ROOT = Path(__file__).parents[2]
LEAST = 10
"""kernels that a core compiles and runs in that time, on a slow machine"""


@pytest.mark.timeout(290)
def test_drawn_kernels_compute_what_numpy_does(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.fuzz", "--minutes", "2", "--target", "gpu"]
    command += ["--failures", str(tmp_path / "failures")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-20_000:] + done.stdout
    passed = re.search(r"(\d+) gpu$", done.stdout)
    assert passed and int(passed[1]) >= LEAST * (os.cpu_count() or 1)
