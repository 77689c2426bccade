"""examples/w4a16.py in the simulator, and its machine code."""

from __future__ import annotations

import dataclasses
import inspect
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import w4a16

import numpipe
from tests.kernels.compilers import compiles

EXAMPLE = Path(w4a16.__file__)
CONFIGS = {
    "two warpgroups": w4a16.Config(),
    "four warpgroups": w4a16.Config(wgs=4, cluster=4, tokens=32, slots=6),
    "two groups a step": w4a16.Config(slots=7, groups=2),
    "one CTA a tile": w4a16.Config(wgs=1, cluster=1, tokens=8, slots=16),
}


def inputs(n: int, k: int, tokens: int, dtype: type = np.float16) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(n + k + tokens)
    w, scales = w4a16.quantized(rng.standard_normal((n, k), np.float32))
    return w, scales, rng.standard_normal((tokens, k), np.float32).astype(dtype)


def test_the_kernel_takes_25_lines_of_88_columns_at_most() -> None:
    lines = textwrap.dedent(inspect.getsource(w4a16.kernel().function)).splitlines()
    assert len(lines) <= 25 and max(map(len, lines)) <= 88


@pytest.mark.variants(3, thorough=8)
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("config", CONFIGS)
def test_it_is_right(config: str, dtype: type) -> None:
    """Rows and tokens that do not fill a tile, and a number of groups that two CTAs cannot share
    equally."""
    given = inputs(200, 5 * w4a16.GROUP, 7, dtype)
    y = w4a16.kernel(CONFIGS[config]).simulate(*given)
    assert w4a16.relative_error(*given, y) < 3e-7


def test_quantizing_keeps_half_a_step() -> None:
    weights = np.random.default_rng(0).standard_normal((64, 256), np.float32)
    w, scales = w4a16.quantized(weights)
    error = np.abs(w4a16.dequantized(w, scales) - weights)
    assert (error <= 0.502 * np.repeat(scales.T.astype(np.float64), w4a16.GROUP, axis=1)).all()


def test_weights_with_a_zero_point_of_8_are_int4_after_an_exclusive_or() -> None:
    q = np.random.default_rng(0).integers(0, 16, (8, 128))
    one = np.ones((1, 8), np.float16)
    np.testing.assert_array_equal(w4a16.dequantized(w4a16.pack(q) ^ 0x88, one), q - 8)


@pytest.mark.parametrize("groups", [1, 2])
def test_it_is_verified(groups: int) -> None:
    config = dataclasses.replace(w4a16.Config(), wgs=1, slots=2, groups=groups)
    assert numpipe.verify(w4a16.kernel(config), *inputs(64, 512, 16), schedules=3)


@compiles
@pytest.mark.variants(1, thorough=1)
@pytest.mark.parametrize("config", CONFIGS)
def test_it_compiles_without_spills_and_converts_a_pair_in_three_instructions(config: str) -> None:
    of = w4a16.kernel(CONFIGS[config])
    given = inputs(256, 1024, 16)
    assert of.inspect("resources", *given).spill_bytes == 0
    sass, groups = of.inspect("sass", *given), CONFIGS[config].groups
    assert len(re.findall(r"HGMMA\.64x", sass)) == 8 * groups
    assert len(re.findall(r"LOP3\.LUT [^;]*0x6a, !PT", sass)) == 32 * groups
    assert len(re.findall(r"HADD2 R\d+, R\d+, -72, -1032", sass)) == 32 * groups


@pytest.mark.thorough
def test_it_runs() -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), "--target", "sim", "--shape", "128,512"],
        capture_output=True,
        text=True,
        timeout=100,
        env=os.environ | {"NUMPIPE_COMPILE_CHECK": "0"},
    )
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"target: sim; error \d\.\de-0[78]\n", done.stdout)
