"""Many kernels in one process: each has its own code, and compile time does not grow.

`test_memory` tests what they leave in memory.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

KERNELS, FULL_EVERY = 20, 5


@pytest.fixture(scope="module")
def report() -> list[dict[str, Any]]:
    """Return the report of tests/kernels/many_kernels.py, run in its own process without other
    kernels."""
    script = Path(__file__).parents[1] / "kernels" / "many_kernels.py"
    ran = subprocess.run(
        [sys.executable, str(script), str(KERNELS), str(FULL_EVERY)],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},
    )
    found: list[dict[str, Any]] = json.loads(ran.stdout)
    return found


def test_the_code_of_each_kernel_holds_its_own_constants_and_no_others(
    report: list[dict[str, Any]],
) -> None:
    assert [kernel["constants"] for kernel in report] == [[number] for number in range(KERNELS)]


def test_no_two_kernels_have_an_entry_of_the_same_name(report: list[dict[str, Any]]) -> None:
    assert len({kernel["entry"] for kernel in report}) == KERNELS


@pytest.mark.parametrize("full", [False, True], ids=["front end", "machine code"])
def test_compiling_gets_no_slower(report: list[dict[str, Any]], full: bool) -> None:
    # the first one imports Numba
    seconds = [kernel["seconds"] for kernel in report if kernel["full"] is full][1:]
    few = min(20, len(seconds) // 3)
    first, last = statistics.median(seconds[:few]), statistics.median(seconds[-few:])
    assert last < 1.8 * first, f"{first:.3f} s at first, {last:.3f} s at last"
