"""Kernels built with debug=True that hang: each ends in the simulator's error, and the process
survives."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import numpipe
from numpipe import CompilerParams, PipelineDeadlock
from tests.kernels import hang_kernels
from tests.kernels.hang_kernels import HANGS, arrays, healthy

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))
from gemm import matmul

ALONE = True  # its kernels spin, and a hang has a time limit
PROCESSES = 4


def waits(report: numpipe.reports.Report) -> dict[int, tuple[str | None, int | None]]:
    """Return what each warpgroup waits for: the barrier and the parity of the phase.

    Of some barriers the GPU knows nothing else.
    """
    return {
        party.warpgroup: (party.barrier, party.phase and party.phase & 1)
        for party in report.waiting
        if party.barrier is not None
    }


@pytest.mark.parametrize("name", HANGS)
def test_a_kernel_that_hangs_ends_in_the_error_of_the_simulator(name: str) -> None:
    x, y = arrays()
    begin = time.monotonic()
    with pytest.raises(PipelineDeadlock, match=f"kernel {name}, CTA .* timed out") as caught:
        HANGS[name](x, y, target="gpu")
    assert time.monotonic() - begin < 10
    report = caught.value.report
    assert report is not None and report.kernel == name
    x, y = arrays()
    healthy(x, y, target="gpu")
    np.testing.assert_array_equal(x, y)
    numpipe.last_failure()
    with pytest.raises(PipelineDeadlock) as simulated:
        HANGS[name].simulate(*arrays())
    expected = simulated.value.report
    assert expected is not None
    # the simulator stops at the step that lacks an arrival
    assert expected.waiting or "did not arrive" in expected.text
    if expected.waiting and name != "polling_for_ever":  # polling is not waiting
        assert waits(report) == waits(expected)
        lacking = {
            barrier.name: (barrier.pending, barrier.missing_bytes) for barrier in report.barriers
        }
        # bytes in units of 2048: none here
        assert lacking == {
            barrier.name: (barrier.pending, barrier.missing_bytes)
            for barrier in expected.barriers
            if barrier.name in lacking
        }


def test_the_next_call_raises_what_a_call_on_device_arrays_left_behind() -> None:
    torch = pytest.importorskip("torch")
    x, y = (torch.from_numpy(array).cuda() for array in arrays())
    HANGS["nobody_arrives"](x, y)
    torch.cuda.synchronize()
    with pytest.raises(PipelineDeadlock, match="kernel nobody_arrives"):
        healthy(x, y)
    healthy(x, y)
    assert torch.equal(x, y)
    HANGS["each_waits_for_the_other"](x, y)
    with pytest.raises(PipelineDeadlock, match="kernel each_waits_for_the_other"):
        numpipe.last_failure()
    numpipe.last_failure()


def test_a_hang_under_jitter_is_the_same() -> None:
    kernel = numpipe.kernel(
        hang_kernels.HANGS["a_slot_is_not_released"].function,
        grid=2,
        compiler_params=CompilerParams(debug=True, jitter=7),
    )
    with pytest.raises(PipelineDeadlock, match=r"consumed\[1\]"):
        kernel(*arrays(), target="gpu")


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("debug", [False, True])
def test_jitter_and_debug_change_no_result(seed: int, debug: bool) -> None:
    params = CompilerParams(debug=debug, jitter=seed)
    x, y = arrays()
    numpipe.kernel(healthy.function, compiler_params=params)(x, y, target="gpu")
    np.testing.assert_array_equal(x, y)
    a, b = (
        np.random.default_rng(seed).standard_normal((500, 456), np.float32).astype(np.float16)
        for _ in range(2)
    )
    shaken = numpipe.Kernel(
        matmul.function, dataclasses.replace(matmul.options, compiler_params=params)
    )
    np.testing.assert_array_equal(shaken(a, b, target="gpu"), matmul(a, b, target="gpu"))


NEVER = """
import sys
sys.path[:0] = {path!r}
from tests.kernels import hang_kernels
hang_kernels.never(*hang_kernels.arrays(), target="gpu")
"""


def test_a_kernel_that_the_flag_does_not_end_traps() -> None:
    """In its own process, because CUDA rejects further work in it."""
    begin = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", NEVER.format(path=sys.path)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1 and "LaunchError" in done.stderr and "CUDA_ERROR_" in done.stderr, (
        done.stderr
    )
    assert time.monotonic() - begin < 30
