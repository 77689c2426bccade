"""numpipe.bench on the GPU: its timer, and the whole GEMM benchmark if PyTorch is installed."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

from gemm import matmul  # type: ignore[import-not-found]
from numpipe import bench, launch

ROOT = Path(__file__).resolve().parents[2]
ALONE = True  # it measures speed
SIZE = 4096


def test_the_clock_of_a_product_is_one_that_the_card_can_have_and_does_not_reach_its_limit() -> (
    None
):
    a, b = (
        launch.DeviceArray.from_host(
            np.random.default_rng(s).standard_normal((SIZE, SIZE)).astype(np.float16)
        )
        for s in (0, 1)
    )
    c = launch.DeviceArray((SIZE, SIZE), np.dtype(np.float16))
    timer = bench.EventTimer()
    most = (bench.describe()["device"].get("max_sm_mhz") or 2100) * 1.01
    for _ in range(2):  # the first call compiles
        handles = [timer.measure(lambda _: matmul(a, b, out=c), 10, 0) for _ in range(20)]
        times, clocks = (
            [ask(handle) for handle in handles] for ask in (timer.seconds, timer.megahertz)
        )
    assert all(mhz is not None and 300 < mhz <= most for mhz in clocks), clocks
    assert max(clocks) / min(clocks) < 1.5, clocks
    cycles = np.median(times) * np.median(clocks) * 1e6
    assert (
        0.4 < 2 * SIZE**3 / (cycles * bench.TENSOR_FLOPS * bench.describe()["device"]["sms"]) <= 1.0
    )


@pytest.mark.parametrize("waits", [False, True])
def test_a_slow_host_is_not_measured_and_work_that_is_waited_for_is_not_held_for_good(
    waits: bool,
) -> None:
    a, b = (launch.DeviceArray.from_host(np.zeros((256, 256), np.float16)) for _ in range(2))
    c = launch.DeviceArray((256, 256), np.dtype(np.float16))
    timer = bench.EventTimer()

    def slow(_: int) -> None:
        matmul(a, b, out=c)
        if waits:
            timer.synchronize()
        time.sleep(1e-3)

    timer.seconds(timer.measure(slow, 1, 0))  # compiles
    seconds = timer.seconds(timer.measure(slow, 4, 0))
    assert seconds > 5e-4 if waits else seconds < 2e-4


def test_the_gemm_benchmark_runs_and_its_file_says_what_was_reached(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    out = tmp_path / "gemm.json"
    quickly = [
        "--processes",
        "1",
        "--load",
        "0.05",
        "--alone-load",
        "0.05",
        "--idle",
        "0.05",
        "--out",
        str(out),
    ]
    done = subprocess.run(
        [
            sys.executable,
            str(ROOT / "examples" / "benchmarks" / "gemm.py"),
            "--shapes",
            "1024,4096,4096",
            "8x256,256,256",
            "--dtype",
            "bf16",
            *quickly,
        ],
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "geometric mean of 1 of 15" in done.stdout
    rows = bench.read(out).rows
    assert {(row.case["shape"], row.protocol) for row in rows} == {
        (shape, protocol)
        for shape in ("1024,4096,4096", "8x256,256,256")
        for protocol in bench.PROTOCOLS
    }
    for row in rows:
        assert row.fraction is not None and 0 < row.fraction <= 1
        assert row.reference_fraction is not None and 0 < row.reference_fraction <= 1
        assert "clock_mhz" in row.sensors
    runs = json.loads(out.read_text(encoding="utf8"))["runs"]
    assert all(
        run["errors"]["numpipe"] < 3e-3 and run["bit_identical_repeats"] == 20 for run in runs
    )
