"""examples/batched_gemm.py, simulated, and its compiled code."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import batched_gemm
import ml_dtypes
import numpy as np
import pytest

from numpipe import ArrayType

EXAMPLE = Path(batched_gemm.__file__)


@pytest.mark.thorough
def test_simulated_it_prints_its_error() -> None:
    done = subprocess.run(
        [
            sys.executable,
            str(EXAMPLE),
            "--target",
            "sim",
            "--shape",
            "3,70,90,33",
            "--shape",
            "1,128,128,64",
        ],
        capture_output=True,
        text=True,
        timeout=100,
        env=os.environ | {"NUMPIPE_COMPILE_CHECK": "0"},
    )
    assert done.returncode == 0 and not done.stderr, done.stderr
    rows = re.findall(r"^ *(\d+,\d+,\d+,\d+) +(\S+)$", done.stdout, re.MULTILINE)
    assert [row[0] for row in rows] == ["3,70,90,33", "1,128,128,64"]
    assert all(1e-5 < float(error) < 1e-3 for _, error in rows)


@pytest.mark.variants(0, thorough=2)
@pytest.mark.parametrize(
    "cfg", [batched_gemm.Config(), batched_gemm.Config(128, 256, 64, 3)], ids=str
)
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_it_passes_the_build_gate(cfg: batched_gemm.Config, dtype: type) -> None:
    array = ArrayType((2, 8, 8), np.dtype(dtype))
    assert batched_gemm.batched_matmul.inspect("gate", array, array, cfg=cfg) == ()
    assert batched_gemm.batched_matmul.inspect("resources", array, array, cfg=cfg).spill_bytes == 0
