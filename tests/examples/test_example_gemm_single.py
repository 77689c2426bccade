"""examples/gemm_single.py: a product without a memory role."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import gemm_single
import numpy as np
import pytest

EXAMPLE = Path(gemm_single.__file__)


@pytest.mark.thorough
def test_simulated_it_prints_the_error() -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), "--target", "sim", "--shape", "140,300,200"],
        capture_output=True,
        text=True,
        timeout=100,
        env=os.environ | {"NUMPIPE_COMPILE_CHECK": "0"},
    )
    assert done.returncode == 0 and not done.stderr, done.stderr
    found = re.fullmatch(r"target: sim; error (\S+)\n", done.stdout)
    assert found and float(found[1]) < 1e-3


@pytest.mark.thorough
def test_the_build_gate_passes_and_a_product_stays_in_flight() -> None:
    a = np.zeros((8, 8), np.float16)
    assert gemm_single.matmul.inspect("gate", a, a) == ()
    resources = gemm_single.matmul.inspect("resources", a, a)
    assert (
        resources.clean
        and resources.threads == 256
        and resources.registers <= resources.compute_registers
    )
    assert "gsb0, 0x1" in gemm_single.matmul.inspect("sass", a, a)
