"""examples/gemm_body.py: the body form compared with the loop form, simulated and by their
instructions."""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import gemm
import gemm_body

EXAMPLE = Path(gemm_body.__file__)


def example(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(EXAMPLE), *arguments],
        capture_output=True,
        text=True,
        timeout=100,
        env=os.environ | {"NUMPIPE_COMPILE_CHECK": "0"},
    )


@pytest.mark.thorough
def test_simulated_both_forms_have_the_same_error() -> None:
    done = example(
        "--target", "sim", "--shape", "70,90,33", "--shape", "256,128,256", "--dtype", "bf16"
    )
    assert done.returncode == 0 and not done.stderr, done.stderr
    rows = re.findall(r"^ *(\d+,\d+,\d+) +(\S+) +(\S+)$", done.stdout, re.MULTILINE)
    assert [row[0] for row in rows] == ["70,90,33", "256,128,256"]
    assert all(body == loop and 1e-3 < float(body) < 3e-3 for _, body, loop in rows)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "cfg, dtype",
    [
        (gemm.Config(), np.float16),
        pytest.param(gemm.Config(128, 192, 64, 4, 1), ml_dtypes.bfloat16, marks=pytest.mark.soak),
        pytest.param(gemm.Config(), ml_dtypes.bfloat16, marks=pytest.mark.soak),
        pytest.param(gemm.Config(128, 192, 64, 4, 1), np.float16, marks=pytest.mark.soak),
        pytest.param(
            gemm.Config(128, 256, 64, 3, group=4), ml_dtypes.bfloat16, marks=pytest.mark.soak
        ),
    ],
    ids=str,
)
def test_both_forms_have_the_same_ring_code(cfg: gemm.Config, dtype: type) -> None:
    forms = [
        gemm_body.synchronisation(kernel, np.dtype(dtype), cfg)
        for kernel in gemm_body.FORMS.values()
    ]
    assert forms[0] == forms[1]
    names = [instruction.partition(".")[0] for instruction in forms[0]]
    assert names.count("HGMMA") == cfg.tk // 16 and {
        "SYNCS",
        "UTMALDG",
        "UTMASTG",
        "USETMAXREG",
        "BAR",
    } <= set(names)


@pytest.mark.thorough
def test_the_build_gate_passes() -> None:
    a = np.zeros((8, 8), np.float16)
    assert gemm_body.matmul.inspect("gate", a, a) == ()
    ours, loop = (kernel.inspect("resources", a, a) for kernel in (gemm_body.matmul, gemm.matmul))
    # each with its line
    assert [nbytes for _, nbytes in ours.smem] == [nbytes for _, nbytes in loop.smem]
    assert (
        dataclasses.replace(ours, smem=()) == dataclasses.replace(loop, smem=())
        and ours.spill_bytes == 0
    )


@pytest.mark.thorough
def test_it_prints_the_instructions(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE), "--instructions"])
    gemm_body.main()
    assert capsys.readouterr().out.endswith("the loop form has the same\n")
