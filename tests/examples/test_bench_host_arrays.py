"""examples/benchmarks/host_arrays.py: the limits that calls are compared with, and how results of
processes are combined."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
RATES = {"PCIe in": 50.0, "PCIe out": 40.0, "memcpy": 10.0, "memcpy, threads": 25.0}
MATRIX = 2 * 8192 * 8192 * 1e-9  # GB


@pytest.fixture(scope="module")
def benchmark() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "examples" / "benchmarks" / "host_arrays.py"))


def test_the_bound_counts_the_bytes_that_each_way_has_to_move(benchmark: dict[str, Any]) -> None:
    fresh, given, in_place = (
        benchmark["bound"](call, 8192, 1e-3, RATES, "memcpy, threads")
        for call in benchmark["CALLS"]
    )
    # threads limit the input copy; the output is written in place
    assert fresh == pytest.approx(2 * MATRIX / 25 + MATRIX / 40)
    assert given == pytest.approx(3 * MATRIX / 25 + MATRIX / 25)
    assert in_place == pytest.approx(3 * MATRIX / 50 + MATRIX / 40)
    assert benchmark["bound"]("matmul(a, b)", 8192, 1e-3, RATES, "memcpy") == pytest.approx(
        2 * MATRIX / 10 + MATRIX / 40
    )
    assert benchmark["bound"]("matmul(a, b)", 8192, 1.0, RATES, "memcpy") == 1.0
    fast = RATES | {"memcpy": 100.0}
    assert benchmark["bound"]("matmul(a, b)", 8192, 1e-3, fast, "memcpy") == pytest.approx(
        2 * MATRIX / 50 + MATRIX / 40
    )


def test_ratios_are_taken_within_a_process_and_then_their_median(benchmark: dict[str, Any]) -> None:
    runs = [
        {
            "rates": RATES,
            "threads": 8,
            "calls": [
                {
                    "size": 8,
                    "call": "c",
                    "seconds": [9.0, s, s],
                    "kernel": 1.0,
                    "bound": b,
                    "bound, threads": b / 2,
                }
            ],
        }
        for s, b in ((2.0, 1.0), (3.0, 2.0), (4.0, 4.0))
    ]
    found = benchmark["summary"](runs)
    assert found["calls"] == [
        {
            "size": 8,
            "call": "c",
            "seconds": 3.0,
            "kernel": 1.0,
            "bound": 2.0,
            "ratio": 1.5,
            "bound, threads": 1.0,
            "ratio, threads": 3.0,
        }
    ]
    assert "1.50" in benchmark["table"](found) and "8 threads" in benchmark["table"](found)
