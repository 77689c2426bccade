"""Twelve hangs at barriers of six kinds, in both roles.

Each ends within five seconds with an error that names the barrier, the line and who waits there,
and the process survives.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import numpipe
from numpipe import PipelineDeadlock
from tests.kernels.hang_kernels import HANGS, MORE, TWELVE, arrays, given, healthy

ALL = {**HANGS, **MORE}
ALONE = True  # its kernels spin, and each hang has five seconds
PROCESSES = 4


def hung(name: str) -> tuple[PipelineDeadlock, float]:
    """Return (error, seconds) of a hang in a kernel that is already compiled."""
    kernel = ALL[name]
    kernel.compiled(*given(name))
    begin = time.monotonic()
    with pytest.raises(PipelineDeadlock, match=f"kernel {name}, CTA ") as caught:
        kernel(*given(name), target="gpu")
    return caught.value, time.monotonic() - begin


def goes_on() -> None:
    """Check that a correct launch in the same process gives right results, with nothing left to
    report."""
    x, y = arrays()
    healthy(x, y, target="gpu")
    np.testing.assert_array_equal(x, y)
    numpipe.last_failure()


@pytest.mark.parametrize("name", TWELVE)
def test_a_hang_names_the_barrier_and_the_line_and_the_process_goes_on(name: str) -> None:
    _, role, barrier = TWELVE[name]
    for _ in range(2):  # also in a process that has already had a hang
        error, seconds = hung(name)
        assert seconds <= 5 and error.report is not None
        assert re.match(r"(.*/)?hang_kernels\.py:\d+: kernel", str(error))
        there = [
            party
            for party in error.report.waiting
            if party.role == role and re.search(f"blocked on {barrier}", party.did)
        ]
        assert there and all(
            line.filename.endswith("hang_kernels.py") for party in there for line in party.lines
        )
        assert all(party.lines for party in there)
        goes_on()


def test_after_a_missing_part_later_launches_add_parts_right() -> None:
    """Flags that were not consumed are cleared: the next launch on the stream has the same
    workspace."""
    from numpipe import CompilerParams, Workspace, ds

    def summed(y, work):
        for m, n, part in numpipe.split_tiles(1, 1, steps=2, split=2):
            acc = numpipe.combine(numpipe.zeros((64, 64), np.float32) + 1.0, part, work)
            if part.begin == 0:
                y[ds(m * 64, 64), ds(n * 64, 64)] = acc

    for debug in (False, True):
        kernel = numpipe.kernel(
            summed,
            grid=2,
            workspace=Workspace((64, 64), 2),
            compiler_params=CompilerParams(debug=debug),
        )
        hung("a_part_that_nobody_hands_over")
        for _ in range(3):
            y = np.zeros((64, 64), np.float32)
            kernel(y, target="gpu")
            np.testing.assert_array_equal(y, np.full_like(y, 2))


UNBOUNDED = """
import os, sys
sys.path.insert(0, sys.argv[1])
import numpipe
from tests.kernels.hang_kernels import given
from tests.plan.test_hangs import UNBOUNDED
try:
    UNBOUNDED[sys.argv[2]][0](*given("nobody_arrives"), target="gpu")
except numpipe.PipelineDeadlock as error:
    print(error, flush=True)
os._exit(0)  # nothing ends the kernel: the process goes without waiting for it
"""


@pytest.mark.parametrize(
    "what, says",
    [
        (
            "registers",
            r"test_hangs\.py:\d+: kernel more_registers_than_there_are: it has not ended, .* "
            r"waits for registers",
        ),
        (
            "named barriers",
            r"hang_kernels\.py:\d+: kernel a_turn_that_one_warpgroup_leaves_out: it has not ended, "
            r".* waits for others at a named barrier @ hang_kernels\.py:\d+",
        ),
    ],
)
def test_the_host_reports_an_unbounded_wait(what: str, says: str) -> None:
    """In its own process, whose GPU it keeps busy forever."""
    command = [sys.executable, "-c", UNBOUNDED, str(Path(__file__).resolve().parents[2]), what]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "NUMPIPE_DEBUG_TIMEOUT": "0.5"},
    )
    assert re.search(says, done.stdout), done.stdout + done.stderr
