"""examples/benchmarks/jax_calls.py without a GPU: the program that it times, on the simulated
SM."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("jax")
FOLDER = Path(__file__).resolve().parents[2] / "examples" / "benchmarks"
PROGRAM = "import jax_calls; jax_calls.CALLS = 3; jax_calls.main()"


@pytest.mark.thorough
def test_it_times_a_program_of_calls() -> None:
    environment = os.environ | {
        "NUMPIPE_TARGET": "sim",
        "NUMPIPE_COMPILE_CHECK": "0",
        "JAX_PLATFORMS": "cpu",
    }
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, "--here", "--rounds", "1"],
        cwd=FOLDER,
        capture_output=True,
        text=True,
        timeout=100,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout).keys() == {"call", "jax", "gpu"}
