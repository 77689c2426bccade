"""examples/by_rows.py, simulated, and its compiled code."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import by_rows
import ml_dtypes
import numpy as np
import pytest

from numpipe import ArrayType
from tests.kernels.compilers import compiles

EXAMPLE = Path(by_rows.__file__)

KERNELS: dict[str, tuple[Any, ...]] = {
    "softmax": (ArrayType((131072, 1024), ml_dtypes.bfloat16),),
    "softmax_ring": (ArrayType((131072, 1024), ml_dtypes.bfloat16),),
    "stencil": (ArrayType((16384, 16384), np.float32),),
    "histogram": (ArrayType((192 * 21845, 256), np.uint8), ArrayType((256,), np.int32)),
}


def test_a_softmax_takes_25_lines_at_most() -> None:
    assert len(inspect.getsource(by_rows.softmax.function).splitlines()) <= 25


@pytest.mark.thorough
def test_it_runs() -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), "--target", "sim"],
        capture_output=True,
        text=True,
        timeout=100,
        env=os.environ | {"NUMPIPE_COMPILE_CHECK": "0"},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "softmax, stencil, histogram: right\n"


@pytest.mark.variants(0, thorough=2)
@compiles
@pytest.mark.parametrize("name", KERNELS)
def test_it_passes_the_build_gate(name: str) -> None:
    assert getattr(by_rows, name).inspect("gate", *KERNELS[name]) == ()
