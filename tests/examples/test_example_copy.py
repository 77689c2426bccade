"""examples/copy_pipeline.py, simulated, and its compiled code."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import copy_pipeline
import ml_dtypes
import numpy as np
import pytest

from numpipe import ArrayType
from numpipe.compile.build import toolchain
from tests.kernels.compilers import compiles

EXAMPLE = Path(copy_pipeline.__file__)

DTYPES = [np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16), np.dtype(np.float32)]


@pytest.fixture(autouse=True)
def _simulated_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMPIPE_COMPILE_CHECK", "0")


def test_it_runs() -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), "--target", "sim", "--shape", "70,600"],
        capture_output=True,
        text=True,
        timeout=100,
        env=os.environ | {"NUMPIPE_COMPILE_CHECK": "0"},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "target: sim, 70 x 600: equal\n"


@pytest.mark.variants(5)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(1, 8), (64, 256), (130, 2100), (300, 5)], ids=str)
def test_it_copies(shape: tuple[int, int], dtype: np.dtype) -> None:
    a = np.random.default_rng(0).standard_normal(shape).astype(dtype)
    for seed in (None, 0, 1):
        assert (copy_pipeline.copy.simulate(a, seed=seed) == a).all()


@pytest.mark.variants(0, thorough=2)
@pytest.mark.parametrize("shape", [(192, 128 * 300), (64, 128 * 264), (64, 128 * 263)], ids=str)
def test_whole_runs_and_partial_runs(shape: tuple[int, int]) -> None:
    """With 132 CTAs, 264 blocks make a round of runs of 2."""
    a = np.random.default_rng(1).integers(0, 9, shape).astype(np.float16)
    assert (copy_pipeline.copy.simulate(a, seed=0, cfg=copy_pipeline.Config(run=2)) == a).all()


@pytest.mark.variants(0, thorough=1)
@compiles
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_it_passes_the_build_gate(dtype: np.dtype) -> None:
    array = ArrayType((256, 256), dtype)
    assert copy_pipeline.copy.inspect("gate", array) == ()
    assert copy_pipeline.copy.inspect("resources", array).spill_bytes == 0
    moves = re.findall(r"\b(?:LDSM|STSM|LDS|STS)\.\S+", copy_pipeline.copy.inspect("sass", array))
    assert set(moves) == (
        {"LDS.64", "STS.64"} if dtype.itemsize == 4 else {"LDSM.16.M88.4", "STSM.16.M88.4"}
    )


@pytest.mark.variants(1)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_enough_bytes_are_on_their_way(dtype: np.dtype) -> None:
    """At 4.8 TB/s and 132 SMs, a load latency of 1 µs needs 18 KB of reads in flight per SM."""
    array = ArrayType((256, 256), dtype)
    cfg = copy_pipeline.Config()
    assert cfg.slots * cfg.rows * cfg.row_bytes >= 40_000
    if toolchain() is None:
        assert copy_pipeline.copy.inspect("resources", array).smem_bytes <= 232448
